"""Posterior over the commits of a range: which of them is the culprit of a slowdown?

The points of a range are the commits along first parents, from good (point 0) to bad. Under hypothesis k, point k + 1
is the culprit: it and all later points are slower by one unknown effect. Under "none" all points are equally fast. The
logarithm of a run's step time is the sum of a level, the effect if the point is affected, and noise: a contaminated
Gaussian, in which a
run is an outlier with the probability ``OUTLIER_SHARE``. Given the set of outliers the model is Gaussian, and the
posterior is a sum over the few sets that explain the runs best. Level, effect and noise are integrated out. Priors:

    level    flat, one for each stratum (the runs of one node and session), so that nodes are never compared with
             each other
    effect   positive: a mixture of Gaussians, evenly spaced on the log scale, between the smallest slowdown worth
             finding and the largest
    noise    a grid of standard deviations around the recorded one; a wide grid if there is no record

``benchmarks/bisect.py`` measures how often the answer is right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_EFFECT = math.log(16)
"""Largest effect of the prior, as a log-ratio. A culprit with a larger effect is still detected."""

EFFECT_SPACING = 1.25
"""Ratio of neighbouring effects of the mixture. Each Gaussian's sd is half the distance to the next effect."""

NOISE_RANGE = (0.001, 0.5)
"""Range of a run's standard deviation if no noise is on record: 0.1% to 50%."""

STATED_NOISE_PAIRS = 8
"""A noise that the user states counts as an estimate from this many pairs. If it were taken as exact, a search whose
true noise is 1.5 times as large would name a wrong commit in nearly half of the cases."""

NOISE_DEVIATIONS = np.linspace(-2.5, 4.0, 14)
"""Grid of a recorded noise, in standard errors of its logarithm."""

MIN_REPEATS = 2
"""Minimum number of runs that repeat a point in the same stratum, if no noise is on record. Without repeats, the
smallest noise of the grid fits best, and then any commit can look like the culprit."""


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


class Sample(NamedTuple):
    """One run: its point, the natural logarithm of its step time, and its stratum."""

    point: int
    value: float
    stratum: str


@dataclass(frozen=True)
class CulpritModel:
    """Hypotheses, points and priors of a search, before any run."""

    prior: Floats
    """Prior probability of each hypothesis; their sum is 1 minus ``no_culprit``."""
    effects: Floats
    widths: Floats
    """Mean and standard deviation of each Gaussian of the effect's prior. All Gaussians have the same weight."""
    noises: Floats
    noise_prior: Floats
    """Possible standard deviations of a run, and the prior probability of each."""
    noise_on_record: bool = True
    """Whether the noise of a run is known from earlier pairs or from the user."""

    @property
    def no_culprit(self) -> float:
        """Prior probability that no commit is the culprit."""
        return max(0.0, 1.0 - float(self.prior.sum()))

    @property
    def prior_before(self) -> Floats:
        """For each point, the prior probability of the hypotheses that affect it."""
        return np.concatenate([[0.0], np.cumsum(self.prior)])


def culprit_model(
    weights: Sequence[float] | Floats,
    no_culprit: float,
    smallest: float,
    noise: float | None,
    pairs: int = 0,
    *,
    largest: float = MAX_EFFECT,
) -> CulpritModel:
    """Return the model. ``weights`` are relative priors of the hypotheses. ``smallest`` and ``largest`` limit the
    effect, as log-ratios. ``noise`` is the standard deviation of one run, None if unknown, and ``pairs`` the number of
    pairs that it was estimated from; 0 if the user stated it. Raises ValueError if ``noise`` is not positive."""
    if noise is not None and not 0 < noise < math.inf:
        raise ValueError(f"the noise is {noise}; it must be positive")
    largest = max(largest, 2 * smallest)
    effect_count = 1 + math.ceil(math.log(largest / smallest) / math.log(EFFECT_SPACING))
    effects = np.geomspace(smallest, largest, effect_count)
    spacing = effects[1] / effects[0]
    widths = effects * (spacing - 1) / 2
    if noise is None:
        grid_size = 25
        noises = np.geomspace(*NOISE_RANGE, grid_size)
        noise_prior = np.ones(grid_size)
    else:
        pairs = pairs or STATED_NOISE_PAIRS
        # log(true sd / estimated sd). The logarithm of an estimated sd has the standard error 1 / sqrt(2 pairs).
        log_ratios = NOISE_DEVIATIONS / math.sqrt(2 * pairs)
        noises = noise * np.exp(log_ratios)
        # The likelihood of the estimate, which is chi-square distributed around the true variance.
        noise_prior = np.exp(-pairs * (log_ratios + np.expm1(-2 * log_ratios) / 2))
    hypothesis_weights = np.asarray(weights, dtype=float)
    return CulpritModel(
        prior=hypothesis_weights / hypothesis_weights.sum() * (1 - no_culprit),
        effects=effects,
        widths=widths,
        noises=noises,
        noise_prior=noise_prior / noise_prior.sum(),
        noise_on_record=noise is not None,
    )


def is_noise_known(model: CulpritModel, samples: Sequence[Sample]) -> bool:
    """Return whether the noise is known well enough to trust the posterior: it is on record, or at least
    ``MIN_REPEATS`` runs repeat a point in the same stratum."""
    if model.noise_on_record:
        return True
    distinct_runs = {(sample.stratum, sample.point) for sample in samples}
    return len(samples) - len(distinct_runs) >= MIN_REPEATS


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


def _outlier_weights(outliers: Bools) -> Floats:
    """Return the weight of each run in each set, as an array of shape (sets, runs): 1, or 1 / ``OUTLIER_SCALE``^2 for
    an outlier."""
    return np.where(outliers, OUTLIER_SCALE**-2, 1.0)


def _inner_products(table: RunTable, hits: Floats, outliers: Bools) -> InnerProducts:
    """``hits``: array of shape (groups, measured points) with 1 where the group affects the point, else 0.
    ``outliers``: bool array of shape (sets, runs)."""
    stratum_sums = table.sum_strata(_outlier_weights(outliers))
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


@dataclass(frozen=True)
class Posterior:
    """Posterior of the culprit, the noise and the effect. A *group* is a set of neighbouring hypotheses that the runs
    do not distinguish."""

    culprit: Floats
    """Probability of each hypothesis. Their sum is 1 minus ``no_culprit``."""
    no_culprit: float
    noise: float
    """Standard deviation of a run's log time: root mean square over the posterior."""
    effect: float
    effect_sd: float
    """Mean and standard deviation of the effect as a log-ratio, given that there is a culprit. If the probability of a
    culprit is 0, they are those of the prior."""
    hits: Floats
    """Array of shape (groups, measured points): 1 if the hypotheses of the group affect the point, else 0."""
    group_prior: Floats
    group_mass: Floats
    """Prior and posterior probability of each group."""
    group_effect: Floats
    group_effect_var: Floats
    """Mean and variance of the effect, given that the culprit is in the group, at the noise ``noise``."""
    table: RunTable
    counts: Floats
    sums: Floats
    """Arrays of shape (strata, measured points): sums of weights, and of weighted values minus their common mean. The
    weight of a run is near 1, and smaller the more probably the run is an outlier."""


def posterior(model: CulpritModel, samples: Sequence[Sample]) -> Posterior:
    """Return the posterior after ``samples``, as a sum over the plausible sets of outliers."""
    table = _tabulate_runs(samples)
    # Hypotheses between two neighbouring measured points form a group.
    measured_before = np.searchsorted(table.points, np.arange(len(model.prior)), side="right")
    labels = measured_before - measured_before[0]
    hits = (np.arange(len(table.points)) >= np.unique(measured_before)[:, None]).astype(float)
    prior = np.bincount(labels, weights=model.prior).astype(float)
    with np.errstate(divide="ignore"):
        log_group_prior = np.log(np.append(prior, model.no_culprit))  # the last value is for no culprit
    outliers = _plausible_sets(table, model, hits, log_group_prior)
    fit = _inner_products(table, hits, outliers)
    variances = model.noises**2
    log_unaffected = _log_unaffected(table, model, fit)
    # Axes: sets of outliers, groups, effects, noises. With A and B divided by the variance of a run, a Gaussian of the
    # effect's prior (mean m, sd w) has the likelihood
    # exp((B m + B^2 w^2 / 2 - A m^2 / 2) / (1 + A w^2)) / sqrt(1 + A w^2).
    effects, widths = model.effects[:, None], model.widths[:, None]
    a = fit.affected[:, :, None, None] / variances
    b = fit.slope[:, :, None, None] / variances
    variance_ratio = 1 + a * widths**2  # variance of the effect: prior / posterior
    exponent = b * effects + b**2 * widths**2 / 2 - a * effects**2 / 2
    joint = (
        log_unaffected[:, None, None, :]
        + log_group_prior[:-1, None, None]
        + exponent / variance_ratio
        - np.log(variance_ratio) / 2
    )
    # The effect must be positive, and all Gaussians of its prior have the same weight.
    joint += _log_positive((effects + widths**2 * b) / (widths * np.sqrt(variance_ratio)))
    joint -= math.log(len(model.effects))
    no_culprit = log_unaffected + log_group_prior[-1]  # shape (sets, noises)
    log_total = float(np.logaddexp(logsumexp(joint), logsumexp(no_culprit)))
    joint, no_culprit = np.exp(joint - log_total), np.exp(no_culprit - log_total)
    noise = math.sqrt(float((joint.sum(axis=(0, 1, 2)) + no_culprit.sum(axis=0)) @ variances))
    # Moments of each Gaussian of the effect at this noise; then those of its mixture in each group.
    variance_ratio = 1 + fit.affected[:, :, None] / noise**2 * model.widths**2
    mean = (model.effects + model.widths**2 * fit.slope[:, :, None] / noise**2) / variance_ratio
    var = model.widths**2 / variance_ratio  # shape (sets, groups, effects)
    by_set = joint.sum(axis=3)  # shape (sets, groups, effects)
    group_mass = by_set.sum(axis=(0, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(group_mass[:, None] > 0, by_set / group_mass[:, None], 1 / by_set[:, 0].size)
        culprit = model.prior * np.where(prior > 0, group_mass / prior, 0.0)[labels]
    group_effect = (shares * mean).sum(axis=(0, 2))
    mean_squares = (shares * (var + mean**2)).sum(axis=(0, 2))
    effect, mean_square = float(model.effects.mean()), float((model.effects**2).mean())
    if (culprit_mass := float(group_mass.sum())) > 0:
        effect, mean_square = (float(moments @ group_mass) / culprit_mass for moments in (group_effect, mean_squares))
    set_posterior = joint.sum(axis=(1, 2, 3)) + no_culprit.sum(axis=1)
    run_weights = set_posterior @ _outlier_weights(outliers)
    sums = table.sum_strata(run_weights[None, :])
    return Posterior(
        culprit=culprit,
        no_culprit=float(no_culprit.sum()),
        noise=noise,
        effect=effect,
        effect_sd=math.sqrt(max(0.0, mean_square - effect**2)),
        hits=hits,
        group_prior=prior,
        group_mass=group_mass,
        group_effect=group_effect,
        group_effect_var=np.maximum(mean_squares - group_effect**2, 0.0),
        table=table,
        counts=sums.counts[0],
        sums=sums.sums[0],
    )


def _plausible_sets(table: RunTable, model: CulpritModel, hits: Floats, log_group_prior: Floats) -> Bools:
    """Return the sets of outliers with a share of the evidence of at least ``MIN_SET_SHARE``, and the empty set, as an
    array of shape (sets, runs). Each step of the search extends the best sets of the step before by one more outlier.
    """
    tried_sets = np.zeros((1, len(table.values)), dtype=bool)  # the empty set
    evidence = _approximate_evidence(table, model, hits, log_group_prior, tried_sets)
    sets_to_extend = tried_sets
    # The only run of a stratum is compared with no other run, so it is no outlier.
    can_be_outlier = np.bincount(table.stratum_rows, minlength=len(table.strata))[table.stratum_rows] > 1
    for _ in range(MOST_OUTLIERS):
        larger_sets = _add_one_outlier(sets_to_extend, can_be_outlier)
        if not len(larger_sets):
            break
        larger_evidence = _approximate_evidence(table, model, hits, log_group_prior, larger_sets)
        tried_sets, evidence = np.concatenate([tried_sets, larger_sets]), np.concatenate([evidence, larger_evidence])
        min_evidence = float(logsumexp(evidence)) + math.log(MIN_SET_SHARE)
        best_first = np.argsort(-larger_evidence, kind="stable")
        plausible_count = int((larger_evidence >= min_evidence).sum())
        sets_to_extend = larger_sets[best_first[: min(MOST_SETS, plausible_count)]]
    # Keep the empty set, which is row 0, and the best of the others.
    best_others = np.argsort(-evidence[1:], kind="stable")[: MOST_SETS - 1] + 1
    kept_rows = best_others[evidence[best_others] >= float(logsumexp(evidence)) + math.log(MIN_SET_SHARE)]
    return tried_sets[[0, *kept_rows]]


def _add_one_outlier(sets: Bools, can_be_outlier: Bools) -> Bools:
    rows, runs = np.nonzero(~sets & can_be_outlier)  # every set, with every run that can be added to it
    larger_sets = sets[rows]
    larger_sets[np.arange(len(rows)), runs] = True
    unique_sets: Bools = np.unique(larger_sets, axis=0) if len(sets) > 1 else larger_sets
    return unique_sets


def _approximate_evidence(
    table: RunTable, model: CulpritModel, hits: Floats, log_group_prior: Floats, outliers: Bools
) -> Floats:
    """Return the logarithm of the approximate evidence of each set, up to a constant. The effect is integrated by
    Laplace's method, under a prior that is flat on the log scale."""
    fit = _inner_products(table, hits, outliers)
    variances, smallest, largest = model.noises**2, float(model.effects[0]), float(model.effects[-1])
    log_unaffected = _log_unaffected(table, model, fit)
    affected, slope = fit.affected[:, :, None], fit.slope[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        best_effect = np.clip(np.where(affected > 0, slope / affected, smallest), smallest, largest)
        log_peak_width = np.log(2 * math.pi * variances / affected) / 2
        log_width_share = log_peak_width - np.log(best_effect * math.log(largest / smallest))
    log_likelihood_ratio = (slope * best_effect - affected * best_effect**2 / 2) / variances
    gain = log_likelihood_ratio + np.minimum(log_width_share, 0.0)  # shape (sets, groups, noises)
    by_group = log_unaffected[:, None, :] + log_group_prior[:-1, None] + gain
    no_culprit = log_unaffected + log_group_prior[-1]
    evidence: Floats = logsumexp(np.concatenate([by_group, no_culprit[:, None, :]], axis=1), axis=(1, 2))
    return evidence


def _log_unaffected(table: RunTable, model: CulpritModel, fit: InnerProducts) -> Floats:
    """Logarithm of prior times likelihood if no run is affected, up to a constant, of shape (sets, noises)."""
    freedom = len(table.values) - len(table.strata)  # each stratum has a level of its own
    with np.errstate(divide="ignore"):
        log_noise = np.log(model.noise_prior) - freedom * np.log(model.noises)
    unaffected: Floats = log_noise - fit.residual[:, None] / (2 * model.noises**2) + fit.log_prior[:, None]
    return unaffected


def _log_positive(mean: Floats) -> Floats:
    """Return the log probability that a Gaussian with this mean and sd 1 is positive. Without this factor, a commit
    that made training faster could be named."""
    log_probability = np.zeros(mean.shape)
    is_below_zero_possible = mean < 6  # for a larger mean, the log probability is 0 within 1e-9
    log_probability[is_below_zero_possible] = log_ndtr(mean[is_below_zero_possible])
    return log_probability


def _tabulate_runs(samples: Sequence[Sample]) -> RunTable:
    strata = sorted({sample.stratum for sample in samples})
    rows = {name: row for row, name in enumerate(strata)}
    run_points = np.array([sample.point for sample in samples], dtype=np.intp)
    points, columns = np.unique(run_points, return_inverse=True)
    mean = math.fsum(sample.value for sample in samples) / len(samples) if samples else 0.0
    values = np.array([sample.value - mean for sample in samples], dtype=float)
    stratum_rows = np.array([rows[sample.stratum] for sample in samples], dtype=np.intp)
    return RunTable(strata, points, values, stratum_rows, columns)
