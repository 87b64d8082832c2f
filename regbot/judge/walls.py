"""Which wall a slower step hit: collectives, what is outside of them, or memory; with the share that it explains.

A wall is told from what the probe measured in the steps themselves: seconds in collectives and the peak of memory. It
does not say which kernel. On a CPU a rank that waits for a slower one waits in a collective too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

from regbot.records.run import RankSteps, Run
from regbot.units import binary_bytes

MEMORY_RISE = 1.05
"""Peak memory above this ratio is told beside the wall."""
CLEAR = 0.6
"""A part that explains at least this much of the difference is the wall; below it, it is shared."""


Summary = Literal["median", "mean"]
_OF: dict[Summary, Callable[[Sequence[float]], float]] = {"median": median, "mean": mean}


@dataclass(frozen=True)
class _Parts:
    """Seconds of a step, mean over ranks, and the peak in bytes."""

    step_s: float
    wait_s: float
    peak_bytes: float


def wall(base: Sequence[Run], head: Sequence[Run], summary: Summary, slower: bool) -> str:
    """One sentence on what a difference of step time is made of; '' where nothing is known.

    ``summary`` is the one that shows the difference: stalls are in the mean step and not in the median one.
    """
    ours, theirs = _parts(base, _OF[summary]), _parts(head, _OF[summary])
    if ours is None or theirs is None:
        return ""
    more, waiting = theirs.step_s - ours.step_s, theirs.wait_s - ours.wait_s
    if more == 0 or (more > 0) != slower:
        return ""  # the mean of the ranks says something else than the slowest one: no wall to name
    share, longer = waiting / more, "longer" if more > 0 else "shorter"
    span = f"{abs(more) * 1000:.3g} ms that a step takes {longer}"
    if share >= CLEAR:
        sentence = f"communication: {min(share, 1):.0%} of the {span} is spent in collectives"
    elif share <= 1 - CLEAR:
        sentence = f"compute or host: {min(1 - share, 1):.0%} of the {span} is spent outside collectives"
    else:
        sentence = f"not one wall: {share:.0%} of the {span} is spent in collectives, the rest outside of them"
    if theirs.peak_bytes > MEMORY_RISE * ours.peak_bytes:
        sentence += (
            f"; peak memory rose from {binary_bytes(int(ours.peak_bytes))} to {binary_bytes(int(theirs.peak_bytes))}"
        )
    return sentence


def _parts(runs: Iterable[Run], of: Callable[[Sequence[float]], float]) -> _Parts | None:
    found = [
        _Parts(
            step_s=mean(of(rank.step_s[run.timing.cut :]) for rank in run.timing.ranks.values()),
            wait_s=mean(of(rank.wait_s[run.timing.cut :]) for rank in run.timing.ranks.values()),
            peak_bytes=run.timing.memory_peak_bytes,
        )
        for run in runs
        if run.timing is not None and _measured(run.timing.ranks.values(), run.timing.cut)
    ]
    if not found:
        return None
    return _Parts(
        median(part.step_s for part in found),
        median(part.wait_s for part in found),
        median(part.peak_bytes for part in found),
    )


def _measured(ranks: Iterable[RankSteps], cut: int) -> bool:
    return all(len(rank.step_s) > cut and len(rank.wait_s) > cut for rank in ranks)
