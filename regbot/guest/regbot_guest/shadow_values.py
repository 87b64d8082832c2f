"""Shadow values: real values for the few fake tensors whose values decide sizes.

For example, ``counts.tolist()`` gives the splits of an all-to-all. Such counts follow from the routing, which is forced
or assumed to be balanced. Three kinds of tensors get a *shadow*, a real tensor:

- tensors that are made without inputs (``arange``, ``zeros``, constants), up to ``MAX_INTEGERS`` elements,
- the indices of a top-k, sort or argmax over the experts, when the scores are unknown,
- results that are computed only from tensors with shadows. Every rank is assumed to have this rank's values.

A size that depends on real data raises Untraceable. Only a read of a single float or bool without a shadow, such as a
logged loss, is guessed (1.0 or False), and ``guesses`` records it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from regbot_guest.collective_values import find_source, output_values, outputs_and_inputs
from regbot_guest.collectives import CollectiveSpec, find_process_group, flatten, name_arguments
from regbot_guest.crash import call_unchanged
from regbot_guest.guesses import VALUE
from regbot_guest.replaced import replaced
from regbot_guest.untraceable import Untraceable

aten = torch.ops.aten

MAX_INTEGERS, MAX_FLOATS, MAX_MASK = 4 * 2**20, 2**20, 32 * 2**20
"""Largest number of elements of a shadow. Splits are never this long.

A mask of 4096 tokens x top-8 x 128 experts has 4 Mi elements, and a gather over an expert group of 8 ranks makes it 8
times as large. Floats are needed only for one-hot counts of 4096 tokens x 256 experts.
"""

_EXPERT_CHOICES = {aten.topk: "aten::topk", aten.sort: "aten::sort", aten.argmax: "aten::argmax"}
"""Operators that can choose experts by scores."""

_METADATA_OPERATORS = {
    aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like,
    aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty, aten.new_empty_strided,
}  # fmt: skip
"""Operators that use the shape and the dtype of their argument, but not the values of the argument."""
_UNINITIALISED_OPERATORS = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}
"""Only their integer results get a shadow, because these are the receive buffers of token counts."""


class _Storage:
    """Whether the values of all shadows that share one storage, such as a tensor and its views, are known."""

    __slots__ = ("is_known",)

    def __init__(self) -> None:
        self.is_known = True


class _Shadow:
    __slots__ = ("storage", "value")

    def __init__(self, value: Tensor, storage: _Storage) -> None:
        self.value, self.storage = value, storage


class ShadowValues:
    """Runs operators on fake tensors and updates their shadows. ``choose`` (``routing.make_expert_choice``) chooses
    experts by unknown scores.
    """

    def __init__(self, mode: FakeTensorMode, experts: int, choose: Callable[[str, Tensor, Tensor], Tensor]) -> None:
        self._mode, self._experts, self._choose = mode, experts, choose
        self.guesses: dict[str, str] = {}

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute ``func`` and return its fake result, with a shadow where possible. Raises Untraceable if a size or an
        integer depends on real data.
        """
        packet = func.overloadpacket  # the operator without its overload, such as aten.add for aten.add.Tensor
        if packet is aten._local_scalar_dense:  # .item()
            return self._read_scalar(args[0])
        inputs = flatten([*args, *kwargs.values()])
        input_values = [self.find_values(tensor) for tensor in inputs]
        all_known = all(values is not None for values in input_values)
        if torch.Tag.dynamic_output_shape in func.tags:
            return self._call_data_dependent(func, args, kwargs, all_known)
        result = call_unchanged(func, args, kwargs)
        if _can_propagate(func, inputs, all_known, result):
            self._propagate_shadows(func, args, kwargs, result)
            return result
        self._forget_written_values(func, args, kwargs)
        if not all_known:  # func may choose experts by unknown scores
            self._shadow_chosen_experts(packet, name_arguments(func, args, kwargs), result)
        return result

    def update_collective(self, spec: CollectiveSpec, call_arguments: Mapping[str, Any], result: Any) -> None:
        """Set the shadows of a collective's outputs. Every rank is assumed to have the same values as this rank."""
        outputs, inputs = outputs_and_inputs(call_arguments, result)
        group = find_process_group(call_arguments)
        values = [self.find_values(tensor) for tensor in inputs]
        for index, output in enumerate(outputs):
            # The values of the input that determines this output.
            source_values = find_source(index, spec, len(outputs), values, group)
            if source_values is None:
                self._write(output, None)  # unknown
                continue
            with _disable_current_modes():
                value = output_values(spec.kind, source_values, output.shape, call_arguments)
            self._write(output, value)

    @contextmanager
    def patched_torch(self) -> Iterator[None]:
        """While active, ``.numpy()`` of a fake tensor returns its shadow, or raises Untraceable, and ``Module.to``
        converts fake parameters. torch's own swap refuses tensors with weak references, which its memo and the
        fingerprint hold.
        """
        swap_tensors, memo = torch.utils.swap_tensors, self._mode.fake_tensor_converter.meta_converter.tensor_memo

        def numpy(tensor: Tensor, *, force: bool = False) -> Any:
            value = self.find_values(tensor)
            if value is None:
                raise Untraceable("a tensor whose values depend on real data was turned into a numpy array")
            with _disable_current_modes():
                return value.numpy(force=force)

        def swap(first: Tensor, second: Tensor) -> None:
            if not (isinstance(first, FakeTensor) and isinstance(second, FakeTensor)):
                swap_tensors(first, second)
                return
            for key in [key for key, fake in memo.items() if fake is first or fake is second]:
                del memo[key]
            first.__dict__, second.__dict__ = second.__dict__, first.__dict__
            torch._C._swap_tensor_impl(first, second)

        with replaced(FakeTensor, "numpy", numpy), replaced(torch.utils, "swap_tensors", swap):
            yield

    def find_values(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a fake (its shadow) or a real tensor, or None if they are unknown."""
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type != "meta" else None
        shadow: _Shadow | None = tensor.__dict__.get("_regbot_shadow")
        return shadow.value if shadow is not None and shadow.storage.is_known else None

    def _read_scalar(self, tensor: Tensor) -> Any:
        value = self.find_values(tensor)
        if value is not None:
            with _disable_current_modes():
                return value.item()
        if tensor.dtype.is_floating_point:
            self.guesses["a float that depends on data was read and answered with 1.0"] = VALUE
            return 1.0
        if tensor.dtype is torch.bool:
            self.guesses["a condition that depends on data was read and answered with False"] = VALUE
            return False
        raise Untraceable(
            f"an integer that depends on real data was read with .item() or .tolist() ({tensor.dtype}); only counts "
            "from a top-k over the experts are known: force the routing, or run this workload on real ranks"
        )

    def _call_data_dependent(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], all_known: bool) -> Any:
        """With unknown inputs only masked_select and indexing can run: there the mask alone decides the size."""
        if all_known:
            real_result = self._run_on_real(func, args, kwargs)
            result = tree_map_only(Tensor, self._mode.from_tensor, real_result)
            for fake, value in zip(flatten(result), flatten(real_result), strict=True):
                self._attach_shadow(fake, value, _Storage())
            return result
        if func.overloadpacket is aten.masked_select and (mask_values := self.find_values(args[1])) is not None:
            tensor, mask = args
            with _disable_current_modes():
                count = int(mask_values.expand(torch.broadcast_shapes(tensor.shape, mask.shape)).sum())
            return tensor.new_empty(count)
        if func.overloadpacket is aten.index:  # a known mask that selects rows whose values are unknown
            tensor, masks_and_indices = args
            indices: list[Tensor | None] = []
            for mask_or_index in masks_and_indices:
                indices += self._replace_mask(mask_or_index)
            return func(tensor, indices, **kwargs)
        raise Untraceable(
            f"{func._schema.name} makes a tensor whose size depends on real data; a size is known only if all inputs "
            "come from a top-k over the experts or from constants"
        )

    def _replace_mask(self, mask_or_index: Tensor | None) -> "list[Tensor | None]":
        """Return the indices that a mask selects, one tensor for each dimension of the mask. None stands for a whole
        dimension.
        """
        if mask_or_index is None or mask_or_index.dtype not in (torch.bool, torch.uint8):
            return [mask_or_index]
        values = self.find_values(mask_or_index)
        if values is None:
            raise Untraceable("a mask that depends on real data selects rows; their number is not known")
        with _disable_current_modes():
            real_indices = list(values.nonzero().unbind(1))
        fake_indices: list[Tensor | None] = []
        for real_index in real_indices:
            fake_index = self._mode.from_tensor(real_index)
            self._attach_shadow(fake_index, real_index, _Storage())
            fake_indices.append(fake_index)
        return fake_indices

    def _propagate_shadows(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """A result that shares memory with a shadow, as a view does, shares the state of its storage."""
        real_result = self._run_on_real(func, args, kwargs)
        if func.overloadpacket in _UNINITIALISED_OPERATORS:
            with _disable_current_modes():
                real_result.zero_()  # make undefined values equal in every run
        storages_by_memory: dict[int, _Storage] = {}
        for tensor in flatten([*args, *kwargs.values()]):
            shadow = tensor.__dict__.get("_regbot_shadow") if isinstance(tensor, FakeTensor) else None
            if shadow is not None:
                storages_by_memory[_memory_id(shadow.value)] = shadow.storage
        for fake, value in zip(flatten(result), flatten(real_result), strict=True):
            self._attach_shadow(fake, value, storages_by_memory.get(_memory_id(value)) or _Storage())

    def _run_on_real(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Zeros replace unknown values, of which ``func`` then uses no more than shape and dtype."""

        def real_values(tensor: Tensor) -> Tensor:
            value = self.find_values(tensor)
            return value if value is not None else torch.zeros(tensor.shape, dtype=tensor.dtype)

        with _disable_current_modes():
            return func(
                *tree_map_only(Tensor, real_values, list(args)), **tree_map_only(Tensor, real_values, dict(kwargs))
            )

    def _shadow_chosen_experts(self, packet: Any, call_arguments: Mapping[str, Any], result: Any) -> None:
        if packet not in _EXPERT_CHOICES:
            return
        scores = call_arguments["self"]
        # Without this argument, argmax works on all dimensions together, and topk and sort work on the last one.
        dim = call_arguments.get("dim", None if packet is aten.argmax else -1)
        if not scores.ndim or scores.shape[-1] != self._experts or dim not in (-1, scores.ndim - 1):
            return
        indices = result if packet is aten.argmax else result[1]  # the others return values and indices
        with _disable_current_modes():
            chosen = self._choose(_EXPERT_CHOICES[packet], scores, indices)
            if chosen.numel():
                self._attach_shadow(indices, chosen.reshape(indices.shape), _Storage())

    def _write(self, output: Tensor, value: Tensor | None) -> None:
        """None as ``value`` means that the written values are unknown."""
        shadow: _Shadow | None = output.__dict__.get("_regbot_shadow")
        if value is None:
            self._forget_values(output)
        elif shadow is not None and shadow.storage.is_known:
            with _disable_current_modes():
                shadow.value.copy_(value)
        else:
            self._attach_shadow(output, value, _Storage())

    def _attach_shadow(self, fake: Tensor, value: Tensor, storage: _Storage) -> None:
        if _is_small(value) and isinstance(fake, FakeTensor):
            fake.__dict__["_regbot_shadow"] = _Shadow(value, storage)

    def _forget_written_values(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                target = args[position] if position < len(args) else kwargs.get(argument.name)
                for tensor in flatten(target):
                    self._forget_values(tensor)

    @staticmethod
    def _forget_values(tensor: Tensor) -> None:
        shadow: _Shadow | None = tensor.__dict__.pop("_regbot_shadow", None)
        if shadow is not None:
            shadow.storage.is_known = False


def _can_propagate(func: Any, inputs: list[Tensor], all_known: bool, result: Any) -> bool:
    """Random results and uninitialised floats get no shadow."""
    packet = func.overloadpacket
    outputs = flatten(result)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if not outputs or is_random:
        return False
    if not all(_is_small(output) for output in outputs):
        return False
    if packet in _UNINITIALISED_OPERATORS and _is_float(outputs[0]):
        return False
    if all_known:
        return True
    return packet in _METADATA_OPERATORS and all(_is_small(tensor) for tensor in inputs)


def _is_small(tensor: Tensor) -> bool:
    if tensor.dtype is torch.bool:
        limit = MAX_MASK
    else:
        limit = MAX_FLOATS if _is_float(tensor) else MAX_INTEGERS
    return tensor.numel() <= limit and tensor.device.type != "meta"


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _memory_id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
