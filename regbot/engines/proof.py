"""Test a sandbox: run a program in it that tries to escape, and check which attempts succeeded."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from regbot.engines import escape
from regbot.engines.launch import EngineError, Launch
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import Sandbox

TIMEOUT_S = 60.0
RECORD_MB = 4
"""Size limit of the program's record folder in MiB. The program tries to write more."""
PIDS = 64
"""Limit on the program's processes. The program tries to start more."""
MAX_OUTPUT_BYTES = 2**16
_PROGRAM = Path(__file__).with_name("escape.py")


@dataclass(frozen=True)
class SandboxProof:
    stopped: list[str]
    succeeded: list[str]
    fault: str = ""
    """Why the attempts could not be run; '' if they were run."""


def prove(sandbox: Sandbox | None) -> SandboxProof:
    """Run the escape program in ``sandbox``, or without one if it is None. The result is mostly the program's own
    report. Only the attempt to write outside is checked here."""
    engine = LocalEngine(sandbox=None if sandbox is None else replace(sandbox, pids=PIDS))
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="regbot-") as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder = Path(name)
        for file_name in ("private", "outside"):
            (folder / file_name).write_text(secret)
        (folder / "work").mkdir()
        _, port = server.getsockname()
        targets = {
            "harness": str(resources.files("regbot") / "cli" / "app.py"),  # a file of regbot's own code
            "private": str(folder / "private"),  # a file that the sandbox must not show
            "outside": str(folder / "outside"),  # a file that the program must not change
            "secret": secret,  # a text in the environment of a process outside the sandbox
            "port": port,  # a port on which this process listens
            "record": str(folder / "record"),
            "limit_mb": RECORD_MB,  # limit of the record folder
            "pids": PIDS,  # limit of processes
        }
        launch = Launch(
            command=(sys.executable, "-I", "-S", "-c", _PROGRAM.read_text(encoding="utf-8"), json.dumps(targets)),
            cwd=folder / "work",
            env={"PATH": os.defpath},
            log=folder / "output.log",
            record_dir=folder / "record",
            timeout_s=TIMEOUT_S,
            max_output_bytes=MAX_OUTPUT_BYTES,
            max_dir_bytes=RECORD_MB * 2**20,
        )
        command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
        with subprocess.Popen(command, env={"SECRET": secret}) as secret_process:
            try:
                result = engine.run(launch)
                outcomes: dict[str, bool] = json.loads(result.log_tail)
            except EngineError as error:
                return SandboxProof(stopped=[], succeeded=[], fault=str(error))
            except ValueError:
                fault = f"the escape program ended with exit code {result.exit_code}: {result.log_tail[-300:]}"
                return SandboxProof(stopped=[], succeeded=[], fault=fault)
            finally:
                secret_process.kill()
        # Inside the sandbox, the path of "outside" may lead to a private folder, so the program's report is no proof.
        outcomes[escape.OUTSIDE] = (folder / "outside").read_text(errors="replace") != secret
    succeeded = [attempt for attempt in escape.ATTEMPTS if outcomes[attempt]]
    return SandboxProof([attempt for attempt in escape.ATTEMPTS if not outcomes[attempt]], succeeded)
