"""Findings between two ledgers. Every difference belongs to exactly one named finding.

The two ledgers become a table of *cells* (``regbot.ledgers.cells``): the volume of one signature at one place, before
and after. A detector searches the table for one pattern. Detectors run in a fixed order. The detectors that need the
most specific evidence run first. Each detector claims the cells that it explains, so that one cause gives one finding.
Cells that no detector claims become generic findings. The order matters only where two patterns could claim the same
cell. The same order is used in both directions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from regbot.ledgers import catalogue as names
from regbot.ledgers import expert, leftovers, parameters, wording
from regbot.ledgers.cells import Cell, Claim, View, build_view, is_payload, sum_volumes
from regbot.ledgers.expert import DispatcherChange
from regbot.ledgers.exposure import find_overlap_changes
from regbot.ledgers.rows import MAX_MODULES, sum_by_kind, template
from regbot.ledgers.rules import REDUCTIONS_LOST, Circumstances, decide_status
from regbot.ledgers.source_lines import Calls, find_lines, subtract_calls
from regbot.ledgers.wire import WireModel, wire_s
from regbot.records.changed_lines import ChangedLines
from regbot.records.config import ShardingThresholds as Thresholds
from regbot.records.config import WireBandwidths as WireConfig
from regbot.records.ledger import Kind, Ledger
from regbot.records.text.clip import clip_label
from regbot.records.text.words import listed
from regbot.records.verdict import Finding, FindingLines, Volume, WireTime

__all__ = ["DispatcherChange", "compare_ledgers"]


Detector = Callable[[View], Iterable[Claim]]


def _run_both_ways(detect: Detector) -> Detector:
    """Return a detector that runs ``detect`` from base to head and from head to base. A claim from head to base gets
    the name of the inverse pattern. For example, an all-to-all that is lost from head to base was restored from base to
    head."""

    def detect_both(view: View) -> list[Claim]:
        inverse_claims = [
            replace(claim, pattern=names.INVERSE[claim.pattern], cells=tuple(cell.flip() for cell in claim.cells))
            for claim in detect(view.reverse)
        ]
        return [*detect(view), *inverse_claims]

    return detect_both


DETECTORS: tuple[Detector, ...] = (
    _run_both_ways(expert.detect_exchange_replaced),
    _run_both_ways(expert.detect_exchange_replaced_by_compiler),
    parameters.detect_gradients_moved,
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
    changed_lines: ChangedLines | None = None,
) -> list[Finding]:
    """Return the findings between two comparable ledgers, the most severe first, and of one pattern the one that adds
    most wire time.

    ``thresholds`` has the limits by which a finding fails, and ``wire`` the bandwidths of the links. ``dispatcher``
    says that only one arm executed the dispatcher that both arms requested. It is None if that did not happen.
    ``changed_lines`` is the diff between the arms.

    The list is empty if and only if three conditions hold:

    - ``dispatcher`` is None,
    - there is no finding on overlap,
    - each unit has equal totals for every (kind, axis, group size, dtype, phase, role). A unit is a layer, or a module
      outside of the layers. All renamed units together count as one unit."""
    view = build_view(base, head)
    # The counts of a ledger are those of one step, or those of a whole file with any number of steps.
    scope_text = "Per step and rank" if base.scope == "step" else "In all"
    is_classified = not base.unclassified and not head.unclassified
    claims = list(_collect_claims(view, dispatcher))
    gradient_lost = any(claim.pattern in REDUCTIONS_LOST for claim in claims)  # a removed optimizer sum counts too
    # A payload without bytes is one of unknown size, such as that of a kernel.
    is_sized = all(entry.bytes or entry.role == "control" for entry in (*base.entries, *head.entries))
    step_wire = WireTime(base_s=wire_s(base, wire), head_s=wire_s(head, wire))
    base_model, head_model = WireModel(wire, base.axes), WireModel(wire, head.axes)
    base_payload = sum_by_kind(base, lambda entry: entry.role == "payload")
    is_explained = is_classified and not any(claim.pattern in (names.BYTES_UP, names.COUNT_UP) for claim in claims)
    rise_pct_by_kind = _unexplained_rise_pct(claims, {kind: volume.bytes for kind, volume in base_payload.items()})

    def rank_claim(claim: Claim) -> tuple[float, str, tuple[str, ...]]:
        wire = _model_wire(claim, base_model, head_model)
        return wire.base_s - wire.head_s, wording.format_axis(claim), claim.merge_key

    findings = []
    for claim in sorted(_merge_claims(claims), key=rank_claim):
        claim_wire = _model_wire(claim, base_model, head_model)
        claim_kinds = {cell.signature.kind for cell in claim.cells}
        bytes_rise_pct = max((rise_pct_by_kind.get(kind, 0.0) for kind in claim_kinds), default=0.0)
        circumstances = Circumstances(claim_wire, step_wire, bytes_rise_pct, gradient_lost, is_sized)
        status = decide_status(claim.pattern, circumstances, thresholds)
        payload_cells = [cell for cell in claim.cells if is_payload(cell)]
        control_cells = [cell for cell in claim.cells if not is_payload(cell)]
        before, after = _sum_by_kind(payload_cells or control_cells)
        control = _sum_by_kind(control_cells if payload_cells else [])
        scope, passed = f"{scope_text}{_describe_phases(view, claim)}", status == "PASS"
        finding_text = wording.FindingText(
            claim, before, after, control, claim_wire, scope, passed, is_classified, is_explained, dispatcher
        )
        findings.append(
            Finding(
                pattern=claim.pattern,
                status=status,
                axis=clip_label(wording.format_axis(claim)),
                base=before,
                head=after,
                text=finding_text.write(),
                modules=sorted({template(module) for module in claim.changed_modules})[:MAX_MODULES],
                lines=_find_claim_lines(claim, base, head, changed_lines),
            )
        )
    findings += find_overlap_changes(base, head)
    statuses_by_severity = ("FAIL", "REVIEW", "PASS")

    def sort_key(finding: Finding) -> tuple[int, int]:
        return statuses_by_severity.index(finding.status), names.PATTERNS.index(finding.pattern)

    return sorted(findings, key=sort_key)


def _collect_claims(view: View, dispatcher: DispatcherChange | None) -> Iterator[Claim]:
    if dispatcher is not None:
        dispatcher_claim = replace(expert.claim_dispatcher_change(view), pattern=dispatcher.pattern)
        view.claim([dispatcher_claim])
        yield dispatcher_claim
    for detect in DETECTORS:
        claims = list(detect(view))
        view.claim(claims)
        yield from claims


def _merge_claims(claims: Iterable[Claim]) -> list[Claim]:
    groups: dict[tuple[str, tuple[str, ...]], list[Claim]] = defaultdict(list)
    for claim in claims:
        groups[claim.pattern, claim.merge_key].append(claim)
    return [
        Claim(
            pattern=pattern,
            merge_key=merge_key,
            axes=frozenset().union(*(claim.axes for claim in group_claims)),
            cells=tuple(cell for claim in group_claims for cell in claim.cells),
            changed_modules=frozenset().union(*(claim.changed_modules for claim in group_claims)),
            # Usually all claims have the same set, which is then not copied.
            population=_unite({id(claim.population): claim.population for claim in group_claims}.values()),
            detail=", ".join(dict.fromkeys(claim.detail for claim in group_claims if claim.detail)),
            noun=group_claims[0].noun,
        )
        for (pattern, merge_key), group_claims in groups.items()
    ]


def _unite(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    first, *others = sets
    return first.union(*others) if others else first


def _unexplained_rise_pct(claims: Iterable[Claim], base_bytes: Mapping[Kind, int]) -> dict[Kind, float]:
    """Return how much the payload bytes of each kind rise without a named pattern, in percent of base's payload bytes
    of that kind. The bytes that rise without a named pattern are those of the claims with the pattern BYTES_UP. The
    rise is infinite if base has no payload of the kind. ``base_bytes`` has base's payload bytes by kind."""
    rise: dict[Kind, int] = defaultdict(int)
    for claim in claims:
        if claim.pattern == names.BYTES_UP:
            for cell in claim.cells:
                rise[cell.signature.kind] += cell.after.bytes - cell.before.bytes
    return {kind: 100 * rise[kind] / base_bytes[kind] if base_bytes.get(kind) else float("inf") for kind in rise}


def _describe_phases(view: View, claim: Claim) -> str:
    """Return the phases of ``claim``, such as ', in backward', if other phases have collectives of the same kinds and
    axes too; else ''."""
    phases = {cell.signature.phase for cell in claim.cells}
    rows = {cell.signature[:2] for cell in claim.cells}
    has_others = any(view.phases_by_row[row] - phases for row in rows)
    return f", in {listed(sorted(phases), len(phases))}" if has_others and "unknown" not in phases else ""


def _find_claim_lines(claim: Claim, base: Ledger, head: Ledger, changed: ChangedLines | None) -> FindingLines:
    went: Calls = Counter()
    came: Calls = Counter()
    for cell in claim.cells:
        cell_went, cell_came = subtract_calls(cell.calls_before, cell.calls_after, base, head)
        went += cell_went
        came += cell_came
    return find_lines(went, came, base, head, changed)


def _model_wire(claim: Claim, base_model: WireModel, head_model: WireModel) -> WireTime:
    base_s = head_s = 0.0
    exchange_groups = {cell.signature.group for cell in claim.cells if cell.signature.kind == "all_to_all"}
    for cell in filter(is_payload, claim.cells):
        kind, axis, group_size = cell.signature[:3]
        if kind == "send_recv" and len(exchange_groups) == 1:  # the peers, whatever group the call names
            ((axis, group_size),) = exchange_groups
        base_s += base_model.seconds(kind, axis, group_size, cell.before.bytes)
        head_s += head_model.seconds(kind, axis, group_size, cell.after.bytes)
    return WireTime(base_s=base_s, head_s=head_s)


def _sum_by_kind(cells: Iterable[Cell]) -> tuple[dict[Kind, Volume], dict[Kind, Volume]]:
    cells_by_kind: dict[Kind, list[Cell]] = defaultdict(list)
    for cell in cells:
        cells_by_kind[cell.signature.kind].append(cell)
    volumes = {kind: sum_volumes(cells_of_kind) for kind, cells_of_kind in sorted(cells_by_kind.items())}
    return {kind: before for kind, (before, _) in volumes.items()}, {
        kind: after for kind, (_, after) in volumes.items()
    }
