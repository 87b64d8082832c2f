"""Pairs: a base and a head run side by side in one block. The raw material of the throughput verdict.

A pair counts where both of its runs ended well and say the same of how they were timed. A run that did not voids its
block, which is repeated; nothing else leaves a pair out, least of all its value.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regbot.records.run import Run, Timing
from regbot.records.session import Session
from regbot.stats.summary import summarise

SUMMARIES = ("median", "mean")
"""What is compared of two runs: each is a primary test."""


class PairKey(NamedTuple):
    """Where a pair stands: block from 1, attempt of the block, first or second pair of it."""

    block: int
    attempt: int
    number: int


@dataclass(frozen=True)
class Pair:
    """One valid pair. ``log_ratios`` are log(head / base) of the steady steps' median and mean."""

    key: PairKey
    base: Run
    head: Run
    log_ratios: dict[str, float]


@dataclass(frozen=True)
class Paired:
    """All pairs of one workload, in session order."""

    valid: tuple[Pair, ...]
    void: int

    def log_ratios(self) -> dict[str, list[float]]:
        """By summary, one value per valid pair."""
        return {name: [pair.log_ratios[name] for pair in self.valid] for name in SUMMARIES}


def timed_runs(session: Session, entry: str) -> list[Run]:
    """The timed runs of one entry, warm launches included, as they were appended."""
    return [run for run in session.runs if run.tier == "timed" and run.workload == entry and run.position is not None]


def pair_up(runs: Iterable[Run]) -> Paired:
    """The pairs that ``runs``, timed runs of one entry, make. A pair whose second run was not started is none.

    Of a block that was repeated only the repeat counts, so that every pair used stands in a whole block.
    """
    members: dict[PairKey, list[Run]] = {}
    runs = list(runs)
    repeated = {run.position.block for run in runs if run.position is not None and run.attempt > 1}
    for run in runs:
        if run.position is not None and run.position.block > 0:
            key = PairKey(run.position.block, run.attempt, run.position.slot // 2)
            members.setdefault(key, []).append(run)
    valid: list[Pair] = []
    void = 0
    for key, found in members.items():
        pair = _pair(key, found)
        if key.attempt == 1 and key.block in repeated:
            void += 1
        elif pair is not None:
            valid.append(pair)
        elif len(found) == 2 or any(run.outcome != "ok" for run in found):
            void += 1
    return Paired(tuple(valid), void)


def _pair(key: PairKey, runs: Sequence[Run]) -> Pair | None:
    by_arm = {run.arm.name: run for run in runs}
    if len(runs) != 2 or len(by_arm) != 2:
        return None
    base, head = by_arm["base"], by_arm["head"]
    if base.outcome != "ok" or head.outcome != "ok" or base.timing is None or head.timing is None:
        return None
    if unlike(base, head):
        return None
    cut = max(base.timing.cut, head.timing.cut)  # the same steps in both arms
    ours, theirs = summaries(base.timing, cut), summaries(head.timing, cut)
    return Pair(key, base, head, {name: theirs[name] - ours[name] for name in SUMMARIES})


def summaries(timing: Timing, cut: int) -> dict[str, float]:
    """Median and mean of the steady steps on the log scale: of each rank by itself, then the slowest rank's.

    Not of the slowest rank of every step: a rank that is late after its last collective is the slowest of one step, the
    rank that waits for it is the slowest of the next, and the delay would count twice.
    """
    ranks = [summarise(steps.step_s[cut:]) for steps in timing.ranks.values()]
    return {name: max(rank[name] for rank in ranks) for name in SUMMARIES}


def unlike(base: Run, head: Run) -> str:
    """Why the times of two runs cannot be compared, '' where they can."""
    if base.timing is None or head.timing is None:
        return "one has no step times"
    for word, ours, theirs in (
        ("clock", base.timing.clock, head.timing.clock),
        ("number of steps", base.timing.asked, head.timing.asked),
        ("number of ranks", len(base.timing.ranks), len(head.timing.ranks)),
        ("variant", base.variant, head.variant),
        ("node", base.node, head.node),
    ):
        if ours != theirs:
            return f"the {word} differs"
    if len(base.timing.step_s) <= max(base.timing.cut, head.timing.cut):
        return "no step is left after the warm-up"
    return ""
