"""Interval for unpaired runs whose noise is known, and two estimates that can contradict the known noise.

The known noise is the standard deviation s of a pair's log-ratio. Each unpaired run is assumed to have s / sqrt(2).
This is a lower bound: effects of node and day cancel in a pair but stay in a difference of single runs. Output that
shows such an interval must say so.
"""

import math
from collections.abc import Sequence

from scipy.special import ndtri

from regbot.stats.summary import mean_and_squares
from regbot.stats.unpaired import Difference

MAX_RHO = 0.9
"""Upper limit of the estimated autocorrelation of neighbouring steps, as in ``steady``."""


def known_noise_difference(base: Sequence[float], head: Sequence[float], pair_sd: float, alpha: float) -> Difference:
    """Return the normal interval of mean(head) - mean(base) on the log scale. Raises ValueError for an arm without a
    run."""
    if not base or not head:
        raise ValueError("each arm needs at least one run")
    estimate = math.fsum(head) / len(head) - math.fsum(base) / len(base)
    half_width = float(ndtri(1 - alpha / 2)) * pair_sd * math.sqrt((1 / len(base) + 1 / len(head)) / 2)
    # Infinite degrees of freedom stand for a normal interval.
    return Difference(estimate, estimate - half_width, estimate + half_width, pair_sd, df=math.inf, alpha=alpha)


def observed_pair_sd(base: Sequence[float], head: Sequence[float]) -> float | None:
    """Return the sd of a base run minus a head run, estimated from the scatter among the runs of each arm. None for one
    run per arm."""
    degrees_of_freedom = len(base) + len(head) - 2
    if degrees_of_freedom < 1:
        return None
    (_, base_squares), (_, head_squares) = mean_and_squares(base), mean_and_squares(head)
    return math.sqrt(2 * (base_squares + head_squares) / degrees_of_freedom)


def run_standard_error(step_s: Sequence[float]) -> float:
    """Return the standard error of a run's mean log step time: s sqrt((1 + rho) / (1 - rho) / n) for n steps with AR(1)
    noise. ``step_s`` are the steady steps in seconds. Returns 0 for fewer than three steps."""
    n = len(step_s)
    if n < 3:
        return 0.0
    logs = [math.log(seconds) for seconds in step_s]
    mean, squares = mean_and_squares(logs)
    if squares == 0:
        return 0.0
    deviations = [value - mean for value in logs]
    products = math.fsum(later * earlier for later, earlier in zip(deviations[1:], deviations[:-1], strict=True))
    rho = min(max(products / squares, 0.0), MAX_RHO)
    return math.sqrt(squares / (n - 1) / n * (1 + rho) / (1 - rho))
