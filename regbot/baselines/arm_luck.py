"""What the store knows about the luck of an arm (``regbot.stats.arm_luck``)."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from regbot.records.calibration import CalibrationSession
from regbot.records.calibration_summary import ArmLuck
from regbot.records.reference import Reference
from regbot.stats.arm_luck import SMALL_LUCK, LuckEstimate, estimate_luck
from regbot.stats.correlation import CorrelationEstimate


def estimate_stored_luck(
    placebos: Iterable[CalibrationSession], lag: CorrelationEstimate | None = None
) -> LuckEstimate | None:
    """Estimate the luck of an arm from placebo sessions. Return None if there are too few draws for an estimate.

    ``lag`` is the correlation of neighbouring pairs. Sessions without ``draws`` are left out: both of their arms used
    the same compiler caches, and thus had the same luck.
    """
    draws: list[list[float]] = []
    for placebo in placebos:
        medians = placebo.log_ratios.get("median", [])
        if placebo.draws is not None and len(placebo.draws) == len(medians):
            numbered = zip(placebo.draws, medians, strict=True)
            draws += [[ratio for _, ratio in pairs] for _, pairs in groupby(numbered, key=lambda pair: pair[0])]
    return estimate_luck(draws, lag.value if lag is not None else 0.0)


def make_arm_luck(luck: LuckEstimate | None) -> ArmLuck | None:
    """Return the record of an estimate."""
    if luck is None:
        return None
    return ArmLuck(
        sd_pct=100 * luck.sd,
        low_pct=100 * luck.low,
        high_pct=100 * luck.high,
        counted_pct=100 * luck.counted,
        draws=luck.draws,
    )


def is_luck_small(references: Sequence[Reference]) -> bool:
    """Return whether the luck of an arm is proven to be small in every environment of ``references``. A check then
    needs no fresh compiler caches."""
    lucks = [reference.calibrated.arm_luck if reference.calibrated is not None else None for reference in references]
    return bool(lucks) and all(luck is not None and luck.high_pct <= 100 * SMALL_LUCK for luck in lucks)
