"""What ran of everything that can be silently replaced: attention, grouped product, token dispatch, its permutation.

Each is told three times: requested (the configuration), resolved (what was chosen here, by trying), executed (what was
seen to run), with the evidence for the last. Executed is read from the operators and exchanges of the counted step,
never from what a layer says of itself. A module of the user's has no resolved of its own: it is told the request and
shows what it did.
"""

from collections.abc import Mapping
from typing import Any

import torch

from regbot_guest.availability import BUFFERS, Resolution, resolve
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.request import Request
from regbot_guest.tally import StepCounter


def backends(request: Request, observer: StepCounter, device: torch.device) -> dict[str, Any]:
    """By backend: requested, resolved, executed, evidence. ``device`` is the one that the step ran on."""
    own = request.entry is None
    found = {"attention": _attention(observer.operators)}
    if request.mlp != "moe":
        return found
    if own:
        found["grouped_gemm"] = _grouped_gemm(observer.operators, runs_grouped_mm(_dtype(request), device))
    if request.dispatcher:
        resolution = _resolution(request, device) if own else Resolution(request.dispatcher)
        found["dispatcher"] = _dispatcher(request.dispatcher, resolution, observer)
        if own:
            found["fused_permute"] = _fused_permute(request.dispatcher, resolution, found["dispatcher"]["executed"])
    return found


def _dtype(request: Request) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, request.dtype)
    return dtype


def _resolution(request: Request, device: torch.device) -> Resolution:
    """What the layer was given when it was built; the answer is kept, nothing is tried again."""
    if request.ep == 1:
        return Resolution(request.dispatcher)
    return resolve(request.dispatcher, device, _dtype(request), request.config.get("deepep_buffer") or "")


def _told(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}


def _attention(ran: Mapping[str, int]) -> dict[str, str]:
    fused = [name for name in ran if "scaled_dot_product" in name and "backward" not in name]
    if not fused:
        return _told("sdpa", "sdpa", "math", "no fused attention operator seen")
    return _told("sdpa", "sdpa", fused[0].split("::")[1].strip("_"), f"dispatched {fused[0]} x{ran[fused[0]]}")


def _grouped_gemm(ran: Mapping[str, int], runs: bool) -> dict[str, str]:
    grouped = sum(n for name, n in ran.items() if name.split("::")[1].strip("_").startswith("grouped_mm"))
    resolved, executed = ("grouped_mm" if there else "loop" for there in (runs, grouped))
    return _told("grouped_mm", resolved, executed, f"dispatched aten::_grouped_mm x{grouped}")


def _dispatcher(requested: str, resolution: Resolution, observer: StepCounter) -> dict[str, str]:
    on_ep = [
        (key, n) for key, n in observer.tally.count.items() if key.role == "payload" and "ep" in key.axis.split("|")
    ]
    announced = {via: sum(n for key, n in on_ep if key.via == via) for via in BUFFERS}
    seen = {
        kind: sum(n for key, n in on_ep if key.kind == kind and key.via not in BUFFERS)
        for kind in ("all_to_all", "all_gather", "reduce_scatter")
    }
    evidence = f"payload collectives on axis ep: {', '.join(f'{n} {kind}' for kind, n in seen.items())}"
    libraries = [via for via, n in announced.items() if n]
    if libraries:
        executed = libraries[0]
        calls = ", ".join(f"{announced[via]} exchanges returned by {via}" for via in libraries)
        evidence = f"{calls} ({resolution.buffer or 'announced'}); {evidence}"
    elif seen["all_to_all"]:
        executed = "alltoall"
    else:
        executed = "allgather" if seen["all_gather"] else "none"
    if resolution.why:
        evidence = (
            f"{requested} is not usable here, {resolution.resolved} ran in its place: {resolution.why}; {evidence}"
        )
    return _told(requested, resolution.resolved, executed, evidence[:4000])


def _fused_permute(requested: str, resolution: Resolution, executed: str) -> dict[str, str]:
    """Sorting rows by expert: HybridEP does it in the library's kernels, every other dispatcher by index operators."""
    words = [name if name == "hybridep" else "unfused" for name in (requested, resolution.resolved, executed)]
    by = (
        "in the exchange that hybridep announced"
        if executed == "hybridep"
        else "by index operators around the exchange"
    )
    return _told(words[0], words[1], words[2], f"rows are sorted by expert {by}")
