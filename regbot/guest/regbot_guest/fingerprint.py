"""A fingerprint of the device program: what the step makes the device do, whatever the source looks like.

A hash over every dispatched operator with the shapes, strides, dtypes and order of origin of its tensors, its plain
arguments, the axis of its group, its reduction, and the values of small constants that are known. It does not depend
on module names, file paths, group names or Python structure, so a pure refactoring keeps it. Two equal fingerprints are
the same sequence of operators on the same data flow; weights, inputs and the random seed are not part of it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from regbot_guest.collectives import flatten, is_reduction, reduction

IGNORED = ("prim::device", "aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::is_same_size")
"""Questions about tensors that put nothing on the device; how often they are asked depends on the modes that are on."""

MAX_CONSTANT = 2**16
"""Elements of a constant whose values are hashed; a larger one is hashed by shape and dtype alone."""


class Fingerprint:
    """Feed it every dispatched operator in order; ``hexdigest`` at the end."""

    def __init__(
        self, label: Callable[[dist.ProcessGroup], str], values: Callable[[Tensor], Tensor | None] = lambda _: None
    ) -> None:
        self._label, self._values = label, values
        self._opaque = False
        self._hash = hashlib.sha256()
        self._tensors: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._numbers: dict[int, int] = {}
        self._next = 0
        self.operators = 0

    def add(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        name = func._schema.name
        if name in IGNORED:
            return
        self.operators += 1
        for value in (*args, *kwargs.values()):
            self._constants(value)
        given = ",".join([self._word(value) for value in args] + [f"{k}={self._word(v)}" for k, v in kwargs.items()])
        self._hash.update(f"{name}.{func._overloadname}({given})->{self._word(result)}\n".encode())

    def hexdigest(self) -> str | None:
        """The hash, None where an operator carried something that cannot be read: nothing is identical to it."""
        return None if self._opaque else self._hash.hexdigest()

    def _word(self, value: Any) -> str:
        if isinstance(value, Tensor):
            shape = "x".join(map(str, value.shape))
            stride = "x".join(map(str, value.stride()))
            return f"%{self._number(value)}:{value.dtype}[{shape}/{stride}]{value.device.type}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join(map(self._word, value)) + "]"
        if isinstance(value, torch.ScriptObject):
            return self._boxed(value)
        if isinstance(value, dist.ProcessGroup):
            return f"<{self._label(value)}>"
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, (bool, int, float, complex, torch.dtype, torch.layout)):
            return repr(value)
        if isinstance(value, torch.device):
            return value.type
        return type(value).__name__

    def _number(self, tensor: Tensor) -> int:
        """Tensors are numbered as they first appear, so that the data flow is part of the hash."""
        key = id(tensor)
        if self._tensors.get(key) is not tensor:
            self._tensors[key] = tensor
            self._numbers[key] = self._next
            self._next += 1
        return self._numbers[key]

    def _constants(self, value: Any) -> None:
        """Hash the values of a tensor that no operator made: a permutation, a mask, expert numbers written down."""
        for tensor in flatten(value):
            if self._tensors.get(id(tensor)) is tensor:
                continue
            known = self._values(tensor)
            if known is not None and known.numel() <= MAX_CONSTANT:
                with _disable_current_modes():
                    self._hash.update(repr(known.tolist()).encode())

    def _boxed(self, value: torch.ScriptObject) -> str:
        if is_reduction(value):
            name = reduction(value)
            self._opaque |= name == "premul_sum"  # its factor cannot be read
            return name
        try:
            return f"<{self._label(dist.ProcessGroup.unbox(value))}>"
        except (RuntimeError, TypeError):
            return "<work>"

    def _text(self, value: str) -> str:
        """Functional collectives name their group; the number in that name is an accident of creation order."""
        try:
            group = dist.distributed_c10d._resolve_process_group(value)  # type: ignore[arg-type]
        except (LookupError, RuntimeError, ValueError):
            return repr(value)
        return f"<{self._label(group)}>"
