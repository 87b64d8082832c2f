"""The local engine: a launch as a process of this machine, under a supervisor that leaves nothing behind.

It bounds time, output and the record folder. It confines a guest only with a sandbox; without one, what may be read,
and whether there is a network, is the business of whatever regbot is started in.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import stat
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from regbot.engines.conversation import Answer, converse
from regbot.engines.engine import Ended, EngineError, Launch, Needs, Seat
from regbot.engines.sandbox import Sandbox, confined, version
from regbot.engines.torchrun import standalone
from regbot.health import Monitor, visible_devices
from regbot.node import this_node
from regbot.records.run import Allocation, Node
from regbot.text import ESCAPE

TAIL_LINES = 40
TAIL_CHARACTERS = 4000
_TAIL_BYTES = 8 * TAIL_CHARACTERS
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
    """Runs launches on this machine, of which it is the only seat. Any number of threads may ask."""

    name = "local"
    slots = 1
    sandbox: Sandbox | None = None
    _stamps = True

    def __init__(self, lock: Path | None = None, sandbox: Sandbox | None = None, stamps: bool = True) -> None:
        """``lock``: the file that sessions on this machine wait for, so that they do not time each other.
        ``sandbox`` confines every launch. ``stamps``: whether the times of records are kept here, and not by another
        node that shares their folder."""
        self._lock, self.sandbox, self._stamps = lock, sandbox, stamps

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` to its end. Raises EngineError where it cannot be started or its supervisor is killed.

        A guest may kill its supervisor, and the kernel then ends the main process only. The others are found by a
        nonce in their environment and killed (on Linux). One that has overwritten its environment, or that lets nobody
        read it, is not found and goes on running; only a sandbox with a process namespace of its own ends that too.
        """
        nonce = secrets.token_hex(16)
        for folder in (launch.record_dir, launch.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        order = order_of(launch, nonce) | {"stamp": self._stamps}
        if self.sandbox is not None:
            order = confined(order, launch, self.sandbox)
        lost = True
        try:
            answer = converse(
                (sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_SUPERVISOR)),
                {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
                json.dumps(order).encode(),
                launch.command[0],
                launch.timeout_s,
            )
            lost = answer.code != 0
        finally:
            if lost:  # it did not come to its own end, in which it leaves nothing behind
                _sweep(nonce)
        report = _report(answer, launch.command[0])
        if "error" in report:
            raise EngineError(f"{launch.command[0]}: {report['error']}")
        return Ended(**report, log_tail=log_tail(launch.log))

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        """This machine, once no other session is timed on it."""
        del needs  # what a shape needs is told where the shape is chosen
        if self._lock is not None:
            self._lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._lock) if self._lock is not None else nullcontext():
            yield self.here

    @property
    def here(self) -> Seat:
        """This machine, without waiting for anybody."""
        return _ThisMachine(self)

    @property
    def gpus(self) -> int:
        return len(this_node().gpus)

    def describe(self, needs: Needs) -> Node:
        """This machine."""
        del needs
        return this_node()

    def kind(self, needs: Needs) -> tuple[str, ...]:
        """Of this machine."""
        del needs
        node = this_node()
        return node.node_class, str(node.driver), str(node.container)


class _ThisMachine:
    """The seat of the local engine: everything is measured here, one run after the other."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    @property
    def node(self) -> Node:
        return this_node()

    @property
    def allocation(self) -> Allocation:
        sandbox = version() if self._engine.sandbox is not None else ""
        return Allocation(engine=self._engine.name, hosts=[this_node().name], sandbox=sandbox)

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` to its end, and watch the machine meanwhile. Raises EngineError."""
        monitor = Monitor(visible_devices(launch.env), first=launch.ranks or None, expected=bool(this_node().gpus))
        with monitor:
            ended = self._engine.run(launch)
        return replace(ended, health=monitor.health, warnings=tuple(monitor.warnings))


def order_of(launch: Launch, nonce: str) -> dict[str, Any]:
    """What a supervisor is told of a launch. ``nonce`` marks its processes."""
    return {
        "command": standalone(launch) if launch.ranks else launch.command,
        "cwd": str(launch.cwd),
        "env": {**launch.env, NONCE: nonce},
        "log": str(launch.log.absolute()),
        "record_dir": str(launch.record_dir.absolute()),
        "timeout_s": launch.timeout_s,
        "max_output_bytes": launch.max_output_bytes,
        "max_dir_bytes": launch.max_dir_bytes,
    }


def _report(answer: Answer, name: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(answer.text)
    except ValueError as error:
        said = plain_tail(answer.text.decode("utf-8", "replace"))
        why = said or "it was killed from outside, by the guest or for want of memory"
        raise EngineError(
            f"{name}: its supervisor ended without a report (exit code {answer.code}): {why}; "
            "nothing is known about this run; run it again"
        ) from error
    return report


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
