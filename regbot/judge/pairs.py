"""Build pairs. A pair is a base run and an adjacent head run of one block, on a healthy node and timed in the same way.

A failed run makes its whole block void, and the block is repeated. The value of a pair never excludes it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.judge.health import describe_outside_cause, find_slowed_blocks
from regbot.records.run import Run
from regbot.stats.launch import SUMMARIES, launch_cut, summarise_timing
from regbot.stats.stalls import common_period


class PairKey(NamedTuple):
    """Position of a pair in its session."""

    block: int
    attempt: int
    """Attempt at the block, 1 or 2."""
    number: int
    """0 or 1: the first or second pair of the block."""


@dataclass(frozen=True)
class Pair:
    """One valid pair."""

    key: PairKey
    base: Run
    head: Run
    cut: int
    """Number of leading steps that are excluded from both runs."""
    log_ratios: dict[str, float]
    """log(head / base) of the step time, by summary: "median" and "mean" of the steady steps."""
    base_levels: dict[str, float]
    """Log of base's step time, by summary."""

    @property
    def draw(self) -> tuple[str | None, int | None]:
        """Which compiler caches both runs used: the session (None for this one), and the number of the caches in it."""
        position = self.head.position
        return self.head.joined, position.draw if position is not None else None


@dataclass(frozen=True)
class PairSet:
    """All pairs of one workload, in session order."""

    valid: tuple[Pair, ...]
    reasons: Mapping[PairKey, str] = field(default_factory=dict)
    """Why a pair does not count, for every pair that is not in ``valid``."""
    unstarted: Collection[PairKey] = ()
    """Pairs with a run that was not started. They are neither valid nor void."""

    @property
    def void(self) -> int:
        return len(self.reasons) - len(self.unstarted)

    def log_ratios(self) -> dict[str, list[float]]:
        return {name: [pair.log_ratios[name] for pair in self.valid] for name in SUMMARIES}

    def base_levels(self) -> dict[str, list[float]]:
        return {name: [pair.base_levels[name] for pair in self.valid] for name in SUMMARIES}


def is_head_only(run: Run) -> bool:
    """Whether a timed run is a run of head without base, for ``gate = "stored"``, or the warm launch before them."""
    return run.position is not None and run.position.order == "head"


def is_warm(run: Run) -> bool:
    """Whether a timed run is a warm launch, which is discarded: slot 0 of head alone, block 0 of pairs."""
    if run.position is None:
        return False
    return run.position.slot == 0 if is_head_only(run) else run.position.block == 0


def is_sound(run: Run) -> bool:
    """Whether a run ended well on a healthy node, so that it may count."""
    return run.outcome == "ok" and not describe_outside_cause(run)


def pair_up(runs: Iterable[Run]) -> PairSet:
    """Return the pairs of ``runs``, the timed runs of one entry. Of a repeated block, only the last attempt counts."""
    members: dict[PairKey, list[Run]] = {}
    runs = list(runs)
    last_attempts: dict[int, int] = {}
    for run in runs:
        if run.position is not None:
            last_attempts[run.position.block] = max(last_attempts.get(run.position.block, 1), run.attempt)
        if (key := pair_key(run)) is not None:
            members.setdefault(key, []).append(run)
    slowed = find_slowed_blocks(runs)  # why the hardware makes a block void, by block and attempt
    complete: list[tuple[PairKey, Run, Run]] = []
    reasons: dict[PairKey, str] = {}  # worded for the sound run of a pair
    unstarted: list[PairKey] = []
    for key, pair_runs in members.items():
        by_arm = {run.arm.name: run for run in pair_runs}
        if reason := slowed.get((key.block, key.attempt), ""):
            reasons[key] = reason
        elif any(describe_fault(run) for run in pair_runs):
            reasons[key] = "the other run of its pair does not count"
        elif key.attempt < last_attempts[key.block]:
            reasons[key] = "its block was repeated"
        elif len(pair_runs) == 1:
            reasons[key] = "the other run of its pair was not started"
            unstarted.append(key)
        elif len(pair_runs) != 2 or len(by_arm) != 2:
            reasons[key] = "its pair is void: it does not have exactly one run of each arm"
        elif mismatch := describe_mismatch(by_arm["base"], by_arm["head"]):
            reasons[key] = f"its pair is void: {mismatch}"
        else:
            complete.append((key, by_arm["base"], by_arm["head"]))
    # The period of the stalls that both arms have, in steps; 0 if they have none in common.
    period = common_period(
        [_steady_steps(base) for _, base, _ in complete], [_steady_steps(head) for _, _, head in complete]
    )
    return PairSet(tuple(_build_pair(*pair, period) for pair in complete), reasons, unstarted)


def pair_key(run: Run) -> PairKey | None:
    """Return the key of the pair that a run belongs to, None for a warm launch or a run of head alone. Slots 0 and 1 of
    a block are its first pair, slots 2 and 3 its second."""
    if run.position is None or run.position.block == 0:
        return None
    return PairKey(run.position.block, run.attempt, number=run.position.slot // 2)


def describe_fault(run: Run) -> str:
    """Return why a run cannot count, judged without other runs; '' if it can count."""
    if run.outcome != "ok":
        return run.reason or run.outcome.replace("_", " ")
    if cause := describe_outside_cause(run):
        return f"the node was not fit: {cause}"
    return "" if run.timing is not None and run.timing.steady_s else "it has no steady step"


def _steady_steps(run: Run) -> Sequence[float]:
    return run.timing.step_s[launch_cut(run.timing) :] if run.timing is not None else ()


def _build_pair(key: PairKey, base: Run, head: Run, period: int) -> Pair:
    assert base.timing is not None
    assert head.timing is not None
    # Both runs have the same cut, so that the end of the warm-up and the thermal rise cancel in the ratio. At least one
    # step is left.
    steps = min(len(base.timing.step_s), len(head.timing.step_s))
    cut = min(max(launch_cut(base.timing), launch_cut(head.timing)), steps - 1)
    if 0 < period <= steps - cut:
        cut += (steps - cut) % period  # whole periods are left
    base_summary, head_summary = summarise_timing(base.timing, cut), summarise_timing(head.timing, cut)
    log_ratios = {name: head_summary[name] - base_summary[name] for name in SUMMARIES}
    return Pair(key, base, head, cut, log_ratios, base_summary)


def describe_mismatch(base: Run, head: Run, same_pair: bool = True) -> str:
    """Return why the times of two runs cannot be compared, '' if they can. Runs of one pair of one session must have
    been on the same node; other runs may have been on different nodes of one class."""
    if base.timing is None or head.timing is None:
        return "a run has no step times"
    for property_name, base_value, head_value in (
        ("clock", base.timing.clock, head.timing.clock),
        ("number of steps", base.timing.requested_steps, head.timing.requested_steps),
        ("number of ranks", len(base.timing.ranks), len(head.timing.ranks)),
        ("variant", base.variant, head.variant),
        ("node class", *(run.node.node_class if run.node else None for run in (base, head))),
    ):
        if base_value != head_value:
            return f"the {property_name} differs"
    from_same_session = base.joined == head.joined
    if same_pair and from_same_session and base.node != head.node:
        return "the node differs"
    if len(base.timing.step_s) <= max(base.timing.cut, head.timing.cut):
        return "no step is left after the warm-up"
    return ""
