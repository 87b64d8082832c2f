"""Fingerprint of the device program: a hash of what one step executes on the device.

It covers every dispatched operator: shapes, strides and dtypes, the order in which tensors are first used, plain
arguments, group axes, reductions, and the known values of small constants. Module names, file paths, group names and
Python structure are not part of it, nor are weights, inputs and seeds.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from regbot_guest.collectives import flatten, is_reduction, reduction_name

IGNORED_OPERATORS = ("prim::device", "aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::is_same_size")
"""Queries of tensor metadata. How many there are depends on the active modes."""

MAX_CONSTANT = 2**16
"""Number of elements in the largest constant whose values are hashed."""


class Fingerprint:
    """Incremental hash. Call ``add`` for every dispatched operator in order, and then ``hexdigest``. ``values`` returns
    the values of a tensor, or None if they are unknown.
    """

    def __init__(
        self, label: Callable[[dist.ProcessGroup], str], values: Callable[[Tensor], Tensor | None] = lambda _: None
    ) -> None:
        self._label, self._values = label, values
        self._has_unreadable_argument = False
        self._hash = hashlib.sha256()
        self._tensors: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        """The numbered tensors, by id. A later tensor can get the id of a deleted one."""
        self._numbers: dict[int, int] = {}
        self._next_number = 0
        self.operators = 0

    def add(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        name = func._schema.name
        if name in IGNORED_OPERATORS:
            return
        self.operators += 1
        for value in (*args, *kwargs.values()):
            self._hash_constants(value)
        positional = [self._describe(value) for value in args]
        by_keyword = [f"{key}={self._describe(value)}" for key, value in kwargs.items()]
        inputs = ",".join(positional + by_keyword)
        self._hash.update(f"{name}.{func._overloadname}({inputs})->{self._describe(result)}\n".encode())

    def hexdigest(self) -> str | None:
        """Return the hash, or None if an argument of some operator could not be read."""
        return None if self._has_unreadable_argument else self._hash.hexdigest()

    def _describe(self, value: Any) -> str:
        if isinstance(value, Tensor):
            shape = "x".join(map(str, value.shape))
            stride = "x".join(map(str, value.stride()))
            return f"%{self._number_tensor(value)}:{value.dtype}[{shape}/{stride}]{value.device.type}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join(map(self._describe, value)) + "]"
        if isinstance(value, torch.ScriptObject):
            return self._describe_boxed(value)
        if isinstance(value, dist.ProcessGroup):
            return f"<{self._label(value)}>"
        if isinstance(value, str):
            return self._describe_string(value)
        if value is None or isinstance(value, (bool, int, float, complex, torch.dtype, torch.layout)):
            return repr(value)
        if isinstance(value, torch.device):
            return value.type
        return type(value).__name__

    def _number_tensor(self, tensor: Tensor) -> int:
        """Number tensors in the order in which they first appear, which makes the data flow part of the hash."""
        key = id(tensor)
        if self._tensors.get(key) is not tensor:
            self._tensors[key] = tensor
            self._numbers[key] = self._next_number
            self._next_number += 1
        return self._numbers[key]

    def _hash_constants(self, value: Any) -> None:
        """Hash the known values of tensors that no dispatched operator produced, such as a permutation, at their first
        use.
        """
        for tensor in flatten(value):
            is_numbered = self._tensors.get(id(tensor)) is tensor  # an earlier operator returned it or used it
            if is_numbered:
                continue
            values = self._values(tensor)
            if values is not None and values.numel() <= MAX_CONSTANT:
                with _disable_current_modes():
                    self._hash.update(repr(values.tolist()).encode())

    def _describe_boxed(self, value: torch.ScriptObject) -> str:
        if is_reduction(value):
            name = reduction_name(value)
            self._has_unreadable_argument |= name == "premul_sum"  # the factor of this reduction cannot be read
            return name
        try:
            return f"<{self._label(dist.ProcessGroup.unbox(value))}>"
        except (RuntimeError, TypeError):
            return "<work>"

    def _describe_string(self, value: str) -> str:
        """Replace the name of a group by its axis. The name depends on the order in which groups were created."""
        try:
            group = dist.distributed_c10d._resolve_process_group(value)  # type: ignore[arg-type]
        except (LookupError, RuntimeError, ValueError):
            return repr(value)
        return f"<{self._label(group)}>"
