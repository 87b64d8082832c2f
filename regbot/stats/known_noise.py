"""A noise that is known and not estimated: the interval of runs that are no pairs, and what contradicts the noise.

The standard deviation of a pair's log-ratio is s. Were nothing shared by the two runs of a pair, each of them would
have s / sqrt(2), and that is what runs which are no pairs are given. It is their least: what a node or a day adds to
one run cancels in a pair and stays in a difference of single runs. Whoever prints such an interval has to say so.

Whoever says s may be wrong. Runs of one arm that scatter contradict it, and so do the steps of a single run: their own
noise alone leaves the run's mean uncertain.
"""

import math
from collections.abc import Sequence

from scipy.special import ndtri

from regbot.stats.unpaired import Difference

MOST_RHO = 0.9
"""Autocorrelation of neighbouring steps beyond which so few steps show no noise at all; the steady state's limit."""


def known_difference(base: Sequence[float], head: Sequence[float], pair_sd: float, alpha: float) -> Difference:
    """The normal interval of mean(head) - mean(base) on the log scale, of runs that have ``pair_sd`` / sqrt(2) each.

    Values are a summary of each run. Raises ValueError for an arm without a run.
    """
    if not base or not head:
        raise ValueError("each arm needs a run")
    estimate = math.fsum(head) / len(head) - math.fsum(base) / len(base)
    half = float(ndtri(1 - alpha / 2)) * pair_sd * math.sqrt((1 / len(base) + 1 / len(head)) / 2)
    return Difference(estimate, estimate - half, estimate + half, pair_sd, math.inf, alpha)


def seen_pair_sd(base: Sequence[float], head: Sequence[float]) -> float | None:
    """The standard deviation of a pair of these runs, by their scatter inside the arms; None of one run an arm."""
    free = len(base) + len(head) - 2
    if free < 1:
        return None
    squares = sum(math.fsum((x - math.fsum(arm) / len(arm)) ** 2 for x in arm) for arm in (base, head))
    return math.sqrt(2 * squares / free)


def run_error(step_s: Sequence[float]) -> float:
    """Standard error of a run's mean log step time that its own steps make, s sqrt((1 + rho) / (1 - rho) / n).

    AR(1); ``step_s`` are its steady steps, positive and finite. 0 of fewer than three, which show no noise.
    """
    n = len(step_s)
    if n < 3:
        return 0.0
    logs = [math.log(seconds) for seconds in step_s]
    centre = math.fsum(logs) / n
    around = [value - centre for value in logs]
    squares = math.fsum(value * value for value in around)
    if squares == 0:
        return 0.0
    rho = math.fsum(a * b for a, b in zip(around[1:], around[:-1], strict=True)) / squares
    rho = min(max(rho, 0.0), MOST_RHO)
    return math.sqrt(squares / (n - 1) / n * (1 + rho) / (1 - rho))
