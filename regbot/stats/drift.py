"""Detection of slow creep: is head slower than the anchor, night after night?

Every night head is run beside the anchor's commit, in pairs on one node. A night is one number, the mean log-ratio of
its pairs. Page's one-sided CUSUM (1954) sums these numbers, each divided by its own standard error, so that the same
constants serve every node. It raises an alarm when it reaches a limit.

The calibrated sd of a pair is only a first guess, which the nights correct. Neighbouring nights may be correlated, so
their correlation r is estimated, and the standard error of a night is multiplied by sqrt((1 + r) / (1 - r)), as for the
long mean of an autoregressive process of order 1. Correlation beyond five nights is not seen.

All values are on the log scale; positive means slower. Constants come from simulation (``benchmarks/creep.py``,
``benchmarks/error_rates.py``).
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from regbot.stats.paired import Interval

NIGHT_PAIRS = 4
"""Minimum number of pairs of a night: two ABBA blocks."""

SLACK = 0.5
"""The parameter k of a CUSUM, in standard errors of a night: only the part of a slowdown above k counts. A creep of 2 k
is detected soonest."""

MIN_SLACK = 0.0025
"""Lower bound of k, log scale. Even on a quiet node, a quarter of a percent is not treated as a creep."""

LIMIT = 8.0
"""The parameter h of a CUSUM, in standard errors of a night. At most one in 100 periods of 200 quiet nights has a false
alarm, or one in 50 if the calibrated sd is 30% too small."""

LUCK_SLACK = 3.0
"""Lower bound of k, in standard deviations of the luck of an arm. The anchor's own luck may be the same every night."""

MAX_EXCESS = LIMIT / 2
"""The sum exceeds its limit by at most this much, so that an alarm ends a week after the cause is fixed."""

MAX_NIGHT_STEP = 2.5
"""A night changes the sum by at most this many standard errors, so that the sum cannot reach ``LIMIT`` within three
nights."""

SCALE_LAG = 5
"""The differences of nights this far apart give the scale of a night, because neighbouring nights may be correlated."""

SCALE_NIGHTS = 10
"""Weight of the calibrated sd in the running estimate, in differences of nights."""

MAX_NIGHT_DIFFERENCE = 3.0
"""Differences of nights are clipped at this many standard errors."""

PRIOR_CORRELATION = 0.2
PRIOR_CORRELATION_NIGHTS = 20
"""The estimated correlation is shrunk towards ``PRIOR_CORRELATION``, which has the weight of this many differences."""

MAX_CORRELATION = 0.8
"""Upper limit of the estimated correlation. The lower limit is 0."""

TARGET_ERROR = 0.005
"""Standard error of a night at which a creep of ten changes of +0.5% each is detected before it reaches +1.5%, in 19 of
20 cases."""

BUDGET_NIGHTS = 7
BUDGET_ALPHA = 0.05
"""Number of nights in the interval of ``budget_interval``, and its two-sided error."""

Night = tuple[float, int]
"""Mean log-ratio of head against the anchor over the valid pairs of one night, and the number of these pairs."""


class Creep(NamedTuple):
    """The CUSUM after one night."""

    value: float
    """The CUSUM, converted to a log-ratio with the standard error of a night of ``NIGHT_PAIRS`` pairs."""
    limit: float
    """Value at which the alarm is raised, converted like ``value``."""
    alarm: bool
    """Whether the sum is at or above the limit now. The alarm lasts until the sum falls below the limit."""
    nights: int
    rise: tuple[Night, ...]
    """The nights of the current rise; () if the sum is 0."""
    pair_sd: float
    """The sd of a pair: the calibrated sd, corrected by the differences of nights."""
    correlation: float
    """Estimated correlation of neighbouring nights, in [0, ``MAX_CORRELATION``]."""

    @property
    def since(self) -> int | None:
        """Index of the night at which the current rise begins; None if the sum is 0."""
        return self.nights - len(self.rise) if self.rise else None

    @property
    def estimate(self) -> float | None:
        """Mean of the current rise, log scale. It is too high for a recent rise, which begins with slow nights."""
        return _mean(self.rise) if self.rise else None


def cusum(nights: Iterable[Night], pair_sd: float, series: int = 1, luck: float = 0.0) -> Iterator[Creep]:
    """Yield the one-sided CUSUM after each of ``nights``, oldest first. Later nights do not change earlier states.
    ``pair_sd`` is the calibrated sd of one pair's log-ratio, above 0. ``series`` is the number of monitors (workloads
    times summaries) that share one false alarm rate. ``luck`` is the standard deviation of the luck of an arm
    (``regbot.stats.arm_luck``)."""
    noise = _NightNoise(pair_sd)
    # With the slack ``SLACK``, raising the limit by 1 divides the false alarm rate of a series by e. Sum and limit are
    # in standard errors of a night.
    total, limit = 0.0, LIMIT + math.log(series)
    rise: tuple[Night, ...] = ()
    for number, (mean, pairs) in enumerate(nights, 1):
        noise.add(mean, pairs)
        error = noise.night_error(pairs)
        slack = max(SLACK * error, MIN_SLACK, LUCK_SLACK * luck)
        clipped_step = max(-MAX_NIGHT_STEP, min((mean - slack) / error, MAX_NIGHT_STEP))
        total = min(max(total + clipped_step, 0.0), limit + MAX_EXCESS)
        rise = (*rise, (mean, pairs)) if total > 0 else ()
        unit = noise.night_error(NIGHT_PAIRS)
        yield Creep(total * unit, limit * unit, total >= limit, number, rise, noise.pair_sd, noise.correlation)


def budget_interval(nights: Sequence[Night]) -> Interval | None:
    """Return head's current slowdown against the anchor: the 95% t interval of the last ``BUDGET_NIGHTS`` nights,
    weighted by their numbers of pairs. ``Interval.sd`` is the sd of a pair, estimated from the nights. None for fewer
    than two nights. During a creep the interval lags behind by half of the ``BUDGET_NIGHTS``."""
    latest_nights = nights[-BUDGET_NIGHTS:]
    if len(latest_nights) < 2:
        return None
    pairs = sum(pair_count for _, pair_count in latest_nights)
    mean = _mean(latest_nights)
    # The mean of equal nights can have a rounding error, and their sd would then not be 0.
    all_equal = len({night_mean for night_mean, _ in latest_nights}) == 1
    squares = math.fsum(pair_count * (night_mean - mean) ** 2 for night_mean, pair_count in latest_nights)
    sd = 0.0 if all_equal else math.sqrt(squares / (len(latest_nights) - 1))
    half_width = float(stdtrit(len(latest_nights) - 1, 1 - BUDGET_ALPHA / 2)) * sd / math.sqrt(pairs)
    return Interval(mean, mean - half_width, mean + half_width, sd, pairs, BUDGET_ALPHA)


def night_pairs(pair_sd: float) -> int:
    """Return the number of pairs per night for a standard error of at most ``TARGET_ERROR``, in whole blocks of two
    pairs, at least ``NIGHT_PAIRS``."""
    return max(NIGHT_PAIRS, 2 * math.ceil((pair_sd / TARGET_ERROR) ** 2 / 2))


class _NightNoise:
    """Running estimate of the noise of the nights: the sd of a pair, and the correlation of neighbouring nights.

    With D1 and Dk, the mean squared differences of nights one and ``SCALE_LAG`` nights apart, the variance of a night
    is Dk / 2, and the correlation is 1 - D1 / Dk. All differences are in units of a pair's sd, because nights differ in
    their numbers of pairs. They are clipped, so that one outlier night does not hide a creep."""

    def __init__(self, pair_sd: float) -> None:
        self.calibrated_sd = pair_sd
        self.latest: deque[Night] = deque(maxlen=SCALE_LAG)
        # Sum and number of the scaled squared differences of neighbouring nights (D1).
        self.neighbour_squares, self.neighbour_count = 0.0, 0
        # The same for nights that are ``SCALE_LAG`` nights apart (Dk).
        self.distant_squares, self.distant_count = 0.0, 0

    def night_error(self, pairs: int) -> float:
        """Return the standard error of a night with ``pairs`` pairs, log scale. It is inflated because neighbouring
        nights are correlated (the module's head has the factor)."""
        return self.pair_sd * math.sqrt((1 + self.correlation) / (1 - self.correlation)) / math.sqrt(pairs)

    @property
    def pair_sd(self) -> float:
        return self.calibrated_sd * math.sqrt(self._scaled_variance)

    @property
    def correlation(self) -> float:
        if not self.distant_count:
            return PRIOR_CORRELATION
        observed = 1 - self.neighbour_squares / self.neighbour_count / self._scaled_variance
        weight = self.distant_count + PRIOR_CORRELATION_NIGHTS
        shrunk = (self.distant_count * observed + PRIOR_CORRELATION_NIGHTS * PRIOR_CORRELATION) / weight
        return max(0.0, min(shrunk, MAX_CORRELATION))

    @property
    def _scaled_variance(self) -> float:
        """Half of Dk, divided by the calibrated variance. The calibrated sd counts as ``SCALE_NIGHTS`` differences."""
        return (SCALE_NIGHTS + self.distant_squares) / (SCALE_NIGHTS + self.distant_count)

    def add(self, mean: float, pairs: int) -> None:
        limit = MAX_NIGHT_DIFFERENCE**2 * self._scaled_variance
        if self.latest:
            self.neighbour_squares += min(self._scaled_square(self.latest[-1], mean, pairs), limit)
            self.neighbour_count += 1
        if len(self.latest) == SCALE_LAG:
            self.distant_squares += min(self._scaled_square(self.latest[0], mean, pairs), limit)
            self.distant_count += 1
        self.latest.append((mean, pairs))

    def _scaled_square(self, earlier: Night, mean: float, pairs: int) -> float:
        """Return the squared difference of two nights, divided by its expectation for the calibrated sd."""
        earlier_mean, earlier_pairs = earlier
        return ((mean - earlier_mean) / self.calibrated_sd) ** 2 / (1 / pairs + 1 / earlier_pairs)


def _mean(nights: Sequence[Night]) -> float:
    return math.fsum(mean * pairs for mean, pairs in nights) / sum(pairs for _, pairs in nights)
