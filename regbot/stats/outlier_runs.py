"""Which runs of a search are outliers: sums over runs in which outliers count less, and the plausible sets of outliers.

A run is an outlier with the probability ``OUTLIER_SHARE``, and its standard deviation is then ``OUTLIER_SCALE`` times
as large. Given the set of outliers the model is Gaussian. The posterior in ``culprit`` is a sum over the few sets that
explain the runs best, which are found by a Laplace approximation of their evidence.
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
"""Sets of outliers with a smaller share of the evidence are left out."""

MOST_SETS = 8
"""Maximum number of sets in the posterior, and of sets that each step of the search extends by one more outlier."""

MOST_OUTLIERS = 8
"""Maximum number of outliers in a set."""


@dataclass(frozen=True)
class RunTable:
    """The runs as arrays. ``strata`` has the names of the strata, ``points`` the numbers of the measured points."""

    strata: list[str]
    points: NDArray[np.intp]
    values: Floats
    """Value of each run minus the common mean of all runs, because sums of squares of large values would lose
    precision."""
    stratum_rows: NDArray[np.intp]
    point_columns: NDArray[np.intp]
    """For each run, the index of its stratum in ``strata``, and of its point in ``points``."""

    @cached_property
    def can_be_outlier(self) -> Bools:
        """False for the only run of a stratum, which is compared with no other run."""
        runs_of_stratum = np.bincount(self.stratum_rows, minlength=len(self.strata))
        has_other_runs: Bools = runs_of_stratum[self.stratum_rows] > 1
        return has_other_runs

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the values. Each stratum has a level of its own."""
        return len(self.values) - len(self.strata)

    def sum_strata(self, weights: Floats) -> "StratumSums":
        """Return weighted sums over the runs. ``weights`` has the shape (sets, runs)."""
        strata, points = len(self.strata), len(self.points)
        runs = np.arange(len(self.values))
        # Indicator matrices: in which cell (stratum and point) and in which stratum each run is.
        in_cell, in_stratum = np.zeros((len(runs), strata * points)), np.zeros((len(runs), strata))
        in_cell[runs, self.stratum_rows * points + self.point_columns] = 1
        in_stratum[runs, self.stratum_rows] = 1
        return StratumSums(
            counts=(weights @ in_cell).reshape(len(weights), strata, points),
            sums=((weights * self.values) @ in_cell).reshape(len(weights), strata, points),
            squares=(weights * self.values**2) @ in_stratum,
        )


class StratumSums(NamedTuple):
    """Sums over the runs, for several sets of outliers."""

    counts: Floats
    """Array of shape (sets, strata, points): sums of weights."""
    sums: Floats
    """Array of shape (sets, strata, points): sums of weighted values."""
    squares: Floats
    """Array of shape (sets, strata): sums of weighted squares."""


class InnerProducts(NamedTuple):
    """Weighted inner products over the runs of the values and of the indicator of affected runs. The weighted mean of
    each stratum is subtracted from both, which removes the level."""

    affected: Floats
    """Array of shape (sets, groups): A, the product of the indicator with itself."""
    slope: Floats
    """Array of shape (sets, groups). It is B, the product of the indicator with the values."""
    residual: Floats
    """For each set, the product of the values with themselves."""
    log_prior: Floats
    """For each set, the logarithm of its prior probability, with factors of its likelihood."""


def outlier_weights(outliers: Bools) -> Floats:
    """Return the weight of each run in each set, as an array of shape (sets, runs): 1, or 1 / ``OUTLIER_SCALE``^2 for
    an outlier."""
    return np.where(outliers, OUTLIER_SCALE**-2, 1.0)


def inner_products(table: RunTable, hits: Floats, outliers: Bools) -> InnerProducts:
    """``hits``: array of shape (groups, measured points) with 1 where the group affects the point, else 0.
    ``outliers``: bool array of shape (sets, runs)."""
    stratum_sums = table.sum_strata(outlier_weights(outliers))
    weights, totals = stratum_sums.counts.sum(axis=2), stratum_sums.sums.sum(axis=2)  # shape (sets, strata)
    # Sums over the runs at affected points, of shape (sets, strata, groups).
    affected_weights = stratum_sums.counts @ hits.T
    affected_totals = stratum_sums.sums @ hits.T
    # In the names below, a is the indicator of affected runs, and y are the values.
    # Subtracting the mean of each stratum turns sum(x y) into sum(x y) - sum(x) sum(y) / sum(weights).
    a_a = (affected_weights - affected_weights**2 / weights[:, :, None]).sum(axis=1)
    a_y = (affected_totals - affected_weights * (totals / weights)[:, :, None]).sum(axis=1)
    y_y = (stratum_sums.squares - totals**2 / weights).sum(axis=1)
    # ``log_odds`` is for one outlier in place of a usual run: the ratio of both probabilities, and the factor 1 /
    # OUTLIER_SCALE of an outlier's density. The second term of ``log_prior`` is the integral over the level of each
    # stratum, which is larger if the runs of the stratum have less weight.
    log_odds = math.log(OUTLIER_SHARE / (1 - OUTLIER_SHARE) / OUTLIER_SCALE)
    log_prior = outliers.sum(axis=1) * log_odds - np.log(weights).sum(axis=1) / 2
    return InnerProducts(affected=np.maximum(a_a, 0.0), slope=a_y, residual=np.maximum(y_y, 0.0), log_prior=log_prior)


class EvidenceModel(NamedTuple):
    """What ``approximate_evidence`` needs of a model."""

    hits: Floats
    """Array of shape (groups, measured points): 1 where the group affects the point, else 0."""
    log_group_prior: Floats
    """Logarithm of the prior probability of each group, followed by that of no culprit."""
    noises: Floats
    log_noise_prior: Floats
    """Possible standard deviations of a run, and the logarithms of their prior probabilities."""
    smallest: float
    largest: float
    """Limits of the effect, as log-ratios."""


def plausible_sets(table: RunTable, model: EvidenceModel) -> Bools:
    """Return the sets of outliers with a share of the evidence of at least ``MIN_SET_SHARE``, and the empty set, as an
    array of shape (sets, runs). Each step of the search extends the best sets of the step before by one more outlier.
    """
    tried_sets = np.zeros((1, len(table.values)), dtype=bool)  # the empty set
    evidence = approximate_evidence(table, model, tried_sets)
    sets_to_extend = tried_sets
    for _ in range(MOST_OUTLIERS):
        larger_sets = _add_one_outlier(sets_to_extend, table.can_be_outlier)
        if not len(larger_sets):
            break
        larger_evidence = approximate_evidence(table, model, larger_sets)
        tried_sets, evidence = np.concatenate([tried_sets, larger_sets]), np.concatenate([evidence, larger_evidence])
        min_evidence = _log_sum(evidence) + math.log(MIN_SET_SHARE)
        best_first = np.argsort(-larger_evidence, kind="stable")
        plausible_count = int((larger_evidence >= min_evidence).sum())
        sets_to_extend = larger_sets[best_first[: min(MOST_SETS, plausible_count)]]
    # Keep the empty set, which is row 0, and the best of the others.
    best_others = np.argsort(-evidence[1:], kind="stable")[: MOST_SETS - 1] + 1
    kept_rows = best_others[evidence[best_others] >= _log_sum(evidence) + math.log(MIN_SET_SHARE)]
    return tried_sets[[0, *kept_rows]]


def _add_one_outlier(sets: Bools, can_be_outlier: Bools) -> Bools:
    rows, runs = np.nonzero(~sets & can_be_outlier)  # every set, with every run that can be added to it
    larger_sets = sets[rows]
    larger_sets[np.arange(len(rows)), runs] = True
    unique_sets: Bools = np.unique(larger_sets, axis=0) if len(sets) > 1 else larger_sets
    return unique_sets


def approximate_evidence(table: RunTable, model: EvidenceModel, outliers: Bools) -> Floats:
    """Return the logarithm of the approximate evidence of each set, up to a constant. The effect is integrated by
    Laplace's method, under a prior that is flat on the log scale."""
    # With the indicator of affected runs: ``affected`` is its product with itself, ``slope`` its product with the
    # values. Their ratio is the effect that fits best.
    fit = inner_products(table, model.hits, outliers)
    variances = model.noises**2
    log_unaffected = (
        model.log_noise_prior
        - table.freedom * np.log(model.noises)
        - fit.residual[:, None] / (2 * variances)
        + fit.log_prior[:, None]
    )  # shape (sets, noises)
    affected, slope = fit.affected[:, :, None], fit.slope[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        unclipped_effect = np.where(affected > 0, slope / affected, model.smallest)
        best_effect = np.clip(unclipped_effect, model.smallest, model.largest)
        log_peak_width = np.log(2 * math.pi * variances / affected) / 2
        log_width_share = log_peak_width - np.log(best_effect * math.log(model.largest / model.smallest))
    log_likelihood_ratio = (slope * best_effect - affected * best_effect**2 / 2) / variances
    gain = log_likelihood_ratio + np.minimum(log_width_share, 0.0)  # shape (sets, groups, noises)
    by_group = log_unaffected[:, None, :] + model.log_group_prior[:-1, None] + gain
    no_culprit = log_unaffected + model.log_group_prior[-1]
    with_no_culprit = np.concatenate([by_group, no_culprit[:, None, :]], axis=1)
    return _log_sum_rows(with_no_culprit.reshape(len(outliers), -1))


def _log_sum_rows(logs: Floats) -> Floats:
    top = logs.max(axis=1, keepdims=True)
    result: Floats = top[:, 0] + np.log(np.exp(logs - top).sum(axis=1))
    return result


def _log_sum(logs: Floats) -> float:
    return float(_log_sum_rows(logs[None, :])[0])
