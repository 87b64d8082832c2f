"""Summaries of one run's step times. The run is the unit of replication; single steps are never samples, because all
steps of one launch share their placement, clocks and allocator.

``median``  log of a typical step. It ignores stalls, whether they are noise or the effect of a change.
``mean``    log of the mean time per step, which is the cost of the training job. Every stall changes it.
"""

import math
from collections.abc import Sequence


def summarise(step_s: Sequence[float]) -> dict[str, float]:
    """Return the value of each summary by name, from a run's steady step times in seconds.

    There is at least one step. Raises ValueError if a step time is not positive and finite.
    """
    if not all(0 < value < math.inf for value in step_s):
        position = next(i for i, value in enumerate(step_s) if not 0 < value < math.inf)
        raise ValueError(f"steady step {position} took {step_s[position]} s; a step time must be positive and finite")
    ordered = sorted(step_s)
    half = len(ordered) // 2
    # The median of the logarithms. For an even number of steps, it is the mean of the two middle logarithms.
    log_median = math.log(ordered[half])
    if len(ordered) % 2 == 0:
        log_median = (log_median + math.log(ordered[half - 1])) / 2
    return {"median": log_median, "mean": math.log(math.fsum(ordered) / len(ordered))}


def mean_and_squares(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sum of the squared deviations from it. Equal values have exactly the sum 0. Raises
    ValueError if a value is not finite."""
    if not all(map(math.isfinite, values)):
        raise ValueError("a value is not finite")
    mean = values[0] if min(values) == max(values) else math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values)


def percent(log_ratio: float) -> float:
    """Return a log-ratio as 100 (ratio - 1). The log-ratio is capped at 20, so that the result stays finite."""
    return 100 * math.expm1(min(log_ratio, 20.0))
