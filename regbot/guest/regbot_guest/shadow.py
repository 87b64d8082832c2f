"""Shadow values: tensors without values, except for the few integers that decide sizes.

Under FakeTensorMode a tensor has a shape and no values, and MoE code asks for values: ``counts.tolist()`` gives the
splits of an all-to-all. Those counts come from routing, and routing is forced or taken to be balanced, so they can be
known. This mode gives a real *shadow* to

- tensors made from nothing (``arange``, ``zeros``, constants), up to ``MAX_INTEGERS``,
- the indices of a top-k, sort or argmax over the experts of values that are not known: as balanced (or skewed) routing
  would choose,
- whatever is computed from shadowed tensors alone, collectives included: every rank is taken to route as this one does,

and answers ``.item()``, ``.tolist()``, ``nonzero`` and masks from them. What no shadow decides is not guessed: a size
that depends on real data raises Untraceable. Only a lone float or bool, such as a loss that is logged or a gradient
norm that is compared, is answered with 1.0 or False, and noted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from regbot_guest.collectives import Form, arguments, flatten, process_group, reduction
from regbot_guest.untraceable import Untraceable

aten = torch.ops.aten

MAX_INTEGERS, MAX_FLOATS, MAX_MASK = 4 * 2**20, 2**20, 32 * 2**20
"""Shadows larger than this are dropped: they cost time and memory, and no splits are this long. 4096 tokens x top-8 x
128 experts as a mask are 4 Mi, and 8 times that where a mask is gathered from the ranks of an expert group, a byte
each; floats only carry one-hot counts of 4096 tokens x 256 experts."""

Route = Callable[[int, int, int], Tensor]
"""(tokens, experts, top_k) -> expert numbers ``[tokens, top_k]``, real."""

_LIKE = {
    aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like,
    aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty, aten.new_empty_strided,
}  # fmt: skip
"""Made from the shape and dtype of their argument, not from its values."""
_UNDEFINED = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}
"""Undefined until written: shadowed for integers only, which are the buffers that counts are received in."""


class _Storage:
    """Shared by all shadows that view one storage; cleared when something unknown is written into it."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known = True


class _Shadow:
    __slots__ = ("storage", "value")

    def __init__(self, value: Tensor, storage: _Storage) -> None:
        self.value, self.storage = value, storage


class ShadowValues:
    """Runs operators on fake tensors and keeps the shadows beside them."""

    def __init__(self, mode: FakeTensorMode, experts: int, top_k: int, route: Route) -> None:
        self._mode, self._experts, self._top_k, self._route = mode, experts, top_k, route
        self.guessed: set[str] = set()

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute ``func``; the result is fake, and shadowed where that is possible."""
        packet = func.overloadpacket
        if packet is aten._local_scalar_dense:
            return self._scalar(args[0])
        inputs = flatten([*args, *kwargs.values()])
        shadows = [self.of(tensor) for tensor in inputs]
        known = all(shadow is not None for shadow in shadows)
        if torch.Tag.dynamic_output_shape in func.tags:
            return self._data_dependent(func, args, kwargs, known)
        result = func(*args, **kwargs)
        if _computes_from_values(func, inputs, known, result):
            self._propagate(func, args, kwargs, result)
            return result
        self._forget_written(func, args, kwargs)
        if not known:
            self._seed_routing(packet, arguments(func, args, kwargs), result)
        return result

    def collective(self, form: Form, given: Mapping[str, Any], result: Any) -> None:
        """Shadows of what a collective returned or wrote, if every rank holds what this one does."""
        outputs, inputs = _collective_ends(given, result)
        group = process_group(given)
        values = [self.of(tensor) for tensor in inputs]
        for index, output in enumerate(outputs):
            if len(values) == 1:
                source = values[0]
            elif form.kind == "all_to_all" and len(values) == group.size():
                source = values[group.rank()]  # the list form: every rank's tensor for this one is like ours
            else:
                source = values[index] if len(values) == len(outputs) else None
            value = _symmetric(form.kind, source, output.shape, group, given) if source is not None else None
            self._write(output, value)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """While active, ``.numpy()`` of a tensor without values gives its shadow, as ``.tolist()`` does."""

        def numpy(tensor: Tensor, *, force: bool = False) -> Any:
            value = self.of(tensor)
            if value is None:
                raise Untraceable("a tensor whose values depend on real data was turned into a numpy array")
            with _disable_current_modes():
                return value.numpy(force=force)

        setattr(FakeTensor, "numpy", numpy)  # noqa: B010 (typed as a method otherwise)
        try:
            yield
        finally:
            delattr(FakeTensor, "numpy")

    def of(self, tensor: Tensor) -> Tensor | None:
        """The shadow of ``tensor``, None where its values are not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type != "meta" else None
        shadow: _Shadow | None = tensor.__dict__.get("_regbot_shadow")
        return shadow.value if shadow is not None and shadow.storage.known else None

    def _scalar(self, tensor: Tensor) -> Any:
        value = self.of(tensor)
        if value is not None:
            with _disable_current_modes():
                return value.item()
        if tensor.dtype.is_floating_point:
            self.guessed.add("a float that depends on data was read and answered with 1.0")
            return 1.0
        if tensor.dtype is torch.bool:
            self.guessed.add("a condition that depends on data was read and answered with False")
            return False
        raise Untraceable(
            f"an integer that depends on real data was read with .item() or .tolist() ({tensor.dtype}); counts that "
            "come from a top-k over the experts are known, others are not: force the routing, or run this workload on "
            "real ranks"
        )

    def _data_dependent(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: bool) -> Any:
        if known:
            real = self._real(func, args, kwargs)
            result = tree_map_only(Tensor, self._mode.from_tensor, real)
            for fake, value in zip(flatten(result), flatten(real), strict=True):
                self._attach(fake, value, _Storage())
            return result
        if func.overloadpacket is aten.masked_select and (chosen := self.of(args[1])) is not None:
            return self._select(args[0], args[1], chosen)
        if func.overloadpacket is aten.index:  # a mask whose values are known selects rows that are not
            indices = [self._mask_to_indices(index) for index in args[1]]
            flat = [index for given in indices for index in (given if isinstance(given, list) else [given])]
            return func(args[0], flat, **kwargs)
        raise Untraceable(
            f"{func._schema.name} makes a tensor whose size depends on real data; it is known only where all it is "
            "made from comes from a top-k over the experts or from constants"
        )

    @staticmethod
    def _select(tensor: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        """``tensor`` where ``mask`` is set, whose shadow is ``value``: a flat tensor without values."""
        with _disable_current_modes():
            chosen = int(value.expand(torch.broadcast_shapes(tensor.shape, mask.shape)).sum())
        return tensor.new_empty(chosen)

    def _mask_to_indices(self, index: Tensor | None) -> Any:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return index
        value = self.of(index)
        if value is None:
            raise Untraceable("a mask that depends on real data selects rows; its size is not known")
        with _disable_current_modes():
            found = list(value.nonzero().unbind(1))
        fakes = [self._mode.from_tensor(one) for one in found]
        for fake, one in zip(fakes, found, strict=True):
            self._attach(fake, one, _Storage())
        return fakes

    def _propagate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        real = self._real(func, args, kwargs)
        if func.overloadpacket in _UNDEFINED:
            with _disable_current_modes():
                real.zero_()  # undefined values are to be the same in every run
        storages = {
            value.untyped_storage()._cdata: shadow.storage
            for tensor in flatten([*args, *kwargs.values()])
            if isinstance(tensor, FakeTensor) and (shadow := tensor.__dict__.get("_regbot_shadow")) is not None
            for value in (shadow.value,)
        }
        for fake, value in zip(flatten(result), flatten(real), strict=True):
            self._attach(fake, value, storages.get(value.untyped_storage()._cdata) or _Storage())

    def _real(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        def real(tensor: Tensor) -> Tensor:
            value = self.of(tensor)
            return value if value is not None else torch.zeros(tensor.shape, dtype=tensor.dtype)

        with _disable_current_modes():
            return func(*tree_map_only(Tensor, real, list(args)), **tree_map_only(Tensor, real, dict(kwargs)))

    def _seed_routing(self, packet: Any, given: Mapping[str, Any], result: Any) -> None:
        """Indices chosen among the experts by values that are not known: as the routing asked for would choose them."""
        if packet not in (aten.topk, aten.sort, aten.argmax) or not given["self"].ndim:
            return
        scores, dim = given["self"], given.get("dim", None if packet is aten.argmax else -1)
        if dim is None or dim % scores.ndim != scores.ndim - 1 or scores.shape[-1] != self._experts:
            return
        indices = result if packet is aten.argmax else result[1]
        tokens = scores.numel() // self._experts
        if tokens * self._experts > MAX_INTEGERS:
            return
        with _disable_current_modes():
            if packet is aten.sort:
                value = self._ranking(tokens)
            else:
                value = self._route(tokens, self._experts, given["k"] if packet is aten.topk else 1)
            self._attach(indices, value.reshape(indices.shape), _Storage())

    def _ranking(self, tokens: int) -> Tensor:
        """All experts for every token, those that routing would choose first: ``[tokens, experts]``."""
        chosen = self._route(tokens, self._experts, self._top_k)
        rest = torch.ones(tokens, self._experts, dtype=torch.bool).scatter_(1, chosen, False)
        others = rest.nonzero()[:, 1].view(tokens, self._experts - self._top_k)
        return torch.cat([chosen, others], dim=1)

    def _write(self, output: Tensor, value: Tensor | None) -> None:
        """An operator without alias annotations wrote ``value`` (None: unknown) into ``output`` and all its views."""
        shadow: _Shadow | None = output.__dict__.get("_regbot_shadow")
        if value is None:
            self._forget(output)
        elif shadow is not None and shadow.storage.known:
            with _disable_current_modes():
                shadow.value.copy_(value)
        else:
            self._attach(output, value, _Storage())

    def _attach(self, fake: Tensor, value: Tensor, storage: _Storage) -> None:
        if _small(value) and isinstance(fake, FakeTensor):
            fake.__dict__["_regbot_shadow"] = _Shadow(value, storage)

    def _forget_written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[position] if position < len(args) else kwargs.get(argument.name)
                for tensor in flatten(written):
                    self._forget(tensor)

    @staticmethod
    def _forget(tensor: Tensor) -> None:
        shadow: _Shadow | None = tensor.__dict__.pop("_regbot_shadow", None)
        if shadow is not None:
            shadow.storage.known = False


def _computes_from_values(func: Any, inputs: list[Tensor], known: bool, result: Any) -> bool:
    """Whether the shadow of the result can and should be computed."""
    packet = func.overloadpacket
    outputs = flatten(result)
    if not outputs or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if not all(_small(output) for output in outputs):
        return False
    if packet in _UNDEFINED and (outputs[0].dtype.is_floating_point or outputs[0].dtype.is_complex):
        return False
    return known or (packet in _LIKE and all(_small(tensor) for tensor in inputs))


def _small(tensor: Tensor) -> bool:
    limit = MAX_FLOATS if tensor.dtype.is_floating_point or tensor.dtype.is_complex else MAX_INTEGERS
    limit = MAX_MASK if tensor.dtype is torch.bool else limit
    return tensor.numel() <= limit and tensor.device.type != "meta"


def _collective_ends(given: Mapping[str, Any], result: Any) -> tuple[list[Tensor], list[Tensor]]:
    """(outputs, inputs) of a collective, by the argument names of its schema."""
    outputs: list[Tensor] = []
    inputs: list[Tensor] = []
    for name in ("output", "output_tensor", "output_tensors", "output_lists", "outputs", "out", "arriving"):
        outputs += flatten(given.get(name))
    for name in ("input", "input_tensor", "input_tensors", "input_list", "inputs"):
        inputs += flatten(given.get(name))
    in_place = flatten(given.get("tensors"))
    if in_place:
        return in_place, in_place
    if not outputs:
        outputs = flatten(result)
    return outputs, inputs


def _symmetric(
    kind: str, value: Tensor, shape: torch.Size, group: dist.ProcessGroup, given: Mapping[str, Any]
) -> Tensor | None:
    """What an output of ``shape`` holds after the collective if every rank's input is ``value``; None if unclear."""
    size, elements = group.size(), shape.numel()
    found: Tensor | None
    with _disable_current_modes():
        if kind == "all_to_all" and "output_tensors" not in given:
            splits = given.get("input_split_sizes") or [value.shape[0] // size] * size
            found = torch.cat([value.split(list(splits))[group.rank()]] * size)
        elif kind == "all_gather" and value.numel() != elements:
            found = torch.cat([value] * size)
        elif kind == "all_reduce":
            found = _reduced(value, size, given)
        elif kind == "reduce_scatter":
            found = _reduced(value.flatten().chunk(size)[group.rank()], size, given)
        elif kind in ("all_to_all", "all_gather", "broadcast"):
            found = value
        else:
            return None
        return found.reshape(shape).clone() if found is not None and found.numel() == elements else None


def _reduced(value: Tensor, size: int, given: Mapping[str, Any]) -> Tensor | None:
    """``size`` equal inputs, reduced; None for reductions whose result is not plain."""
    name = reduction(given["reduce_op"])
    if name == "sum":
        return value * size
    return value if name in ("avg", "min", "max", "band", "bor") else None
