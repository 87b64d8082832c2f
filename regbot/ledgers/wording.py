"""The text of a finding: what changed, in how many layers, traffic before and after, and modelled wire time.

Each pattern has one small function for its first sentence. This module only writes text and decides nothing.

A text is written from a claim, which has the cells that one pattern explains. ``claim.detail`` has words that a
detector prepared for the first sentence, such as the axes of a replacement. ``claim.population`` is all modules in
which the pattern could occur, for texts such as '1 of 48 MoE layers'.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Claim
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.rows import find_unit, template
from regbot.records.ledger import Kind
from regbot.records.text.clip import clip_message
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import listed, plural
from regbot.records.verdict import Volume, WireTime

MAX_NAMED_MODULES = 3
CONTROL_COLLECTIVES = "control collectives (integers, such as token counts or indices)"
KIND_NAMES: dict[Kind, str] = {
    "all_to_all": "all-to-all",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "send_recv": "send/receive",
}


def write_text(
    claim: Claim,
    before: Mapping[Kind, Volume],
    after: Mapping[Kind, Volume],
    wire: WireTime,
    passed: bool,
    scope_text: str,
    *,
    control: tuple[Mapping[Kind, Volume], Mapping[Kind, Volume]] = ({}, {}),
    evidence: str | None = None,
) -> str:
    """Return the text of one finding, which has one to five sentences.

    ``before`` and ``after`` are the finding's traffic by kind of collective. If the finding has payload and control
    collectives, they are the payload, and ``control`` is the control traffic before and after. ``wire`` is the modelled
    wire time of the payload. ``scope_text`` says what this traffic covers: 'Per step and rank' or 'In all'. ``passed``
    says whether the finding has the status PASS. ``decide_status`` gives PASS only if the step became cheaper.
    ``evidence`` is a sentence on what the runs executed. It replaces the first sentence of the pattern. Without such a
    sentence, it is None.
    """
    first_sentence = evidence or _FIRST_SENTENCE[claim.pattern](claim)
    sentences = [f"{first_sentence[:1].upper()}{first_sentence[1:]}."]
    if claim.cells:
        change = f"{_name_traffic(claim)} changed from {_format_traffic(before)} to {_format_traffic(after)}"
        sentences.append(f"{scope_text}, {change}.")
        control_before, control_after = control
        if control_before != control_after:
            change = f"changed from {_format_traffic(control_before)} to {_format_traffic(control_after)}"
            sentences.append(f"The {CONTROL_COLLECTIVES} {change}.")
        if wire.base_s or wire.head_s:
            sentences.append(_describe_wire(wire))
    if passed:
        sentences.append("Passed, because the modelled wire time of the step falls and no gradient reduction is lost.")
    return clip_message(" ".join(sentences))


def format_axis(claim: Claim) -> str:
    """Return the text for the axis column: 'ep', 'dp, edp', or 'dp -> edp' for collectives that moved to another
    axis.
    """
    if claim.pattern == names.MOVED:
        base_axis, _, head_axis, _ = claim.merge_key  # the group size follows each axis
        if base_axis != head_axis:
            return f"{base_axis} -> {head_axis}"
    return ", ".join(sorted(claim.axes))


def describe_dispatcher(change: DispatcherChange | None) -> str | None:
    """Return a sentence on which dispatcher each arm executed, or None if ``change`` is None."""
    if change is None:
        return None
    return (
        f"both arms asked for dispatcher {change.requested!r}; "
        f"base executed {change.base_executed!r}, head executed {change.head_executed!r}"
    )


def format_seconds(value: float) -> str:
    """Format seconds with a suitable unit: ``0.4832`` becomes ``483 ms``. Three digits are enough for a model."""
    for unit_s, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit_s:
            return f"{value / unit_s:.3g} {name}"
    return f"{value / 1e-6:.2g} µs" if value else "0 s"


def _describe_exchange_replaced(claim: Claim) -> str:
    is_compiled = claim.noun == "op"  # in compiled programs, names of ops stand in place of layers
    if is_compiled:
        return (
            f"in {_name_layers(claim)} the expert-parallel all-to-all on {format_axis(claim)} was replaced by "
            f"gathering the experts' weights and summing their gradients on {claim.detail}"
        )
    return (
        f"in {_name_layers(claim)} the expert-parallel all-to-all on {format_axis(claim)} was replaced by gathering "
        f"all tokens and summing the results on {claim.detail}"
    )


def _describe_restored(claim: Claim) -> str:
    is_compiled = claim.noun == "op"  # in compiled programs, names of ops stand in place of layers
    if is_compiled:
        return (
            f"in {_name_layers(claim)} the expert-parallel all-to-all on {format_axis(claim)} is back; before, the "
            f"experts' weights were gathered and their gradients summed on {claim.detail}"
        )
    return (
        f"in {_name_layers(claim)} the expert-parallel all-to-all on {format_axis(claim)} is back; before, all tokens "
        f"were gathered and the results summed on {claim.detail}"
    )


def _describe_axis_lost(claim: Claim) -> str:
    return (
        f"in {_name_layers(claim)} the expert-parallel all-to-all on {format_axis(claim)} is gone and nothing "
        f"exchanges tokens in its place{_describe_followers(claim)}"
    )


def _describe_axis_gained(claim: Claim) -> str:
    return (
        f"in {_name_layers(claim)} tokens now travel to their experts by all-to-all on "
        f"{format_axis(claim)}{_describe_followers(claim)}"
    )


def _describe_followers(claim: Claim) -> str:
    """Return a clause on the collectives of the experts' parameters that changed for the same reason, or '' if there
    are none.
    """
    return f"; the collectives of the experts' parameters on {claim.detail} changed with it" if claim.detail else ""


def _describe_recomputes(claim: Claim) -> str:
    return (
        f"in {_name_layers(claim)} backward now repeats the token exchange of forward on {format_axis(claim)} "
        "(recompute)"
    )


def _describe_recomputes_not(claim: Claim) -> str:
    return f"in {_name_layers(claim)} backward no longer repeats the token exchange of forward on {format_axis(claim)}"


def _describe_reshards(claim: Claim) -> str:
    return (
        f"in {_name_modules(claim)} FSDP frees the parameters after forward and gathers them a second time on "
        f"{format_axis(claim)} for backward"
    )


def _describe_keeps_gathered(claim: Claim) -> str:
    return (
        f"in {_name_modules(claim)} FSDP keeps the parameters gathered from forward to backward on "
        f"{format_axis(claim)}, which costs memory"
    )


def _describe_gradient_lost(claim: Claim) -> str:
    return (
        f"in {_name_modules(claim)} gradients that were reduced on {format_axis(claim)} are reduced over fewer ranks "
        "or not at all, so replicas drift apart (if these parameters were removed on purpose, declare it with --expect)"
    )


def _describe_gradient_gained(claim: Claim) -> str:
    return (
        f"in {_name_modules(claim)} gradients are now reduced on {format_axis(claim)}; before, they were reduced over "
        "fewer ranks or not at all"
    )


def _describe_optimizer_sum_removed(claim: Claim) -> str:
    return (
        f"in {_name_modules(claim)} the optimizer step sums over fewer ranks on {format_axis(claim)}, or not at all; "
        "if these are gradients, replicas drift apart. The counts cannot tell gradients from statistics, such as a "
        "norm or a number of tokens. If they are statistics, declare the change with --expect"
    )


def _describe_optimizer_sum_added(claim: Claim) -> str:
    return (
        f"in {_name_modules(claim)} the optimizer step now sums on {format_axis(claim)}; before, it summed over fewer "
        "ranks or not at all. The bytes are not those of known gradients, so these may be statistics such as a norm or "
        "a count of tokens"
    )


def _describe_moved(claim: Claim) -> str:
    return f"in {_name_modules(claim)} the same collectives moved from {claim.detail}"


def _describe_other_layer(claim: Claim) -> str:
    losing = _list_modules(frozenset().union(*(cell.issuers for cell in claim.cells if cell.shrinks)))
    gaining = _list_modules(frozenset().union(*(cell.issuers for cell in claim.cells if cell.grows)))
    return f"collectives on {format_axis(claim)} moved from {losing} to {gaining}; the total is the same"


def _describe_other_dtype(claim: Claim) -> str:
    return f"in {_name_modules(claim)} the same elements travel on {format_axis(claim)} in another type, {claim.detail}"


def _describe_counts(claim: Claim) -> str:
    frequency = "more often" if claim.pattern == names.COUNTS_ADDED else "less often"
    return (
        f"in {_name_layers(claim)} the ranks on {format_axis(claim)} exchange token counts or indices {frequency} than "
        "before"
    )


def _describe_generic(claim: Claim) -> str:
    form = f" ({claim.detail})" if claim.detail else ""  # dtype and phase
    return f"{claim.pattern} on {format_axis(claim)}{form} in {_name_modules(claim)}, and no named pattern explains it"


_FIRST_SENTENCE: dict[str, Callable[[Claim], str]] = {
    names.ALL_TO_ALL_REPLACED: _describe_exchange_replaced,
    names.RESTORED: _describe_restored,
    names.AXIS_LOST: _describe_axis_lost,
    names.AXIS_GAINED: _describe_axis_gained,
    names.RECOMPUTES: _describe_recomputes,
    names.RECOMPUTES_NOT: _describe_recomputes_not,
    names.RESHARDS: _describe_reshards,
    names.KEEPS_GATHERED: _describe_keeps_gathered,
    names.GRADIENT_LOST: _describe_gradient_lost,
    names.GRADIENT_GAINED: _describe_gradient_gained,
    names.OPTIMIZER_SUM_REMOVED: _describe_optimizer_sum_removed,
    names.OPTIMIZER_SUM_ADDED: _describe_optimizer_sum_added,
    names.MOVED: _describe_moved,
    names.OTHER_LAYER: _describe_other_layer,
    names.WIDENED: _describe_other_dtype,
    names.NARROWED: _describe_other_dtype,
    names.COUNTS_ADDED: _describe_counts,
    names.COUNTS_REMOVED: _describe_counts,
    names.BYTES_UP: _describe_generic,
    names.BYTES_DOWN: _describe_generic,
    names.COUNT_UP: _describe_generic,
    names.COUNT_DOWN: _describe_generic,
    names.CONTROL_CHANGED: _describe_generic,
}


def _name_layers(claim: Claim) -> str:
    """Return a share of layers such as '1 of 48 MoE layers (layers.3.moe)'."""
    changed_layers, layers = _find_units(claim.changed_modules), _find_units(claim.population)
    total = len(layers) + len(changed_layers - layers)
    return _format_share(len(changed_layers), total, claim.noun, claim.changed_modules)


@lru_cache(maxsize=4)  # many findings have the same population
def _find_units(modules: frozenset[str]) -> frozenset[str]:
    return frozenset(map(find_unit, modules))


def _name_modules(claim: Claim) -> str:
    """Return a share such as '48 of 49 modules (layers.*)', or '48 modules (layers.*)' if the claim has no
    population.
    """
    population = claim.population
    total = len(population) + len(claim.changed_modules - population) if population else None
    return _format_share(len(claim.changed_modules), total, "module", claim.changed_modules)


def _format_share(count: int, total: int | None, noun: str, modules: frozenset[str]) -> str:
    """Return ``count``, ``total`` if it is known, the noun, and in brackets the names of ``modules``.

    If all of ``total`` changed, the layer numbers in the names say nothing, so templates are listed instead.
    """
    if total is None:
        return f"{count} {plural(noun, count)} ({_list_modules(modules)})"
    return f"{count} of {total} {plural(noun, total)} ({_list_modules(modules, keep_layer_numbers=count < total)})"


def _list_modules(modules: frozenset[str], keep_layer_numbers: bool = True) -> str:
    """List a few modules by name.

    If there are many modules, or if ``keep_layer_numbers`` is False, list their templates (``layers.*.moe``) instead.
    """
    keep_layer_numbers = keep_layer_numbers and len(modules) <= MAX_NAMED_MODULES
    module_names = sorted(modules if keep_layer_numbers else {template(module) for module in modules})
    return listed([module or "the model itself" for module in module_names], MAX_NAMED_MODULES)


def _format_traffic(kinds: Mapping[Kind, Volume]) -> str:
    """Return text such as '192 all-to-all (24 GiB)', or 'nothing' if there is no traffic."""
    parts = [
        f"{volume.count} {KIND_NAMES.get(kind, kind)} ({binary_bytes(volume.bytes)})"
        for kind, volume in kinds.items()
        if volume.count
    ]
    return " + ".join(parts) or "nothing"


def _name_traffic(claim: Claim) -> str:
    """Return the subject of the sentence on traffic: the payload if the claim has any, else the control collectives."""
    has_payload = any(cell.signature.role == "payload" for cell in claim.cells)
    return "the payload" if has_payload else f"the {CONTROL_COLLECTIVES}"


def _describe_wire(wire: WireTime) -> str:
    return (
        f"The modelled wire time of the payload changed from {format_seconds(wire.base_s)} to "
        f"{format_seconds(wire.head_s)}. This is a model, not a measurement."
    )
