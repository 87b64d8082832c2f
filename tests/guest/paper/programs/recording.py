"""Recording of a program, line by line, on the CPU or paper GPU: metadata, aliases, values, live bytes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regbot_guest.paper.device import paper_gpu

GRANULARITY = 512
"""CUDA's caching allocator rounds every allocation up to a multiple of this many bytes."""


class Operators(TorchDispatchMode):
    """Collects the storages of the tensors of all dispatched operators."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor):
                self.keep(value)
        return result

    def keep(self, tensor: torch.Tensor) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self.storages[reference.cdata] = reference

    def live_bytes(self, device: str) -> int:
        """Return the bytes of all live storages of ``device``, each rounded up."""
        total = 0
        for key, reference in list(self.storages.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.storages[key]
            elif storage.device.type == device:
                total += -(-storage.nbytes() // GRANULARITY) * GRANULARITY
        return total


class Run:
    """Recorder of one run on ``device``. Call it after each line with the tensors that the line created or wrote."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.operators = Operators()
        self.lines: list[dict[str, Any]] = []
        self._numbers: dict[int, tuple[int, StorageWeakRef]] = {}
        self._paper = paper_gpu()
        assert self._paper is not None
        self._before = self._paper.live_bytes

    def __call__(self, name: str, *tensors: "torch.Tensor | None") -> None:
        gc.collect()
        self.lines.append({"line": name, "tensors": [self.describe(t) for t in tensors], "live": self.live_bytes()})

    def live_bytes(self) -> int:
        assert self._paper is not None
        if self.device == "cpu":
            return self.operators.live_bytes("cpu")
        return self._paper.live_bytes - self._before

    def describe(self, tensor: "torch.Tensor | None") -> "dict[str, Any] | None":
        if tensor is None:
            return None
        return {
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "dtype": str(tensor.dtype),
            "offset": tensor.storage_offset(),
            "storage": self.number_of(tensor.untyped_storage()) if tensor.numel() else -1,
            "nbytes": tensor.untyped_storage().nbytes(),
            "requires_grad": tensor.requires_grad,
            "leaf": tensor.is_leaf,
            "version": 0 if tensor.is_inference() else tensor._version,
            "values": self.values(tensor),
        }

    def number_of(self, storage: torch.UntypedStorage) -> int:
        """Storages by order of appearance, so that aliases compare equal on both devices."""
        reference = StorageWeakRef(storage)  # kept, so that its number is not given to another storage
        return self._numbers.setdefault(reference.cdata, (len(self._numbers), reference))[0]

    def values(self, tensor: torch.Tensor) -> Any:
        """Integers and booleans; 'unknown' where the paper GPU does not know them."""
        if tensor.is_floating_point() or tensor.is_complex():
            return None
        assert self._paper is not None
        if tensor.device.type == "cpu":
            return tensor.tolist()
        known = self._paper.values(tensor)
        return "unknown" if known is None else known.tolist()


@contextmanager
def recording(device: str) -> Iterator[Run]:
    """Record what runs inside."""
    run = Run(device)
    paper = paper_gpu()
    assert paper is not None
    paper.begin_step()
    with run.operators:
        yield run
