"""Which attention, grouped GEMM, token dispatch and permutation ran. Each of these backends can silently fall back to
another.

Every backend has three values. ``requested`` is the value in the configuration. ``resolved`` is what regbot chose on
this machine, by trying. ``executed`` is what ran. It is read from the operators and exchanges of the counted step,
never from what a layer reports about itself. For a user's module, ``resolved`` is the same as ``requested``.
"""

from collections.abc import Mapping
from typing import Any

import torch

from regbot_guest.availability import BUFFERS, Resolution, resolve
from regbot_guest.grouped_gemm import describe_grouped_gemm
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.request import Request
from regbot_guest.tally import StepCounter

LOCAL = "local"
"""Value of a dispatcher that exchanges no rows, because its rank has all experts."""


def describe_backends(request: Request, observer: StepCounter, device: torch.device) -> dict[str, Any]:
    """Return requested, resolved and executed values, and the evidence, for each backend. The step ran on
    ``device``.
    """
    own_layer = request.entry is None
    table = {"attention": _describe_attention(observer.operators)}
    if request.mlp != "moe":
        return table
    if own_layer:
        dtype = _torch_dtype(request)
        table["grouped_gemm"] = describe_grouped_gemm(observer.operators, dtype, device, runs_grouped_mm(dtype, device))
    if request.dispatcher and request.ep == 1:
        table["dispatcher"] = _describe_local(request.dispatcher)
        if own_layer:
            table["fused_permute"] = _describe_fused_permute(LOCAL, Resolution(LOCAL), LOCAL)
    elif request.dispatcher:
        resolution = _layer_resolution(request, device) if own_layer else Resolution(request.dispatcher)
        table["dispatcher"] = _describe_dispatcher(request.dispatcher, resolution, observer)
        if own_layer:
            table["fused_permute"] = _describe_fused_permute(
                request.dispatcher, resolution, table["dispatcher"]["executed"]
            )
    return table


def _torch_dtype(request: Request) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, request.dtype)
    return dtype


def _layer_resolution(request: Request, device: torch.device) -> Resolution:
    """Return how regbot's own layer resolved the dispatcher. ``resolve`` has cached the result, so nothing is tried
    again.
    """
    required_buffer = request.config.get("deepep_buffer") or ""
    return resolve(request.dispatcher, device, _torch_dtype(request), required_buffer, request.ep)


def _backend_entry(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}


def _describe_attention(operators: Mapping[str, int]) -> dict[str, str]:
    fused_operators = [name for name in operators if "scaled_dot_product" in name and "backward" not in name]
    if not fused_operators:
        return _backend_entry("sdpa", "sdpa", "math", "no fused attention operator ran")
    operator = fused_operators[0]
    return _backend_entry(
        "sdpa", "sdpa", operator.split("::")[1].strip("_"), f"dispatched {operator} x{operators[operator]}"
    )


def _describe_local(requested: str) -> dict[str, str]:
    """Describe the dispatcher of expert-parallel groups of one rank, which have no collectives.

    No dispatcher can be requested for them, so the requested value is ``local`` too.
    """
    evidence = f"expert-parallel groups have one rank, so {requested} has no rows to exchange"
    return _backend_entry(LOCAL, LOCAL, LOCAL, evidence)


def _describe_dispatcher(requested: str, resolution: Resolution, observer: StepCounter) -> dict[str, str]:
    payload_on_ep = [
        (key, n) for key, n in observer.tally.count.items() if key.role == "payload" and "ep" in key.axis.split("|")
    ]
    exchanges = {via: sum(n for key, n in payload_on_ep if key.via == via) for via in BUFFERS}
    torch_collectives = {
        kind: sum(n for key, n in payload_on_ep if key.kind == kind and key.via not in BUFFERS)
        for kind in ("all_to_all", "all_gather", "reduce_scatter")
    }
    evidence = f"payload collectives on axis ep: {', '.join(f'{n} {kind}' for kind, n in torch_collectives.items())}"
    libraries = [via for via, n in exchanges.items() if n]
    if libraries:
        executed = libraries[0]
        calls = ", ".join(f"{exchanges[via]} exchanges returned by {via}" for via in libraries)
        evidence = f"{calls} ({resolution.buffer or 'announced'}); {evidence}"
    elif torch_collectives["all_to_all"]:
        executed = "alltoall"
    else:
        executed = "allgather" if torch_collectives["all_gather"] else "none"
    if resolution.reason:
        evidence = f"{requested} is not usable here, {resolution.resolved} ran instead: {resolution.reason}; {evidence}"
    return _backend_entry(requested, resolution.resolved, executed, evidence[:4000])


def _describe_fused_permute(requested: str, resolution: Resolution, executed: str) -> dict[str, str]:
    """Describe how rows are sorted by expert. HybridEP's kernels sort them; other dispatchers use index operators."""
    values = [name if name == "hybridep" else "unfused" for name in (requested, resolution.resolved, executed)]
    sorting = (
        "in the exchange that hybridep announced"
        if executed == "hybridep"
        else "by index operators around the exchange"
    )
    return _backend_entry(values[0], values[1], values[2], f"rows are sorted by expert {sorting}")
