"""Loading the paper GPU, and talking to it."""

import ctypes
import gc
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regbot_guest.paper.gpus import DEFAULT, GPUS, Gpu
from regbot_guest.untraceable import Untraceable

TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so")


class LoadError(Exception):
    """The library cannot be loaded, or torch was there before it."""


class Device:
    """The paper GPU of this process. ``gpu`` is what it says it is; ``refusals`` what it was asked for in vain."""

    def __init__(self, gpu: Gpu) -> None:
        import torch

        self.gpu = gpu
        self.refusals: list[str] = []
        self.on_host_read: Callable[[], None] = lambda: None
        self.choose_experts: Callable[[str, Any, Any], Any] = lambda *_: torch.empty(0, dtype=torch.int64)
        self._ops = torch.ops.regbot_paper
        self._python = torch.library.Library("regbot_paper", "IMPL")
        self._python.impl("refuse", self._refuse, "CompositeExplicitAutograd")
        self._python.impl("host_read", lambda: self.on_host_read(), "CompositeExplicitAutograd")
        self._python.impl("route", lambda *given: self.choose_experts(*given), "CompositeExplicitAutograd")
        self._ops.install()

    @property
    def live_bytes(self) -> int:
        """Bytes allocated now, each allocation rounded up to 512 as CUDA's allocator does."""
        return int(self._ops.live_bytes())

    @property
    def peak_bytes(self) -> int:
        """The most bytes allocated at any time since ``reset_peak``."""
        return int(self._ops.peak_bytes())

    def reset_peak(self) -> None:
        self._ops.reset_peak_bytes()

    def begin_program(self) -> None:
        """Forget what an earlier program of this process left: notes, refusals, garbage."""
        gc.collect()
        self.refusals.clear()
        self._ops.clear_notes()
        self.reset_peak()

    def notes(self) -> list[str]:
        """What was assumed about values that are not known."""
        return list(self._ops.notes())

    def is_known(self, tensor: Any) -> bool:
        return bool(self._ops.is_known(tensor.detach()))

    def values(self, tensor: Any) -> Any:
        """A host copy of the values of a known tensor; None where they are not known."""
        return self._ops.values_of(tensor.detach()) if self.is_known(tensor) else None

    def write(self, tensor: Any, values: Any) -> None:
        """Give ``tensor`` the ``values`` of a host tensor, None for unknown ones, without an operator."""
        self._ops.write_values(tensor.detach(), values)

    def begin_step(self, with_fingerprint: bool = False) -> None:
        """Start counting anew."""
        self._ops.begin_step(with_fingerprint)

    def set_phase(self, phase: int) -> None:
        self._ops.set_phase(phase)

    def set_module(self, module: int) -> None:
        self._ops.set_module(module)

    def record(self, text: str, tensors: list[Any]) -> None:
        """Make ``text`` and the tensors that it is about part of the fingerprint."""
        self._ops.record_text(text, [tensor.detach() for tensor in tensors])

    def launches(self) -> dict[tuple[str, int, int], int]:
        """Kernels launched since ``begin_step``, by operator, phase and module."""
        rows = (line.split(" ") for line in self._ops.launches())
        return {(name, int(phase), int(module)): int(count) for name, phase, module, count in rows}

    def fingerprint(self) -> str:
        """A hash of every operator and collective of the step, of the same length as that of ``fingerprint.py``."""
        return hashlib.sha256(self._ops.fingerprint().encode()).hexdigest()

    def route_among(self, experts: int, choose: Callable[[str, Any, Any], Any]) -> None:
        """Where unknown scores over ``experts`` choose experts, ``choose(operator, scores, indices)`` gives them."""
        self.choose_experts = choose
        self._ops.set_experts(experts)

    def _refuse(self, reason: str) -> None:
        self.refusals.append(f"{reason}{_asking_line()}")
        raise Untraceable(reason)


_device: "Device | None" = None


def installed() -> "Device | None":
    """The paper GPU of this process, None where there is none."""
    return _device


def install(library: Path, gpu: str = DEFAULT) -> Device:
    """Make ``cuda`` a paper GPU in this process. Raises LoadError.

    torch asks for its hooks once and remembers the answer, so this comes before ``import torch``.
    """
    global _device
    if _device is not None:
        return _device
    if "torch" in sys.modules:
        raise LoadError("torch was imported before the paper GPU; install it first")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise LoadError(f"{sys.executable} has no torch")
    folder = Path(spec.origin).parent / "lib"
    try:
        for name in TORCH_LIBRARIES:
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise LoadError(f"the paper GPU cannot be loaded: {error}") from error
    import torch  # noqa: F401

    from regbot_guest.paper import collectives, cuda

    _device = Device(GPUS[gpu])
    cuda.fill(_device)
    collectives.fill(_device)
    return _device


def _asking_line() -> str:
    """'; at file:line in function' of the innermost frame that is neither torch's nor the guest's."""
    own = str(Path(__file__).resolve().parents[1])
    for frame in reversed(traceback.extract_stack()):
        if (
            not frame.filename.startswith(own)
            and "/torch/" not in frame.filename
            and not frame.filename.startswith("<")
        ):
            return f"; asked for at {frame.filename}:{frame.lineno} in {frame.name}"
    return ""
