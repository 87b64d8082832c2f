"""What each finding means for the verdict: the table of docs/sharding-verdict.md, line by line.

Rules, not p-values: counts are exact. But fewer collectives can be slower and more can be faster, so a change that is
not wrong in itself is judged by modelled wire time, and where that does not settle it, by a person.
"""

from dataclasses import dataclass

from regbot.config import Sharding as Thresholds
from regbot.ledgers.catalogue import (
    BYTES_DOWN,
    BYTES_UP,
    CONTROL_CHANGED,
    COUNT_DOWN,
    COUNTS_REMOVED,
    DISPATCHER_OFF,
    DISPATCHER_ON,
    GRADIENT_LOST,
    KEEPS_GATHERED,
    MAPPED_TWICE,
    MOVED,
    OTHER_LAYER,
    RECOMPUTES_NOT,
    RESTORED,
)
from regbot.records.verdict import Status, Wire

ALWAYS_WRONG = frozenset({GRADIENT_LOST, DISPATCHER_OFF})
"""Faster would not make these right."""
NEVER_WRONG = frozenset({BYTES_DOWN, COUNT_DOWN, CONTROL_CHANGED, MOVED, OTHER_LAYER})
"""Never FAIL by themselves."""
EASING = (NEVER_WRONG - {OTHER_LAYER}) | {RESTORED, DISPATCHER_ON, RECOMPUTES_NOT, KEEPS_GATHERED, COUNTS_REMOVED}
"""PASS with a note where the step got cheaper. A narrower type is not here: it changes numerics. Nor is what
moved to another layer: it has no part in what the step costs, and only a person can tell whether it was meant."""
ROUNDING = 1e-9
"""Sums of equal seconds in another order differ by less; a difference below it is a tie."""


@dataclass(frozen=True)
class Circumstances:
    """What a finding is judged by: wire time of its own rows and of the whole step, and its kind's bytes."""

    own: Wire
    step: Wire
    bytes_rise_pct: float
    gradient_lost: bool


def status_of(pattern: str, seen: Circumstances, thresholds: Thresholds) -> Status:
    """The status of one finding."""
    if pattern in ALWAYS_WRONG:
        return "FAIL"
    if pattern == MAPPED_TWICE:
        return "REVIEW" if lower(seen.own.head_s, seen.own.base_s) else "FAIL"
    if pattern in EASING and eases(seen):
        return "PASS"
    if pattern in NEVER_WRONG or (pattern == BYTES_UP and seen.bytes_rise_pct < thresholds.bytes_rise_pct):
        return "REVIEW"
    # Only a finding that adds wire time answers for the step's; one that eases it is not to blame for its neighbours.
    costs = lower(seen.own.base_s, seen.own.head_s) and rise_pct(seen.step) >= thresholds.wire_rise_pct
    return "FAIL" if costs else "REVIEW"


def eases(seen: Circumstances) -> bool:
    """The step is modelled cheaper, this finding does not make it dearer, and every gradient is still reduced."""
    cheaper = lower(seen.step.head_s, seen.step.base_s)
    return cheaper and not lower(seen.own.base_s, seen.own.head_s) and not seen.gradient_lost


def lower(a: float, b: float) -> bool:
    """Whether ``a`` is lower than ``b``; a tie is not lower."""
    return a < b * (1 - ROUNDING)


def rise_pct(wire: Wire) -> float:
    """Rise of modelled wire time in percent, negative where it falls; infinite where there was none."""
    if wire.base_s == 0:
        return 0.0 if wire.head_s == 0 else float("inf")
    return 100 * (wire.head_s / wire.base_s - 1)
