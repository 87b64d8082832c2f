"""The local engine: a launch as a process of this machine, under a supervisor that leaves nothing behind.

It bounds time, output and the record folder. It does not confine the guest: what may be read, and whether there is a
network, is the business of the sandbox that regbot is started in.
"""

import contextlib
import json
import os
import re
import secrets
import select
import signal
import stat
import subprocess
import sys
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regbot.engines.engine import Ended, EngineError, Launch
from regbot.text import ESCAPE

TAIL_LINES = 40
TAIL_CHARACTERS = 4000
_TAIL_BYTES = 8 * TAIL_CHARACTERS
BACKSTOP_S = 60.0
"""How much longer than its launch a supervisor may take: killing what is stuck, reading a folder of many files."""
SWEEP_S = 10.0
"""How long the processes of a lost supervisor may withstand SIGKILL."""
NONCE = "REGBOT_LAUNCH"
"""Variable of the guest's environment that tells the processes of one launch from all others."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")

_ALLOWED = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TERM|VIRTUAL_ENV|CONDA_PREFIX|SSL_CERT_FILE|SSL_CERT_DIR"
    r"|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CC|CXX|MAX_JOBS|TOKENIZERS_PARALLELISM"
    r"|(LC|CUDA|CUDNN|CUBLAS|NVIDIA|NVTE|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NCCL|NVSHMEM|GLOO|UCX|FI|OMP|MKL|KMP|GOMP"
    r"|OPENBLAS|ROCM|ROCR|ROCBLAS|HIP|HSA|RCCL|MIOPEN|XLA|JAX|TPU|LIBTPU|HF)_\w+)"
)
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|PASSWORD|PASSWD|CREDENTIAL|AUTH)S?(_|$)|SECRET", re.IGNORECASE)


class LocalEngine:
    """Runs launches on this machine. Keeps no state: any number of threads may run launches at the same time."""

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` to its end. Raises EngineError where it cannot be started or its supervisor is killed.

        A guest may kill its supervisor, and the kernel then ends the main process only. The others are found by a
        nonce in their environment and killed (on Linux). One that has overwritten its environment, or that lets nobody
        read it, is not found and goes on running; only a sandbox with a process namespace of its own ends that too.
        """
        nonce = secrets.token_hex(16)
        for folder in (launch.record_dir, launch.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_SUPERVISOR)],
            cwd="/",
            env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            close_fds=True,  # a supervisor that held another's standard input open would keep it from seeing our end
            start_new_session=True,  # an interrupt from the terminal is regbot's to handle
        )
        with supervisor:
            try:
                report = _converse(supervisor, launch, nonce)
            finally:
                _end(supervisor)
                if supervisor.returncode:  # it did not come to its own end, in which it leaves nothing behind
                    _sweep(nonce)
        if "error" in report:
            raise EngineError(f"{launch.command[0]}: {report['error']}")
        return Ended(**report, log_tail=log_tail(launch.log))


def _converse(supervisor: subprocess.Popen[bytes], launch: Launch, nonce: str) -> dict[str, Any]:
    """Hand over the launch, wait for the report. Standard input stays open: its end is the sign to kill everything."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    order = {
        "command": launch.command,
        "cwd": str(launch.cwd),
        "env": {**launch.env, NONCE: nonce},
        "log": str(launch.log.absolute()),
        "record_dir": str(launch.record_dir.absolute()),
        "timeout_s": launch.timeout_s,
        "max_output_bytes": launch.max_output_bytes,
        "max_dir_bytes": launch.max_dir_bytes,
    }
    answer = b""
    with contextlib.suppress(BrokenPipeError):  # it died at once; what it said is read below
        _write_all(supervisor.stdin.fileno(), json.dumps(order).encode() + b"\n")
    deadline = time.monotonic() + launch.timeout_s + BACKSTOP_S
    poll = select.poll()
    poll.register(supervisor.stdout, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        data = os.read(supervisor.stdout.fileno(), 65536)
        if not data:
            break
        answer += data
    else:
        raise EngineError(
            f"{launch.command[0]}: its supervisor did not report within {launch.timeout_s + BACKSTOP_S:.0f} s; "
            "look for processes stuck in a driver on this machine ('ps' shows them in state D)"
        )
    try:
        report: dict[str, Any] = json.loads(answer)
    except ValueError as error:
        code = supervisor.wait()
        said = plain_tail(answer.decode("utf-8", "replace"))
        why = said or "it was killed from outside, by the guest or for want of memory"
        raise EngineError(
            f"{launch.command[0]}: its supervisor ended without a report (exit code {code}): {why}; "
            "nothing is known about this run; run it again"
        ) from error
    return report


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """Have the supervisor end everything, whatever happened here; it is gone when this returns."""
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    try:
        supervisor.wait(timeout=BACKSTOP_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()


def _sweep(nonce: str) -> None:
    """Kill every process that carries ``nonce``. Raises EngineError where that does not succeed."""
    until = time.monotonic() + SWEEP_S
    while found := _carrying(f"{NONCE}={nonce}".encode()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise EngineError(
                f"the supervisor was lost and its processes {', '.join(map(str, found[:10]))} could not be killed; "
                "look for what they are stuck in ('ps' shows it) and end them before the next run"
            )
        time.sleep(0.01)


def _carrying(variable: bytes) -> list[int]:
    """The processes started with ``variable``, NAME=VALUE, as far as /proc shows their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if variable in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What of this process's environment a guest may see, and ``extra``, which is passed as it is.

    A list of what training needs, so that a secret under a name nobody thought of stays out too.
    """
    kept = {name: value for name, value in os.environ.items() if _ALLOWED.fullmatch(name) and not _SECRET.search(name)}
    return {**kept, **extra}


def log_tail(log: Path) -> str:
    """The end of a log as text that is safe to print; '' where there is none."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        file.seek(-min(os.fstat(descriptor).st_size, _TAIL_BYTES), os.SEEK_END)
        return plain_tail(file.read(_TAIL_BYTES).decode("utf-8", "replace"))


def plain_tail(text: str) -> str:
    """The last lines of ``text`` without escapes and control characters; of a progress bar, what it showed last."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in ESCAPE.sub("", text).split("\n")]
    plain = ["".join(c for c in line if c == "\t" or unicodedata.category(c)[0] != "C").rstrip() for line in lines]
    return "\n".join("\n".join(plain).strip("\n").split("\n")[-TAIL_LINES:])[-TAIL_CHARACTERS:]
