"""The gate in front of libraries that may not be there: which dispatcher a request is resolved to, and why.

``alltoall`` and ``allgather`` need nothing but torch. ``deepep`` and ``hybridep`` need deep_ep, which ``library.py``
tries in another process, only where it was asked for. What is not usable is resolved to ``alltoall`` with the reason,
the same on every rank: ranks in different dispatchers would wait for each other for ever.

Whether it *ran* is not decided here: ``backends.py`` tells that from the counted step.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from regbot_guest.library import Library, probe

FALLBACK = "alltoall"

BUFFERS = {"deepep": ("ElasticBuffer", "Buffer"), "hybridep": ("HybridEPBuffer",)}
"""Classes of deep_ep that serve a dispatcher, the preferred one first."""

GPU_GENERATIONS = {"ElasticBuffer": range(9, 100), "Buffer": range(8, 100), "HybridEPBuffer": range(8, 11)}
"""Major compute capabilities: DeepEP's README (SM90, or SM80 for version 1), Megatron-Bridge's rules for HybridEP."""


class Resolution(NamedTuple):
    """What a request became. ``buffer``: the class of deep_ep, '' for none. ``why``: '' where it is what was asked."""

    resolved: str
    buffer: str = ""
    why: str = ""


@cache
def resolve(requested: str, device: torch.device, dtype: torch.dtype, pinned: str = "") -> Resolution:
    """What to run where ``requested`` was asked for. ``pinned`` allows one class of deep_ep only.

    On a GPU all ranks of the launch must call it, because they agree on the answer.
    """
    if requested not in BUFFERS:
        return Resolution(requested)
    impossible = _impossible(device, dtype)
    buffer, why = usable(requested, device, pinned)
    why = "; ".join(filter(None, (why, impossible)))
    if not impossible:  # which is the same on every rank
        buffer, why = _agree(buffer, why)
    return Resolution(FALLBACK, "", why) if why else Resolution(requested, buffer)


def usable(name: str, device: torch.device, pinned: str = "") -> tuple[str, str]:
    """The class of deep_ep to use here for dispatcher ``name``, or '' and why there is none."""
    library = probe()
    if not library.importable:
        return "", f"deep_ep cannot be imported: {library.why}"
    problems = []
    for buffer in [pinned] if pinned else BUFFERS[name]:
        problem = _problem(buffer, library, device)
        if not problem:
            return buffer, ""
        problems.append(problem)
    return "", f"deep_ep {library.version}: {', '.join(problems)}"


def _problem(buffer: str, library: Library, device: torch.device) -> str:
    """Why a class cannot be used on this device, '' where it can."""
    if buffer not in library.lacks:
        return f"it offers no {buffer}"
    if library.lacks[buffer]:
        return f"its {buffer} has no {', '.join(library.lacks[buffer][:3])}"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major not in GPU_GENERATIONS.get(buffer, ()):
            return f"its {buffer} does not run on compute capability {major}.{minor}"
    return ""


def _impossible(device: torch.device, dtype: torch.dtype) -> str:
    """What rules it out for the whole launch."""
    if device.type != "cuda":
        return f"it runs on GPUs, and this run is on the {device.type.upper()}"
    if dtype != torch.bfloat16:
        return f"it moves bfloat16, and this run is in {str(dtype).removeprefix('torch.')}"
    return ""


def _agree(buffer: str, why: str) -> tuple[str, str]:
    """One answer for all ranks: the first rank's class where every rank can use it, else the first reason not to."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return buffer, why
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (buffer, why))
    for rank, (theirs, reason) in enumerate(answers):
        if reason or theirs != answers[0][0]:
            return "", f"rank {rank}: {reason}" if reason else f"rank {rank} has {theirs}, rank 0 {answers[0][0]}"
    return buffer, why
