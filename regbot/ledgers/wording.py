"""The text of a finding: what changed, in how many layers, traffic before and after, and modelled wire time. It only
writes text and decides nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FindingText:
    """What the text of one finding needs."""

    claim: Claim
    before: Mapping[Kind, Volume]
    """Traffic by kind of collective: the payload, or the control traffic if the finding has no payload."""
    after: Mapping[Kind, Volume]
    control: tuple[Mapping[Kind, Volume], Mapping[Kind, Volume]]
    """The control traffic before and after, if the finding has payload too."""
    wire: WireTime
    """Modelled wire time of the payload."""
    scope: str
    """What the traffic covers, such as 'Per step and rank, in backward'."""
    passed: bool
    """Whether the finding has the status PASS. ``decide_status`` gives it only if the step became cheaper."""
    is_classified: bool
    """Whether the ledgers have no communication of unknown kind."""
    is_explained: bool
    """Whether this is so, and no finding says that other collectives rise for an unknown reason."""
    dispatcher: DispatcherChange | None
    """What the runs executed, if the dispatcher changed."""

    def write(self) -> str:
        """Return the text, which has one to five sentences."""
        claim, wire = self.claim, self.wire
        first_sentence = _write_first_sentence(claim, self.dispatcher, self.is_explained)
        sentences = [f"{first_sentence[:1].upper()}{first_sentence[1:]}."]
        if claim.cells:
            has_payload = any(cell.signature.role == "payload" for cell in claim.cells)
            subject = "the payload" if has_payload else f"the {CONTROL_COLLECTIVES}"
            sentences.append(f"{self.scope}, {subject} {self._describe_change(self.before, self.after)}.")
            if self.control[0] != self.control[1]:
                sentences.append(f"The {CONTROL_COLLECTIVES} {self._describe_change(*self.control)}.")
            base_time, head_time = format_seconds(wire.base_s), format_seconds(wire.head_s)
            if wire.base_s or wire.head_s:
                change = f"changed from {base_time} to {head_time}" if base_time != head_time else f"stays {base_time}"
                sentences.append(f"The modelled wire time of the payload {change}. This is a model, not a measurement.")
        if self.passed:
            sentences.append(
                "Passed, because the modelled wire time of the step falls and no gradient reduction is lost."
            )
        return clip_message(" ".join(sentences))

    def _describe_change(self, before: Mapping[Kind, Volume], after: Mapping[Kind, Volume]) -> str:
        """Return text such as 'changed from 192 all-to-all (24 GiB) to nothing'. Sizes that differ look different."""

        def format_size(kind: Kind) -> Callable[[int], str]:
            sizes = [kinds[kind].bytes for kinds in (before, after) if kind in kinds]
            is_lost = len({*sizes}) > 1 and len({*map(binary_bytes, sizes)}) == 1
            return (lambda size: f"{size:,} bytes") if is_lost else binary_bytes

        nothing = "nothing" if self.is_classified else "no call that is classified"
        traffics = (
            [
                f"{volume.count} {KIND_NAMES.get(kind, kind)} ({format_size(kind)(volume.bytes)})"
                for kind, volume in kinds.items()
                if volume.count
            ]
            for kinds in (before, after)
        )
        return "changed from {} to {}".format(*(" + ".join(parts) or nothing for parts in traffics))


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
    **{
        names.REPLACED_BY[kind]: (
            f"in {{layers}} the expert-parallel all-to-all on {{axis}} was replaced by {word} on {{detail}}"
        )
        for kind, word in names.REPLACING_WORDS.items()
    },
    **dict.fromkeys(
        names.REPLACES.values(),
        "in {layers} the expert-parallel all-to-all on {axis} is back, in place of other collectives on {detail}",
    ),
    names.SPLIT: "in {layers} the tokens of the expert-parallel all-to-all on {axis} now travel in hops on {detail}",
    names.MERGED: "in {layers} one expert-parallel all-to-all on {axis} replaces hops on {detail}",
    names.AXIS_LOST: "in {layers} the expert-parallel all-to-all on {axis} is gone and {successor}{followers}",
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


def _write_first_sentence(claim: Claim, dispatcher: DispatcherChange | None, is_explained: bool) -> str:
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
    successor = "nothing exchanges tokens in its place" if is_explained else "it is not known what took its place"
    followers = f"; the collectives of the experts' parameters on {claim.detail} changed with it"
    # Everything that a ledger can contain is a field, never a part of the format itself.
    return _FIRST_SENTENCES.get(claim.pattern, _GENERIC_SENTENCE).format(
        pattern=claim.pattern,
        axis=format_axis(claim),
        layers=_name_layers(claim),
        modules=_name_modules(claim),
        detail=claim.detail,
        bracketed_detail=f" ({claim.detail})" if claim.detail else "",  # dtype and phase
        successor=successor,
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
