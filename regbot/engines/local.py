"""The local engine: runs a launch as a process of this machine, under a supervisor that kills all its processes.
Without a sandbox, a guest may do whatever the user that runs regbot may do."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from regbot.engines.engine import Needs, Seat
from regbot.engines.health.machine import this_node, without_gpus
from regbot.engines.health.monitor import Monitor, visible_devices
from regbot.engines.launch import EngineError, Launch, LaunchResult
from regbot.engines.sandbox import bubblewrap_version, confine
from regbot.engines.torchrun import single_node_command
from regbot.records.config import SandboxSettings
from regbot.records.run import Allocation, Node
from regbot.records.text.printable import ESCAPE, printable

TAIL_LINES = 40
TAIL_CHARACTERS = 4000
_TAIL_BYTES = 8 * TAIL_CHARACTERS
BACKSTOP_S = 60.0
"""Time that a supervisor gets in addition to the launch's limit, to kill stuck processes and to read a folder of many
files."""
TICK_S = 1.0

# Variables of regbot's environment that a guest may see.
_ALLOWED = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TERM|VIRTUAL_ENV|CONDA_PREFIX|SSL_CERT_FILE|SSL_CERT_DIR"
    r"|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CC|CXX|MAX_JOBS|TOKENIZERS_PARALLELISM"
    r"|(LC|CUDA|CUDNN|CUBLAS|NVIDIA|NVTE|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NCCL|NVSHMEM|GLOO|UCX|FI|OMP|MKL|KMP|GOMP"
    r"|OPENBLAS|ROCM|ROCR|ROCBLAS|HIP|HSA|RCCL|MIOPEN|XLA|JAX|TPU|LIBTPU|HF|EP|DEEPEP|HYBRID_EP)_\w+"
    r"|NUM_OF_HYBRID_EP_\w+|NUM_OF_\w+_API|NVLINK_DOMAIN_SIZE|USE_MNNVL|USE_NIXL)"  # these are of HybridEP
)
_SECRET = re.compile(
    r"(?!NUM_OF_TOKENS_PER_CHUNK_\w+_API$).*((^|_)(TOKEN|KEY|PASSWORD|PASSWD|CREDENTIAL|AUTH)S?(_|$)|SECRET)", re.I
)
"""Names that look like those of secrets, such as HF_TOKEN. A guest must not see them. NUM_OF_TOKENS_PER_CHUNK_..._API
is a setting of HybridEP."""


class LocalEngine:
    """Runs launches on this machine, which is its only seat. Thread-safe."""

    name = "local"

    def __init__(
        self, lock: Path | None = None, sandbox: SandboxSettings | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        """``lock`` is a file that all sessions on this machine share, so that only one of them is timed at once.
        ``check`` is called about once a second during a launch, which is aborted if it raises."""
        self._lock, self.sandbox, self._check = lock, sandbox, check

    def run(self, launch: Launch) -> LaunchResult:
        """Run ``launch`` until it ends. Raises EngineError if it cannot be started or its supervisor is killed. If a
        guest without a sandbox kills its supervisor, the kernel kills only the guest's main process. In a sandbox no
        process can stay."""
        for folder in (launch.record_dir, launch.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        request = {
            **vars(launch),
            "command": single_node_command(launch) if launch.ranks else launch.command,
            "env": dict(launch.env),
            "log": launch.log.absolute(),
            "record_dir": launch.record_dir.absolute(),
        }
        if self.sandbox is not None:
            request = confine(request, launch, self.sandbox)
        output, exit_code = _run_supervisor(json.dumps(request, default=str).encode(), launch, self._check)
        try:
            report: dict[str, Any] = json.loads(output)
        except ValueError as error:
            last_output = plain_tail(output.decode("utf-8", "replace"))
            why = last_output or "it was killed from outside, by the guest or for lack of memory"
            raise EngineError(
                f"{launch.command[0]}: its supervisor ended without a report (exit code {exit_code}): {why}; "
                "the result of this run is unknown",
                "end what it left behind ('ps' shows it), and run it again",
            ) from error
        if "error" in report:
            raise EngineError(f"{launch.command[0]}: {report['error']}")
        return LaunchResult(**report, log_tail=log_tail(launch.log))

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        with FileLock(self._lock) if self._lock is not None else nullcontext():
            yield _LocalSeat(self, self.describe(needs))

    @property
    def unlocked_seat(self) -> Seat:
        return _LocalSeat(self, this_node())

    @property
    def gpus(self) -> int:
        return len(this_node().gpus)

    def describe(self, needs: Needs) -> Node:
        return this_node() if needs.may_use_gpus else without_gpus(this_node())

    def kind(self, needs: Needs) -> tuple[str, ...]:
        node = self.describe(needs)
        return node.node_class, str(node.driver), str(node.container)


class _LocalSeat:
    def __init__(self, engine: LocalEngine, node: Node) -> None:
        self._engine = engine
        self.node = node

    @property
    def allocation(self) -> Allocation:
        sandbox = bubblewrap_version() if self._engine.sandbox is not None else ""
        return Allocation(engine=self._engine.name, hosts=[self.node.name], sandbox=sandbox)

    def run(self, launch: Launch) -> LaunchResult:
        # With ranks, only the first GPUs are monitored, one for each rank.
        devices, has_gpus = visible_devices(launch.env), bool(self.node.gpus)
        with Monitor(devices, launch.ranks or None, expected=has_gpus, in_steps=launch.is_in_steps) as monitor:
            result = self._engine.run(launch)
        return replace(result, health=monitor.health, warnings=tuple(monitor.warnings))


def _run_supervisor(request: bytes, launch: Launch, on_tick: Callable[[], None]) -> tuple[bytes, int]:
    """Start the supervisor, write ``request`` to its standard input, and wait for its report. If standard input closes,
    regbot is gone, and the supervisor kills every process that it started. Return its output and its exit code. The
    process has ended when this function returns or raises. ``on_tick`` is called about once a second. If it raises, the
    launch is aborted. Raises EngineError if there is no report BACKSTOP_S seconds after the launch's limit."""
    process = subprocess.Popen(
        (sys.executable, "-I", "-S", "-B", "-X", "utf8", str(Path(__file__).with_name("supervisor.py"))),
        cwd="/",
        env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        close_fds=True,  # a process that inherits this standard input would keep it open after regbot is gone
        start_new_session=True,  # regbot itself handles an interrupt from the terminal
    )
    # The pipe stays open during the launch. ``communicate`` would close it.
    pipe, process.stdin = process.stdin, None
    assert pipe is not None
    limit_s = launch.timeout_s + BACKSTOP_S
    deadline = time.monotonic() + limit_s
    with process:
        try:
            write_all(pipe.fileno(), request + b"\n")
            while True:
                with suppress(subprocess.TimeoutExpired):
                    output, _ = process.communicate(timeout=TICK_S)
                    return output, process.returncode
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"{launch.command[0]}: its supervisor did not report within {limit_s:.0f} s",
                        "look for processes stuck in a driver on this machine ('ps' shows them in state D)",
                    )
                on_tick()
        finally:
            pipe.close()  # the supervisor then kills all processes
            try:
                process.wait(timeout=BACKSTOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def write_all(pipe: int, data: bytes) -> None:
    """Write all ``data``. If nobody reads it any more, do nothing: the reader's output says why."""
    unwritten = memoryview(data)
    with suppress(BrokenPipeError):
        while unwritten:  # one call may write only a part
            unwritten = unwritten[os.write(pipe, unwritten) :]


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process's environment that a guest may see, plus ``extra`` unchanged. Only those
    that training needs are allowed, so a secret with an unexpected name is left out."""
    harmless = [name for name in os.environ if _ALLOWED.fullmatch(name) and not _SECRET.match(name)]
    return {**{name: os.environ[name] for name in harmless}, **extra}


def log_tail(log: Path) -> str:
    """Return the end of a log as text that is safe to print; '' if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return plain_tail(file.read(_TAIL_BYTES).decode("utf-8", "replace"))
    except OSError:
        return ""


def plain_tail(text: str) -> str:
    """Return the last lines of ``text`` without terminal escapes. Of a progress bar only its last state is kept."""
    lines = [printable(line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in ESCAPE.sub("", text).split("\n")]
    kept_lines = "\n".join(lines).strip("\n").split("\n")[-TAIL_LINES:]
    return "\n".join(kept_lines)[-TAIL_CHARACTERS:]
