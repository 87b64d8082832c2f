"""Find the wall of a change in step time: the part of a step that explains most of the change, with its share.

The parts are the time in collectives and the time outside of them. On a CPU, waiting for a slower rank counts as time
in a collective.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal, NamedTuple

from regbot.judge.pairs import Pair
from regbot.records.run import RankSteps, Run
from regbot.records.text.units import binary_bytes
from regbot.records.verdict import WallKind

MEMORY_RISE = 1.05
"""Ratio of head's to base's peak memory above which the sentence mentions it."""
CLEAR_SHARE = 0.6
"""A part of the step is the wall if it explains at least this share of the difference."""


Summary = Literal["median", "mean"]
_STATISTICS: dict[Summary, Callable[[Sequence[float]], float]] = {"median": median, "mean": mean}


class Wall(NamedTuple):
    """The part of a step that explains a difference in step time, and a sentence with the share that it explains."""

    kind: WallKind
    sentence: str


@dataclass(frozen=True)
class _Parts:
    step_s: float
    wait_s: float
    """Time in collectives."""
    peak_bytes: float
    """Peak memory."""


def find_wall(pairs: Sequence[Pair], summary: Summary, is_slowdown: bool) -> Wall | None:
    """Return the wall of a difference in step time, None if it is unknown. ``summary``: the one that shows the
    difference; stalls change the mean step time but not the median."""
    base_parts = _measure_parts([(pair.base, pair.cut) for pair in pairs], _STATISTICS[summary])
    head_parts = _measure_parts([(pair.head, pair.cut) for pair in pairs], _STATISTICS[summary])
    if base_parts is None or head_parts is None:
        return None
    # Head minus base: ``extra_s`` is negative if head is faster.
    extra_s, extra_wait_s = head_parts.step_s - base_parts.step_s, head_parts.wait_s - base_parts.wait_s
    if extra_s == 0 or (extra_s > 0) != is_slowdown:
        # The pairs were decided by the step time of the slowest rank. The parts here are means over all ranks. If the
        # mean moves in the other direction than the slowest rank, its parts cannot explain the difference.
        return None
    wait_share, direction = extra_wait_s / extra_s, "added" if extra_s > 0 else "saved"
    extra_text = f"{direction} {abs(extra_s) * 1000:.3g} ms per step"
    kind: WallKind
    # The share can be outside of [0, 1], for example if collectives became slower and everything else faster.
    if wait_share >= CLEAR_SHARE:
        kind = "communication"
        sentence = f"{min(wait_share, 1):.0%} of the {extra_text} is communication (in collectives)"
    elif wait_share <= 1 - CLEAR_SHARE:
        kind = "compute or host"
        sentence = f"{min(1 - wait_share, 1):.0%} of the {extra_text} is compute or host time (outside of collectives)"
    else:
        kind = "not one wall"
        communication = f"{wait_share:.0%} of the {extra_text} is communication (in collectives)"
        sentence = f"{communication}, the rest is outside of collectives"
    if head_parts.peak_bytes > MEMORY_RISE * base_parts.peak_bytes:
        sentence += (
            f"; peak memory rose from {binary_bytes(int(base_parts.peak_bytes))} to "
            f"{binary_bytes(int(head_parts.peak_bytes))}"
        )
    return Wall(kind, sentence)


def _measure_parts(runs: Iterable[tuple[Run, int]], statistic: Callable[[Sequence[float]], float]) -> _Parts | None:
    parts_by_run = [
        _Parts(
            step_s=mean(statistic(rank.step_s[cut:]) for rank in run.timing.ranks.values()),
            wait_s=mean(statistic(rank.wait_s[cut:]) for rank in run.timing.ranks.values()),
            peak_bytes=run.timing.memory_peak_bytes,
        )
        for run, cut in runs
        if run.timing is not None and _has_all_steps(run.timing.ranks.values(), cut)
    ]
    if not parts_by_run:
        return None
    return _Parts(
        median(part.step_s for part in parts_by_run),
        median(part.wait_s for part in parts_by_run),
        median(part.peak_bytes for part in parts_by_run),
    )


def _has_all_steps(ranks: Iterable[RankSteps], cut: int) -> bool:
    return all(len(rank.step_s) > cut and len(rank.wait_s) > cut for rank in ranks)
