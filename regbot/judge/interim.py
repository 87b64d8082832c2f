"""Decide on the pairs of a workload that exist so far.

One session looks at its pairs after 4, 8 and 12 pairs, or after every block if the noise of the node class is known. A
look whose runs have no steady state decides nothing, and the session goes on. Timing the same trees again does not
start a new test: the pairs of both sessions are judged together by an interval that stays valid however often one
looks.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from regbot.judge.estimates import count_primary_tests, thresholds
from regbot.judge.pairs import Pair, PairSet, pair_up
from regbot.judge.steadiness import describe_unsteady
from regbot.judge.stored_times import select_reference
from regbot.judge.training import compare_training
from regbot.records.calibration_summary import ArmLuck, PairNoise
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.verdict import Decision
from regbot.stats.anytime import decide_anytime
from regbot.stats.arm_luck import ASSUMED_LUCK, MIN_ALLOCATIONS, SharedLuck
from regbot.stats.paired import LOOKS, PASSING, ClassNoise, Interval, SequentialTest, sequential_test


@dataclass(frozen=True)
class InterimDecision:
    """The decision on the pairs so far."""

    pair_set: PairSet
    test: SequentialTest | None = None
    """None if there are too few pairs for an interval."""
    final: bool = False
    """Whether the decision is final, so that this session needs no further pairs."""
    continued: bool = False
    """Whether pairs of an earlier session are included (``regbot.stats.anytime``)."""
    class_noise: PairNoise | None = None
    """Noise of the node class, if the intervals count it."""
    assumed_luck: float = 0.0
    """Luck of an arm (standard deviation, log scale) that the intervals assume because none was measured; else 0."""
    decision_without_luck: Decision | None = None
    """What undecided pairs would decide without the assumed luck; None if they would stay undecided."""

    @property
    def pairs(self) -> int:
        """Number of pairs that the decision uses."""
        return self.test.pairs if self.test is not None else 0

    @property
    def intervals(self) -> list[Interval]:
        return [interval for _, interval in self.test.tests.values()] if self.test is not None else []

    @property
    def bound(self) -> float:
        """Largest slowdown that the intervals do not exclude, as a log-ratio. Only for a decision with a ``test``."""
        return max(interval.high for interval in self.intervals)


def decide_so_far(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan) -> InterimDecision:
    """Return the decision so far on ``runs``, the timed runs of the workload of ``plan`` in session order. The planned
    looks decide, or the always-valid interval if there are pairs of several sessions.

    If the first of several sessions decided, its decision stays until the always-valid interval decides; otherwise a
    few more pairs could undo it. A pass is withheld all the same if head now has more slow launches. A decision on
    another base does not stay, nor one of the first block, which rests mostly on stored noise."""
    pair_set = pair_up(runs)
    # ``joined`` identifies the earlier session that a run comes from. It is None for runs of this session.
    sessions = list(dict.fromkeys(pair.head.joined for pair in pair_set.valid))
    if not sessions:
        return InterimDecision(pair_set)
    first_pairs = [pair for pair in pair_set.valid if pair.head.joined == sessions[0]]
    first = _decide(pair_set, len(first_pairs), header, plan)
    if len(sessions) == 1:
        # If this session has begun and has no pair yet, more pairs follow the decision of the earlier session.
        is_begun = sessions[0] is not None and any(not run.is_from_earlier_session for run in runs)
        return replace(first, final=False) if is_begun else first
    decision = _decide(pair_set, None, header, plan)
    assert decision.test is not None
    is_of_this_base = {pair.base.arm.tree for pair in pair_set.valid[: len(first_pairs)]} == {header.base.tree}
    stays = first.test is not None and first.test.decision != "undecided" and first.pairs >= LOOKS[0]
    if stays and is_of_this_base and decision.test.decision == "undecided" and not decision.test.withheld:
        assert first.test is not None
        first_test = replace(first.test, unused=len(pair_set.valid) - first.pairs)
        return replace(first, test=first_test, final=False)
    if not all(math.isfinite(bounds.low) and math.isfinite(bounds.high) for bounds in decision.intervals):
        return InterimDecision(pair_set, continued=True)  # too few pairs for an always-valid interval
    return decision


def _decide(pair_set: PairSet, looked_at: int | None, header: SessionHeader, plan: TimedPlan) -> InterimDecision:
    """Return the decision of the looks at the first ``looked_at`` pairs; None: that of the always-valid interval over
    all pairs."""
    reference = select_reference(plan, pair_set.valid[0].head)
    calibrated, noise = (None, None) if isinstance(reference, str) else (reference.calibrated, reference.noise)
    # A session that measures the luck itself (a calibration) is not widened by it.
    measured_luck = calibrated.arm_luck if calibrated is not None else None
    luck = None if plan.measures_luck else luck_in_draws(measured_luck, [pair.draw for pair in pair_set.valid])
    # Stored pairs are of the committed configuration, so they say nothing if an arm has overrides, nor if a calibration
    # shows that the gate errs too often here. A calibration and a night (the only session with ``max_pairs``) show the
    # noise anew, so they do not use what is stored.
    is_contradicted = calibrated is not None and bool(calibrated.contradicted)
    if header.base.overrides or header.head.overrides or plan.max_pairs or plan.measures_luck or is_contradicted:
        noise = None
    ratios, tests, limits = pair_set.log_ratios(), count_primary_tests(header), thresholds(header.throughput)

    def test(luck: SharedLuck | None) -> SequentialTest | None:
        if looked_at is None:
            return decide_anytime(ratios, tests, limits, luck)
        return sequential_test(
            {name: values[:looked_at] for name, values in ratios.items()},
            tests,
            limits,
            luck=luck,
            noise=ClassNoise.from_record(noise, pair_set.base_levels()) if noise is not None else None,
            reason_to_go_on=lambda pairs, decision: _reason_to_go_on(pair_set.valid[:pairs], decision),
        )

    result = test(luck)
    if result is None:
        return InterimDecision(pair_set)
    if looked_at is None and (barred := _reason_to_go_on(pair_set.valid, result.decision)):
        result = replace(result, decision="undecided", barred=barred)
    # If only the assumed luck prevents a decision, the decision without it is recorded. A pass that is withheld because
    # of slow launches has another cause.
    assumed_luck = luck.sd if luck is not None and luck.is_assumed else 0.0
    is_undecided = bool(assumed_luck) and result.decision == "undecided" and not result.withheld
    without_luck = (test(None) if is_undecided else None) or result
    return InterimDecision(
        pair_set,
        result,
        final=result.final if looked_at is not None else result.decision != "undecided",
        continued=looked_at is None,
        class_noise=noise if any(bounds.prior_df for _, bounds in result.tests.values()) else None,
        assumed_luck=assumed_luck,
        decision_without_luck=without_luck.decision if without_luck.decision != result.decision else None,
    )


def _reason_to_go_on(pairs: Sequence[Pair], decision: Decision) -> str:
    """Return why these pairs must not decide, '' if they may. Head passes only if it is known to train like base."""
    undecided_training = compare_training(pairs).undecided if decision in PASSING else []
    return describe_unsteady(pairs) or "".join(undecided_training[:1])


def luck_in_draws(luck: ArmLuck | None, draws: Sequence[Hashable]) -> SharedLuck | None:
    """Return the luck of the arms in pairs, None if it is 0. If calibrations have not measured it in enough
    allocations, it is at least the assumed luck. ``draws``: for each pair, which compiler caches it used."""
    if luck is None or (luck.allocations < MIN_ALLOCATIONS and luck.counted_pct < 100 * ASSUMED_LUCK):
        return SharedLuck(ASSUMED_LUCK, math.inf, draws)
    # ``counted_pct`` is 0 if the measured luck is not significant or is proven to be small. ``luck.draws`` is the
    # number of draws that the calibration compared, which gives the degrees of freedom (``df``).
    return SharedLuck(luck.counted_pct / 100, luck.draws, draws, luck.lasts) if luck.counted_pct else None
