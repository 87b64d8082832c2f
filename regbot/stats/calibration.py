"""Calibration: how often is the gate itself wrong, on this class of node? Pairs of one commit against itself tell.

A placebo is a session whose base and head are the same commit, run and judged like any other. What it calls a
regression or an improvement is a false flag; an interval that does not hold 0 has failed. Few placebos prove little:
20 clean ones still allow 14% of false flags, 60 allow 5% (one-sided 95%). So the exact bounds of every rate are given
with it (Clopper and Pearson 1934), and the gate votes until its error is proven, not only from the day that its
soundness is. The pairs' own-variance test takes no constant from the node, so there is nothing to wait for.

Until there are placebo sessions, sessions can be drawn from the pool of placebo pairs: early, and optimistic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, gammaincinv

from regbot.records.verdict import Decision
from regbot.stats.paired import LOOKS, Thresholds, sequential

MOST_FALSE_FLAGS = 0.05
LEAST_COVERAGE = 0.95
"""What the gate promises over a session; see ``paired.LOOK_ALPHA``."""

RESAMPLED_SESSIONS = 2000
RESAMPLING_SEED = 20260803
BLOCK = 2
"""Pairs of one ABBA or BAAB block, in which a drift cancels: they are drawn together."""


@dataclass(frozen=True)
class Rate:
    """``count`` of ``total``, with the exact two-sided 95% interval of the rate."""

    count: int
    total: int
    low: float
    high: float

    @classmethod
    def of(cls, count: int, total: int) -> "Rate":
        """Raises ValueError unless 0 <= ``count`` <= ``total``."""
        return cls(count, total, *rate_bounds(count, total))


@dataclass(frozen=True)
class Resampled:
    """What became of the sessions that were drawn from a pool of pairs."""

    decisions: dict[Decision, float]
    """Share of sessions, in [0, 1]; of all decisions that pairs can bring, those that never came too."""
    coverage: float
    """Share of sessions in which every interval of the last look taken holds the effect."""
    pairs: float
    """Used by a session, in the mean."""
    sessions: int


def rate_bounds(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's two-sided interval of a rate that was seen as ``count`` of ``total``: never too narrow.

    (0, 1) where ``total`` is 0. Raises ValueError unless 0 <= ``count`` <= ``total`` and 0 < ``level`` < 1.
    """
    _check(count, total, level)
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    return low, upper_bound(count, total, 1 - tail)


def upper_bound(count: int, total: int, level: float = 0.95) -> float:
    """The one-sided upper bound of the same: the rate is at most this, at ``level``."""
    _check(count, total, level)
    return 1.0 if count == total else float(betaincinv(count + 1, total - count, level))


def resampled(
    placebo: Mapping[str, Sequence[float]],
    effect: float,
    primary_tests: int,
    thresholds: Thresholds,
    sessions: int = RESAMPLED_SESSIONS,
    seed: int = RESAMPLING_SEED,
) -> Resampled:
    """An early and optimistic answer: what the gate would do at a true ``effect``, if all pairs came from this pool.

    Uncertain too: from 20 pairs the coverage comes out at 0.90 to 1.00 on nodes where it is 0.98. It is for planning
    (what can this node show?), and no evidence for ``contradicted``, which wants sessions that were really run.

    ``placebo`` holds log-ratios of A/A pairs by summary, in session order, two pairs a block; an odd one at the end is
    left out. Sessions of 12 pairs are drawn as whole blocks with replacement, the effect is added, and they are judged
    by ``paired.sequential``. The seed makes the answer the same every time.

    The pool is centred: base and head are one commit, so the pool's mean is chance (or a fault of the node or of the
    tool, which these sessions do not show: look at the placebos' own interval), and would be added to every effect.
    Centring takes out a part of the scatter too; deviations are stretched by sqrt(m / (m - 1)), m blocks, to make up
    for it. Optimistic, because a pool knows no day and no tail that it has not seen.

    Raises ValueError for fewer than two whole blocks, or summaries of unequal length.
    """
    lengths = {len(values) for values in placebo.values()}
    if len(lengths) != 1:
        raise ValueError("the summaries must have the same number of pairs, and there must be one")
    blocks = lengths.pop() // BLOCK
    if blocks < 2:
        raise ValueError(f"{blocks} whole blocks of {BLOCK} placebo pairs are no pool to draw from; 2 are needed")
    stretch = math.sqrt(blocks / (blocks - 1))
    pools = {}
    for name, values in placebo.items():
        kept = np.asarray(values[: blocks * BLOCK], dtype=float)
        if not np.isfinite(kept).all():
            raise ValueError("a log-ratio is not finite")
        pools[name] = (effect + stretch * (kept - kept.mean())).reshape(blocks, BLOCK)
    drawn = np.random.default_rng(seed).integers(0, blocks, (sessions, LOOKS[-1] // BLOCK))
    counts: dict[Decision, int] = {"regressed": 0, "improved": 0, "no_change": 0, "undecided": 0}
    covered = pairs = 0
    for session in drawn:
        ratios = {name: pool[session].ravel().tolist() for name, pool in pools.items()}
        found = sequential(ratios, primary_tests, thresholds)
        if found is None:
            raise AssertionError("a session of all pairs has a look")
        counts[found.decision] += 1
        covered += all(each.low <= effect <= each.high for _, each in found.tests.values())
        pairs += found.pairs
    decisions = {decision: count / sessions for decision, count in counts.items()}
    return Resampled(decisions, covered / sessions, pairs / sessions, sessions)


def scatter(placebo: Sequence[float]) -> tuple[float, float, float]:
    """s0, the standard deviation of a pair, with its 95% interval (chi-square; assumes normal log-ratios).

    20 pairs know it to -24% and +46%. Raises ValueError for fewer than two pairs, or a log-ratio that is not finite.
    """
    pairs = len(placebo)
    if pairs < 2:
        raise ValueError(f"{pairs} placebo pairs have no scatter; 2 are needed")
    mean = math.fsum(placebo) / pairs
    if not math.isfinite(mean):
        raise ValueError("a log-ratio is not finite")
    squares = 0.0 if min(placebo) == max(placebo) else math.fsum((x - mean) ** 2 for x in placebo)
    # gammaincinv: the quantile of chi-square with f degrees of freedom is 2 gammaincinv(f / 2, p).
    largest, smallest = (2 * float(gammaincinv((pairs - 1) / 2, p)) for p in (0.975, 0.025))
    return math.sqrt(squares / (pairs - 1)), math.sqrt(squares / largest), math.sqrt(squares / smallest)


def contradicted(false_flags: Rate, covered: Rate) -> str:
    """Why the gate loses its vote on this class of node: '' where nothing is proven against it, or a sentence.

    ``false_flags`` of placebo sessions, ``covered`` of sessions whose true effect is known (placebos, and those with a
    planted slowdown). Proven means by the 95% interval, not by the rate itself: one false flag among ten placebos is
    no proof of more than 5%, and a gate that lost its vote by every accident would have none.
    """
    if false_flags.low > MOST_FALSE_FLAGS:
        return (
            f"{false_flags.count} of {false_flags.total} comparisons of a commit with itself were called a change: "
            f"at least {false_flags.low:.1%} of all would be, and the gate promises at most {MOST_FALSE_FLAGS:.0%}"
        )
    if covered.high < LEAST_COVERAGE:
        return (
            f"the interval held the true effect in {covered.count} of {covered.total} comparisons: in at most "
            f"{covered.high:.1%} of all it would, and the gate promises {LEAST_COVERAGE:.0%}"
        )
    return ""


def _check(count: int, total: int, level: float) -> None:
    if not 0 <= count <= total:
        raise ValueError(f"{count} of {total} is no rate")
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1")
