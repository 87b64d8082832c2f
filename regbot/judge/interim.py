"""Decide on the pairs of a workload that exist so far.

One session looks at its pairs after 4, 8 and 12 pairs, or after every block if the noise of the node class is known. A
look whose runs have no steady state decides nothing, and the session goes on. Timing the same trees again does not
start a new test: the pairs of both sessions are judged together by an interval that stays valid however often one
looks.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from regbot.judge.pairs import Pair, PairSet, pair_up
from regbot.judge.references import select_reference
from regbot.judge.steadiness import describe_unsteady
from regbot.judge.training import compare_training
from regbot.records.calibration_summary import ArmLuck, PairNoise
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.settings import ThroughputThresholds
from regbot.records.verdict import Decision
from regbot.stats.anytime import decide_anytime
from regbot.stats.arm_luck import ASSUMED_LUCK, MIN_ALLOCATIONS, SharedLuck
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, PASSING, ClassNoise, Interval, SequentialTest, Thresholds, sequential_test
from regbot.stats.slow_launches import PairOutlier


@dataclass(frozen=True)
class InterimDecision:
    """The decision on the pairs so far."""

    pair_set: PairSet
    decision: Decision = "undecided"
    pairs: int = 0
    """Numbers of pairs that the decision uses."""
    unused: int = 0
    """Number of later valid pairs, which the decision does not use."""
    final: bool = False
    """Whether the decision is final, so that this session needs no further pairs."""
    continued: bool = False
    """Whether pairs of an earlier session are included (``regbot.stats.anytime``)."""
    alpha: float | None = None
    """Error probability of one interval; None without ``tests``."""
    tests: dict[str, tuple[Decision, Interval]] = field(default_factory=dict)
    """Decision and interval by summary. Empty if there are too few pairs for an interval."""
    class_noise: PairNoise | None = None
    """Noise of the node class, if the intervals count it."""
    outliers: tuple[PairOutlier, ...] = ()
    withheld: bool = False
    """Whether only the more frequent slow launches of head prevent a pass."""
    assumed_luck: float = 0.0
    """Luck of an arm (standard deviation, log scale) that the intervals assume because none was measured; else 0."""
    barred: str = ""
    """Why these pairs must not decide, '' if they may."""
    decision_without_luck: Decision | None = None
    """What undecided pairs would decide without the assumed luck; None if they would stay undecided."""

    @property
    def intervals(self) -> list[Interval]:
        return [interval for _, interval in self.tests.values()]

    @property
    def median_interval(self) -> Interval:
        """Only for a decision with ``tests``, as ``bound``."""
        _, interval = self.tests["median"]
        return interval

    @property
    def bound(self) -> float:
        """Largest slowdown that the intervals do not exclude, as a log-ratio."""
        return max(interval.high for interval in self.intervals)


def count_primary_tests(header: SessionHeader) -> int:
    """Return the number of primary tests of the whole check, among which its error rate is divided."""
    return max(1, len(header.timed)) * len(SUMMARIES)


def thresholds(header: SessionHeader) -> Thresholds:
    return thresholds_from(header.throughput)


def thresholds_from(settings: ThroughputThresholds) -> Thresholds:
    return Thresholds.from_percent(settings.threshold_pct, settings.indifference_pct)


def decide_so_far(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan) -> InterimDecision:
    """Return the decision so far on ``runs``, the timed runs of the workload of ``plan`` in session order. The planned
    looks decide, or the always-valid interval if there are pairs of several sessions."""
    pair_set = pair_up(runs)
    # ``joined`` identifies the earlier session that a run comes from. It is None for runs of this session.
    sessions = list(dict.fromkeys(pair.head.joined for pair in pair_set.valid))
    if len(sessions) > 1:
        first_session_pairs = sum(pair.head.joined == sessions[0] for pair in pair_set.valid)
        return _decide_joined(pair_set, first_session_pairs, header, plan)
    decision = _decide_at_looks(pair_set, len(pair_set.valid), header, plan)
    has_own_runs = any(not run.is_from_earlier_session for run in runs)
    all_pairs_are_earlier = bool(sessions) and sessions[0] is not None
    if has_own_runs and all_pairs_are_earlier:
        # This session has begun and has no pair yet. The decision is that of the earlier session; more pairs follow.
        return replace(decision, final=False)
    return decision


def _decide_at_looks(pair_set: PairSet, pairs: int, header: SessionHeader, plan: TimedPlan) -> InterimDecision:
    ratios = {name: values[:pairs] for name, values in pair_set.log_ratios().items()}
    luck = _find_luck(pair_set, plan)
    noise = _find_class_noise(pair_set, header, plan)
    class_noise = None if noise is None else ClassNoise.from_record(noise, pair_set.base_levels())

    def test(luck: SharedLuck | None) -> SequentialTest | None:
        return sequential_test(
            ratios,
            count_primary_tests(header),
            thresholds(header),
            luck=luck,
            noise=class_noise,
            reason_to_go_on=lambda pairs, decision: _reason_to_go_on(pair_set.valid[:pairs], decision),
        )

    result = test(luck)
    if result is None:
        return InterimDecision(pair_set)
    return _conclude(pair_set, result, luck, final=result.final, retest=test, noise=noise)


def _reason_to_go_on(pairs: Sequence[Pair], decision: Decision) -> str:
    """Return why these pairs must not decide, '' if they may. Head passes only if it is known to train like base."""
    undecided_training = compare_training(pairs).undecided if decision in PASSING else []
    return describe_unsteady(pairs) or "".join(undecided_training[:1])


def _conclude(
    pair_set: PairSet,
    test: SequentialTest,
    luck: SharedLuck | None,
    *,
    final: bool,
    retest: Callable[[None], SequentialTest | None],
    noise: PairNoise | None = None,
    continued: bool = False,
) -> InterimDecision:
    """``retest`` repeats ``test`` without luck. If only the assumed luck prevents a decision, its decision is recorded.
    A pass that is withheld because of slow launches has another cause."""
    assumed_luck = luck.sd if luck is not None and luck.is_assumed else 0.0
    is_undecided = bool(assumed_luck) and test.decision == "undecided" and not test.withheld
    without_luck = retest(None) if is_undecided else None
    return InterimDecision(
        pair_set,
        test.decision,
        pairs=test.pairs,
        unused=test.unused,
        final=final,
        continued=continued,
        alpha=test.alpha,
        tests=test.tests,
        class_noise=noise if any(interval.prior_df for _, interval in test.tests.values()) else None,
        outliers=test.outliers,
        withheld=test.withheld,
        barred=test.barred,
        assumed_luck=assumed_luck,
        decision_without_luck=(
            without_luck.decision if without_luck is not None and without_luck.decision != "undecided" else None
        ),
    )


def _find_class_noise(pair_set: PairSet, header: SessionHeader, plan: TimedPlan) -> PairNoise | None:
    """None if the noise is not known. Stored pairs are of the committed configuration, so they say nothing if an arm
    has overrides, nor if a calibration shows that the gate errs too often here. A calibration and a night (the only
    session with ``max_pairs``) show the noise anew, so they do not use what is stored."""
    has_overrides = bool(header.base.overrides or header.head.overrides)
    if not pair_set.valid or has_overrides or plan.max_pairs or plan.measures_luck:
        return None
    reference = select_reference(plan, pair_set.valid[0].head)
    if isinstance(reference, str):  # a string says why there is no reference
        return None
    return None if reference.calibrated is not None and reference.calibrated.contradicted else reference.noise


def _find_luck(pair_set: PairSet, plan: TimedPlan) -> SharedLuck | None:
    """None if the intervals are not widened: a session that measures the luck itself (a calibration) is not."""
    if not pair_set.valid or plan.measures_luck:
        return None
    reference = select_reference(plan, pair_set.valid[0].head)
    calibrated = None if isinstance(reference, str) else reference.calibrated
    return luck_in_draws(
        calibrated.arm_luck if calibrated is not None else None, [pair.draw for pair in pair_set.valid]
    )


def luck_in_draws(luck: ArmLuck | None, draws: Sequence[Hashable]) -> SharedLuck | None:
    """Return the luck of the arms in pairs, None if it is 0. If calibrations have not measured it in enough
    allocations, it is at least the assumed luck. ``draws``: for each pair, which compiler caches it used."""
    if luck is None or (luck.allocations < MIN_ALLOCATIONS and luck.counted_pct < 100 * ASSUMED_LUCK):
        return SharedLuck.assume(draws)
    # ``counted_pct`` is 0 if the measured luck is not significant or is proven to be small. ``luck.draws`` is the
    # number of draws that the calibration compared, which gives the degrees of freedom (``df``).
    return SharedLuck(luck.counted_pct / 100, luck.draws, draws, luck.lasts) if luck.counted_pct else None


def _decide_joined(
    pair_set: PairSet, first_session_pairs: int, header: SessionHeader, plan: TimedPlan
) -> InterimDecision:
    """Decide on the pairs of several sessions. If the first session decided, its decision stays until the always-valid
    interval decides; otherwise a few more pairs could undo it. A pass is withheld all the same if head now has more
    slow launches. A decision on another base does not stay, nor one of the first block, which rests mostly on stored
    noise."""
    luck = _find_luck(pair_set, plan)

    def test_all(luck: SharedLuck | None) -> SequentialTest:
        return decide_anytime(pair_set.log_ratios(), count_primary_tests(header), thresholds(header), luck)

    test = test_all(luck)
    if barred := _reason_to_go_on(pair_set.valid, test.decision):
        test = replace(test, decision="undecided", barred=barred)
    first_decision = _decide_at_looks(pair_set, first_session_pairs, header, plan)
    first_bases = {pair.base.arm.tree for pair in pair_set.valid[:first_session_pairs]}
    is_of_this_base = first_bases == {header.base.tree} and first_decision.pairs >= LOOKS[0]
    stays = first_decision.decision != "undecided" and is_of_this_base
    if test.decision == "undecided" and stays and not test.withheld:
        return replace(first_decision, unused=len(pair_set.valid) - first_decision.pairs, final=False)
    if not all(math.isfinite(bounds.low) and math.isfinite(bounds.high) for _, bounds in test.tests.values()):
        return InterimDecision(pair_set, continued=True)  # too few pairs for an always-valid interval
    return _conclude(pair_set, test, luck, final=test.decision != "undecided", retest=test_all, continued=True)
