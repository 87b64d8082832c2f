"""Which attention, grouped GEMM, token dispatch and permutation ran. Each can silently fall back to another.

``requested`` is the value in the configuration, ``resolved`` what regbot chose by trying, and ``executed`` what the
operators and exchanges of the counted step show, never what a layer reports about itself.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from regbot_guest.availability import BUFFERS, Resolution, resolve
from regbot_guest.grouped_gemm import describe_grouped_gemm
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.request import Request
from regbot_guest.tally import Key, StepCounter

_ATTENTION = re.compile(r"scaled_dot_product(?!.*backward)")
LOCAL = "local"
"""Value of a dispatcher that exchanges no rows, because its rank has all experts."""
_MAX_EVIDENCE_CHARACTERS = 4000


def describe_backends(request: Request, counter: StepCounter, device: torch.device) -> dict[str, Any]:
    """Return requested, resolved and executed value, and the evidence, of each backend of the step in ``counter``."""
    uses_own_layer = request.entry is None
    table = {"attention": describe_attention(counter.operators, _ATTENTION, "sdpa", "math")}
    if request.mlp != "moe":  # the dense counterpart has no experts, so it has only attention
        return table
    dtype = getattr(torch, request.dtype)
    if uses_own_layer:
        is_usable = runs_grouped_mm(dtype, device)
        table["grouped_gemm"] = describe_grouped_gemm(counter.operators, dtype, device, is_usable)
    if not request.dispatcher:
        return table
    if request.ep == 1:
        # With one expert-parallel rank the dispatcher has no effect, so all three values are ``local``.
        evidence = f"expert-parallel groups have one rank, so {request.dispatcher} has no rows to exchange"
        table["dispatcher"] = backend_entry(LOCAL, LOCAL, LOCAL, evidence)
    else:
        resolution = Resolution(request.dispatcher)
        if uses_own_layer:
            required_buffer = request.config.get("deepep_buffer") or ""
            resolution = resolve(request.dispatcher, device, dtype, required_buffer, request.ep)
        table["dispatcher"] = _describe_dispatcher(request.dispatcher, resolution, counter)
    if uses_own_layer:
        table["fused_permute"] = _describe_fused_permute(table["dispatcher"])
    return table


def backend_entry(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    evidence = evidence[:_MAX_EVIDENCE_CHARACTERS]
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}


def count_exchanges(
    counter: StepCounter, libraries: Collection[str], is_of_experts: Callable[[Key], bool] = lambda _: True
) -> Counter[str]:
    """Count the payload collectives on axis ep, by library or kind."""
    exchanges: Counter[str] = Counter()
    for key, count in counter.tally.count.items():
        is_on_ep = "ep" in re.split(r"[_|]", key.axis)  # the axis may be 'ep|dp' or 'tp_ep'
        if key.role == "payload" and is_on_ep and is_of_experts(key):
            exchanges[key.via if key.via in libraries else key.kind] += count
    return exchanges


def name_dispatcher(exchanges: Mapping[str, int], libraries: Iterable[str]) -> str:
    """Return the dispatcher that was executed, or none. Exchanges of a library decide first, then an all-to-all, then
    an all-gather.
    """
    names = {**{library: library for library in libraries}, "all_to_all": "alltoall", "all_gather": "allgather"}
    return next((name for exchange, name in names.items() if exchanges.get(exchange)), "none")


def list_exchanges(exchanges: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(exchanges.items())) or "none"


def describe_attention(
    operators: Mapping[str, int], fused: re.Pattern[str], configured: str, otherwise: str
) -> dict[str, str]:
    """Describe the ``fused`` operator of forward with the most calls; ``otherwise`` is executed without one."""
    names = [name for name in operators if fused.search(name)]
    if not names:
        return backend_entry(configured, configured, otherwise, "no fused attention operator ran")
    operator = max(names, key=lambda name: operators[name])
    executed = operator.split("::")[-1].strip("_")
    return backend_entry(configured, configured, executed, f"dispatched {operator} x{operators[operator]}")


def _describe_dispatcher(requested: str, resolution: Resolution, counter: StepCounter) -> dict[str, str]:
    exchanges = count_exchanges(counter, BUFFERS)
    kinds = ("all_to_all", "all_gather", "reduce_scatter")
    evidence = f"payload collectives on axis ep: {', '.join(f'{exchanges[kind]} {kind}' for kind in kinds)}"
    if calls := ", ".join(f"{exchanges[via]} exchanges returned by {via}" for via in BUFFERS if exchanges[via]):
        evidence = f"{calls} ({resolution.buffer or 'announced'}); {evidence}"
    evidence = f"{explain_fallback(requested, resolution)}{evidence}"
    return backend_entry(requested, resolution.resolved, name_dispatcher(exchanges, BUFFERS), evidence)


def explain_fallback(requested: str, resolution: Resolution) -> str:
    if not resolution.reason:
        return ""
    return f"{requested} is not usable here, {resolution.resolved} ran instead: {resolution.reason}; "


def _describe_fused_permute(dispatcher: Mapping[str, str]) -> dict[str, str]:
    """HybridEP's kernels sort the rows. Other dispatchers use index operators, which is called 'unfused'."""
    requested, resolved, executed = (
        dispatcher[name] if dispatcher[name] == "hybridep" else "unfused"
        for name in ("requested", "resolved", "executed")
    )
    is_fused = executed == "hybridep"
    sorting = "in the exchange that hybridep announced" if is_fused else "by index operators around the exchange"
    return backend_entry(requested, resolved, executed, f"rows are sorted by expert {sorting}")
