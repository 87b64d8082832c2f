"""Random chains of operators on the CPU and on the paper GPU: ``chains.py FIRST COUNT``. Prints the differences.

This program computes from the CPU's tensors alone which bytes must be known: every storage has a flag for each byte,
which is set when a random number or uninitialised memory is written to it, directly or through operators.
"""

import gc
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regbot_guest.paper.device import Untraceable, paper_gpu

LINES = 14
MAX_ELEMENTS = 600
GRANULARITY = 512
"""CUDA's caching allocator rounds every allocation up to a multiple of this many bytes."""
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
DTYPES = (*INTEGERS, torch.float32, torch.bfloat16, torch.complex64)
DTYPES_OF_KERNELS = re.compile(
    "not implemented for complex|can't be cast to the desired output type|with a bool tensor is not supported"
)
"""Errors about dtypes that only kernels raise. In a CUDA build of torch, the shape functions do not raise them, so the
paper GPU accepts such a call."""
WIDTHS = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32)

Numbers = dict[int, tuple[int, torch.UntypedStorage]]
Run = Callable[[Sequence[Tensor], str], Any]


@dataclass
class Step:
    """``run(tensors, device)`` reads the slots ``reads`` and writes ``writes``.

    ``sizes``: slots whose values decide the size of the result, or are read on the host. ``taint``: whether the result
    is unknown where that does not follow from what is read.
    """

    name: str
    run: Run
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    taint: bool | None = None


class Difference(Exception):
    """The paper GPU's behaviour differs from the CPU's."""


class Taints:
    """Flags of the bytes in CPU storages that depend on random numbers."""

    def __init__(self) -> None:
        self._flags: dict[int, tuple[torch.UntypedStorage, Tensor]] = {}

    def knows(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._flags

    def view(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        _, flags = self._flags.get(storage._cdata, (storage, torch.zeros(0, dtype=torch.bool)))
        if flags.numel() != size:  # new, or resized: what is added is uninitialised
            old, flags = flags, torch.ones(size, dtype=torch.bool)
            flags[: min(size, old.numel())] = old[:size]
            self._flags[storage._cdata] = (storage, flags)
        width = tensor.element_size()
        strides = [stride * width for stride in tensor.stride()]
        return flags.as_strided((*tensor.shape, width), (*strides, 1), tensor.storage_offset() * width)

    def any(self, tensor: Tensor) -> bool:
        return tensor.numel() > 0 and bool(self.view(tensor).any())

    def set(self, tensor: Tensor, tainted: bool) -> None:
        if tensor.numel():
            self.view(tensor)
            storage = tensor.untyped_storage()
            flags = self._flags[storage._cdata][1]
            width = tensor.element_size()
            places = torch.arange(flags.numel()).as_strided(
                (*tensor.shape, width), (*(s * width for s in tensor.stride()), 1), tensor.storage_offset() * width
            )
            flags[places.reshape(-1)] = tainted


class Chain:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host: list[Tensor] = []
        self.paper: list[Tensor] = []
        self.taints = Taints()
        self.log: list[str] = []
        self.numbers: tuple[Numbers, Numbers] = ({}, {})  # of storages, by order of appearance

    # ---- choosing ----------------------------------------------------------------------------------------------------

    def pick(self, wanted: Callable[[Tensor], bool] = lambda _: True) -> int:
        """Return a slot with a suitable tensor, a new one if none exists."""
        fitting = [i for i, t in enumerate(self.host) if wanted(t)]
        if not fitting or self.rng.random() < 0.1:
            for _ in range(20):
                index = self.create()
                if wanted(self.host[index]):
                    return index
            raise Skip
        return self.rng.choice(fitting[-6:])

    def shape(self, limit: int = 4) -> list[int]:
        return [
            self.rng.choice((0, 1, 2, 2, 3, 4, 5)) if self.rng.random() < 0.9 else 1
            for _ in range(self.rng.randrange(limit))
        ]

    def create(self) -> int:
        shape, dtype, start = self.shape(), self.rng.choice(DTYPES), self.rng.randrange(3)
        count = torch.Size(shape).numel()
        values = [self.rng.randrange(4) for _ in range(self.rng.randrange(1, 7))]
        runs: dict[str, Callable[[str], Tensor]] = {
            "zeros": lambda d: torch.zeros(shape, dtype=dtype, device=d),
            "arange": lambda d: torch.arange(start, start + count, device=d).view(shape).to(dtype),
            "list": lambda d: torch.tensor(values, dtype=dtype, device=d),
            "random": lambda d: torch.rand(shape, device=d).mul(3).to(dtype),
            "empty": lambda d: _filled_on_host(torch.empty(shape, dtype=dtype, device=d)),
            "host": lambda d: torch.full(shape, start, dtype=dtype).to(d, copy=True),
            "channels": lambda d: torch.zeros(2, 3, 2, 4, dtype=dtype, device=d).to(memory_format=torch.channels_last),
        }
        kind = self.rng.choice([*runs, "arange"])
        self.apply(Step(kind, lambda _, d: runs[kind](d), taint=kind in ("random", "empty")))
        return len(self.host) - 1

    def positions(self, size: int, shape: Sequence[int], tainted: bool) -> Run:
        """Return indices below ``size``."""
        values = [self.rng.randrange(size) for _ in range(torch.Size(shape).numel())]

        def make(_: Any, device: str) -> Tensor:
            known = torch.tensor(values, dtype=torch.int64, device=device).view(*shape)
            return known + torch.rand(shape, device=device).mul(0).long() if tainted else known

        return make

    # ---- running -----------------------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        tainted = any(self.taints.any(self.host[i]) for i in step.reads)
        refused = any(self.taints.any(self.host[i]) for i in step.sizes)
        inputs = sorted({*step.reads, *step.writes, *step.sizes})
        self.log.append(f"{step.name} of {[(i, _text(self.host[i]), self.taints.any(self.host[i])) for i in inputs]}")
        try:
            on_host, error = step.run(self.host, "cpu"), None
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as raised:
            on_host, error = None, raised
        if isinstance(error, NotImplementedError):
            raise Stop if step.writes else Skip
        try:
            on_paper = step.run(self.paper, "cuda")
        except Untraceable as refusal:
            if error is not None:
                raise (Stop if step.writes else Skip) from None
            if refused:
                raise Skip from None
            raise Difference(f"refused: {refusal}") from refusal
        except (RuntimeError, IndexError, ValueError, TypeError) as raised:
            if error is not None:
                raise (Stop if step.writes else Skip) from None
            raise Difference(f"only the paper GPU raises {type(raised).__name__}: {raised}") from raised
        if error is not None and "memory location" in str(error):
            raise Stop  # what overlaps is written, and torch checks only for some operators of a GPU
        if error is not None and torch.version.cuda is not None and DTYPES_OF_KERNELS.search(str(error)):
            raise Stop if step.writes else Skip
        if error is not None:
            raise Difference(f"only the CPU raises {type(error).__name__}: {error}")
        if refused:
            raise Difference("not refused")
        taint = tainted if step.taint is None else step.taint
        for index in step.writes:
            self.taints.set(self.host[index], taint)
        hosts, papers = _tensors(on_host), _tensors(on_paper)
        if len(hosts) != len(papers):
            raise Difference(f"{len(hosts)} results on the CPU, {len(papers)} on the paper GPU")
        if not hosts and on_host != on_paper:
            raise Difference(f"{on_host} on the CPU, {on_paper} on the paper GPU")
        for host, paper in zip(hosts, papers, strict=True):
            if not self.taints.knows(host):
                self.taints.view(host)
                self.taints.set(
                    host.as_strided((host.untyped_storage().nbytes() // host.element_size(),), (1,), 0), taint
                )
            if host.numel() <= MAX_ELEMENTS:
                self.host.append(host)
                self.paper.append(paper)
        for index in inputs:
            self.compare(self.host[index], self.paper[index])
        for host, paper in zip(hosts, papers, strict=True):
            self.compare(host, paper)

    def compare(self, host: Tensor, paper: Tensor) -> None:
        a, b = self.describe(host, 0), self.describe(paper, 1)
        if a != b:
            raise Difference(f"{a} on the CPU, {b} on the paper GPU")
        tainted = self.taints.any(host)
        if device.is_known(paper) == tainted:
            raise Difference(f"{_text(host)} is {'unknown' if tainted else 'known'}, the paper GPU says otherwise")
        if not tainted:
            values = device.values(paper)
            if not torch.equal(
                *(torch.nan_to_num(x.float() if x.dtype == torch.bfloat16 else x) for x in (host, values))
            ):
                raise Difference(f"values: {host.tolist()} on the CPU, {values.tolist()} on the paper GPU")

    def describe(self, tensor: Tensor, side: int) -> tuple[Any, ...]:
        storage, numbers = tensor.untyped_storage(), self.numbers[side]
        number = numbers.setdefault(storage._cdata, (len(numbers), storage))[0] if storage.nbytes() else -1
        version = 0 if tensor.is_inference() else tensor._version
        strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        form = (tuple(tensor.shape), strides if tensor.numel() else [], tensor.dtype, tensor.storage_offset())
        return (*form, tensor.is_conj(), number, storage.nbytes(), version)


class Stop(Exception):
    """The chain ends here, because the devices' values are undefined from now on."""


class Skip(Exception):
    """The line is skipped: no tensor is suitable, or both devices refuse it."""


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _text(tensor: Tensor) -> str:
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}/{list(tensor.stride())}+{tensor.storage_offset()}"


def _filled_on_host(tensor: Tensor) -> Tensor:
    """Uninitialised CPU memory may contain invalid booleans, or indices out of range."""
    if tensor.device.type == "cpu":
        with torch.autograd.grad_mode.inference_mode(tensor.is_inference()):
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).zero_()
    return tensor


def is_number(t: Tensor) -> bool:
    return t.dtype in INTEGERS


def ordered(t: Tensor) -> bool:
    return not t.is_complex()


Maker = Callable[[Chain], Step]
MAKERS: list[Maker] = []


def maker(function: Maker) -> Maker:
    MAKERS.append(function)
    return function


@maker
def view(c: Chain) -> Step:
    i = c.pick()
    t, rng = c.host[i], c.rng
    dim = rng.randrange(t.dim()) if t.dim() else 0
    size = t.shape[dim] if t.dim() else 1
    a, b = sorted((rng.randrange(size + 1), rng.randrange(size + 1)))
    other = rng.randrange(max(1, t.dim()))
    elements = t.untyped_storage().nbytes() // t.element_size()
    offset = rng.randrange(4)
    width = rng.choice(WIDTHS)
    runs: dict[str, Callable[[Tensor], Any]] = {
        "flatten": lambda x: x.reshape(-1),
        "view": lambda x: x.view(-1),
        "transpose": lambda x: x.transpose(dim, other),
        "slice": lambda x: x.narrow(dim, a, b - a),
        "select": lambda x: x.select(dim, min(a, size - 1)),
        "unsqueeze": lambda x: x.unsqueeze(other),
        "squeeze": lambda x: x.squeeze(),
        "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape),
        "as_strided": lambda x: x.as_strided((2, 2), (1, 2), offset) if offset + 3 < elements else x.view(x.shape),
        "as_strided of its own offset": lambda x: x.as_strided((1,), (1,)) if x.numel() else x.view(x.shape),
        "dtype": lambda x: x.view(width) if width.itemsize != 8 or x.element_size() == 8 else x.view(torch.uint8),
        "split": lambda x: x.split(max(1, size // 2), dim),
        "unbind": lambda x: x.unbind(dim),
        "diagonal": lambda x: x.diagonal(),
        "conj": lambda x: x.conj(),
        "real": lambda x: torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.real,
        "imag": lambda x: x.imag if x.is_complex() else x.t(),
        "permute": lambda x: x.permute(*reversed(range(x.dim()))),
    }
    name = rng.choice(list(runs))
    return Step(name, lambda ts, _: runs[name](ts[i]), reads=[i])


@maker
def metadata_in_place(c: Chain) -> Step:
    i, rng = c.pick(), c.rng
    t = c.host[i]
    size = c.shape(3)
    other = c.pick(lambda x: x.dtype == t.dtype)
    runs: dict[str, Callable[[Sequence[Tensor]], Any]] = {
        "t_": lambda ts: ts[i].t_(),
        "unsqueeze_": lambda ts: ts[i].unsqueeze_(0),
        "squeeze_": lambda ts: ts[i].squeeze_(),
        "transpose_": lambda ts: ts[i].transpose_(0, -1),
        "resize_": lambda ts: ts[i].resize_(size),
        "as_strided_": lambda ts: ts[i].as_strided_((1,), (1,), 0) if ts[i].untyped_storage().nbytes() else ts[i],
        "set_": lambda ts: ts[i].set_(ts[other]),
        "set_ of a storage": lambda ts: ts[i].set_(ts[other].untyped_storage(), 0, tuple(ts[other].shape)),
        "set_ whole": lambda ts: ts[i].set_(ts[other].untyped_storage()),
        "set_ of nothing": lambda ts: ts[i].set_(),
    }
    name = rng.choice(list(runs))
    before = t.untyped_storage().nbytes()

    def run(ts: Sequence[Tensor], device: str) -> Any:
        result = runs[name](ts)
        if device == "cpu" and name == "resize_":
            torch.empty(0, dtype=torch.uint8).set_(result.untyped_storage())[before:] = 0
        return result

    return Step(name, run, taint=True)


@maker
def pointwise(c: Chain) -> Step:
    i = c.pick()
    rng, t = c.rng, c.host[i]
    j = c.pick(lambda x: x.shape == t.shape or x.dim() == 0 or x.numel() == 1)
    number = rng.choice((2, 1.5, True, 0))
    unary: dict[str, Callable[[Tensor], Any]] = {
        "add number": lambda x: x + number,
        "rsub": lambda x: 3 - x,
        "ne number": lambda x: x != number,
        "neg": lambda x: -x,
        "abs": lambda x: x.abs(),
        "clamp": lambda x: x.clamp(0, 2),
        "floor_divide": lambda x: x // 2,
        "divide": lambda x: x / 4,
        "not": lambda x: ~x,
        "pow": lambda x: x**2,
        "scalar tensor": lambda x: x + torch.tensor(2),
    }
    binary: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "eq": lambda x, y: x == y,
        "lt": lambda x, y: x < y,
        "where": lambda x, y: torch.where(x == 1, x, y),
        "and": lambda x, y: x & y,
        "minimum": lambda x, y: torch.minimum(x, y),
        "masked_fill": lambda x, y: x.masked_fill(y == 1, 2),
    }
    name = rng.choice([*unary, *binary])
    if name in unary:
        return Step(name, lambda ts, _: unary[name](ts[i]), reads=[i])
    return Step(name, lambda ts, _: binary[name](ts[i], ts[j]), reads=[i, j])


@maker
def in_place(c: Chain) -> Step:
    i = c.pick()
    rng, t = c.rng, c.host[i]
    j = c.pick(lambda x: x.shape == t.shape or x.dim() == 0)
    k = c.pick(lambda x: x.shape == t.shape and x.dtype == torch.bool)
    runs: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Any], list[int], bool | None]] = {
        "add_": (lambda x, y, m: x.add_(1), [i], None),
        "mul_": (lambda x, y, m: x.mul_(y), [i, j], None),
        "zero_": (lambda x, y, m: x.zero_(), [], False),
        "fill_": (lambda x, y, m: x.fill_(2), [], False),
        "copy_": (lambda x, y, m: x.copy_(y), [j], None),
        "masked_fill_": (lambda x, y, m: x.masked_fill_(m, 1), [i, k], None),
        "cumsum_": (lambda x, y, m: x.cumsum_(0), [i], None),
        "random_": (lambda x, y, m: x.zero_() if x.is_complex() else x.random_(0, 2), [], not t.is_complex()),
        "copy_ from the host": (lambda x, y, m: x.copy_(torch.tensor(3)), [], False),
        "tril_": (lambda x, y, m: x.tril_(), [i], None),
        "_foreach_add_": (lambda x, y, m: torch._foreach_add_([x], 1), [i], None),
        "_foreach_zero_": (lambda x, y, m: torch._foreach_zero_([x]), [], False),
        "_foreach_copy_": (lambda x, y, m: torch._foreach_copy_([x], [y]), [j], None),
    }
    name = rng.choice(list(runs))
    function, reads, taint = runs[name]
    return Step(name, lambda ts, _: function(ts[i], ts[j], ts[k]), reads=reads, writes=[i], taint=taint)


@maker
def out(c: Chain) -> Step:
    i = c.pick()
    t = c.host[i]
    j = c.pick(lambda x: x.shape == t.shape)
    k = c.pick(lambda x: x.dtype == t.dtype and x.untyped_storage()._cdata != t.untyped_storage()._cdata)
    runs: dict[str, Callable[[Sequence[Tensor]], Any]] = {
        "add": lambda ts: torch.add(ts[i], ts[j], out=ts[k]),
        "cumsum": lambda ts: torch.cumsum(ts[i], 0, out=ts[k]),
        "cat": lambda ts: torch.cat([ts[i].contiguous(), ts[j].contiguous()], out=ts[k]),
    }
    name = c.rng.choice(list(runs))
    reads = [i] if name == "cumsum" else [i, j]
    return Step(f"out {name}", lambda ts, _: runs[name](ts), reads=reads, writes=[k])


@maker
def reduction(c: Chain) -> Step:
    i = c.pick(ordered)
    t, rng = c.host[i], c.rng
    dim, dtype = rng.randrange(t.dim()) if t.dim() else 0, rng.choice(DTYPES)
    runs: dict[str, Callable[[Tensor], Any]] = {
        "sum": lambda x: x.sum(),
        "sum dim": lambda x: x.sum(dim),
        "max": lambda x: x.max(),
        "max dim": lambda x: x.max(dim),
        "argmax": lambda x: x.argmax(dim),
        "all": lambda x: x.all(),
        "cumsum": lambda x: x.cumsum(dim),
        "sort": lambda x: x.sort(dim, stable=True),
        "topk": lambda x: x.topk(1, dim),
        "flip": lambda x: x.flip(dim),
        "tril": lambda x: x.tril(),
        "repeat": lambda x: x.repeat(2, *([1] * x.dim())),
        "clone": lambda x: x.clone(),
        "contiguous": lambda x: x.contiguous(),
        "cummax": lambda x: x.cummax(dim) if x.dim() else x.clone(),
        "isfinite": lambda x: x.isfinite(),
        "zeros_like": lambda x: (torch.zeros_like(x), torch.ones_like(x), x.new_zeros(3)),
        "to": lambda x: x.to(dtype, copy=True),
    }
    name = rng.choice(list(runs))
    taint = False if name in ("isfinite", "zeros_like") else None
    return Step(name, lambda ts, _: runs[name](ts[i]), reads=[i], taint=taint)


@maker
def join(c: Chain) -> Step:
    i = c.pick()
    t = c.host[i]
    j = c.pick(lambda x: x.shape == t.shape)
    runs: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "cat": lambda x, y: torch.cat([x, y]),
        "cat last": lambda x, y: torch.cat([x, y, x], -1),
        "stack": lambda x, y: torch.stack([x, y], -1),
        "foreach add": lambda x, y: torch._foreach_add([x, y], 1),
        "split copy": lambda x, y: torch.cat([x, y]).split_with_sizes([x.shape[0], y.shape[0]]),
    }
    name = c.rng.choice(list(runs))
    return Step(name, lambda ts, _: runs[name](ts[i], ts[j]), reads=[i, j])


@maker
def index(c: Chain) -> Step:
    i = c.pick(lambda x: x.dim() > 0 and all(x.shape))
    t, rng = c.host[i], c.rng
    dim = rng.randrange(t.dim())
    tainted = rng.random() < 0.25
    flat = c.positions(t.shape[dim], [rng.randrange(1, 4)], tainted)
    first = c.positions(t.shape[0], c.shape(3) or [2], tainted)
    full = c.positions(t.shape[dim], list(t.shape), tainted)
    add = rng.random() < 0.5
    runs: dict[str, tuple[Callable[[Tensor, Any], Any], bool]] = {
        "index_select": (lambda x, d: x.index_select(dim, flat(0, d)), False),
        "index": (lambda x, d: x[first(0, d)], False),
        "gather": (lambda x, d: x.gather(dim, full(0, d)), False),
        "scatter": (lambda x, d: x.scatter(dim, full(0, d) * 0, 1), False),
        "scatter_": (lambda x, d: x.scatter_(dim, full(0, d) * 0, 1), True),
        "scatter_add_": (lambda x, d: x.scatter_add_(dim, full(0, d), x.clone()), True),
        "index_fill_": (lambda x, d: x.index_fill_(dim, flat(0, d), 2), True),
        "index_add_": (lambda x, d: x.index_add_(dim, flat(0, d), x.index_select(dim, flat(0, d))), True),
        "index_put_": (lambda x, d: x.index_put_((flat(0, d) % x.shape[0],), x.new_ones(()), accumulate=add), True),
    }
    name = rng.choice(list(runs))
    function, writes = runs[name]
    taint = True if tainted else None
    return Step(name, lambda ts, d: function(ts[i], d), reads=[i], writes=[i] if writes else [], taint=taint)


@maker
def mask(c: Chain) -> Step:
    i = c.pick(lambda x: x.dim() > 0)
    t = c.host[i]
    j = c.pick(lambda x: x.dtype == torch.bool and x.shape in (t.shape, t.shape[:1]))
    whole, add = c.host[j].shape == t.shape, c.rng.random() < 0.3

    def wide(x: Tensor, m: Tensor) -> Tensor:
        return m if whole else m.view(-1, *[1] * (x.dim() - 1))

    runs: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "x[mask]": lambda x, m: x[m],
        "masked_select": lambda x, m: x.masked_select(wide(x, m)),
        "x[mask] = 1": lambda x, m: x.__setitem__(m, 1) or x,
        "index_put_ of a mask": lambda x, m: x.index_put_((m,), x.new_ones(()), accumulate=add),
        "index_put of a mask": lambda x, m: x.index_put((m,), x.new_ones(()), accumulate=add),
        "where(mask)": lambda x, m: torch.where(wide(x, m), x, 0),
    }
    name = c.rng.choice(list(runs))
    reads, sizes = ([i], [j]) if name in ("x[mask]", "masked_select") else ([i, j], [])
    writes = [i] if name in ("x[mask] = 1", "index_put_ of a mask") else []
    return Step(name, lambda ts, _: runs[name](ts[i], ts[j]), reads, writes, sizes)


@maker
def dynamic(c: Chain) -> Step:
    i = c.pick(is_number)
    runs: dict[str, Callable[[Tensor], Any]] = {
        "nonzero": lambda x: x.nonzero(),
        "unique": lambda x: [t.clone() for t in x.unique(return_inverse=True)],
        "bincount": lambda x: x.reshape(-1).long().clamp(0, 3).bincount(minlength=2),
        "repeats": lambda x: x.reshape(-1).long().clamp(0, 3).repeat_interleave(x.reshape(-1).long().clamp(0, 3)),
        "tolist": lambda x: x.tolist(),
        "bool": lambda x: bool(x.any()),
    }
    name = c.rng.choice(list(runs))
    return Step(name, lambda ts, _: runs[name](ts[i]), sizes=[i], taint=False)


@maker
def round_trip(c: Chain) -> Step:
    i = c.pick()
    t = c.host[i]
    sizes = [] if t.is_floating_point() or t.is_complex() else [i]
    return Step(
        "to the host and back", lambda ts, d: ts[i].to("cpu", copy=True).to(d, copy=d == "cuda"), reads=[i], sizes=sizes
    )


def run_lines(chain: Chain) -> None:
    """Run random lines and compare both devices. Raises Difference."""
    for _ in range(LINES):
        with suppress(Skip):
            chain.apply(chain.rng.choice(MAKERS)(chain))
    for host, paper in zip(chain.host, chain.paper, strict=True):
        chain.compare(host, paper)
    expected = sum(-(-storage.nbytes() // GRANULARITY) * GRANULARITY for _, storage in chain.numbers[1].values())
    if device.live_bytes != expected:
        gc.collect()  # cycles of an earlier error
    if device.live_bytes != expected:
        raise Difference(f"storages of {expected} bytes are live, the paper GPU counts {device.live_bytes}")


def run_chain(seed: int) -> "dict[str, Any] | None":
    """Return the difference and the lines before it, None if there is none."""
    chain = Chain(seed)
    inference = chain.rng.random() < 0.1
    try:
        with torch.inference_mode() if inference else nullcontext(), suppress(Stop):
            run_lines(chain)
    except Exception as error:  # a fault of the chain itself is a difference too: somebody has to look
        return {"seed": seed, "why": f"{type(error).__name__}: {error}", "lines": chain.log}
    return None


device = paper_gpu()
assert device is not None
if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    failures = [failure for seed in range(first, first + count) if (failure := run_chain(seed))]
    gc.collect()
    print(json.dumps({"chains": count, "failures": failures, "leaked": device.live_bytes}))
