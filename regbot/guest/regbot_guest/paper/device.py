"""The Python interface of the paper GPU: values, memory, kernel launches, fingerprint, refusals."""

import gc
import hashlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from regbot_guest.paper.gpus import GpuModel
from regbot_guest.paper.program import Kernels
from regbot_guest.source_lines import current_line
from regbot_guest.untraceable import Untraceable

UNKNOWN_WORK = ("unknown", 0)


class Device:
    """The paper GPU of this process. It stands for all GPUs of a node. ``gpu`` is the model that it imitates."""

    def __init__(self, gpu: GpuModel) -> None:
        import torch

        self.gpu = gpu
        self.refusals: list[str] = []
        """What the program requested and the device could not do. Each is a sentence."""
        self.assumptions: dict[str, str] = {}
        """Guesses of the Python code here, kinds by sentence. ``notes`` adds those of the compiled library."""
        self.counter: Any = None
        """The ``PaperCounter`` of the running step, or None. CUDA graphs store and replay its counts."""
        self.is_capturing = False
        self.on_host_wait: Callable[[str], None] = lambda _: None
        """Called with the kind of each wait of the host, see ``PaperCounter.count_host_wait``."""
        self.choose_experts: Callable[[str, Any, Any], Any] = lambda *_: torch.empty(0, dtype=torch.int64)
        """See ``set_expert_choice``. An empty tensor means that the chosen indices stay unknown."""
        # All operators of the compiled library. Python implements four of them, which the library calls.
        self.ops = torch.ops.regbot_paper
        self._python_operators = torch.library.Library("regbot_paper", "IMPL")
        self._python_operators.impl("refuse", self.refuse, "CompositeExplicitAutograd")
        self._python_operators.impl("host_wait", lambda kind: self.on_host_wait(kind), "CompositeExplicitAutograd")
        self._python_operators.impl("current_line", lambda: current_line(), "CompositeExplicitAutograd")
        self._python_operators.impl("route", lambda *args: self.choose_experts(*args), "CompositeExplicitAutograd")
        self.ops.install()

    @property
    def live_bytes(self) -> int:
        """Number of allocated bytes of all GPUs. Each allocation is rounded up to 512 bytes, as in CUDA's allocator."""
        return int(self.ops.live_bytes())

    @property
    def peak_bytes(self) -> int:
        return int(self.ops.peak_bytes())

    def reset_peak(self, gpu: "int | None" = None) -> None:
        """Forget the peaks of all GPUs, or of the GPU with this number."""
        if gpu is None:
            self.ops.reset_peak_bytes()
        else:
            self.ops.reset_peak_bytes_of(gpu)

    def memory_use(self, gpu: int) -> tuple[int, int]:
        return int(self.ops.live_bytes_of(gpu)), int(self.ops.peak_bytes_of(gpu))

    def begin_program(self) -> None:
        """Discard the notes, refusals, counter and garbage of an earlier program in this process. From now on, the
        garbage collector skips existing objects: visiting them takes 0.15 s, nearly half of a step.
        """
        gc.collect()
        gc.freeze()
        self.refusals.clear()
        self.assumptions.clear()
        self.counter, self.is_capturing = None, False
        self.ops.clear_notes()
        self.ops.forget_holders()
        self.reset_peak()

    def notes(self) -> dict[str, str]:
        """Return the kinds of the trace's guesses by sentence. The library's notes have the form 'kind sentence'."""
        kinds_by_sentence: dict[str, str] = {}
        for note in self.ops.notes():
            kind, sentence = note.split(" ", 1)
            kinds_by_sentence[sentence] = kind
        return dict(sorted((kinds_by_sentence | self.assumptions).items()))

    def is_known(self, tensor: Any) -> bool:
        return bool(self.ops.is_known(tensor.detach()))

    def values(self, tensor: Any) -> Any:
        """Return a host copy of the values of ``tensor``, or None if they are unknown."""
        return self.ops.values_of(tensor.detach()) if self.is_known(tensor) else None

    def write(self, tensor: Any, values: Any) -> None:
        """Set the values of ``tensor`` without an operator: a host tensor, or None if they are now unknown."""
        self.ops.write_values(tensor.detach(), values)

    def record(self, text: str, tensors: list[Any]) -> None:
        """Add ``text`` and the tensors that it describes to the fingerprint."""
        self.ops.record_text(text, [tensor.detach() for tensor in tensors])

    def launch(self, operator: str, arguments: Any, results: Any = (), work: "tuple[str, int]" = ("other", 0)) -> None:
        """Count one kernel of a compiled library, such as flash-attn, and add it to the fingerprint. The device itself
        sees only torch's operators. ``arguments`` and ``results`` are nested lists and dicts of tensors and settings.
        ``work`` is the class of the kernel's FLOPs and their number, ``UNKNOWN_WORK`` if there is no formula.
        """
        tensors: list[Any] = []
        self.record(f"{operator} {_describe(arguments, tensors)}", tensors)
        _describe(results, tensors)
        self.ops.library_kernel(operator, *work, [tensor.detach() for tensor in tensors])

    def kernels(self, graph: "int | None" = None) -> list[Kernels]:
        """Return the kernels since ``begin_step``, or those of the captured CUDA graph with this number."""
        return [Kernels.parse(text) for text in self.ops.describe_kernels(graph)]

    @contextmanager
    def flop_class(self, name: str) -> Iterator[None]:
        """While active, products of torch's operators are of this class."""
        self.ops.set_flop_class(name)
        try:
            yield
        finally:
            self.ops.set_flop_class("")

    def fingerprint(self) -> str:
        """Return a hash of the step. The library's own is shorter than the SHA-256 that ledgers have, so it is hashed
        again.
        """
        return hashlib.sha256(self.ops.fingerprint().encode()).hexdigest()

    def set_expert_choice(self, experts: int, choose: Callable[[str, Any, Any], Any]) -> None:
        """Let ``choose(operator, scores, indices)`` decide which experts a router chooses by unknown scores. It returns
        the values of ``indices``, or an empty tensor, which leaves them unknown. The device calls it for topk, sort and
        argmax of rows with ``experts`` scores.
        """
        self.choose_experts = choose
        self.ops.set_experts(experts)

    def refuse(self, reason: str) -> None:
        """Raise Untraceable with the reason and the running module. The reason is kept too, because the code under test
        may catch the exception.
        """
        module = self.counter.module_path() if self.counter is not None else ""
        reason += f"; in module {module}" if module else ""
        self.refusals.append(f"{reason}{_requesting_line()}")
        raise Untraceable(reason)


_device: "Device | None" = None


def paper_gpu() -> "Device | None":
    return _device


def open_paper_gpu(gpu: GpuModel) -> Device:
    """Make the paper GPU of this process. The library must be loaded. ``loading.install`` calls this function."""
    global _device
    _device = Device(gpu)
    return _device


PLAIN = (bool, int, float, str)


def _describe(value: Any, gpu_tensors: list[Any]) -> Any:
    """Return the shapes and settings in ``value``, and add its GPU tensors to ``gpu_tensors``."""
    if isinstance(value, dict):
        return {key: _describe(item, gpu_tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_describe(item, gpu_tensors) for item in value]
    if isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "is_cuda"):  # a stand-in has any attribute
        if value.is_cuda:
            gpu_tensors.append(value)
        return (*value.shape, str(value.dtype))
    if value is None or isinstance(value, PLAIN):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        fields = getattr(value, "__dict__", {}).items()
        return [type(value).__name__, {name: field for name, field in fields if isinstance(field, PLAIN)}]
    # Addresses of other objects, such as process groups, differ between two runs.
    return str(value) if type(value).__module__ in ("torch", "triton.language.core") else type(value).__name__


def _requesting_line() -> str:
    """Name the innermost frame outside of torch and of the guest, or return ''."""
    guest_folder = str(Path(__file__).resolve().parents[1])
    for frame in reversed(traceback.extract_stack()):
        is_of_guest = frame.filename.startswith(guest_folder)
        is_of_torch = "/torch/" in frame.filename
        has_file = not frame.filename.startswith("<")
        if has_file and not is_of_guest and not is_of_torch:
            return f"; requested at {frame.filename}:{frame.lineno} in {frame.name}"
    return ""
