"""Which commit made it slower? A posterior over the commits. ``next_run`` chooses the run that would teach most.

A range has points (commits that can be measured) and hypotheses (commits that may be the culprit). Under hypothesis k
every point that contains k is slower by one unknown effect; under "none" all points are alike. A run's value is the
logarithm of its step time: a level, the effect where the point is affected, and Gaussian noise of the run. All three
are unknown, and integrated out:

    level    flat, one for each stratum (the runs of one node and session), so that nodes are never compared with
             each other; where the spread between strata is known, levels are drawn from it
    effect   positive, of unknown size: a mixture of Gaussians, evenly spaced on the log scale, between the smallest
             slowdown worth finding and the largest
    noise    a grid of standard deviations around the one on record; a wide one where there is no record

What it assumes and cannot know: one culprit (what a second one does to it is found by testing the remainder), runs that
are independent within a stratum, and an effect that stays. ``benchmarks/bisect.py`` measures how often it is right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LARGEST = math.log(16)
"""The largest effect that is looked for, as a log-ratio. A larger one is found too: it is no less of a culprit."""

SPACING = 1.25
"""Ratio of neighbouring effects of the mixture. Each is as wide as half its distance to the next."""

NO_RECORD = (0.001, 0.5)
"""Standard deviations of a run between which it lies where nothing is on record: 0.1% to 50%."""

REPEATS = 2
"""Runs that repeat a point before anything is believed where no noise is on record: values that were never repeated
agree with a noise as small as the smallest, and with it with any culprit."""


class Sample(NamedTuple):
    """One run: the point, the natural logarithm of its time, and the stratum that it is of."""

    point: int
    value: float
    stratum: str


@dataclass(frozen=True)
class Question:
    """What is asked, before any run."""

    affected: Bools
    """[hypotheses, points]: whether the point contains the commit."""
    prior: Floats
    """[hypotheses]: all together 1 minus the prior of "none"."""
    effects: Floats
    widths: Floats
    """Mean and standard deviation of each Gaussian of the effect's prior; they weigh the same."""
    noises: Floats
    noise_prior: Floats
    level_sd: float = math.inf
    """Between the levels of two strata; infinite where it is not known."""
    noise_on_record: bool = True

    @cached_property
    def none(self) -> float:
        return max(0.0, 1.0 - float(self.prior.sum()))

    @cached_property
    def all_differ(self) -> bool:
        """Whether every two hypotheses differ at some point."""
        return len(_labels(self.affected)[1]) == len(self.affected)

    @cached_property
    def contains(self) -> NDArray[np.float32]:
        return self.affected.astype(np.float32)


@dataclass(frozen=True)
class Posterior:
    """What is believed after some runs."""

    culprit: Floats
    """[hypotheses] Probabilities; with ``none`` they make 1."""
    none: float
    noise: float
    """Standard deviation of a run's log time, root mean square over what is believed."""
    effect: float
    """Mean log-ratio, given that there is a culprit."""
    effect_sd: float


def linear(points: int) -> Bools:
    """``affected`` of a line of points: hypothesis k is that point k + 1 is the culprit."""
    return np.triu(np.ones((points - 1, points), dtype=bool), 1)


def question(
    affected: Bools,
    weights: Sequence[float] | Floats,
    none: float,
    smallest: float,
    noise: float | None,
    pairs: int = 0,
    largest: float = LARGEST,
    level_sd: float = math.inf,
) -> Question:
    """The question with everything that is unknown spread over what it may be.

    ``weights`` of the hypotheses need not sum to 1. ``smallest`` and ``largest`` effect are log-ratios. ``noise`` is
    the standard deviation of one run on record, from so many ``pairs``; 0 pairs: it is known. Raises ValueError.
    """
    if not 0 < smallest < math.inf:
        raise ValueError(f"the smallest effect is {smallest}; it is positive")
    if noise is not None and not 0 < noise < math.inf:
        raise ValueError(f"the noise is {noise}; it is positive")
    largest = max(largest, 2 * smallest)
    number = 1 + math.ceil(math.log(largest / smallest) / math.log(SPACING))
    effects = np.geomspace(smallest, largest, number)
    widths = effects * (effects[1] / effects[0] - 1) / 2
    if noise is None:
        noises = np.geomspace(*NO_RECORD, 25)
        believed = np.ones(25)
    elif not pairs:
        noises, believed = np.array([noise]), np.ones(1)
    else:
        spread = 1 / math.sqrt(2 * pairs)  # of the logarithm of an estimated sd
        steps = np.linspace(-2.5, 2.5, 9)
        noises, believed = noise * np.exp(steps * spread), np.exp(-(steps**2) / 2)
    share = np.asarray(weights, dtype=float)
    return Question(
        affected=affected,
        prior=share / share.sum() * (1 - none),
        effects=effects,
        widths=widths,
        noises=noises,
        noise_prior=believed / believed.sum(),
        level_sd=level_sd,
        noise_on_record=noise is not None,
    )


def posterior(asked: Question, samples: Sequence[Sample]) -> Posterior:
    """What the runs so far make of the prior."""
    found = believe(asked, samples)
    each = found.groups.sum(axis=(1, 2))
    if (total := float(each.sum())) > 0:
        spread = found.groups.sum(axis=2) / total
        effect = float((spread * found.effect_mean).sum())
        square = float((spread * (found.effect_mean**2 + found.effect_var)).sum())
    else:
        effect, square = float(asked.effects.mean()), float((asked.effects**2).mean())
    return Posterior(
        culprit=spread_out(asked, found.labels, each, found.mass),
        none=found.none,
        noise=found.noise,
        effect=effect,
        effect_sd=math.sqrt(max(0.0, square - effect**2)),
    )


def noise_is_seen(asked: Question, samples: Sequence[Sample]) -> bool:
    """Whether a posterior of these runs is to be believed: the noise is on record, or runs were repeated."""
    if asked.noise_on_record:
        return True
    return len(samples) - len({(each.stratum, each.point) for each in samples}) >= REPEATS


def sets(asked: Question, available: Bools) -> NDArray[np.intp]:
    """[hypotheses] A number for each, the same for those that no available point can tell apart."""
    if asked.all_differ and bool(available.all()):
        return np.arange(len(asked.affected))
    return _labels(asked.affected[:, available])[0]


class Beliefs(NamedTuple):
    """Hypotheses that no run has told apart are one group."""

    labels: NDArray[np.intp]
    first: NDArray[np.intp]
    """[groups] One hypothesis of each."""
    mass: Floats
    groups: Floats
    """[groups, effects, noises] Probabilities."""
    none: float
    noise: float
    effect_mean: Floats
    effect_var: Floats
    """[groups, effects] Of each Gaussian, at ``noise``."""
    strata: "Strata"


class Strata(NamedTuple):
    """Sums that are sufficient. Rows are strata, columns measured points."""

    names: list[str]
    points: NDArray[np.intp]
    counts: Floats
    sums: Floats
    squares: Floats
    """[strata]"""


class Products(NamedTuple):
    """Inner products under the covariance of the runs: of the runs' values, of 1, and of what a hypothesis affects."""

    ones: float
    values: float
    affected_ones: Floats
    affected: Floats
    """A: the weight of the data on the effect, the level taken out; for each group."""
    slope: Floats
    """B: the same product with the values."""
    residual: float
    log_scale: float


def believe(asked: Question, samples: Sequence[Sample]) -> Beliefs:
    strata = _strata(samples)
    labels, first = _labels(asked.affected[:, strata.points])
    hits = asked.contains[first][:, strata.points].astype(float)  # [groups, measured points]
    mass = np.bincount(labels, weights=asked.prior).astype(float)
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    groups = np.empty((len(first), len(asked.effects), len(asked.noises)))
    none = np.empty(len(asked.noises))
    for number, sd in enumerate(asked.noises):
        found = products(strata, hits, float(sd), asked.level_sd)
        scale = found.log_scale - found.residual / 2 + math.log(asked.noise_prior[number])
        narrowed = 1 + np.outer(found.affected, asked.widths**2)
        slope, weight = found.slope[:, None], found.affected[:, None]
        exponent = slope * asked.effects + slope**2 * asked.widths**2 / 2 - weight * asked.effects**2 / 2
        groups[:, :, number] = scale + log_mass[:, None] + exponent / narrowed - np.log(narrowed) / 2
        middle = asked.effects + asked.widths**2 * slope
        groups[:, :, number] += _positive(middle / (asked.widths * np.sqrt(narrowed)))
        none[number] = scale + (math.log(asked.none) if asked.none > 0 else -math.inf)
    groups -= math.log(len(asked.effects))
    top = max(float(groups.max(initial=-math.inf)), float(none.max()))
    groups, none = np.exp(groups - top), np.exp(none - top)
    total = float(groups.sum() + none.sum())
    groups, none = groups / total, none / total
    noise = math.sqrt(float(((groups.sum(axis=(0, 1)) + none) * asked.noises**2).sum()))
    found = products(strata, hits, noise, asked.level_sd)
    narrowed = 1 + np.outer(found.affected, asked.widths**2)
    mean = (asked.effects + asked.widths**2 * found.slope[:, None]) / narrowed
    var = asked.widths**2 / narrowed
    return Beliefs(labels, first, mass, groups, float(none.sum()), noise, mean, var, strata)


def _positive(mean: Floats) -> Floats:
    """Logarithm of the probability that a Gaussian of this mean and sd 1 is positive.

    Without it the tails of the effect's prior would rather have a negative effect than none: a commit that made it
    faster would be accused.
    """
    found = np.zeros(mean.shape)
    near = mean < 6
    found[near] = log_ndtr(mean[near])
    return found


def _strata(samples: Sequence[Sample]) -> Strata:
    names = sorted({each.stratum for each in samples})
    points = np.unique(np.array([each.point for each in samples], dtype=np.intp))
    counts, sums = np.zeros((2, len(names), len(points)))
    squares = np.zeros(len(names))
    # Values are taken from their middle: of large ones the sums of squares would lose what matters.
    middle = math.fsum(each.value for each in samples) / len(samples) if samples else 0.0
    for each in samples:
        row, column = names.index(each.stratum), int(np.searchsorted(points, each.point))
        counts[row, column] += 1
        sums[row, column] += each.value - middle
        squares[row] += (each.value - middle) ** 2
    return Strata(names, points, counts, sums, squares)


def products(strata: Strata, hits: Floats, sd: float, level_sd: float) -> Products:
    runs, totals = strata.counts.sum(axis=1), strata.sums.sum(axis=1)
    if math.isinf(level_sd):
        # 0 exactly: 1 - 49 / 49 as computed is not, and would be taken for what strata have in common.
        shared, left = 1 / runs, np.zeros(len(runs))
        log_scale = -float((runs - 1).sum()) * math.log(sd)
    else:
        shared = level_sd**2 / (sd**2 + runs * level_sd**2)
        left = sd**2 / (sd**2 + runs * level_sd**2)
        log_scale = -float(runs.sum()) * math.log(sd) - float(np.log1p(runs * level_sd**2 / sd**2).sum()) / 2
    affected = hits @ strata.counts.T  # [groups, strata]: runs of affected points
    with_values = hits @ strata.sums.T
    a_a = (affected - shared * affected**2).sum(axis=1) / sd**2
    a_y = (with_values - shared * affected * totals).sum(axis=1) / sd**2
    y_y = float((strata.squares - shared * totals**2).sum()) / sd**2
    one_one, one_y = float((runs * left).sum()) / sd**2, float((totals * left).sum()) / sd**2
    one_a = (affected * left).sum(axis=1) / sd**2
    if one_one > 0:
        return Products(
            one_one,
            one_y,
            one_a,
            np.maximum(a_a - one_a**2 / one_one, 0.0),
            a_y - one_a * one_y / one_one,
            max(0.0, y_y - one_y**2 / one_one),
            log_scale - math.log(one_one) / 2,
        )
    return Products(0.0, 0.0, one_a * 0, np.maximum(a_a, 0.0), a_y, max(0.0, y_y), log_scale)


def _labels(rows: Bools) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """A number for each row, the same for equal rows; and the first row of each number."""
    labels = np.zeros(len(rows), dtype=np.int64)
    first = np.zeros(1, dtype=np.intp)
    for start in range(0, rows.shape[1], 40):  # 40 bits and a label fit an integer
        part = rows[:, start : start + 40]
        codes = (labels << 40) | (part @ (1 << np.arange(part.shape[1], dtype=np.int64)))
        _, first, labels = np.unique(codes, return_index=True, return_inverse=True)
    return labels, first


def spread_out(asked: Question, labels: NDArray[np.intp], each: Floats, mass: Floats) -> Floats:
    """The probability of a group given to its hypotheses, by their prior."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(mass > 0, each / mass, 0.0)
    return asked.prior * share[labels]
