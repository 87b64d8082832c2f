"""Standard error of a single run's mean, computed from its steps. It can contradict a noise that the user states."""

import math
from collections.abc import Sequence

from regbot.stats.summary import mean_and_squares

MAX_RHO = 0.9
"""Upper limit of the estimated autocorrelation of neighbouring steps, as in ``steady``."""


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
