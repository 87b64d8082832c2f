"""Standard error of a run, computed from its steps. It can contradict the noise of a pair that a user gives."""

import math
from collections.abc import Sequence

MAX_RHO = 0.9
"""Upper limit of the estimated autocorrelation of neighbouring steps, as in ``steady``. A higher value cannot be
estimated from few steps.
"""


def run_standard_error(step_s: Sequence[float]) -> float:
    """Return the standard error of a run's mean log step time, estimated from its steps.

    It is s sqrt((1 + rho) / (1 - rho) / n) for n steps with the standard deviation s, if their noise is AR(1) with
    autocorrelation rho. ``step_s`` are the steady steps in seconds, positive and finite. Returns 0 for fewer than three
    steps.
    """
    n = len(step_s)
    if n < 3:
        return 0.0
    logs = [math.log(seconds) for seconds in step_s]
    mean = math.fsum(logs) / n
    deviations = [value - mean for value in logs]
    squares = math.fsum(value * value for value in deviations)
    if squares == 0:
        return 0.0
    products = math.fsum(later * earlier for later, earlier in zip(deviations[1:], deviations[:-1], strict=True))
    rho = min(max(products / squares, 0.0), MAX_RHO)
    return math.sqrt(squares / (n - 1) / n * (1 + rho) / (1 - rho))
