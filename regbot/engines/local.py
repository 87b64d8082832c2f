"""The local engine: runs a launch as a process of this machine, under a supervisor that kills all its processes.
Without a sandbox, a guest may do whatever the user that runs regbot may do."""

import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from regbot.engines.conversation import run_supervisor
from regbot.engines.engine import Needs, Seat
from regbot.engines.health import Monitor, StepMarks, visible_devices
from regbot.engines.health.machine import this_node, without_gpus
from regbot.engines.launch import EngineError, Launch, LaunchResult
from regbot.engines.sandbox import Sandbox, bubblewrap_version, confine
from regbot.engines.torchrun import single_node_command
from regbot.records.run import Allocation, Node
from regbot.records.text.printable import ESCAPE

TAIL_LINES = 40
TAIL_CHARACTERS = 4000
_TAIL_BYTES = 8 * TAIL_CHARACTERS
_SUPERVISOR = Path(__file__).with_name("supervisor.py")

# Variables of regbot's environment that a guest may see.
_ALLOWED = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TERM|VIRTUAL_ENV|CONDA_PREFIX|SSL_CERT_FILE|SSL_CERT_DIR"
    r"|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CC|CXX|MAX_JOBS|TOKENIZERS_PARALLELISM"
    r"|(LC|CUDA|CUDNN|CUBLAS|NVIDIA|NVTE|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NCCL|NVSHMEM|GLOO|UCX|FI|OMP|MKL|KMP|GOMP"
    r"|OPENBLAS|ROCM|ROCR|ROCBLAS|HIP|HSA|RCCL|MIOPEN|XLA|JAX|TPU|LIBTPU|HF|EP|DEEPEP|HYBRID_EP)_\w+"
    r"|NUM_OF_HYBRID_EP_\w+|NUM_OF_\w+_API|NVLINK_DOMAIN_SIZE|USE_MNNVL|USE_NIXL)"  # these are of HybridEP
)
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|PASSWORD|PASSWD|CREDENTIAL|AUTH)S?(_|$)|SECRET", re.IGNORECASE)
"""Names that look like those of secrets, such as HF_TOKEN. A guest must not see them."""
_TOKEN_COUNT = re.compile(r"NUM_OF_TOKENS_PER_CHUNK_\w+_API")
"""Variables of HybridEP. Their names look like those of secrets, but a guest may see them."""


class LocalEngine:
    """Runs launches on this machine, which is its only seat. Thread-safe."""

    name = "local"

    def __init__(
        self,
        lock: Path | None = None,
        sandbox: Sandbox | None = None,
        check: Callable[[], None] = lambda: None,
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
            "command": single_node_command(launch) if launch.ranks else launch.command,
            "cwd": str(launch.cwd),
            "env": dict(launch.env),
            "log": str(launch.log.absolute()),
            "record_dir": str(launch.record_dir.absolute()),
            "timeout_s": launch.timeout_s,
            "max_output_bytes": launch.max_output_bytes,
            "max_dir_bytes": launch.max_dir_bytes,
        }
        if self.sandbox is not None:
            request = confine(request, launch, self.sandbox)
        output, exit_code = run_supervisor(
            (sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_SUPERVISOR)),
            {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            json.dumps(request).encode(),
            launch.command[0],
            launch.timeout_s,
            self._check,
        )
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
        seat = _LocalSeat(self, self.describe(needs))
        if self._lock is None:
            yield seat
            return
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._lock):
            yield seat

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
        marks = launch.timed_between and StepMarks(*(launch.record_dir / name for name in launch.timed_between))
        monitor = Monitor(
            visible_devices(launch.env),
            first=launch.ranks or None,  # with ranks, only the first GPUs are monitored, one for each rank
            expected=bool(self.node.gpus),  # whether there are GPUs to monitor
            steps=marks,
        )
        with monitor:
            result = self._engine.run(launch)
        return replace(result, health=monitor.health, warnings=tuple(monitor.warnings))


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process's environment that a guest may see, plus ``extra`` unchanged. Only those
    that training needs are allowed, so a secret with an unexpected name is left out."""
    allowed = [name for name in os.environ if _ALLOWED.fullmatch(name)]
    harmless = [name for name in allowed if not _SECRET.search(name) or _TOKEN_COUNT.fullmatch(name)]
    return {**{name: os.environ[name] for name in harmless}, **extra}


def log_tail(log: Path) -> str:
    """Return the end of a log as text that is safe to print; '' if the log cannot be read."""
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
    """Return the last lines of ``text`` without terminal escapes. Of a progress bar only its last state is kept."""
    lines = []
    for line in ESCAPE.sub("", text).split("\n"):
        _, _, last_state = line.rstrip("\r").rpartition("\r")
        printable = [char for char in last_state if char == "\t" or not unicodedata.category(char).startswith("C")]
        lines.append("".join(printable).rstrip())
    kept_lines = "\n".join(lines).strip("\n").split("\n")[-TAIL_LINES:]
    return "\n".join(kept_lines)[-TAIL_CHARACTERS:]
