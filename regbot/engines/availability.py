"""Find out whether a sandbox works on this machine, by running small programs in it: one that only writes its record,
and one that tries to escape."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from regbot.engines import escape
from regbot.engines.launch import EngineError, Launch, LaunchResult
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import bubblewrap_version
from regbot.records.config import SandboxSettings

TRY_S = 60.0
RECORD_MB = 4
"""Size limit of a program's record folder in MiB. The escape program tries to write more."""
PIDS = 64
"""Limit on the processes of the escape program, which tries to start more."""


def unavailable_reason(sandbox: SandboxSettings | None = None) -> str:
    """Return why ``sandbox`` (by default one with the default limits) does not work here, with advice; '' if a short
    program worked in it."""
    bubblewrap = bubblewrap_version()
    if not sys.platform.startswith("linux"):
        return "a sandbox needs Linux, and this is another system"
    if not bubblewrap:
        return "bubblewrap is not installed; install it: apt-get install bubblewrap, or dnf install bubblewrap"
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        try:
            result = _run_program(sandbox or SandboxSettings(), Path(name), "/bin/sh", "-c", ": >record/made")
            why = ""
            if result.exit_code != 0:
                why = f"a test program ended with exit code {result.exit_code}: {result.log_tail[-300:]}"
            elif not Path(name, "record", "made").exists():
                why = "a test program could not write its record"
        except EngineError as error:
            why = str(error)
    advice = "docs/operator.md ('On a machine without a sandbox') says what may forbid it"
    return f"{bubblewrap} does not work on this machine: {why}; {advice}" if why else ""


def try_escapes(sandbox: SandboxSettings | None) -> dict[str, bool]:
    """Run the escape program in ``sandbox``, or without one if it is None. Return for each attempt whether it
    succeeded, mostly by the program's own report. Only the attempt to write outside is checked here. Raises
    EngineError."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="regbot-") as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder = Path(name)
        for file_name in ("private", "outside"):
            (folder / file_name).write_text(secret)
        (folder / "work").mkdir()
        targets = {
            "harness": str(resources.files("regbot") / "cli" / "app.py"),  # a file of regbot's own code
            "private": str(folder / "private"),  # a file that the sandbox must not show
            "outside": str(folder / "outside"),  # a file that the program must not change
            "secret": secret,  # a text in the environment of a process outside the sandbox
            "port": server.getsockname()[1],  # a port on which this process listens
            "record": str(folder / "work" / "record"),
            "limit_mb": RECORD_MB,
            "pids": PIDS,
        }
        python = (sys.executable, "-I", "-S", "-c")
        with subprocess.Popen([*python, "import signal; signal.pause()"], env={"SECRET": secret}) as secret_process:
            try:
                program = Path(escape.__file__).read_text(encoding="utf-8")
                limited = sandbox and sandbox.model_copy(update={"pids": PIDS})
                result = _run_program(limited, folder / "work", *python, program, json.dumps(targets))
                outcomes: dict[str, bool] = dict(map(json.loads, result.log_tail.splitlines()))
                if result.excess:  # the program was ended for what it wrote
                    outcomes.setdefault(escape.TOO_MUCH, False)
                if outcomes.keys() != escape.ATTEMPTS.keys():
                    raise ValueError("an attempt is missing")
            except ValueError as error:
                end = f"exit code {result.exit_code}: {result.log_tail[-300:]}"
                raise EngineError(f"the escape program ended with {end}") from error
            finally:
                secret_process.kill()
        # Inside the sandbox, the path of "outside" may lead to a private folder, so the program's report is no proof.
        return {**outcomes, escape.OUTSIDE: (folder / "outside").read_text(errors="replace") != secret}


def _run_program(sandbox: SandboxSettings | None, folder: Path, *command: str) -> LaunchResult:
    launch = Launch(
        command=command,
        cwd=folder,
        env={"PATH": os.defpath},
        log=folder / "output.log",
        record_dir=folder / "record",
        timeout_s=TRY_S,
        max_dir_bytes=RECORD_MB * 2**20,
    )
    return LocalEngine(sandbox=sandbox).run(launch)
