"""What has to be replaced in Megatron and around it to take its training step without a GPU, one sentence for each.

Megatron-core 0.19.2 names CUDA everywhere: as a device, for streams and events, for the states of random numbers. Here
the device becomes the CPU and the rest does nothing. Nothing of this touches how a model is sharded, how tokens are
dispatched, or what is gathered and reduced: those run as the checkout has them. A name that is no longer where it is
replaced stops the run, because a replacement that misses its target would leave something else running.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from importlib import import_module
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from regbot_guest.harness import ContractError
from regbot_guest.shadow import ShadowValues

DISPATCHER = "megatron.core.transformer.moe.token_dispatcher"

SEEN = ("0.19.2",)
"""Versions of megatron-core that this was seen to work with."""

FUSIONS = "functions that Megatron compiles when it is imported (jit_fuser) run as they are written"
DEVICE = "the device 'cuda' is the CPU"
STREAMS = "CUDA streams and events do nothing"
RANDOM = "the states of random numbers are neither kept nor restored (CudaRNGStatesTracker, checkpoints)"
SPLITS = "splits are handed to all-to-all as numpy arrays without a copy from a GPU (maybe_move_tensor_to_cpu)"
GATHERED = "objects gathered while the optimizer is built are taken to be alike on all ranks"
HALVES = "parameters are converted to bfloat16 one by one (Module.bfloat16)"
ORDER = "sets of parameters are walked in the order in which they were made, not by address"
COALESCED = "coalesced collectives take tensors without values"
NORMS = "norms are torch's, with their gradients marked for the tensor ranks as Megatron's own are (WrappedTorchNorm)"
LOCAL = "layers are Megatron's own (get_gpt_layer_local_spec), not Transformer Engine's"


@contextmanager
def uncompiled() -> Iterator[None]:
    """While active, ``torch.compile`` returns what it is given: Megatron decorates its fused functions with it when it
    is imported, and under a counter they would run eagerly anyway."""

    def compile_nothing(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda given: given

    with replaced(torch, "compile", compile_nothing):
        yield


@contextmanager
def device_is_cpu() -> Iterator[list[str]]:
    """While active, Megatron finds a CPU where it asks for CUDA. Gives the patches. Raises ContractError."""
    idle, norm = _Idle(), named("megatron.core.transformer.torch_norm", "WrappedTorchNorm")
    random = "megatron.core.tensor_parallel.random"
    stand_ins: Sequence[tuple[Any, str, Any]] = (
        (torch.cuda, "Stream", _Idle),
        (torch.cuda, "Event", _Idle),
        (torch.cuda, "current_stream", lambda *_: idle),
        (torch.cuda, "stream", lambda *_: nullcontext()),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (named(random, "CudaRNGStatesTracker"), "fork", lambda *_, **__: nullcontext()),
        (import_module(random), "_get_all_rng_states", lambda: ()),
        (import_module(random), "_set_all_rng_states", lambda *_: None),
        (import_module(DISPATCHER), "maybe_move_tensor_to_cpu", _to_numpy),
        (norm, "__new__", _norm_of(norm.__new__)),
    )
    with ExitStack() as stack:
        for owner, name, stand_in in stand_ins:
            stack.enter_context(replaced(owner, name, stand_in))
        stack.enter_context(_CudaIsCpu())
        yield [FUSIONS, DEVICE, STREAMS, RANDOM, SPLITS, LOCAL, NORMS]


@contextmanager
def without_values(shadows: ShadowValues) -> Iterator[list[str]]:
    """While active, a model can be built and stepped on tensors without values. Gives the patches."""

    def copied_to_host(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
        value = shadows.of(tensor) if isinstance(tensor, Tensor) else None
        if value is None:
            return _to_numpy(tensor, as_numpy)
        with _disable_current_modes():
            return _to_numpy(value.clone(), as_numpy)

    with (
        replaced(nn.Module, "bfloat16", _to_bfloat16),
        replaced(FakeTensor, "__hash__", _numbered()),
        replaced(import_module(DISPATCHER), "maybe_move_tensor_to_cpu", copied_to_host),
        _coalesced_without_values(),
        _OnHost(),
    ):
        yield [HALVES, COALESCED, ORDER]


@contextmanager
def alike_on_all_ranks() -> Iterator[list[str]]:
    """While active, an object gathered from ranks that are not there is this rank's own. For building only: a step
    that gathers objects is to be counted. Gives the patches."""

    def all_gather_object(gathered: list[Any], own: Any, *_: Any, **__: Any) -> None:
        gathered[:] = [own] * len(gathered)

    with replaced(dist, "all_gather_object", all_gather_object):
        yield [GATHERED]


@contextmanager
def replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """While active, ``owner.name`` is ``stand_in``. Raises ContractError where there is no such name."""
    if not hasattr(owner, name):
        raise _gone(getattr(owner, "__name__", repr(owner)), name)
    original = owner.__dict__.get(name, getattr(owner, name))
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, original)


def named(module: str, name: str) -> Any:
    """``module.name`` of the Megatron that is imported. Raises ContractError where there is no such name."""
    try:
        return getattr(import_module(module), name)
    except (AttributeError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("megatron"):
            raise ContractError("config", f"{module} cannot be imported: {error}") from error
        raise _gone(module, name) from error


def _gone(owner: str, name: str) -> ContractError:
    return ContractError(
        "config",
        f"there is no {owner}.{name}, which regbot needs to run or replace; it was seen to work with megatron-core "
        f"{', '.join(SEEN)}. Update regbot, or trace a revision near that version",
    )


class _CudaIsCpu(TorchFunctionMode):
    """Every torch function that is given a CUDA device gets the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None:
            given["device"] = _cpu(given["device"])
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            return func(
                args[0], *(_cpu(one) if isinstance(one, (str, torch.device)) else one for one in args[1:]), **given
            )
        if func is torch.tensor and (leaves := _tensors(args[0])):
            return torch.stack(leaves)  # a list of lone numbers, which would be read one by one
        result = func(*args, **given)
        if func is Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")  # the optimizer sorts parameters by these names
        return result


class _OnHost(TorchFunctionMode):
    """What a GPU run keeps on the host has values here: copies made for the host, and what is computed from them
    alone. Reading them stops nobody, so it is no host read."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if (func is torch.arange and given.get("device") == "cpu" and isinstance(given["device"], str)) or (
            args
            and type(args[0]) is Tensor
            and not any(isinstance(one, FakeTensor) for one in tree_leaves((args, given)))
        ):
            with _disable_current_modes():
                return func(*args, **given)
        return func(*args, **given)


def _cpu(device: Any) -> Any:
    return torch.device("cpu") if str(device).partition(":")[0] == "cuda" else device


def _tensors(given: Any) -> list[Tensor]:
    leaves = tree_leaves(given) if isinstance(given, list) else []
    return leaves if leaves and all(isinstance(leaf, FakeTensor) for leaf in leaves) else []


class _Idle:
    """A stream or event with nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record_event(self, *_: Any) -> "_Idle":
        return self

    def _nothing(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = wait = record = synchronize = _nothing


def _to_numpy(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


def _numbered() -> Callable[[Tensor], int]:
    """A hash that is the same in every run: buckets hold their parameters in sets, and a fingerprint has an order."""
    numbers = count()

    def number(tensor: Tensor) -> int:
        found: int | None = tensor.__dict__.get("_regbot_number")
        if found is None:
            found = tensor.__dict__["_regbot_number"] = next(numbers)
        return found

    return number


def _norm_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes torch's norm also where sequences are split over tensor ranks, which the original refuses."""

    def made(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        plain = copy(config)
        plain.sequence_parallel = False
        norm = original(cls, plain, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    return made


def _to_bfloat16(module: nn.Module) -> nn.Module:
    """``module.bfloat16()``, which swaps parameters in place, and cannot where they have no values."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None and parameter.is_floating_point() and parameter.dtype is not torch.bfloat16:
                half = nn.Parameter(parameter.detach().to(torch.bfloat16), parameter.requires_grad)
                half.__dict__.update({key: v for key, v in vars(parameter).items() if not key.startswith("_regbot")})
                part._parameters[name] = half
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.to(torch.bfloat16)
    return module


@contextmanager
def _coalesced_without_values() -> Iterator[None]:
    """Kernels for the coalesced collectives, which torch 2.13 gives to real tensors only."""
    names = ("allreduce_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    library = torch.library.Library("c10d", "IMPL")
    try:
        for name in names:
            if not has_kernel(f"c10d::{name}", "Meta"):
                from torch.distributed._meta_registrations import create_fakework

                library.impl(name, lambda *args: create_fakework(args, return_first_arg=False), "Meta")
        yield
    finally:
        library._destroy()
