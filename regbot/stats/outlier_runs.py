"""Which runs of a search are outliers: sums over runs in which outliers count less, and the plausible sets of outliers.

The noise of a run is a contaminated Gaussian. A run is an outlier with the probability ``OUTLIER_SHARE``, and its
standard deviation is then ``OUTLIER_SCALE`` times as large. Given the set of outliers the model is Gaussian, and an
outlier has the weight 1 / ``OUTLIER_SCALE``^2. Almost all sets of outliers have a negligible probability. So the
posterior in ``culprit`` is a sum over the few sets that explain the runs best. This module finds these sets, with a
Laplace approximation of their evidence.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OUTLIER_SHARE = 0.03
"""Prior probability that a run is an outlier, such as a launch beside another job."""

OUTLIER_SCALE = 10.0
"""Standard deviation of an outlier, divided by that of another run."""

MIN_SET_SHARE = 0.02
"""Sets of outliers with a smaller share of the evidence are left out. If a set takes a run as an outlier that fits as
well as the others, its share is about 0.003, and it hardly changes the posterior.
"""

MOST_SETS = 8
"""Maximum number of sets in the posterior, and of sets that are tried with one more outlier."""

MOST_OUTLIERS = 8
"""Maximum number of outliers in a set."""


@dataclass(frozen=True)
class RunTable:
    """The runs as arrays. ``strata`` has the names of the strata, ``points`` the numbers of the measured points."""

    strata: list[str]
    points: NDArray[np.intp]
    values: Floats
    """[runs] Values minus their common mean, because sums of squares of large values would lose precision."""
    stratum_rows: NDArray[np.intp]
    point_columns: NDArray[np.intp]
    """[runs] Index of the run's stratum in ``strata``, and of its point in ``points``."""

    @cached_property
    def can_be_outlier(self) -> Bools:
        """[runs] False for the only run of a stratum, which has no information in either case."""
        shared: Bools = np.bincount(self.stratum_rows, minlength=len(self.strata))[self.stratum_rows] > 1
        return shared

    @property
    def freedom(self) -> int:
        """Number of runs minus number of strata."""
        return len(self.values) - len(self.strata)

    def sum_strata(self, weights: Floats) -> "StratumSums":
        """Return the sums of the runs. ``weights``: [sets, runs]."""
        shape = len(self.strata), len(self.points)
        runs = np.arange(len(self.values))
        cells, rows = np.zeros((len(runs), math.prod(shape))), np.zeros((len(runs), len(self.strata)))
        cells[runs, self.stratum_rows * shape[1] + self.point_columns] = 1
        rows[runs, self.stratum_rows] = 1
        counts, sums = ((part @ cells).reshape(len(weights), *shape) for part in (weights, weights * self.values))
        return StratumSums(counts, sums, (weights * self.values**2) @ rows)


class StratumSums(NamedTuple):
    """Sufficient statistics of the runs: sums of weights and of weighted values."""

    counts: Floats
    sums: Floats
    """[sets, strata, points]"""
    squares: Floats
    """[sets, strata] Sums of weighted squares."""


class InnerProducts(NamedTuple):
    """Weighted inner products of two vectors over the runs: the values, and the indicator of affected runs.

    Each group has its own indicator: 1 for a run at a point that the hypotheses of the group affect, otherwise 0. The
    weighted mean of each stratum is subtracted from both vectors, which removes the level.
    """

    affected: Floats
    """[sets, groups] A: product of the indicator with itself. Divided by the variance of a run, it is the precision
    that the data give the effect.
    """
    slope: Floats
    """[sets, groups] B: product of the indicator with the values."""
    residual: Floats
    """[sets] Product of the values with themselves."""
    log_prior: Floats
    """[sets] Logarithm of the prior probability of the set, with the factors of its likelihood that do not depend on
    group, effect and noise.
    """


def outlier_weights(outliers: Bools) -> Floats:
    """Return the weights of runs: 1, or that of an outlier."""
    return np.where(outliers, OUTLIER_SCALE**-2, 1.0)


def inner_products(table: RunTable, hits: Floats, outliers: Bools) -> InnerProducts:
    """Return the inner products for sets of outliers.

    ``hits``: [groups, measured points] 1 where the group affects the point. ``outliers``: [sets, runs].
    """
    stratum_sums = table.sum_strata(outlier_weights(outliers))
    runs, totals = stratum_sums.counts.sum(axis=2), stratum_sums.sums.sum(axis=2)  # [sets, strata]
    affected = stratum_sums.counts @ hits.T  # [sets, strata, groups]: weight of the runs at affected points
    with_values = stratum_sums.sums @ hits.T
    a_a = (affected - affected**2 / runs[:, :, None]).sum(axis=1)
    a_y = (with_values - affected * (totals / runs)[:, :, None]).sum(axis=1)
    y_y = (stratum_sums.squares - totals**2 / runs).sum(axis=1)
    # ``log_odds`` is for one outlier in place of a usual run: the ratio of both probabilities, and the factor 1 /
    # OUTLIER_SCALE of an outlier's density. The second term of ``log_prior`` is the integral over the level of each
    # stratum, which is larger if the runs of the stratum have less weight.
    log_odds = math.log(OUTLIER_SHARE / (1 - OUTLIER_SHARE) / OUTLIER_SCALE)
    log_prior = outliers.sum(axis=1) * log_odds - np.log(runs).sum(axis=1) / 2
    return InnerProducts(np.maximum(a_a, 0.0), a_y, np.maximum(y_y, 0.0), log_prior)


class EvidenceTerms(NamedTuple):
    """The terms of a model that the approximate evidence of a set needs."""

    hits: Floats
    """[groups, measured points] 1 where the group affects the point."""
    log_group_prior: Floats
    """[groups + 1] Logarithm of the prior probability of each group. The last value is for no culprit."""
    noises: Floats
    log_noise_prior: Floats
    """[noises]"""
    smallest: float
    largest: float
    """Limits of the effect."""


def plausible_sets(table: RunTable, terms: EvidenceTerms) -> Bools:
    """Return [sets, runs] the sets of outliers with a noticeable share of the evidence, the empty set included.

    Starting from the empty set, each set with a noticeable share is tried with one more outlier.
    """
    tried = np.zeros((1, len(table.values)), dtype=bool)
    evidence = approximate_evidence(table, terms, tried)
    newest = tried
    for _ in range(MOST_OUTLIERS):
        larger = _add_one_outlier(newest, table.can_be_outlier)
        if not len(larger):
            break
        larger_evidence = approximate_evidence(table, terms, larger)
        tried, evidence = np.concatenate([tried, larger]), np.concatenate([evidence, larger_evidence])
        least = _log_sum(evidence) + math.log(MIN_SET_SHARE)
        newest = larger[np.argsort(-larger_evidence, kind="stable")[:MOST_SETS]]
        newest = newest[: int((larger_evidence >= least).sum())]
    order = np.argsort(-evidence[1:], kind="stable")[: MOST_SETS - 1] + 1
    kept = order[evidence[order] >= _log_sum(evidence) + math.log(MIN_SET_SHARE)]
    return tried[[0, *kept]]


def _add_one_outlier(sets: Bools, can_be_outlier: Bools) -> Bools:
    """Return every set with every further run as an outlier, each result once."""
    rows, runs = np.nonzero(~sets & can_be_outlier)
    larger = sets[rows]
    larger[np.arange(len(rows)), runs] = True
    unique: Bools = np.unique(larger, axis=0) if len(sets) > 1 else larger
    return unique


def approximate_evidence(table: RunTable, terms: EvidenceTerms, outliers: Bools) -> Floats:
    """Return [sets] the logarithm of the approximate evidence of each set, up to a constant.

    The effect is integrated by Laplace's method, under a prior that is flat on the log scale.
    """
    fit = inner_products(table, terms.hits, outliers)
    variances = terms.noises**2
    scale = (
        terms.log_noise_prior
        - table.freedom * np.log(terms.noises)
        - fit.residual[:, None] / (2 * variances)
        + fit.log_prior[:, None]
    )  # [sets, noises]
    affected, slope = fit.affected[:, :, None], fit.slope[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.clip(np.where(affected > 0, slope / affected, terms.smallest), terms.smallest, terms.largest)
        width = np.log(2 * math.pi * variances / affected) / 2 - np.log(best * math.log(terms.largest / terms.smallest))
    gain = (slope * best - affected * best**2 / 2) / variances + np.minimum(width, 0.0)  # [sets, groups, noises]
    by_group = scale[:, None, :] + terms.log_group_prior[:-1, None] + gain
    with_none = np.concatenate([by_group, (scale + terms.log_group_prior[-1])[:, None, :]], axis=1)
    return _log_sum_rows(with_none.reshape(len(outliers), -1))


def _log_sum_rows(logs: Floats) -> Floats:
    top = logs.max(axis=1, keepdims=True)
    result: Floats = top[:, 0] + np.log(np.exp(logs - top).sum(axis=1))
    return result


def _log_sum(logs: Floats) -> float:
    return float(_log_sum_rows(logs[None, :])[0])
