"""One run as the numbers that stand for it. The run is the unit of replication; its steps are never samples.

Steps of one process launch share that launch's placement, clocks and allocator, and follow each other's noise. Taken
as samples they find differences between two runs of the same commit far too often. So a run becomes one number before
anything is compared, and it becomes two, because they fail in different ways:

``median``  log of a usual step. Ignores stalls, whether they are noise or the change that is looked for.
``mean``    log of the time per step over all steps: what a training job pays. Every stall moves it.
"""

import math
from collections.abc import Mapping, Sequence

Summaries = Mapping[str, float]
"""Name of a summary -> its value on the log scale. A difference of two is a log-ratio: positive means slower."""


def summarise(step_s: Sequence[float]) -> dict[str, float]:
    """The summaries of one run from its steady step times in seconds.

    Raises ValueError where there is no step, or one is not positive and finite.
    """
    if not len(step_s):
        raise ValueError("a run without a steady step has no step time")
    if not all(0 < value < math.inf for value in step_s):
        position = next(i for i, value in enumerate(step_s) if not 0 < value < math.inf)
        raise ValueError(f"steady step {position} took {step_s[position]} s; a step time is positive and finite")
    ordered = sorted(step_s)
    half = len(ordered) // 2
    # The median of the logs: for an even count the mean of the two middle logs, not the log of their mean.
    middle = math.log(ordered[half])
    if len(ordered) % 2 == 0:
        middle = (middle + math.log(ordered[half - 1])) / 2
    return {"median": middle, "mean": math.log(math.fsum(ordered) / len(ordered))}
