"""The text of a finding: what changed, in how many layers, traffic before and after, and modelled wire time. It only
writes text and decides nothing."""

from collections.abc import Mapping
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
    control: tuple[Mapping[Kind, Volume], Mapping[Kind, Volume]],
    dispatcher: DispatcherChange | None,
) -> str:
    """Return the text of one finding, which has one to five sentences. ``before`` and ``after`` are the finding's
    traffic by kind of collective. If the finding has payload and control collectives, they are the payload, and
    ``control`` is the control traffic before and after. ``wire`` is the modelled wire time of the payload.
    ``scope_text`` says what this traffic covers: 'Per step and rank' or 'In all'. ``passed`` says whether the finding
    has the status PASS. ``decide_status`` gives PASS only if the step became cheaper. ``dispatcher`` is what the runs
    executed, if the dispatcher changed."""
    first_sentence = _write_first_sentence(claim, dispatcher)
    sentences = [f"{first_sentence[:1].upper()}{first_sentence[1:]}."]
    if claim.cells:
        has_payload = any(cell.signature.role == "payload" for cell in claim.cells)
        subject = "the payload" if has_payload else f"the {CONTROL_COLLECTIVES}"
        change = f"{subject} changed from {_format_traffic(before)} to {_format_traffic(after)}"
        sentences.append(f"{scope_text}, {change}.")
        control_before, control_after = control
        if control_before != control_after:
            change = f"changed from {_format_traffic(control_before)} to {_format_traffic(control_after)}"
            sentences.append(f"The {CONTROL_COLLECTIVES} {change}.")
        if wire.base_s or wire.head_s:
            sentences.append(
                f"The modelled wire time of the payload changed from {format_seconds(wire.base_s)} to "
                f"{format_seconds(wire.head_s)}. This is a model, not a measurement."
            )
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


def format_seconds(value: float) -> str:
    """Format seconds with a suitable unit: ``0.4832`` becomes ``483 ms``. Three digits are enough for a model."""
    for unit_s, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit_s:
            return f"{value / unit_s:.3g} {name}"
    return f"{value / 1e-6:.2g} µs" if value else "0 s"


_FIRST_SENTENCES: dict[str, str] = {
    names.ALL_TO_ALL_REPLACED: (
        "in {layers} the expert-parallel all-to-all on {axis} was replaced by gathering {replacement} on {detail}"
    ),
    names.RESTORED: ("in {layers} the expert-parallel all-to-all on {axis} is back; before, {restored} on {detail}"),
    names.AXIS_LOST: (
        "in {layers} the expert-parallel all-to-all on {axis} is gone and nothing exchanges tokens in its place"
        "{followers}"
    ),
    names.AXIS_GAINED: "in {layers} tokens now travel to their experts by all-to-all on {axis}{followers}",
    names.RECOMPUTES: "in {layers} backward now repeats the token exchange of forward on {axis} (recompute)",
    names.RECOMPUTES_NOT: "in {layers} backward no longer repeats the token exchange of forward on {axis}",
    names.RESHARDS: (
        "in {modules} FSDP frees the parameters after forward and gathers them a second time on {axis} for backward"
    ),
    names.KEEPS_GATHERED: (
        "in {modules} FSDP keeps the parameters gathered from forward to backward on {axis}, which costs memory"
    ),
    names.GRADIENT_LOST: (
        "in {modules} gradients that were reduced on {axis} are reduced over fewer ranks or not at all, so replicas "
        "drift apart (if these parameters were removed on purpose, declare it with --expect)"
    ),
    names.GRADIENT_GAINED: (
        "in {modules} gradients are now reduced on {axis}; before, they were reduced over fewer ranks or not at all"
    ),
    names.OPTIMIZER_SUM_REMOVED: (
        "in {modules} the optimizer step sums over fewer ranks on {axis}, or not at all; if these are gradients, "
        "replicas drift apart. The counts cannot tell gradients from statistics, such as a norm or a number of tokens. "
        "If they are statistics, declare the change with --expect"
    ),
    names.OPTIMIZER_SUM_ADDED: (
        "in {modules} the optimizer step now sums on {axis}; before, it summed over fewer ranks or not at all. The "
        "bytes are not those of known gradients, so these may be statistics such as a norm or a count of tokens"
    ),
    names.MOVED: "in {modules} the same collectives moved from {detail}",
    names.OTHER_LAYER: "collectives on {axis} moved from {losing} to {gaining}; the total is the same",
    names.WIDENED: "in {modules} the same elements travel on {axis} in another type, {detail}",
    names.NARROWED: "in {modules} the same elements travel on {axis} in another type, {detail}",
    names.COUNTS_ADDED: ("in {layers} the ranks on {axis} exchange token counts or indices more often than before"),
    names.COUNTS_REMOVED: ("in {layers} the ranks on {axis} exchange token counts or indices less often than before"),
}
"""First sentence of the text by pattern, with the fields of ``_write_first_sentence``."""
_GENERIC_SENTENCE = "{pattern} on {axis}{bracketed_detail} in {modules}, and no named pattern explains it"


def _write_first_sentence(claim: Claim, dispatcher: DispatcherChange | None) -> str:
    if dispatcher is not None and claim.pattern == dispatcher.pattern:
        return (
            f"both arms asked for dispatcher {dispatcher.requested!r}; "
            f"base executed {dispatcher.base_executed!r}, head executed {dispatcher.head_executed!r}"
        )
    is_compiled = claim.noun == "op"  # in compiled programs, names of ops stand in place of layers
    if is_compiled:
        replacement = "the experts' weights and summing their gradients"
        restored = "the experts' weights were gathered and their gradients summed"
    else:
        replacement, restored = "all tokens and summing the results", "all tokens were gathered and the results summed"
    followers = f"; the collectives of the experts' parameters on {claim.detail} changed with it"
    # Everything that a ledger can contain is a field, never a part of the format itself.
    return _FIRST_SENTENCES.get(claim.pattern, _GENERIC_SENTENCE).format(
        pattern=claim.pattern,
        axis=format_axis(claim),
        layers=_name_layers(claim),
        modules=_name_modules(claim),
        detail=claim.detail,
        bracketed_detail=f" ({claim.detail})" if claim.detail else "",  # dtype and phase
        followers=followers if claim.detail else "",
        losing=_list_modules(frozenset().union(*(cell.issuers for cell in claim.cells if cell.shrinks))),
        gaining=_list_modules(frozenset().union(*(cell.issuers for cell in claim.cells if cell.grows))),
        replacement=replacement,
        restored=restored,
    )


def _name_layers(claim: Claim) -> str:
    """Return a share of layers such as '1 of 48 MoE layers (layers.3.moe)'."""
    changed_layers, layers = _find_units(claim.changed_modules), _find_units(claim.population)
    total = len(layers) + len(changed_layers - layers)
    return _format_share(len(changed_layers), total, claim.noun, claim.changed_modules)


@lru_cache(maxsize=4)  # many findings have the same population
def _find_units(modules: frozenset[str]) -> frozenset[str]:
    return frozenset(map(find_unit, modules))


def _name_modules(claim: Claim) -> str:
    population = claim.population
    total = len(population) + len(claim.changed_modules - population) if population else None
    return _format_share(len(claim.changed_modules), total, "module", claim.changed_modules)


def _format_share(count: int, total: int | None, noun: str, modules: frozenset[str]) -> str:
    """Return ``count``, ``total`` if it is known, the noun, and in brackets the names of ``modules``. If all of
    ``total`` changed, the layer numbers in the names say nothing, so templates are listed instead."""
    if total is None:
        return f"{count} {plural(noun, count)} ({_list_modules(modules)})"
    return f"{count} of {total} {plural(noun, total)} ({_list_modules(modules, keep_layer_numbers=count < total)})"


def _list_modules(modules: frozenset[str], keep_layer_numbers: bool = True) -> str:
    """List a few modules by name. If there are many modules, or if ``keep_layer_numbers`` is False, list their
    templates (``layers.*.moe``) instead."""
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
