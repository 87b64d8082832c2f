"""The cost of a bisection, said before it begins. The numbers come from the searches of ``benchmarks/bisect.py``."""

import math

from regbot.bisect.exact import max_measurements
from regbot.bisect.prepare import BisectionSetup
from regbot.records.bisection import BisectionPlan
from regbot.stats.paired import LOOKS

UNKNOWN_NOISE = (
    "the noise of a run is not known, so the search measures it; to see how many runs it takes, give the folder of an "
    "earlier check of GOOD and BAD with --check DIR, or the standard deviation of a run with --noise PCT"
)


def plan_cost(setup: BisectionSetup) -> BisectionPlan:
    """Return the expected cost: the maximum number of measurements for an exact search, else about the mean."""
    header, candidates = setup.header, setup.span.last
    plan = BisectionPlan(
        on=header.on,
        exact=header.exact,
        commits=len(header.points) - 1,
        different=candidates,
        most_runs=header.most_runs,
    )
    if header.exact:
        measurements = float(max_measurements(candidates) * max(1, len(header.entries)))
        reasons = ["for one change in the range; each further change takes at most as many again"]
        return plan.model_copy(update={"expected_runs": measurements, "reasons": reasons})
    settings, check = setup.search_settings, setup.reused_runs
    if settings.noise is None:
        return plan.model_copy(update={"reasons": [UNKNOWN_NOISE]})
    if check.effect is not None and check.effect <= 0:
        return plan.model_copy(update={"reasons": ["the check of these commits saw no slowdown: are they swapped?"]})
    ratio = (check.effect or settings.smallest) / settings.noise
    expected_runs = expected_search_runs(candidates, ratio)
    reasons = (
        [] if check.effect is not None else [f"for a slowdown of {header.smallest_pct:.3g}%, the smallest to look for"]
    )
    if expected_runs > header.most_runs:
        reasons.append("so many runs are not allowed: use a quieter node, longer runs or more --runs")
    return plan.model_copy(
        update={
            "ratio": ratio,
            "expected_runs": expected_runs,
            "confirm_runs": 2 * LOOKS[-1],  # at most: two runs for each pair of the last look
            "expected_min": expected_runs * check.run_s / 60 if check.run_s else None,
            "reasons": reasons,
        }
    )


def expected_search_runs(candidates: int, ratio: float) -> float:
    """Return about how many search runs a noisy search takes. ``ratio`` is the slowdown, in standard deviations of a
    run. The numbers are fitted to those of the benchmark, 16 to 1024 candidates at ratios from 1 to 5."""
    return (math.log2(candidates + 1) + 4.5) * (0.8 + 7.6 / ratio**2)
