"""Stalls that return after a fixed number of steps: an evaluation, a checkpoint, a collection of garbage.

A run of forty steps has more or fewer of them by the phase at which it begins, so its mean step time depends on chance.
If both arms show the same period, whole periods are counted.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

MIN_STALL = math.log(1.1)
"""A stall is a step that is slower than the median of its run by this, log scale, and by half of ``typical_stall``."""

MIN_SHARE = 0.8
"""Share of the gaps between stalls, in each arm, that must be of one length."""


def typical_stall(runs: Sequence[Sequence[float]]) -> float:
    """Return how far the slowest step of a run is above the run's median, log scale: the median over the runs."""
    return median(math.log(max(steps) / median(steps)) for steps in runs)


def find_stalls(step_s: Sequence[float], limit: float) -> list[int]:
    """Return the first step of each stall: a step that is more than ``limit`` above the median of the run, log scale.
    Neighbouring slow steps are one stall. A stall that lasts since before the first step is left out."""
    slow_s = median(step_s) * math.exp(limit)
    slow = [step for step, seconds in enumerate(step_s) if seconds > slow_s]
    return [step for step in slow if step and step - 1 not in slow]


def common_period(base: Sequence[Sequence[float]], head: Sequence[Sequence[float]]) -> int:
    """Return the number of steps from stall to stall if it is the same in the runs of both arms, else 0. The runs are
    their steady steps in seconds. A run with fewer than two stalls shows no period."""
    if not base or not head:
        return 0
    limit = max(MIN_STALL, typical_stall([*base, *head]) / 2)
    periods = set()
    for runs in (base, head):
        gaps = Counter(later - earlier for steps in runs for earlier, later in pairwise(find_stalls(steps, limit)))
        period, count = gaps.most_common(1)[0] if gaps else (0, 0)
        periods.add(period if count >= MIN_SHARE * gaps.total() else 0)
    return periods.pop() if len(periods) == 1 else 0
