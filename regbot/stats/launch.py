"""One launch of several ranks as the numbers that stand for it, from the step at which it is steady.

The cut is the planned warm-up, or the step from which the launch is steady where that is later. The ranks are
summarised one by one and the slowest counts: not the slowest of every step, because a rank that is late after its last
collective is the slowest of one step, the rank that waits for it is the slowest of the next, and the delay would count
twice.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from regbot.records.run import Timing
from regbot.stats.steady import Steady, steady_state
from regbot.stats.summary import summarise

SUMMARIES = ("median", "mean")
"""What is compared of two runs: each is a primary test."""


def steadiness(timing: Timing) -> Steady | None:
    """Where the launch is steady by its slowest rank's steps; None of a single step."""
    return _steady(tuple(timing.step_s)) if len(timing.step_s) > 1 else None


def cut_of(timing: Timing) -> int:
    """Leading steps to leave out: at least the planned ones."""
    found = steadiness(timing)
    return max(timing.cut, found.cut) if found is not None else timing.cut


def launch_summaries(ranks: Iterable[Sequence[float]], cut: int) -> dict[str, float]:
    """Median and mean of the steps after ``cut`` on the log scale: of each rank by itself, then the slowest rank's.

    Raises ValueError where no step is left, or one is not positive and finite.
    """
    found = [summarise(steps[cut:]) for steps in ranks]
    return {name: max(rank[name] for rank in found) for name in SUMMARIES}


@lru_cache(maxsize=4096)
def _steady(step_s: tuple[float, ...]) -> Steady:
    return steady_state(step_s)
