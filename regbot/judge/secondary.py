"""What else differs where a workload is slower or faster: it explains the change and decides nothing.

Many metrics are looked at, so some of them differ by chance; their p values are adjusted for it (Benjamini and
Yekutieli), and only inside a workload whose step time has decided.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

from regbot.judge.estimates import percent
from regbot.judge.pairs import Pair
from regbot.records.run import Run
from regbot.records.verdict import SecondaryTest
from regbot.stats.launch import cut_of
from regbot.stats.multiplicity import secondary


def secondary_tests(pairs: Sequence[Pair]) -> list[SecondaryTest]:
    """Every metric that all runs of the pairs tell, over the pairs."""
    told = [(_metrics(pair.base), _metrics(pair.head)) for pair in pairs]
    names = [
        name for name in (told[0][0] if told else {}) if all(name in ours and name in theirs for ours, theirs in told)
    ]
    ratios = {name: [math.log(theirs[name] / ours[name]) for ours, theirs in told] for name in names}
    return [
        SecondaryTest(
            metric=each.name,
            estimate_pct=percent(each.estimate),
            p_adjusted=each.p_adjusted,
            significant=each.significant,
        )
        for each in secondary(ratios)
    ]


def _metrics(run: Run) -> dict[str, float]:
    """Of a steady step, mean over ranks; only what is positive, because it is compared as a ratio."""
    assert run.timing is not None
    cut, ranks = cut_of(run.timing), list(run.timing.ranks.values())
    found: dict[str, float] = {"peak memory": float(run.timing.memory_peak_bytes)}
    if all(len(rank.wait_s) > cut for rank in ranks):
        found["seconds in collectives"] = fmean(median(rank.wait_s[cut:]) for rank in ranks)
        found["seconds outside collectives"] = fmean(
            median(step - wait for step, wait in zip(rank.step_s[cut:], rank.wait_s[cut:], strict=True))
            for rank in ranks
        )
    if all(len(rank.cpu_s) > cut for rank in ranks):
        found["CPU seconds"] = fmean(median(rank.cpu_s[cut:]) for rank in ranks)
    return {name: value for name, value in found.items() if value > 0}
