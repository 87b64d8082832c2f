"""Decides which dispatcher runs for a request, because optional libraries may be missing or unusable.

If a dispatcher is unusable, ``alltoall`` runs instead, and the reason is recorded. All ranks get the same result,
because different dispatchers would deadlock. Which dispatcher *ran* is read from the counted step (``backends.py``).
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from regbot_guest.deepep_installation import DeepEPInstallation, inspect_deep_ep
from regbot_guest.software import nccl

FALLBACK = "alltoall"

BUFFERS = {"deepep": ("ElasticBuffer", "Buffer"), "hybridep": ("HybridEPBuffer",)}
"""Classes of deep_ep that can serve a dispatcher. The preferred class comes first."""

GPU_GENERATIONS = {"ElasticBuffer": range(9, 100), "Buffer": range(8, 100), "HybridEPBuffer": range(8, 11)}
"""Major compute capabilities, by DeepEP's README and Megatron-Bridge's rules for HybridEP."""

LEGACY_GROUP_SIZES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Sizes of expert-parallel groups for which ``Buffer`` has a configuration (``deep_ep/buffers/legacy.py``)."""
ELASTIC_NCCL = (2, 30, 4)
"""Oldest NCCL that ``ElasticBuffer`` runs with (DeepEP's README)."""
ADAPTERS = Path("/sys/class/infiniband")


class Resolution(NamedTuple):
    """``resolved`` is the dispatcher that runs, ``buffer`` its class of deep_ep ('' for none), and ``reason`` why the
    requested dispatcher is not used ('' if it is).
    """

    resolved: str
    buffer: str = ""
    reason: str = ""


@cache
def resolve(
    requested: str, device: torch.device, dtype: torch.dtype, required_buffer: str = "", ep: int = 0
) -> Resolution:
    """Return the dispatcher to run for ``requested``. '' as ``required_buffer`` allows all classes of deep_ep; ``ep`` 0
    is unknown. On a GPU all ranks must call this function, because it exchanges messages.
    """
    if requested not in BUFFERS:
        return Resolution(requested)
    launch_obstacle = find_launch_obstacle(device, dtype)
    buffer, buffer_obstacle = find_buffer(requested, device, required_buffer, ep)
    reason = "; ".join(filter(None, (buffer_obstacle, launch_obstacle)))
    if not launch_obstacle:  # it is the same on every rank, so either all ranks exchange messages or none does
        buffer, reason = _agree_on_buffer(buffer, reason)
    if reason:
        return Resolution(FALLBACK, reason=reason)
    return Resolution(requested, buffer)


def find_buffer(name: str, device: torch.device, required_buffer: str = "", ep: int = 0) -> tuple[str, str]:
    """Return the class of deep_ep to use for the dispatcher ``name`` and '', or '' and the reason why there is none."""
    library = inspect_deep_ep()
    if not library.importable:
        return "", f"deep_ep cannot be imported: {library.reason}"
    obstacles = []
    candidates = [required_buffer] if required_buffer else BUFFERS[name]
    for buffer in candidates:
        obstacle = _find_buffer_obstacle(buffer, library, device, ep)
        if not obstacle:
            return buffer, ""
        obstacles.append(obstacle)
    return "", f"deep_ep {library.version}: {', '.join(obstacles)}"


def _find_buffer_obstacle(buffer: str, library: DeepEPInstallation, device: torch.device, ep: int) -> str:
    """Return why groups of ``ep`` ranks cannot use the class ``buffer`` on this device, or '' if they can."""
    if buffer not in library.missing_by_class:
        return f"it offers no {buffer}"
    if missing := library.missing_by_class[buffer]:
        return f"its {buffer} has no {', '.join(missing[:3])}"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major not in GPU_GENERATIONS.get(buffer, ()):
            return f"its {buffer} does not run on compute capability {major}.{minor}"
    if buffer == "Buffer" and ep and ep not in LEGACY_GROUP_SIZES:
        sizes = ", ".join(map(str, LEGACY_GROUP_SIZES))
        return f"its Buffer has no configuration for {ep} expert-parallel ranks (only for {sizes})"
    loaded = nccl(torch) or ""
    is_known = all(part.isdecimal() for part in loaded.split("."))
    is_older = is_known and tuple(map(int, loaded.split("."))) < ELASTIC_NCCL
    if buffer == "ElasticBuffer" and device.type == "cuda" and is_older:
        needed = ".".join(map(str, ELASTIC_NCCL))
        return f"its ElasticBuffer needs NCCL {needed}, and torch has loaded {loaded}"
    return ""


def explain_missing_adapters() -> str:
    """Return advice for a node without RDMA adapters, where NCCL's GIN, the default of ``ElasticBuffer``, does not
    work. Return '' if there are adapters, or if the user has switched GIN off.
    """
    is_gin_off = os.environ.get("EP_DISABLE_GIN", "0") != "0"
    if is_gin_off or (ADAPTERS.is_dir() and any(ADAPTERS.iterdir())):
        return ""
    return (
        f"{ADAPTERS} lists no RDMA adapter on this node, and without one deep_ep needs EP_DISABLE_GIN=1; add it to "
        "'environment' of the workload in regbot.toml, with EP_REUSE_NCCL_COMM=0"
    )


def find_launch_obstacle(device: torch.device, dtype: torch.dtype) -> str:
    """Return a reason for which all ranks of this launch cannot use deep_ep, or '' if no such reason is known."""
    if device.type != "cuda":
        return f"it runs on GPUs, and this run is on the {device.type.upper()}"
    if dtype != torch.bfloat16:
        return f"it moves bfloat16, and this run is in {str(dtype).removeprefix('torch.')}"
    return ""


def _agree_on_buffer(buffer: str, reason: str) -> tuple[str, str]:
    """Return the result of ``find_buffer`` that holds for all ranks: '' and a reason if one rank has no class or
    another.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return buffer, reason
    result_by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(result_by_rank, (buffer, reason))
    first_buffer, _ = result_by_rank[0]
    for rank, (rank_buffer, rank_reason) in enumerate(result_by_rank):
        if rank_reason:
            return "", f"rank {rank}: {rank_reason}"
        if rank_buffer != first_buffer:
            return "", f"rank {rank} has {rank_buffer}, rank 0 {first_buffer}"
    return buffer, reason
