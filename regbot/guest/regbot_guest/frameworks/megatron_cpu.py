"""Replacements that let Megatron's training step run without a GPU. Each has a one-line description for the record.

Megatron-core 0.19.2 uses CUDA as a device, for streams and events, and for the states of random number generators. Here
the CPU replaces the device, and all other uses do nothing. The replacements do not change how a model is sharded, how
tokens are dispatched, or what is gathered and reduced. If a name that has to be replaced does not exist, the run stops,
because it would otherwise run different code than intended.
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

from regbot_guest.contract import ContractError
from regbot_guest.shadow_values import ShadowValues

DISPATCHER = "megatron.core.transformer.moe.token_dispatcher"

TESTED_VERSIONS = ("0.19.2",)
"""Versions of megatron-core with which regbot was tested."""

FUSIONS = "functions that Megatron compiles when it is imported (jit_fuser) run as they are written"
DEVICE = "the device 'cuda' is the CPU"
STREAMS = "CUDA streams and events do nothing"
RANDOM = "the states of random numbers are neither kept nor restored (CudaRNGStatesTracker, checkpoints)"
SPLITS = "splits are handed to all-to-all as numpy arrays without a copy from a GPU (maybe_move_tensor_to_cpu)"
GATHERS = "objects gathered while the optimizer is built are taken to be alike on all ranks"
HALVES = "parameters are converted to bfloat16 one by one (Module.bfloat16)"
ORDER = "sets of parameters are walked in the order in which they were made, not by address"
COALESCED = "coalesced collectives take tensors without values"
NORMS = "norms are torch's, with their gradients marked for the tensor ranks as Megatron's own are (WrappedTorchNorm)"
LOCAL = "layers are Megatron's own (get_gpt_layer_local_spec), not Transformer Engine's"


@contextmanager
def without_compile() -> Iterator[None]:
    """While active, ``torch.compile`` returns its argument unchanged.

    Megatron decorates its fused functions with ``torch.compile`` when it is imported. Under a counter, these functions
    would run eagerly anyway.
    """

    def return_unchanged(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda decorated: decorated

    with replaced(torch, "compile", return_unchanged):
        yield


@contextmanager
def device_is_cpu() -> Iterator[list[str]]:
    """While active, Megatron uses the CPU instead of CUDA. Yields descriptions of the replacements. Raises
    ContractError.
    """
    idle, norm = _Idle(), import_attribute("megatron.core.transformer.torch_norm", "WrappedTorchNorm")
    random = "megatron.core.tensor_parallel.random"
    stand_ins: Sequence[tuple[Any, str, Any]] = (
        (torch.cuda, "Stream", _Idle),
        (torch.cuda, "Event", _Idle),
        (torch.cuda, "current_stream", lambda *_: idle),
        (torch.cuda, "stream", lambda *_: nullcontext()),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (import_attribute(random, "CudaRNGStatesTracker"), "fork", lambda *_, **__: nullcontext()),
        (import_module(random), "_get_all_rng_states", lambda: ()),
        (import_module(random), "_set_all_rng_states", lambda *_: None),
        (import_module(DISPATCHER), "maybe_move_tensor_to_cpu", _to_numpy),
        (norm, "__new__", _norm_constructor(norm.__new__)),
    )
    with ExitStack() as stack:
        for owner, name, stand_in in stand_ins:
            stack.enter_context(replaced(owner, name, stand_in))
        stack.enter_context(_CudaToCpu())
        yield [FUSIONS, DEVICE, STREAMS, RANDOM, SPLITS, LOCAL, NORMS]


@contextmanager
def support_fake_tensors(shadows: ShadowValues) -> Iterator[list[str]]:
    """While active, a model can be built and trained on fake tensors. Yields descriptions of the replacements."""

    def copy_to_host(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
        value = shadows.find_values(tensor) if isinstance(tensor, Tensor) else None
        if value is None:
            return _to_numpy(tensor, as_numpy)
        with _disable_current_modes():
            return _to_numpy(value.clone(), as_numpy)

    with (
        replaced(nn.Module, "bfloat16", _to_bfloat16),
        replaced(FakeTensor, "__hash__", _stable_hash()),
        replaced(import_module(DISPATCHER), "maybe_move_tensor_to_cpu", copy_to_host),
        _fake_coalesced_collectives(),
        _HostTensors(),
    ):
        yield [HALVES, COALESCED, ORDER]


@contextmanager
def gather_own_objects() -> Iterator[list[str]]:
    """While active, ``all_gather_object`` returns this rank's own object for every rank. Yields a description.

    Use it only while a model is built. The step itself needs the real ``all_gather_object``, so that it is counted.
    """

    def all_gather_object(gathered: list[Any], own: Any, *_: Any, **__: Any) -> None:
        gathered[:] = [own] * len(gathered)

    with replaced(dist, "all_gather_object", all_gather_object):
        yield [GATHERS]


@contextmanager
def replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """While active, ``owner.name`` is ``stand_in``. Raises ContractError if ``owner`` has no attribute of this name."""
    if not hasattr(owner, name):
        raise _missing_name(getattr(owner, "__name__", repr(owner)), name)
    original = owner.__dict__.get(name, getattr(owner, name))
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, original)


def import_attribute(module: str, name: str) -> Any:
    """Import ``module``, which belongs to Megatron, and return its attribute ``name``.

    Raises ContractError if the module or the attribute does not exist.
    """
    try:
        return getattr(import_module(module), name)
    except (AttributeError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("megatron"):
            raise ContractError("config", f"{module} cannot be imported: {error}") from error
        raise _missing_name(module, name) from error


def _missing_name(owner: str, name: str) -> ContractError:
    return ContractError(
        "config",
        f"there is no {owner}.{name}, which regbot needs to run or replace; regbot is tested with megatron-core "
        f"{', '.join(TESTED_VERSIONS)}. Update regbot, or trace a revision near that version",
    )


class _CudaToCpu(TorchFunctionMode):
    """Replaces CUDA devices with the CPU in the arguments of every torch function."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if options.get("device") is not None:
            options["device"] = _replace_cuda(options["device"])
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            return func(
                args[0],
                *(_replace_cuda(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args[1:]),
                **options,
            )
        if func is torch.tensor and (leaves := _list_fake_tensors(args[0])):
            return torch.stack(leaves)  # torch.tensor would read a list of scalar tensors one by one
        result = func(*args, **options)
        if func is Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")  # the optimizer groups parameters by these type names
        return result


class _HostTensors(TorchFunctionMode):
    """Keeps a tensor real if it would be on the host in a run with GPUs.

    Such tensors are copies to the host, and results that are computed only from such copies. Reading them does not wait
    for the device, so it is not counted as a host read.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if (func is torch.arange and options.get("device") == "cpu" and isinstance(options["device"], str)) or (
            args
            and type(args[0]) is Tensor
            and not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, options)))
        ):
            with _disable_current_modes():
                return func(*args, **options)
        return func(*args, **options)


def _replace_cuda(device: Any) -> Any:
    return torch.device("cpu") if str(device).partition(":")[0] == "cuda" else device


def _list_fake_tensors(value: Any) -> list[Tensor]:
    leaves = tree_leaves(value) if isinstance(value, list) else []
    return leaves if leaves and all(isinstance(leaf, FakeTensor) for leaf in leaves) else []


class _Idle:
    """Replacement for CUDA streams and events. Its methods do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record_event(self, *_: Any) -> "_Idle":
        return self

    def _do_nothing(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = wait = record = synchronize = _do_nothing


def _to_numpy(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


def _stable_hash() -> Callable[[Tensor], int]:
    """Return a hash function for tensors whose results are the same in every run.

    Megatron's buckets keep parameters in sets. The hashes decide the order of the parameters in these sets, and the
    fingerprint depends on this order.
    """
    numbers = count()

    def hash_tensor(tensor: Tensor) -> int:
        number: int | None = tensor.__dict__.get("_regbot_number")
        if number is None:
            number = tensor.__dict__["_regbot_number"] = next(numbers)
        return number

    return hash_tensor


def _norm_constructor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a constructor for Megatron's wrapper of torch's norm.

    It accepts sequence parallelism, which the original constructor refuses.
    """

    def create(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        plain_config = copy(config)
        plain_config.sequence_parallel = False
        norm = original(cls, plain_config, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    return create


def _to_bfloat16(module: nn.Module) -> nn.Module:
    """Replacement for ``module.bfloat16()``, which swaps parameters in place, so it cannot convert fake tensors."""
    for submodule in module.modules():
        for name, parameter in list(submodule._parameters.items()):
            if parameter is not None and parameter.is_floating_point() and parameter.dtype is not torch.bfloat16:
                converted = nn.Parameter(parameter.detach().to(torch.bfloat16), parameter.requires_grad)
                converted.__dict__.update(
                    {key: value for key, value in vars(parameter).items() if not key.startswith("_regbot")}
                )
                submodule._parameters[name] = converted
        for name, buffer in list(submodule._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                submodule._buffers[name] = buffer.to(torch.bfloat16)
    return module


@contextmanager
def _fake_coalesced_collectives() -> Iterator[None]:
    """While active, coalesced collectives have meta kernels. torch 2.13 has only real kernels for these collectives."""
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
