"""The status of each finding. The rules are those of the table "Status" in docs/sharding-verdict.md.

Counts are exact, so the rules need no p-values. Fewer collectives can be slower and more can be faster, so a change
that is not wrong by itself is judged by modelled wire time, and is REVIEW if that does not decide."""

from dataclasses import dataclass

from regbot.ledgers import catalogue as names
from regbot.records.config import ShardingThresholds as Thresholds
from regbot.records.verdict import Status, WireTime

REDUCTIONS_LOST = frozenset({names.GRADIENT_LOST, names.OPTIMIZER_SUM_REMOVED})
"""Patterns in which gradients may no longer be reduced. A removed sum of the optimizer step is among them, because only
a person knows that it summed a statistic."""
ALWAYS_FAIL = REDUCTIONS_LOST | {names.DISPATCHER_OFF}
"""Patterns that are always FAIL, even if the step gets cheaper."""
NEVER_FAIL = frozenset({names.BYTES_DOWN, names.COUNT_DOWN, names.CONTROL_CHANGED, names.MOVED, names.OTHER_LAYER})
"""Patterns that are never FAIL."""
PASS_IF_CHEAPER = (NEVER_FAIL - {names.OTHER_LAYER}) | {
    names.RESTORED,
    *names.REPLACES.values(),
    names.DISPATCHER_ON,
    names.RECOMPUTES_NOT,
    names.KEEPS_GATHERED,
    names.COUNTS_REMOVED,
}
"""Patterns that are PASS with a note if the step got cheaper. NARROWED is not among them, because a narrower type
changes numerics. OTHER_LAYER is not among them, because a move to another layer does not change the cost of the step,
and only a person knows whether the move was intended."""
EXCHANGE_REPLACED = {names.ALL_TO_ALL_REPLACED, *names.REPLACED_BY.values()} - {names.REPLACED_BY_TRANSFERS}
"""Patterns in which every rank gets more than its own tokens, which is FAIL unless it is cheaper."""
ROUNDING = 1e-9
"""Relative difference up to which two wire times count as equal. Summing the same seconds in another order changes the
sum by less than this."""


@dataclass(frozen=True)
class Circumstances:
    """Inputs of the rules for one finding."""

    finding_wire: WireTime
    """Modelled wire time of the collectives that changed in this finding, in base and in head."""
    step_wire: WireTime
    """Modelled wire time of all collectives of the step."""
    bytes_rise_pct: float
    """Rise of the payload bytes that no named pattern explains, in percent of base's payload bytes of the same kind of
    collective."""
    gradient_lost: bool
    """Whether any finding has one of the patterns in ``REDUCTIONS_LOST``."""
    is_sized: bool
    """Whether the bytes of all payload are known."""


def decide_status(pattern: str, circumstances: Circumstances, thresholds: Thresholds) -> Status:
    """Return the status of a finding with this pattern. ``thresholds`` has the limits for rises of payload bytes and of
    wire time."""
    finding_wire = circumstances.finding_wire
    if pattern in ALWAYS_FAIL:
        return "FAIL"
    if pattern in EXCHANGE_REPLACED:
        # With few ranks, gathering all tokens can be cheaper than the all-to-all.
        gathers_are_cheaper = is_lower(finding_wire.head_s, finding_wire.base_s)
        return "REVIEW" if gathers_are_cheaper else "FAIL"
    if pattern in PASS_IF_CHEAPER and is_cheaper(circumstances):
        return "PASS"
    is_small_rise = pattern == names.BYTES_UP and circumstances.bytes_rise_pct < thresholds.bytes_rise_pct
    if pattern in NEVER_FAIL or is_small_rise:
        return "REVIEW"
    # A rise of the step's wire time makes a finding FAIL only if the finding itself adds wire time.
    adds_wire_time = is_lower(finding_wire.base_s, finding_wire.head_s)
    is_costly = adds_wire_time and rise_pct(circumstances.step_wire) >= thresholds.wire_rise_pct
    return "FAIL" if is_costly else "REVIEW"


def is_cheaper(circumstances: Circumstances) -> bool:
    """Whether four things hold: all sizes are known, the step's modelled wire time falls, this finding adds no wire
    time, and all gradient reductions are kept.

    A lost gradient reduction also lowers the wire time of the step, but that makes nothing better.
    """
    is_step_cheaper = is_lower(circumstances.step_wire.head_s, circumstances.step_wire.base_s)
    adds_wire_time = is_lower(circumstances.finding_wire.base_s, circumstances.finding_wire.head_s)
    keeps_all = circumstances.is_sized and not circumstances.gradient_lost
    return keeps_all and is_step_cheaper and not adds_wire_time


def is_lower(a: float, b: float) -> bool:
    return a < b * (1 - ROUNDING)


def rise_pct(wire: WireTime) -> float:
    """Return the rise of modelled wire time in percent. The result is negative if the wire time falls. If base has a
    wire time of 0, the result is 0 if head has 0 too, and infinite otherwise."""
    if wire.base_s == 0:
        return 0.0 if wire.head_s == 0 else float("inf")
    return 100 * (wire.head_s / wire.base_s - 1)
