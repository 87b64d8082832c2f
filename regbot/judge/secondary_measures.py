"""Test secondary metrics of a workload that became slower or faster. They explain the change and decide nothing."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from regbot.judge.estimates import percent
from regbot.judge.pairs import Pair
from regbot.records.run import Run
from regbot.records.verdict import SecondaryTest
from regbot.stats.multiplicity import analyse_secondary_metrics


def run_secondary_tests(pairs: Sequence[Pair]) -> list[SecondaryTest]:
    """Test every metric that is known in all runs of the pairs, such as the peak memory."""
    metrics = [(_run_metrics(pair.base, pair.cut), _run_metrics(pair.head, pair.cut)) for pair in pairs]
    names = [
        name
        for name in (metrics[0][0] if metrics else {})
        if all(name in of_run for pair in metrics for of_run in pair)
    ]
    log_ratios = {name: [math.log(head[name] / base[name]) for base, head in metrics] for name in names}
    return [
        SecondaryTest(
            metric=test.name,
            estimate_pct=percent(test.estimate),
            p_adjusted=test.p_adjusted,
            significant=test.significant,
        )
        for test in analyse_secondary_metrics(log_ratios)
    ]


def _run_metrics(run: Run, cut: int) -> dict[str, float]:
    """A time is the median over a rank's steps after ``cut``, averaged over ranks. Metrics are compared as ratios, so
    only positive ones count."""
    assert run.timing is not None
    ranks = list(run.timing.ranks.values())
    values: dict[str, float] = {"peak memory": float(run.timing.memory_peak_bytes)}
    if all(len(rank.wait_s) > cut for rank in ranks):
        values["seconds in collectives"] = fmean(median(rank.wait_s[cut:]) for rank in ranks)
        values["seconds outside collectives"] = fmean(
            median(step - wait for step, wait in zip(rank.step_s[cut:], rank.wait_s[cut:], strict=True))
            for rank in ranks
        )
    if all(len(rank.cpu_s) > cut for rank in ranks):
        values["CPU seconds"] = fmean(median(rank.cpu_s[cut:]) for rank in ranks)
    return {name: value for name, value in values.items() if value > 0}
