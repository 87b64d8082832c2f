"""The paired test: is head slower than base, by runs that stood side by side on one node?

A pair is a base and a head run launched one after the other; its log-ratio is log(head) - log(base) of one summary.
What the node and the session add to both runs cancels in it. Pairs come in ABBA or BAAB blocks, so that a linear drift
cancels too. The test looks three times and stops at the first look that decides.

It assumes that pairs are independent, and that the mean of four log-ratios is roughly normal. It takes nothing else as
known: the variance is that of the pairs themselves, because in a session that is noisier than its history a stored
variance errs too often. It does not know which runs are valid; leave void pairs out before calling.

Everything here is on the log scale, positive means slower. Constants come from simulation of the design with fixed
seeds (``benchmarks/decision.py`` simulates it again); ``docs/statistics.md`` explains them with an example.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from scipy.special import ndtri, stdtrit

from regbot.records.verdict import Decision

LOOKS = (4, 8, 12)
"""Pairs at each look. Four is the least: two ABBA blocks, so that drift cancels twice and a variance can be seen."""

LOOK_ALPHA = 0.0204
"""Two-sided error of one interval at one look: with three looks at 4, 8 and 12 pairs it makes 5% over a session."""

POWER = 0.8
"""What the smallest detectable effect is stated for."""

LIMIT_PAIRS = 1000
"""More pairs than anybody runs: past this, ``pairs_needed`` says that there is no answer."""


@dataclass(frozen=True)
class Thresholds:
    """Log-scale limits: no change is proven within ``delta``, a regression above ``eps``. Both positive."""

    delta: float
    eps: float

    def __post_init__(self) -> None:
        for name, value in (("delta", self.delta), ("eps", self.eps)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; a threshold is positive and finite")

    @classmethod
    def from_percent(cls, threshold_pct: float, indifference_pct: float) -> "Thresholds":
        """From percentages of the ratio: 2 means 1.02 times the time, and on the other side 1 / 1.02."""
        return cls(delta=math.log1p(threshold_pct / 100), eps=math.log1p(indifference_pct / 100))


class Bounded(Protocol):
    """Anything with a confidence interval on the log scale."""

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Interval:
    """Two-sided confidence interval of the mean log-ratio at level 1 - ``alpha``.

    ``sd`` is that of the log-ratio of one pair: estimated, or as given where it was known. An estimated sd of 0 means
    that all pairs agreed to the last bit. The interval is then the point: right for numbers without noise, such as
    counts or a simulator's output, and a sign of copied files for anything that was timed.
    """

    estimate: float
    low: float
    high: float
    sd: float
    pairs: int
    alpha: float


@dataclass(frozen=True)
class Sequential:
    """Where the looks stand. ``tests`` hold each summary's decision and interval at the look that was last taken."""

    decision: Decision
    pairs: int
    """Pairs used: those of the look."""
    look: int
    """From 1; 0 for the one below the first look, which only a known sd allows."""
    alpha: float
    """Of one interval at one look, shared among the primary tests of the check."""
    tests: dict[str, tuple[Decision, Interval]]
    unused: int
    """Pairs beyond the look."""

    @property
    def final(self) -> bool:
        """No more pairs can change the answer: it is decided, or the last look is spent."""
        return self.decision != "undecided" or self.pairs == LOOKS[-1]


def interval(log_ratios: Sequence[float], alpha: float, known_sd: float | None = None) -> Interval:
    """The interval of the mean: Student's t with the pairs' own variance, or normal where the sd is known.

    Raises ValueError for fewer than two pairs (one, where the sd is known), or a log-ratio that is not finite.
    """
    pairs = len(log_ratios)
    least = 2 if known_sd is None else 1
    if pairs < least:
        raise ValueError(f"{pairs} pairs have no interval; {least} are needed")
    estimate = math.fsum(log_ratios) / pairs
    if not math.isfinite(estimate):
        raise ValueError("a log-ratio is not finite")
    sd = known_sd
    if sd is None:
        # The mean can miss equal values by a rounding error; without this their sd would not be 0.
        same = min(log_ratios) == max(log_ratios)
        sd = 0.0 if same else math.sqrt(math.fsum((x - estimate) ** 2 for x in log_ratios) / (pairs - 1))
    half = _quantile(1 - alpha / 2, None if known_sd is not None else pairs - 1) * sd / math.sqrt(pairs)
    return Interval(estimate, estimate - half, estimate + half, sd, pairs, alpha)


def decide(interval: Bounded, thresholds: Thresholds) -> Decision:
    """What one interval proves. An interval between eps and delta is a regression: it is proven to exceed eps."""
    if interval.low > thresholds.eps:
        return "regressed"
    if interval.high < -thresholds.eps:
        return "improved"
    if -thresholds.delta < interval.low and interval.high < thresholds.delta:
        return "no_change"
    return "undecided"


def combine(tests: Collection[tuple[Decision, Bounded]], thresholds: Thresholds) -> Decision:
    """One answer from the summaries of one workload: a regression of any is one, no change needs all of them.

    An improvement of one is the answer where every other is shown not to be a slowdown of delta or more: a faster usual
    step says nothing while the mean, with its stalls, may still be slower.
    """
    found = {decision for decision, _ in tests}
    if "regressed" in found:
        return "regressed"
    if "improved" in found and all(bounded.high < thresholds.delta for _, bounded in tests):
        return "improved"
    return "no_change" if found == {"no_change"} else "undecided"


def sequential(
    log_ratios: Mapping[str, Sequence[float]],
    primary_tests: int,
    thresholds: Thresholds,
    known_sd: float | None = None,
) -> Sequential | None:
    """Take the looks that the pairs allow and stop at the first that decides.

    Below the first look the answer is None; with a known sd, which one pair suffices for, all pairs are looked at once.

    ``log_ratios`` has one entry per summary: its log-ratios of the valid pairs in session order, all of one length.
    ``primary_tests`` counts those of the whole check, not of this workload: each look's error is divided by it, so
    that a check of many workloads errs no more often than a check of one. With ``known_sd`` the intervals are normal.
    """
    lengths = {len(values) for values in log_ratios.values()}
    if len(lengths) != 1:
        raise ValueError("the summaries must have the same number of pairs, and there must be one")
    if primary_tests < len(log_ratios):
        raise ValueError(f"{primary_tests} primary tests are fewer than the {len(log_ratios)} summaries given")
    (available,) = lengths
    alpha = LOOK_ALPHA / primary_tests
    below = known_sd is not None and 0 < available < LOOKS[0]
    result = None
    for look, pairs in [(0, available)] if below else enumerate(LOOKS, start=1):
        if pairs > available:
            break
        intervals = {name: interval(values[:pairs], alpha, known_sd) for name, values in log_ratios.items()}
        tests = {name: (decide(found, thresholds), found) for name, found in intervals.items()}
        decision = combine(tests.values(), thresholds)
        result = Sequential(decision, pairs, look, alpha, tests, available - pairs)
        if result.final:
            break
    return result


def mde(sd: float, pairs: int, alpha: float, eps: float, known: bool = False) -> float:
    """The smallest true slowdown that ``pairs`` pairs prove to exceed ``eps`` with probability 0.8.

    eps + (t + z) sd / sqrt(pairs), t the interval's quantile with pairs - 1 degrees of freedom (normal where the sd is
    ``known``), z the normal's at 0.8. ``sd`` of one pair. Infinite for one pair with an estimated sd, unless that is 0.
    """
    if sd == 0:
        return eps
    if pairs < (1 if known else 2):
        return math.inf
    reach = _quantile(1 - alpha / 2, None if known else pairs - 1) + _quantile(POWER, None)
    return eps + reach * sd / math.sqrt(pairs)


def pairs_needed(
    sd: float, alpha: float, thresholds: Thresholds, limit: int = LIMIT_PAIRS, known: bool = False
) -> int | None:
    """The fewest pairs, at least those of the first look, whose ``mde`` is at most delta; None past ``limit``."""
    if mde(sd, limit, alpha, thresholds.eps, known) > thresholds.delta:
        return None
    low, high = LOOKS[0], max(limit, LOOKS[0])
    while low < high:  # the mde falls with every pair
        middle = (low + high) // 2
        if mde(sd, middle, alpha, thresholds.eps, known) <= thresholds.delta:
            high = middle
        else:
            low = middle + 1
    return low


@lru_cache(maxsize=4096)
def _quantile(probability: float, df: float | None) -> float:
    """Quantile of Student's t with ``df`` degrees of freedom, of the standard normal where there are none."""
    return float(ndtri(probability) if df is None else stdtrit(df, probability))
