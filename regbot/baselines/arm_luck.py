"""The luck of an arm, estimated from stored placebo sessions (``regbot.stats.arm_luck``).

The luck is the part of an arm's speed that is drawn anew with its compiler caches. A *draw* is the pairs of a session
that used the same caches.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby

from regbot.records.calibration import CalibrationSession
from regbot.records.calibration_summary import ArmLuck, Correlation
from regbot.records.reference import Reference
from regbot.stats.arm_luck import MIN_ALLOCATIONS, SMALL_LUCK, estimate_luck


def estimate_stored_luck(
    placebos: Iterable[CalibrationSession], allocations: Mapping[str, Hashable], lag: Correlation | None = None
) -> ArmLuck | None:
    """Estimate the luck of an arm from placebo sessions. Return None if there are too few draws for an estimate.

    ``allocations`` has the day and node of each session by its identity. ``lag`` is the correlation of neighbouring
    pairs; None counts as 0. ``draws`` of a session has the number of the draw of each pair, such as 1, 1, 1, 1, 2, 2.
    Sessions without ``draws`` are left out: both of their arms used the same compiler caches, and thus had the same
    luck.
    """
    ratios_by_draw: list[list[float]] = []
    of_draws: list[Hashable] = []
    for placebo in placebos:
        log_ratios = placebo.log_ratios.get("median", [])
        if placebo.draws is not None and len(placebo.draws) == len(log_ratios):
            numbered_ratios = zip(placebo.draws, log_ratios, strict=True)
            for _, pairs_of_draw in groupby(numbered_ratios, key=lambda numbered_ratio: numbered_ratio[0]):
                ratios_by_draw.append([log_ratio for _, log_ratio in pairs_of_draw])
                of_draws.append(allocations[placebo.session])
    correlation = lag.value if lag is not None else 0.0
    return estimate_luck(ratios_by_draw, correlation, of_draws)


def is_luck_small(references: Sequence[Reference]) -> bool:
    """Return whether calibrations prove that the luck of an arm is small in every environment of ``references``.

    A check then needs no fresh compiler caches. Without references nothing is proven, so the result is False.
    """
    return bool(references) and all(_has_small_luck(reference) for reference in references)


def _has_small_luck(reference: Reference) -> bool:
    luck = reference.calibrated.arm_luck if reference.calibrated is not None else None
    return luck is not None and luck.allocations >= MIN_ALLOCATIONS and luck.high_pct <= 100 * SMALL_LUCK
