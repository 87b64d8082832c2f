"""Step-time summaries of one launch of several ranks, from the step at which the launch is steady.

Each rank is summarised separately, and the summary of the slowest rank counts. The slowest rank of each step would
count some delays twice: a rank that is late after its last collective is the slowest in one step, and a rank that waits
for it is the slowest in the next.
"""

from functools import lru_cache

from regbot.records.run import Timing
from regbot.stats.steady import SteadyState, steady_state
from regbot.stats.summary import summarise

SUMMARIES = ("median", "mean")
"""Summaries of a run that are compared. Each summary is a primary test."""


def launch_steady_state(timing: Timing) -> SteadyState | None:
    """Return the steady state of the launch, from the step times of its slowest rank; None for a single step."""
    return _cached_steady_state(tuple(timing.step_s)) if len(timing.step_s) > 1 else None


def launch_cut(timing: Timing) -> int:
    """Return how many leading steps of a launch to leave out. It is at least the planned warm-up, ``timing.cut``."""
    state = launch_steady_state(timing)
    return max(timing.cut, state.cut) if state is not None else timing.cut


def summarise_timing(timing: Timing, cut: int) -> dict[str, float]:
    """Return the median and the mean step time after ``cut`` on the log scale, each as the maximum over the ranks. At
    least one step is left."""
    rank_summaries = [summarise(steps.step_s[cut:]) for steps in timing.ranks.values()]
    return {name: max(summary[name] for summary in rank_summaries) for name in SUMMARIES}


@lru_cache(maxsize=4096)
def _cached_steady_state(step_s: tuple[float, ...]) -> SteadyState:
    return steady_state(step_s)
