"""Pairs: a base and a head run side by side in one block. The raw material of the throughput verdict.

A pair counts where both of its runs ended well, on a healthy node, and say the same of how they were timed. A run that
did not voids its block, which is repeated; nothing else leaves a pair out, least of all its value.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regbot.judge.health import outside_cause, slowed_blocks
from regbot.records.run import Run, Timing
from regbot.records.session import Session
from regbot.stats.launch import SUMMARIES, cut_of, launch_summaries


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


def is_screen(run: Run) -> bool:
    """Whether a timed run is one of the screen's, its warm launch among them."""
    return run.position is not None and run.position.order == "screen"


def is_warm(run: Run) -> bool:
    """Whether a timed run is a warm launch, which is discarded."""
    if run.position is None:
        return False
    return run.position.slot == 0 if is_screen(run) else run.position.block == 0


def sound(run: Run) -> bool:
    """Whether a run may count: it ended well, on a node that was fit for it."""
    return run.outcome == "ok" and not outside_cause(run)


def pair_up(runs: Iterable[Run]) -> Paired:
    """The pairs that ``runs``, timed runs of one entry, make. A pair whose second run was not started is none.

    Of a block that was repeated only the repeat counts, so that every pair used stands in a whole block.
    """
    members: dict[PairKey, list[Run]] = {}
    runs = list(runs)
    last: dict[int, int] = {}
    for run in runs:
        if run.position is not None:
            last[run.position.block] = max(last.get(run.position.block, 1), run.attempt)
    slowed = slowed_blocks(runs)
    for run in runs:
        if run.position is not None and run.position.block > 0:
            key = PairKey(run.position.block, run.attempt, run.position.slot // 2)
            members.setdefault(key, []).append(run)
    valid: list[Pair] = []
    void = 0
    for key, found in members.items():
        pair = _pair(key, found)
        if key.attempt < last[key.block] or (key.block, key.attempt) in slowed:
            void += 1
        elif pair is not None:
            valid.append(pair)
        elif len(found) == 2 or any(not sound(run) for run in found):
            void += 1
    return Paired(tuple(valid), void)


def _pair(key: PairKey, runs: Sequence[Run]) -> Pair | None:
    by_arm = {run.arm.name: run for run in runs}
    if len(runs) != 2 or len(by_arm) != 2:
        return None
    base, head = by_arm["base"], by_arm["head"]
    if not sound(base) or not sound(head) or base.timing is None or head.timing is None:
        return None
    if unlike(base, head):
        return None
    cut = shared_cut(base.timing, head.timing)
    ours, theirs = summaries(base.timing, cut), summaries(head.timing, cut)
    return Pair(key, base, head, {name: theirs[name] - ours[name] for name in SUMMARIES})


def shared_cut(base: Timing, head: Timing) -> int:
    """The same steps are left out of both arms: a cut of its own would give each another stretch of the warm-up's tail
    and of the thermal rise, which cancel only where both have them."""
    return min(max(cut_of(base), cut_of(head)), len(base.step_s) - 1, len(head.step_s) - 1)


def summaries(timing: Timing, cut: int) -> dict[str, float]:
    """Median and mean of the steps after ``cut`` on the log scale, of the slowest rank."""
    return launch_summaries((steps.step_s for steps in timing.ranks.values()), cut)


def unlike(base: Run, head: Run, of_one_pair: bool = True) -> str:
    """Why the times of two runs cannot be compared, '' where they can.

    Runs of an earlier session, or of another pair after a session has moved, may stand on another node of the class:
    what a node adds cancels within each pair.
    """
    of_two_seats = base.joined != head.joined or not of_one_pair
    if base.timing is None or head.timing is None:
        return "one has no step times"
    for word, ours, theirs in (
        ("clock", base.timing.clock, head.timing.clock),
        ("number of steps", base.timing.asked, head.timing.asked),
        ("number of ranks", len(base.timing.ranks), len(head.timing.ranks)),
        ("variant", base.variant, head.variant),
        ("node class", *(run.node.node_class if run.node else None for run in (base, head))),
        ("node", *(None if of_two_seats else run.node for run in (base, head))),
    ):
        if ours != theirs:
            return f"the {word} differs"
    if len(base.timing.step_s) <= max(base.timing.cut, head.timing.cut):
        return "no step is left after the warm-up"
    return ""
