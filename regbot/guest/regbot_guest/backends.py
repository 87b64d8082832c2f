"""Which attention, grouped GEMM, token dispatch and permutation ran. Each can silently fall back to another.

``requested`` is the value in the configuration, ``resolved`` what regbot chose by trying, and ``executed`` what the
operators and exchanges of the counted step show, never what a layer reports about itself.
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
_MAX_EVIDENCE_CHARACTERS = 4000


def describe_backends(request: Request, counter: StepCounter, device: torch.device) -> dict[str, Any]:
    """Return requested, resolved and executed value, and the evidence, of each backend of the step in ``counter``."""
    uses_own_layer = request.entry is None
    table = {"attention": _describe_attention(counter.operators)}
    if request.mlp != "moe":  # the dense counterpart has no experts, so it has only attention
        return table
    if uses_own_layer:
        dtype = _torch_dtype(request)
        is_usable = runs_grouped_mm(dtype, device)
        table["grouped_gemm"] = describe_grouped_gemm(counter.operators, dtype, device, is_usable)
    if request.dispatcher and request.ep == 1:
        table["dispatcher"] = _describe_local(request.dispatcher)
        if uses_own_layer:
            table["fused_permute"] = _describe_fused_permute(LOCAL, LOCAL, LOCAL)
    elif request.dispatcher:
        resolution = _resolve_own_dispatcher(request, device) if uses_own_layer else Resolution(request.dispatcher)
        table["dispatcher"] = _describe_dispatcher(request.dispatcher, resolution, counter)
        if uses_own_layer:
            executed = table["dispatcher"]["executed"]
            table["fused_permute"] = _describe_fused_permute(request.dispatcher, resolution.resolved, executed)
    return table


def _torch_dtype(request: Request) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, request.dtype)
    return dtype


def _resolve_own_dispatcher(request: Request, device: torch.device) -> Resolution:
    required_buffer = request.config.get("deepep_buffer") or ""
    return resolve(request.dispatcher, device, _torch_dtype(request), required_buffer, request.ep)


def _backend_entry(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}


def _describe_attention(operators: Mapping[str, int]) -> dict[str, str]:
    fused_operators = [name for name in operators if "scaled_dot_product" in name and "backward" not in name]
    if not fused_operators:
        return _backend_entry("sdpa", "sdpa", "math", "no fused attention operator ran")
    operator = fused_operators[0]
    _, _, name = operator.partition("::")
    return _backend_entry("sdpa", "sdpa", name.strip("_"), f"dispatched {operator} x{operators[operator]}")


def _describe_local(requested: str) -> dict[str, str]:
    """With one expert-parallel rank the dispatcher has no effect, so all three values are ``local``."""
    evidence = f"expert-parallel groups have one rank, so {requested} has no rows to exchange"
    return _backend_entry(LOCAL, LOCAL, LOCAL, evidence)


def _describe_dispatcher(requested: str, resolution: Resolution, counter: StepCounter) -> dict[str, str]:
    """Exchanges of a library decide first, then an all-to-all, then an all-gather."""
    exchanges_by_library = dict.fromkeys(BUFFERS, 0)
    torch_collectives = dict.fromkeys(("all_to_all", "all_gather", "reduce_scatter"), 0)
    for key, count in counter.tally.count.items():
        is_on_ep = "ep" in key.axis.split("|")  # the axis may be 'ep|dp'
        if key.role != "payload" or not is_on_ep:
            continue
        if key.via in exchanges_by_library:
            exchanges_by_library[key.via] += count
        elif key.kind in torch_collectives:
            torch_collectives[key.kind] += count
    evidence = f"payload collectives on axis ep: {', '.join(f'{n} {kind}' for kind, n in torch_collectives.items())}"
    libraries = [via for via, count in exchanges_by_library.items() if count]
    if libraries:
        executed = libraries[0]
        calls = ", ".join(f"{exchanges_by_library[via]} exchanges returned by {via}" for via in libraries)
        evidence = f"{calls} ({resolution.buffer or 'announced'}); {evidence}"
    elif torch_collectives["all_to_all"]:
        executed = "alltoall"
    else:
        executed = "allgather" if torch_collectives["all_gather"] else "none"
    if resolution.reason:
        evidence = f"{requested} is not usable here, {resolution.resolved} ran instead: {resolution.reason}; {evidence}"
    return _backend_entry(requested, resolution.resolved, executed, evidence[:_MAX_EVIDENCE_CHARACTERS])


def _describe_fused_permute(requested: str, resolved: str, executed: str) -> dict[str, str]:
    """HybridEP's kernels sort the rows. Other dispatchers use index operators, which is called 'unfused'."""
    requested_permute, resolved_permute, executed_permute = (
        name if name == "hybridep" else "unfused" for name in (requested, resolved, executed)
    )
    sorting = (
        "in the exchange that hybridep announced"
        if executed == "hybridep"
        else "by index operators around the exchange"
    )
    evidence = f"rows are sorted by expert {sorting}"
    return _backend_entry(requested_permute, resolved_permute, executed_permute, evidence)
