"""Explain a change in step time. Nothing here decides.

The wall is the part of a step that explains most of the change, with its share. The parts are the time in collectives
and the time outside of them. On a CPU, waiting for a slower rank counts as time in a collective.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median

from regbot.judge.pairs import Pair
from regbot.records.run import Run
from regbot.records.text.units import binary_bytes
from regbot.records.verdict import WallKind

MEMORY_RISE = 1.05
"""Ratio of head's to base's peak memory above which the sentence mentions it."""
CLEAR_SHARE = 0.6
"""A part of the step is the wall if it explains at least this share of the difference."""


def find_wall(pairs: Sequence[Pair], summary: str, is_slowdown: bool) -> tuple[WallKind | None, str]:
    """Return the wall of a difference in step time, and a sentence with the share that it explains; None and '' if it
    is unknown. ``summary``: the median or mean step time, which shows the difference."""
    statistic = median if summary == "median" else fmean
    base, head = (
        [measures for run, cut in runs if (measures := _measure(run, cut, statistic)) is not None]
        for runs in ([(pair.base, pair.cut) for pair in pairs], [(pair.head, pair.cut) for pair in pairs])
    )
    if not base or not head:
        return None, ""
    base_s, base_wait_s, base_bytes = map(median, zip(*base, strict=True))
    head_s, head_wait_s, head_bytes = map(median, zip(*head, strict=True))
    extra_s, extra_wait_s = head_s - base_s, head_wait_s - base_wait_s  # negative if head is faster
    if extra_s == 0 or (extra_s > 0) != is_slowdown:
        # The pairs were decided by the step time of the slowest rank. The parts here are means over all ranks. If the
        # mean moves in the other direction than the slowest rank, its parts cannot explain the difference.
        return None, ""
    wait_share = extra_wait_s / extra_s
    extra = f"{'added' if extra_s > 0 else 'saved'} {abs(extra_s) * 1000:.3g} ms per step"
    kind: WallKind = "not one wall"
    sentence = f"{wait_share:.0%} of the {extra} is communication (in collectives), the rest is outside of collectives"
    # The share can be outside of [0, 1], for example if collectives became slower and everything else faster.
    if wait_share >= CLEAR_SHARE:
        kind = "communication"
        sentence = f"{min(wait_share, 1):.0%} of the {extra} is communication (in collectives)"
    elif wait_share <= 1 - CLEAR_SHARE:
        kind = "compute or host"
        sentence = f"{min(1 - wait_share, 1):.0%} of the {extra} is compute or host time (outside of collectives)"
    if head_bytes > MEMORY_RISE * base_bytes:
        sentence += f"; peak memory rose from {binary_bytes(int(base_bytes))} to {binary_bytes(int(head_bytes))}"
    return kind, sentence


def _measure(run: Run, cut: int, statistic: Callable[[Sequence[float]], float]) -> tuple[float, float, float] | None:
    """Return the step time, its part in collectives, and the peak memory. A time is the statistic of a rank's steps
    after ``cut``, averaged over ranks. None if the time in collectives is not known."""
    assert run.timing is not None
    ranks = run.timing.ranks.values()
    waits_s = [rank.wait_s[cut:] for rank in ranks]
    if not all(waits_s):
        return None
    mean_step_s = fmean(statistic(rank.step_s[cut:]) for rank in ranks)
    return mean_step_s, fmean(map(statistic, waits_s)), float(run.timing.memory_peak_bytes)
