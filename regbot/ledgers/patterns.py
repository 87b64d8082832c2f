"""Findings between two ledgers. Every difference belongs to exactly one named finding.

Detectors run in a fixed order. The detectors that need the most specific evidence run first. Each detector claims the
cells that it explains, so that one cause gives one finding. Cells that no detector claims become generic findings. The
order matters only where two patterns could claim the same cell. The same order is used in both directions.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from regbot.config import ShardingThresholds as Thresholds
from regbot.config import WireBandwidths as WireConfig
from regbot.ledgers import compiled, expert, leftovers, parameters, wording
from regbot.ledgers.catalogue import (
    ALL_TO_ALL_REPLACED,
    AXIS_GAINED,
    AXIS_LOST,
    BYTES_UP,
    DISPATCHER_OFF,
    DISPATCHER_ON,
    EXPLANATIONS,
    INVERSE,
    RECOMPUTES,
    RECOMPUTES_NOT,
    RESTORED,
)
from regbot.ledgers.cells import Cell, Claim, View, build_view, is_payload, sum_volumes
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.exposure import find_overlap_changes
from regbot.ledgers.host_reads import find_host_read_changes
from regbot.ledgers.rows import sum_by_kind, template
from regbot.ledgers.rules import REDUCTIONS_LOST, Circumstances, decide_status
from regbot.ledgers.wire import WireModel, wire_s
from regbot.records.ledger import Kind, Ledger
from regbot.records.verdict import Finding, Volume, WireTime
from regbot.text.clip import clip_label

__all__ = ["EXPLANATIONS", "INVERSE", "DispatcherChange", "compare_ledgers"]

MAX_MODULES = 5

EXCHANGE_PATTERNS = {
    ALL_TO_ALL_REPLACED,
    RESTORED,
    AXIS_LOST,
    AXIS_GAINED,
    RECOMPUTES,
    RECOMPUTES_NOT,
    DISPATCHER_OFF,
    DISPATCHER_ON,
}
"""Patterns in which head exchanges tokens by another method than base, or a different number of times.

These patterns also change the host reads, because an all-to-all needs its split sizes on the host.
"""

Detector = Callable[[View], Iterable[Claim]]


def _run_both_ways(detect: Detector) -> Detector:
    """Return a detector that runs ``detect`` from base to head and from head to base.

    A claim from head to base gets the name of the inverse pattern.
    """

    def detect_both(view: View) -> list[Claim]:
        inverse = [_rename_claim(_flip_claim(claim), INVERSE[claim.pattern]) for claim in detect(view.reverse)]
        return [*detect(view), *inverse]

    return detect_both


DETECTORS: tuple[Detector, ...] = (
    _run_both_ways(expert.detect_exchange_replaced),
    _run_both_ways(compiled.detect_exchange_replaced),
    _run_both_ways(parameters.detect_gradient_lost),
    leftovers.detect_other_layer,
    _run_both_ways(expert.detect_axis_lost),
    _run_both_ways(expert.detect_recompute),
    _run_both_ways(parameters.detect_reshards),
    leftovers.detect_other_dtype,
    leftovers.detect_moved,
    expert.detect_count_exchanges,
    leftovers.claim_unexplained,
)
"""The detectors in the order in which they claim. A detector without ``_run_both_ways`` handles both directions
itself.
"""


def compare_ledgers(
    base: Ledger,
    head: Ledger,
    thresholds: Thresholds,
    wire: WireConfig,
    dispatcher: DispatcherChange | None = None,
) -> list[Finding]:
    """Return the findings between two comparable ledgers, the most severe first.

    The list is empty if and only if three conditions hold. There is no ``dispatcher`` evidence. Neither overlap times
    nor host reads differ. Each unit has equal totals for every (kind, axis, group size, dtype, phase, role). A unit is
    a layer, or a module outside of the layers. All renamed units together count as one unit.
    """
    view = build_view(base, head)
    span = "Per step and rank" if base.scope == "step" else "In all"
    claims = list(_collect_claims(view, dispatcher))
    gradient_lost = any(claim.pattern in REDUCTIONS_LOST for claim in claims)
    step_wire = WireTime(base_s=wire_s(base, wire), head_s=wire_s(head, wire))
    models = WireModel(wire, base.axes), WireModel(wire, head.axes)
    base_volumes = sum_by_kind(base, lambda entry: entry.role == "payload")
    rise_by_kind = _sum_byte_rise_pct(claims, {kind: volume.bytes for kind, volume in base_volumes.items()})

    findings = []
    for claim in _merge_claims(claims):
        claim_wire = _model_wire(claim.cells, *models)
        bytes_rise_pct = max((rise_by_kind.get(cell.signature.kind, 0.0) for cell in claim.cells), default=0.0)
        circumstances = Circumstances(claim_wire, step_wire, bytes_rise_pct=bytes_rise_pct, gradient_lost=gradient_lost)
        status = decide_status(claim.pattern, circumstances, thresholds)
        before, after = _sum_by_kind(claim.cells)
        evidence = wording.describe_dispatcher(dispatcher) if claim.pattern in (DISPATCHER_OFF, DISPATCHER_ON) else None
        findings.append(
            Finding(
                pattern=claim.pattern,
                status=status,
                axis=clip_label(wording.format_axis(claim)),
                base=before,
                head=after,
                text=wording.write_text(claim, before, after, claim_wire, status == "PASS", span, evidence=evidence),
                modules=sorted({template(module) for module in claim.changed_modules})[:MAX_MODULES],
            )
        )
    exchange_patterns = sorted({finding.pattern for finding in findings} & EXCHANGE_PATTERNS)
    findings += [*find_overlap_changes(base, head), *find_host_read_changes(base, head, exchange_patterns)]
    order = list(EXPLANATIONS)
    severity = ("FAIL", "REVIEW", "PASS")
    return sorted(
        findings, key=lambda item: (severity.index(item.status), order.index(item.pattern), item.axis, item.text)
    )


def _collect_claims(view: View, dispatcher: DispatcherChange | None) -> Iterator[Claim]:
    """Yield the claims of all detectors in order. Each detector sees only the cells that no earlier detector has
    claimed.
    """
    if dispatcher is not None:
        yield from _apply_claims(
            view, [_rename_claim(claim, dispatcher.pattern) for claim in expert.detect_dispatcher_off(view)]
        )
    for detect in DETECTORS:
        yield from _apply_claims(view, list(detect(view)))


def _apply_claims(view: View, claims: list[Claim]) -> list[Claim]:
    view.claim(claims)
    return claims


def _rename_claim(claim: Claim, pattern: str) -> Claim:
    return replace(claim, pattern=pattern)


def _flip_claim(claim: Claim) -> Claim:
    """Return a claim that was made on the reverse view, with its cells turned back to the direction from base to
    head.
    """
    return replace(claim, cells=tuple(cell.flip() for cell in claim.cells))


def _merge_claims(claims: Iterable[Claim]) -> list[Claim]:
    """Merge the claims of the individual units into one claim per pattern and group."""
    groups: dict[tuple[str, tuple[str, ...]], list[Claim]] = defaultdict(list)
    for claim in claims:
        groups[claim.pattern, claim.group].append(claim)
    return [
        Claim(
            pattern=pattern,
            group=group,
            axes=frozenset().union(*(claim.axes for claim in group_claims)),
            cells=tuple(cell for claim in group_claims for cell in claim.cells),
            changed_modules=frozenset().union(*(claim.changed_modules for claim in group_claims)),
            population=frozenset().union(*(claim.population for claim in group_claims)),
            detail=", ".join(dict.fromkeys(claim.detail for claim in group_claims if claim.detail)),
            noun=group_claims[0].noun,
        )
        for (pattern, group), group_claims in groups.items()
    ]


def _sum_byte_rise_pct(claims: Iterable[Claim], base_bytes: Mapping[Kind, int]) -> dict[Kind, float]:
    """Return how much the payload bytes of each kind rise without a known pattern, in percent of base's payload of that
    kind.
    """
    rise: dict[Kind, int] = defaultdict(int)
    for claim in claims:
        if claim.pattern == BYTES_UP:
            for cell in claim.cells:
                rise[cell.signature.kind] += cell.after.bytes - cell.before.bytes
    return {kind: 100 * rise[kind] / base_bytes[kind] if base_bytes.get(kind) else float("inf") for kind in rise}


def _model_wire(cells: Iterable[Cell], base: WireModel, head: WireModel) -> WireTime:
    payload = [(cell.signature, cell) for cell in cells if is_payload(cell)]
    return WireTime(
        base_s=sum(
            base.seconds(signature.kind, signature.axis, signature.group_size, cell.before.bytes)
            for signature, cell in payload
        ),
        head_s=sum(
            head.seconds(signature.kind, signature.axis, signature.group_size, cell.after.bytes)
            for signature, cell in payload
        ),
    )


def _sum_by_kind(cells: tuple[Cell, ...]) -> tuple[dict[Kind, Volume], dict[Kind, Volume]]:
    """Return the volumes per kind before and after. Both mappings have the same kinds.

    The volumes sum the payload cells. If there are no payload cells, they sum all cells, which are then control
    exchanges.
    """
    relevant = [cell for cell in cells if is_payload(cell)] or list(cells)
    kinds: dict[Kind, list[Cell]] = defaultdict(list)
    for cell in relevant:
        kinds[cell.signature.kind].append(cell)
    volumes_by_kind = {kind: sum_volumes(kinds[kind]) for kind in sorted(kinds)}
    return {kind: pair[0] for kind, pair in volumes_by_kind.items()}, {
        kind: pair[1] for kind, pair in volumes_by_kind.items()
    }
