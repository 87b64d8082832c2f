"""What has to be replaced in torchtitan and around it to take its training step without a GPU, one line for each.

torchtitan 0.3.0 does not start without one: it asks the device for its name and memory, captures CUDA graphs, compiles
flex attention, and uses an SPMD backend that torch 2.13 lacks. Nothing here touches how a model is sharded, how tokens
are dispatched, or what FSDP gathers and reduces: those run as the checkout has them. A name that is no longer where it
is replaced stops the run, because a replacement that misses its target would leave something else running.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from regbot_guest.frameworks.torchtitan_config import imported, put
from regbot_guest.harness import ContractError

SEEN = ("0.3.0",)
"""Versions of torchtitan that this was seen to work with."""

DEVICE = "the device is the CPU, with a name and no memory statistics"
GRAPHS = "training.disable_cuda_graphs = true"
BACKEND = "parallelism.spmd_backend = 'partial_dtensor' in place of 'spmd_types', which needs a newer torch than 2.13"
ATTENTION = "attention is torch's scaled_dot_product_attention, causal, in place of one that needs a GPU"
SUMS = "FSDP reduces with plain sums, because gloo has no scaled ones"
MESHES = "device meshes are made from tensors with values"

SET = ("training.disable_cuda_graphs", "parallelism.spmd_backend")
"""Keys of the configuration that are set for this machine and tell nothing of the checkout."""

_CPU: dict[str, Callable[..., Any]] = {
    "get_device_name": lambda *_: "CPU",
    "get_device_properties": lambda *_: SimpleNamespace(total_memory=1, name="CPU"),
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda *_: {},
}
"""What torch.cuda has and torch.cpu lacks."""


@contextmanager
def device_is_cpu() -> Iterator[None]:
    """While active, torchtitan finds a CPU: at its import, which fixes the device, and afterwards."""
    missing = {name: stand_in for name, stand_in in _CPU.items() if not hasattr(torch.cpu, name)}
    for name, stand_in in missing.items():
        setattr(torch.cpu, name, stand_in)
    try:
        with replaced(torch._utils, "_get_available_device_type", lambda: "cpu"):
            devices = imported("torchtitan.tools.utils")
        with replaced(devices, "get_local_device", lambda: torch.device("cpu")):
            yield
    finally:
        for name in missing:
            delattr(torch.cpu, name)


@contextmanager
def meshes_with_values(trainer_class: Any) -> Iterator[None]:
    """While active, a trainer makes its meshes where tensors have values: rank numbers are read from them."""
    original = trainer_class.init_distributed

    def init_distributed(trainer: Any) -> Any:
        with _disable_current_modes():
            dims = original(trainer)
            dims.build_mesh()
        return dims

    with replaced(trainer_class, "init_distributed", init_distributed):
        yield


def configure(config: Any, asked: Any) -> list[str]:
    """Set what cannot run on a CPU to what can. ``asked`` are the user's own keys, which stay. Returns the patches."""
    patches = [DEVICE]
    put(config, "training.disable_cuda_graphs", True)
    patches.append(GRAPHS)
    if config.parallelism.spmd_backend == "spmd_types" and "parallelism.spmd_backend" not in asked:
        put(config, "parallelism.spmd_backend", "partial_dtensor")
        patches.append(BACKEND)
    attention = imported("torchtitan.models.common.attention")
    plain = getattr(attention, "ScaledDotProductAttention", None)
    if plain is None:
        raise ContractError("config", _gone("torchtitan.models.common.attention", "ScaledDotProductAttention"))
    for layer in config.model_spec.model.layers:
        if hasattr(getattr(layer, "attention", None), "inner_attention"):
            layer.attention.inner_attention = plain.Config()
    return [*patches, ATTENTION]


def reduce_with_sums(models: Any) -> list[str]:
    """Let every FSDP unit reduce without a factor. Returns the patches."""
    from torch.distributed.fsdp import FSDPModule

    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    return [SUMS]


@contextmanager
def replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """While active, ``owner.name`` is ``stand_in``. Raises ContractError where there is no such name."""
    if not hasattr(owner, name):
        raise ContractError("config", _gone(getattr(owner, "__name__", repr(owner)), name))
    original = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _gone(owner: str, name: str) -> str:
    return (
        f"there is no {owner}.{name} to replace, without which this torchtitan does not run on a CPU; regbot was seen "
        f"to work with {', '.join(SEEN)}. Update regbot, or trace a revision near that version"
    )
