"""The sentences of a finding: what was, what is, in how many layers, and what the model says it costs.

One small function per situation. Nothing here decides anything.
"""

from collections.abc import Callable, Iterable, Mapping

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Claim
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.rows import template, unit
from regbot.records.ledger import Kind
from regbot.records.verdict import Volume, Wire
from regbot.units import binary_bytes

NAMED_MODULES = 3
MESSAGE_CHARACTERS = 4000
KIND_NAMES: dict[Kind, str] = {
    "all_to_all": "all-to-all",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "send_recv": "send/receive",
}


def text(
    claim: Claim,
    before: Mapping[Kind, Volume],
    after: Mapping[Kind, Volume],
    own: Wire,
    passed: bool,
    span: str,
    evidence: str | None = None,
) -> str:
    """Everything a reader needs to know of one finding, two or three sentences."""
    first = evidence or _FIRST_SENTENCE[claim.pattern](claim)
    sentences = [f"{first[:1].upper()}{first[1:]}."]
    if claim.cells:
        sentences.append(f"{span}, {_traffic(before)} became {_traffic(after)}{_wire(own)}.")
    if passed:
        sentences.append("Passed, because the modelled wire time of the step falls and no gradient reduction is lost.")
    return " ".join(sentences)[:MESSAGE_CHARACTERS]


def axis(claim: Claim) -> str:
    """The axis column: 'ep', 'dp, edp', or 'dp -> edp' for a collective that moved."""
    if claim.pattern == names.MOVED and claim.group[0] != claim.group[2]:
        return f"{claim.group[0]} -> {claim.group[2]}"
    return ", ".join(sorted(claim.axes))


def dispatcher(change: DispatcherChange | None) -> str | None:
    """The evidence of a replaced dispatcher."""
    if change is None:
        return None
    return (
        f"both arms asked for dispatcher {change.requested!r}; "
        f"base executed {change.base_executed!r}, head executed {change.head_executed!r}"
    )


def seconds(value: float) -> str:
    """``0.4832`` as ``483 ms``; three digits are more than a model deserves."""
    for unit_s, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit_s:
            return f"{value / unit_s:.3g} {name}"
    return f"{value / 1e-6:.2g} µs" if value else "0 s"


def _mapped_twice(claim: Claim) -> str:
    if claim.noun == "op":
        return (
            f"in {_moe_layers(claim)} the expert-parallel all-to-all on {axis(claim)} was replaced by gathering the "
            f"experts' weights and summing their gradients on {claim.detail}"
        )
    return (
        f"in {_moe_layers(claim)} the expert-parallel all-to-all on {axis(claim)} was replaced by gathering all tokens "
        f"and summing the results on {claim.detail}"
    )


def _restored(claim: Claim) -> str:
    if claim.noun == "op":
        return (
            f"in {_moe_layers(claim)} the expert-parallel all-to-all on {axis(claim)} is back, where the experts' "
            f"weights were gathered and their gradients summed on {claim.detail}"
        )
    return (
        f"in {_moe_layers(claim)} the expert-parallel all-to-all on {axis(claim)} is back, where all tokens were "
        f"gathered and the results summed on {claim.detail}"
    )


def _axis_lost(claim: Claim) -> str:
    return (
        f"in {_moe_layers(claim)} the expert-parallel all-to-all on {axis(claim)} is gone and nothing exchanges tokens "
        f"in its place{_followers(claim)}"
    )


def _axis_gained(claim: Claim) -> str:
    return (
        f"in {_moe_layers(claim)} tokens now travel to their experts by all-to-all on {axis(claim)}{_followers(claim)}"
    )


def _followers(claim: Claim) -> str:
    return f"; the collectives of the experts' parameters on {claim.detail} changed with it" if claim.detail else ""


def _recomputes(claim: Claim) -> str:
    return f"in {_moe_layers(claim)} backward now repeats the token exchange of forward on {axis(claim)} (recompute)"


def _recomputes_not(claim: Claim) -> str:
    return f"in {_moe_layers(claim)} backward no longer repeats the token exchange of forward on {axis(claim)}"


def _reshards(claim: Claim) -> str:
    return (
        f"in {_modules(claim)} FSDP frees the parameters after forward and gathers them a second time on {axis(claim)} "
        "for backward"
    )


def _keeps_gathered(claim: Claim) -> str:
    return (
        f"in {_modules(claim)} FSDP keeps the parameters gathered from forward to backward on {axis(claim)}, which "
        "costs memory"
    )


def _gradient_lost(claim: Claim) -> str:
    return (
        f"in {_modules(claim)} gradients that were reduced on {axis(claim)} are reduced over fewer ranks or not at "
        "all, so replicas drift apart (if these parameters were removed on purpose, declare it with --expect)"
    )


def _gradient_gained(claim: Claim) -> str:
    return (
        f"in {_modules(claim)} gradients are reduced on {axis(claim)} that were reduced over fewer ranks or not at all"
    )


def _moved(claim: Claim) -> str:
    return f"in {_modules(claim)} the same collectives moved from {claim.detail}"


def _other_layer(claim: Claim) -> str:
    went = _listed(frozenset().union(*(c.issuers for c in claim.cells if c.shrinks)))
    came = _listed(frozenset().union(*(c.issuers for c in claim.cells if c.grows)))
    return f"collectives on {axis(claim)} moved from {went} to {came}; there are as many in all"


def _other_dtype(claim: Claim) -> str:
    return f"in {_modules(claim)} the same elements travel on {axis(claim)} in another type, {claim.detail}"


def _counts(claim: Claim) -> str:
    often = "more often" if claim.pattern == names.COUNTS_ADDED else "less often"
    return f"in {_moe_layers(claim)} the ranks on {axis(claim)} exchange token counts {often} than before"


def _generic(claim: Claim) -> str:
    form = f" ({claim.detail})" if claim.detail else ""
    return f"{claim.pattern} on {axis(claim)}{form} in {_modules(claim)}, and no named pattern explains it"


_FIRST_SENTENCE: dict[str, Callable[[Claim], str]] = {
    names.MAPPED_TWICE: _mapped_twice,
    names.RESTORED: _restored,
    names.AXIS_LOST: _axis_lost,
    names.AXIS_GAINED: _axis_gained,
    names.RECOMPUTES: _recomputes,
    names.RECOMPUTES_NOT: _recomputes_not,
    names.RESHARDS: _reshards,
    names.KEEPS_GATHERED: _keeps_gathered,
    names.GRADIENT_LOST: _gradient_lost,
    names.GRADIENT_GAINED: _gradient_gained,
    names.MOVED: _moved,
    names.OTHER_LAYER: _other_layer,
    names.WIDENED: _other_dtype,
    names.NARROWED: _other_dtype,
    names.COUNTS_ADDED: _counts,
    names.COUNTS_REMOVED: _counts,
    names.BYTES_UP: _generic,
    names.BYTES_DOWN: _generic,
    names.COUNT_UP: _generic,
    names.COUNT_DOWN: _generic,
    names.CONTROL_CHANGED: _generic,
}


def _moe_layers(claim: Claim) -> str:
    """'1 of 48 MoE layers (layers.3.moe)'."""
    return _share(len(_layers(claim.hit)), len(_layers(claim.population | claim.hit)), claim.noun, claim.hit)


def _modules(claim: Claim) -> str:
    """'48 of 49 modules (layers.*)'; without the whole where no detector knows it."""
    return _share(len(claim.hit), len(claim.population | claim.hit) if claim.population else 0, "module", claim.hit)


def _share(count: int, whole: int, noun: str, modules: frozenset[str]) -> str:
    number = f"{count} of {whole}" if whole else f"{count}"
    plural = "" if (whole or count) == 1 else "s"
    partly = count < whole or not whole
    return f"{number} {noun}{plural} ({_listed(modules, exact=partly)})"


def _listed(modules: frozenset[str], exact: bool = True) -> str:
    """A few modules by name; more of them, or where ``exact`` is not wanted, with '*' for their numbers."""
    exact = exact and len(modules) <= NAMED_MODULES
    shown = sorted(modules if exact else {template(module) for module in modules})
    listed = ", ".join(module or "the model itself" for module in shown[:NAMED_MODULES])
    more = f" and {len(shown) - NAMED_MODULES} more" if len(shown) > NAMED_MODULES else ""
    return f"{listed}{more}"


def _layers(modules: Iterable[str]) -> set[str]:
    return {unit(module) for module in modules}


def _traffic(kinds: Mapping[Kind, Volume]) -> str:
    """'192 all-to-all (24 GiB)'; 'nothing' where there was none."""
    parts = [
        f"{v.count} {KIND_NAMES.get(kind, kind)} ({binary_bytes(v.bytes)})" for kind, v in kinds.items() if v.count
    ]
    return " + ".join(parts) or "nothing"


def _wire(own: Wire) -> str:
    if not own.base_s and not own.head_s:
        return ""
    return (
        f"; modelled wire time of these collectives {seconds(own.base_s)} → {seconds(own.head_s)} "
        "(a model, not a measurement)"
    )
