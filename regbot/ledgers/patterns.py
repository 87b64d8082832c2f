"""What changed between two ledgers, by name: every difference ends in exactly one finding.

Patterns are looked for in a fixed order, the ones with the most specific evidence first, and each claims the rows it
explains, so that one cause gives one finding. What is left becomes generic findings. The order matters only where two
patterns could claim one row, and is the same in both directions.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from regbot.config import Sharding as Thresholds
from regbot.config import Wire as WireConfig
from regbot.ledgers import compiled, expert, leftovers, parameters, wording
from regbot.ledgers.catalogue import (
    AXIS_GAINED,
    AXIS_LOST,
    BYTES_UP,
    DISPATCHER_OFF,
    DISPATCHER_ON,
    EXPLANATIONS,
    GRADIENT_LOST,
    INVERSE,
    MAPPED_TWICE,
    RECOMPUTES,
    RECOMPUTES_NOT,
    RESTORED,
)
from regbot.ledgers.cells import Cell, Claim, View, compare, is_payload, volumes
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.exposure import exposure
from regbot.ledgers.host_reads import host_reads
from regbot.ledgers.rows import by_kind, template
from regbot.ledgers.rules import Circumstances, status_of
from regbot.ledgers.wire import WireModel, wire_s
from regbot.records.ledger import Kind, Ledger
from regbot.records.verdict import Finding, Volume, Wire

__all__ = ["EXPLANATIONS", "INVERSE", "DispatcherChange", "findings"]

MODULES_SHOWN = 5
LABEL_CHARACTERS = 500

OF_THE_EXCHANGE = {
    MAPPED_TWICE,
    RESTORED,
    AXIS_LOST,
    AXIS_GAINED,
    RECOMPUTES,
    RECOMPUTES_NOT,
    DISPATCHER_OFF,
    DISPATCHER_ON,
}
"""Another way of exchanging tokens, or another number of times: an all-to-all needs its splits on the host."""

Detector = Callable[[View], Iterable[Claim]]


def _both_ways(detect: Detector) -> Detector:
    """``detect`` on both directions of the table; what is found from head to base has the inverse's name."""

    def detect_both(view: View) -> list[Claim]:
        inverse = [_named(_seen_from_base(c), INVERSE[c.pattern]) for c in detect(view.reverse)]
        return [*detect(view), *inverse]

    return detect_both


DETECTORS: tuple[Detector, ...] = (
    _both_ways(expert.mapped_twice),
    _both_ways(compiled.mapped_twice),
    _both_ways(parameters.gradient_lost),
    leftovers.other_layer,
    _both_ways(expert.axis_lost),
    _both_ways(expert.recompute),
    _both_ways(parameters.reshards),
    leftovers.other_dtype,
    leftovers.moved,
    expert.count_exchanges,
    leftovers.unexplained,
)
"""In the order in which they may claim. Those that are not run both ways name both directions themselves."""


def findings(
    base: Ledger,
    head: Ledger,
    thresholds: Thresholds,
    wire: WireConfig,
    dispatcher: DispatcherChange | None = None,
) -> list[Finding]:
    """Everything that differs between two comparable ledgers, worst first. Empty exactly where every unit (layers, and
    what is outside of them; renamed ones together) has equal totals of every (kind, axis, group size, dtype, phase,
    role), no ``dispatcher`` evidence is given, and neither times nor host reads differ."""
    view = compare(base, head)
    span = "Per step" if base.scope == "step" else "In all"
    claims = list(_claims(view, dispatcher))
    gradient_lost = any(claim.pattern == GRADIENT_LOST for claim in claims)
    step = Wire(base_s=wire_s(base, wire), head_s=wire_s(head, wire))
    models = WireModel(wire, base.axes), WireModel(wire, head.axes)
    kinds = by_kind(base, lambda entry: entry.role == "payload")
    risen = _bytes_rise_pct(claims, {kind: volume.bytes for kind, volume in kinds.items()})

    found = []
    for claim in _merged(claims):
        own = _own_wire(claim.cells, *models)
        rise = max((risen.get(cell.word.kind, 0.0) for cell in claim.cells), default=0.0)
        seen = Circumstances(own, step, bytes_rise_pct=rise, gradient_lost=gradient_lost)
        status = status_of(claim.pattern, seen, thresholds)
        before, after = _by_kind(claim.cells)
        evidence = wording.dispatcher(dispatcher) if claim.pattern in (DISPATCHER_OFF, DISPATCHER_ON) else None
        found.append(
            Finding(
                pattern=claim.pattern,
                status=status,
                axis=wording.axis(claim)[:LABEL_CHARACTERS],
                base=before,
                head=after,
                text=wording.text(claim, before, after, own, status == "PASS", span, evidence),
                modules=sorted({template(module) for module in claim.hit})[:MODULES_SHOWN],
            )
        )
    exchanges = sorted({finding.pattern for finding in found} & OF_THE_EXCHANGE)
    found += [*exposure(base, head), *host_reads(base, head, exchanges)]
    order = list(EXPLANATIONS)
    severity = ("FAIL", "REVIEW", "PASS")
    return sorted(found, key=lambda f: (severity.index(f.status), order.index(f.pattern), f.axis, f.text))


def _claims(view: View, dispatcher: DispatcherChange | None) -> Iterator[Claim]:
    """All claims in order; each detector sees only what those before it left open."""
    if dispatcher is not None:
        yield from _take(view, [_named(c, dispatcher.pattern) for c in expert.dispatcher_off(view)])
    for detect in DETECTORS:
        yield from _take(view, list(detect(view)))


def _take(view: View, claims: list[Claim]) -> list[Claim]:
    view.claim(claims)
    return claims


def _named(claim: Claim, pattern: str) -> Claim:
    return replace(claim, pattern=pattern)


def _seen_from_base(claim: Claim) -> Claim:
    """A claim of the reverse view with its cells turned back to "base -> head"."""
    return replace(claim, cells=tuple(cell.flipped() for cell in claim.cells))


def _merged(claims: Iterable[Claim]) -> list[Claim]:
    """Claims of one pattern and group, one layer each, as one claim."""
    groups: dict[tuple[str, tuple[str, ...]], list[Claim]] = defaultdict(list)
    for claim in claims:
        groups[claim.pattern, claim.group].append(claim)
    return [
        Claim(
            pattern=pattern,
            group=group,
            axes=frozenset().union(*(c.axes for c in same)),
            cells=tuple(cell for c in same for cell in c.cells),
            hit=frozenset().union(*(c.hit for c in same)),
            population=frozenset().union(*(c.population for c in same)),
            detail=", ".join(dict.fromkeys(c.detail for c in same if c.detail)),
            noun=same[0].noun,
        )
        for (pattern, group), same in groups.items()
    ]


def _bytes_rise_pct(claims: Iterable[Claim], base_bytes: Mapping[Kind, int]) -> dict[Kind, float]:
    """How much the unexplained payload of each kind rises, in percent of all payload of that kind in base."""
    rise: dict[Kind, int] = defaultdict(int)
    for claim in claims:
        if claim.pattern == BYTES_UP:
            for cell in claim.cells:
                rise[cell.word.kind] += cell.after.bytes - cell.before.bytes
    return {kind: 100 * rise[kind] / base_bytes[kind] if base_bytes.get(kind) else float("inf") for kind in rise}


def _own_wire(cells: Iterable[Cell], base: WireModel, head: WireModel) -> Wire:
    payload = [(cell.word, cell) for cell in cells if is_payload(cell)]
    return Wire(
        base_s=sum(base.seconds(w.kind, w.axis, w.group_size, cell.before.bytes) for w, cell in payload),
        head_s=sum(head.seconds(w.kind, w.axis, w.group_size, cell.after.bytes) for w, cell in payload),
    )


def _by_kind(cells: tuple[Cell, ...]) -> tuple[dict[Kind, Volume], dict[Kind, Volume]]:
    """Volumes per kind of both arms, of the payload, or of control exchanges where nothing else changed. A kind that
    stands in one arm stands in both."""
    shown = [cell for cell in cells if is_payload(cell)] or list(cells)
    kinds: dict[Kind, list[Cell]] = defaultdict(list)
    for cell in shown:
        kinds[cell.word.kind].append(cell)
    both = {kind: volumes(kinds[kind]) for kind in sorted(kinds)}
    return {kind: v[0] for kind, v in both.items()}, {kind: v[1] for kind, v in both.items()}
