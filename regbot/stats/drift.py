"""Slow creep: is head slower than the anchor, night after night? What no gate sees adds up.

Every night head is run beside the anchor's commit, in pairs on one node. A night becomes one number, the mean
log-ratio of its pairs; node and session cancel in it. The nights are summed by Page's one-sided CUSUM (1954), which
forgets what lies before the last time that nothing spoke for a slowdown, and alarms where the sum passes a limit.

It assumes that nights are independent and that head is not slower than the anchor until something creeps in. Nights
are measured in their own standard error, so that the same constants serve every node. A calibration of 20 pairs knows
the sd of a pair to -24% and +46% only, and a limit that trusts an sd that is 30% too small alarms falsely in more than
a quarter of all spans of 200 quiet nights; so it is a first guess, corrected by what neighbouring nights differ by.

Everything is on the log scale, positive means slower. Constants come from simulation with fixed seeds
(``benchmarks/creep.py`` simulates it again); ``docs/drift.md`` explains them with an example.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scipy.special import stdtrit

from regbot.stats.paired import Interval

NIGHT_PAIRS = 4
"""Pairs of a night: two ABBA blocks, the least in which a drift cancels and a pair may be void."""

SLACK = 0.5
"""k: what a night must exceed to speak for a creep, in standard errors of a night. Half of the creep that is seen
soonest, as a likelihood ratio has it."""

LEAST_SLACK = 0.0025
"""k is at least this, log scale: however quiet the node, a quarter of a percent is nobody's creep."""

LIMIT = 8.0
"""h: the sum that is an alarm, in standard errors of a night. A false alarm in one of 50 spans of 200 quiet nights; in
one of 25 where the calibrated sd is 30% too small."""

ROOM = LIMIT / 2
"""How far the sum grows past its limit: an alarm ends a week after its cause has been mended, not months."""

REACH = 2.5
"""A night moves the sum by at most this many standard errors, up or down: three nights alone make no alarm."""

SCALE_NIGHTS = 10
"""What the calibrated sd counts for against what is seen of the nights: as much as ten neighbouring nights."""

FURTHEST = 3.0
"""Neighbouring nights are taken to differ by at most this many standard errors of their difference."""

SHARP = 0.006
"""Standard error of a night at which ten changes of +0.5% are seen before they sum to +1.5%, 19 times in 20."""

BUDGET_NIGHTS = 7
BUDGET_ALPHA = 0.05

Night = tuple[float, int]
"""Mean log-ratio of head against the anchor over the valid pairs of one night, and how many pairs those are."""


@dataclass(frozen=True)
class Creep:
    """Where the monitor stands after the last night."""

    value: float
    """The CUSUM, log scale: in nights of ``NIGHT_PAIRS`` pairs, what they showed beyond the slack."""
    limit: float
    """What is an alarm, on the same scale. Moves with what the nights show of their noise."""
    alarm: bool
    """The sum stands at the limit or above it, now. It goes on until the sum has fallen below."""
    nights: int
    since: int | None
    """Index of the night from which the current rise counts; None where nothing speaks for one."""
    estimate: float | None
    """Mean of the nights since then, log scale: the creep so far. Those nights were chosen for being slow, so a young
    rise looks larger than it is; ``budget`` chooses nothing."""
    pair_sd: float
    """The sd of a pair that was used after the last night: the calibrated one, corrected by the nights."""


class Standing(NamedTuple):
    """The monitor after one night, in standard errors of a night."""

    total: float
    limit: float
    since: int | None
    pair_sd: float
    """Log scale, as the nights so far show it."""

    @property
    def alarm(self) -> bool:
        return self.total >= self.limit


def cusum(nights: Sequence[Night], pair_sd: float, series: int = 1) -> Creep:
    """The one-sided CUSUM of ``nights`` in order: is head slower than the anchor?

    ``pair_sd`` is the calibrated sd of one pair's log-ratio. A night's standard error is that over the root of its
    pairs. ``series`` counts the monitors that share one promise of false alarms (workloads times summaries). Raises
    ValueError for an sd that is not positive and finite, a night without pairs, a mean that is not finite, or fewer
    than one series.
    """
    _check(nights)
    last = Standing(0.0, _limit(series), None, pair_sd)
    for standing in standings(nights, pair_sd, series):
        last = standing
    unit = last.pair_sd / math.sqrt(NIGHT_PAIRS)
    estimate = None if last.since is None else _mean(nights[last.since :])
    return Creep(last.total * unit, last.limit * unit, last.alarm, len(nights), last.since, estimate, last.pair_sd)


def standings(nights: Iterable[Night], pair_sd: float, series: int = 1) -> Iterator[Standing]:
    """The monitor after each night in turn, as ``cusum`` would have told it then: later nights change nothing of it."""
    if not 0 < pair_sd < math.inf:
        raise ValueError(f"the sd of a pair is {pair_sd}; it is positive and finite")
    limit, total, since, scale = _limit(series), 0.0, None, _Scale(pair_sd)
    for index, (mean, pairs) in enumerate(nights):
        scale.see(mean, pairs)
        sd = scale.sd
        error = sd / math.sqrt(pairs)
        excess = (mean - max(SLACK * error, LEAST_SLACK)) / error
        total = min(max(total + max(-REACH, min(excess, REACH)), 0.0), limit + ROOM)
        since = None if total == 0 else index if since is None else since
        yield Standing(total, limit, since, sd)


def budget(nights: Sequence[Night]) -> Interval | None:
    """How much slower than the anchor head is by now: 95% t interval of the last ``BUDGET_NIGHTS`` nights.

    Nights, not pairs, are the samples, each with the weight of its pairs: what a night adds to all its pairs is then in
    the interval too. ``sd`` is that of a pair as the nights show it. None below two nights. In a creep that goes on it
    lags half a window behind. Raises ValueError for a night without pairs, or a mean that is not finite.
    """
    _check(nights)
    last = nights[-BUDGET_NIGHTS:]
    if len(last) < 2:
        return None
    pairs = sum(count for _, count in last)
    mean = _mean(last)
    same = len({value for value, _ in last}) == 1
    sd = 0.0 if same else math.sqrt(math.fsum(n * (value - mean) ** 2 for value, n in last) / (len(last) - 1))
    half = float(stdtrit(len(last) - 1, 1 - BUDGET_ALPHA / 2)) * sd / math.sqrt(pairs)
    return Interval(mean, mean - half, mean + half, sd, pairs, BUDGET_ALPHA)


def night_pairs(pair_sd: float) -> int:
    """Pairs a night on a node of this noise for a standard error of at most ``SHARP``: whole blocks of two pairs.

    At least ``NIGHT_PAIRS``. Fewer alarm falsely no more often; they see a creep later.
    """
    if not 0 <= pair_sd < math.inf:
        raise ValueError(f"the sd of a pair is {pair_sd}; it is finite and not negative")
    return max(NIGHT_PAIRS, 2 * math.ceil((pair_sd / SHARP) ** 2 / 2))


class _Scale:
    """The sd of a pair: the calibrated one, and what neighbouring nights differ by.

    Neighbours, because a creep moves all nights after it but only one difference; and no difference counts as more than
    ``FURTHEST`` standard errors, so that one freak night does not make the monitor deaf.
    """

    def __init__(self, pair_sd: float) -> None:
        self.calibrated = pair_sd
        self.before: Night | None = None
        self.squares = float(SCALE_NIGHTS)
        self.seen = float(SCALE_NIGHTS)

    @property
    def sd(self) -> float:
        return self.calibrated * math.sqrt(self.squares / self.seen)

    def see(self, mean: float, pairs: int) -> None:
        if self.before is not None:
            earlier, others = self.before
            difference = (mean - earlier) / math.sqrt(1 / pairs + 1 / others)
            self.squares += min((difference / self.calibrated) ** 2, FURTHEST**2 * self.squares / self.seen)
            self.seen += 1
        self.before = (mean, pairs)


def _mean(nights: Sequence[Night]) -> float:
    """Mean over nights with the weight of their pairs: that of all their pairs."""
    return math.fsum(mean * pairs for mean, pairs in nights) / sum(pairs for _, pairs in nights)


def _limit(series: int) -> float:
    """A sum passes a limit e times as rarely where the limit is one standard error higher, at this slack."""
    if series < 1:
        raise ValueError(f"{series} series; there is at least one")
    return LIMIT + math.log(series)


def _check(nights: Sequence[Night]) -> None:
    for index, (mean, pairs) in enumerate(nights):
        if not math.isfinite(mean):
            raise ValueError(f"the mean log-ratio of night {index} is not finite")
        if pairs < 1:
            raise ValueError(f"night {index} has {pairs} pairs; a night without a pair is left out")
