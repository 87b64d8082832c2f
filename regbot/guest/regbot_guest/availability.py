"""The gate in front of libraries that may not be there: which dispatcher a request is resolved to, and why.

``alltoall`` and ``allgather`` need nothing but torch. ``deepep`` and ``hybridep`` need deep_ep, an import name that
several distributions install, in several versions. Importing it can fail with any exception, hang, or end the process
(it loads a C++ extension and compares the loaded NCCL with the one on disk), so it is imported in a process of its own
with a time limit, once per launch, and only where it was asked for. What is not usable is resolved to ``alltoall`` with
the reason, the same on every rank: ranks in different dispatchers would wait for each other for ever.

Whether it *ran* is not decided here: ``backends.py`` tells that from the counted step.
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

FALLBACK = "alltoall"
TIMEOUT_S = 60.0

BUFFERS = {"deepep": ("ElasticBuffer", "Buffer"), "hybridep": ("HybridEPBuffer",)}
"""Classes of deep_ep that serve a dispatcher, the preferred one first."""

NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "ElasticBuffer": {
        "__init__": ("group", "num_max_tokens_per_rank", "hidden", "num_topk", "explicitly_destroy"),
        "get_theoretical_num_sms": ("num_experts", "num_topk"),
        "dispatch": ("x", "topk_idx", "topk_weights", "num_experts", "num_sms", "handle"),
        "combine": ("x", "handle", "topk_weights"),
    },
    "Buffer": {
        "__init__": ("group", "num_nvl_bytes", "num_rdma_bytes", "explicitly_destroy"),
        "get_dispatch_config": ("num_ranks",),
        "get_combine_config": ("num_ranks",),
        "get_dispatch_layout": ("topk_idx", "num_experts"),
        "dispatch": (
            "x", "handle", "num_tokens_per_rank", "num_tokens_per_rdma_rank", "is_token_in_rank",
            "num_tokens_per_expert", "topk_idx", "topk_weights",
        ),
        "combine": ("x", "handle", "topk_weights"),
    },
    "HybridEPBuffer": {
        "__init__": ("group", "hidden_dim", "max_num_of_tokens_per_rank", "num_local_experts"),
        "dispatch_with_permute": (
            "hidden", "routing_map", "probs", "num_of_experts_per_rank", "handle", "num_permuted_tokens",
        ),
        "combine_with_unpermute": ("hidden", "probs", "handle"),
    },
}  # fmt: skip
"""Every parameter that the dispatchers pass, by class and method. A version without one of them cannot be used."""

GPU_GENERATIONS = {"ElasticBuffer": range(9, 100), "Buffer": range(8, 100), "HybridEPBuffer": range(8, 11)}
"""Major compute capabilities: DeepEP's README (SM90, or SM80 for version 1), Megatron-Bridge's rules for HybridEP."""


class Resolution(NamedTuple):
    """What a request became. ``buffer``: the class of deep_ep, '' for none. ``why``: '' where it is what was asked."""

    resolved: str
    buffer: str = ""
    why: str = ""


class Library(NamedTuple):
    """What importing deep_ep in a process of its own showed. ``lacks``: by class that it offers, what is missing."""

    importable: bool
    why: str = ""
    version: str = ""
    distributions: tuple[str, ...] = ()
    lacks: "dict[str, list[str]]" = {}  # noqa: RUF012 (never written)


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


@cache
def probe() -> Library:
    """Import deep_ep in another process, on this one's search path, and tell what it offers. Never raises."""
    with tempfile.TemporaryFile() as output:
        # A session of its own, so that whatever it started is ended with it; a file, which nobody can hold open.
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return Library(False, f"the import was still running after {TIMEOUT_S:.0f} s")
        output.seek(0)
        lines = output.read().splitlines()
    if child.returncode < 0:
        return Library(False, f"the import was ended by {signal.Signals(-child.returncode).name}")
    try:
        answer = json.loads(lines[-1])
        return Library(**{**answer, "distributions": tuple(answer["distributions"])})
    except (IndexError, ValueError, TypeError, KeyError):
        return Library(False, f"the import ended the process with exit code {child.returncode}")


_CHILD = "import sys; sys.path[:] = sys.argv[1:]; from regbot_guest.availability import tell; tell()"


def tell() -> None:
    """What the other process does: one line of JSON, the last one on its standard output."""
    print(json.dumps(_look()._asdict()), flush=True)
    os._exit(0)  # what an extension does at the end of its process is not the question


def _look() -> Library:
    try:
        module = importlib.import_module("deep_ep")
    except (Exception, SystemExit) as error:  # the boundary to code that may raise anything; it becomes the answer
        return Library(False, f"{type(error).__name__}: {error}"[:300])
    return Library(
        True,
        "",
        str(getattr(module, "__version__", "of unknown version"))[:50],
        tuple(sorted(metadata.packages_distributions().get("deep_ep", []))),
        {name: lacking(getattr(module, name), needs) for name, needs in NEEDS.items() if hasattr(module, name)},
    )


def lacking(kind: Any, needs: "dict[str, tuple[str, ...]]") -> list[str]:
    """What of ``needs`` a class does not have, as 'method' or 'method(parameter)'."""
    missing = []
    for method, parameters in needs.items():
        if not hasattr(kind, method):
            missing.append(method)
            continue
        known = inspect.signature(getattr(kind, method)).parameters
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
            missing += [f"{method}({name})" for name in parameters if name not in known]
    return missing


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
