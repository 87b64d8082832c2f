"""Posterior over the commits of a range: which of them is the culprit of a slowdown?

The points of a range are the commits along first parents, from good (point 0) to bad. Under hypothesis k, point k + 1
is the culprit: it and all later points are slower by one unknown effect. Under "none" all points are equally fast. The
logarithm of a run's step time is the sum of a level, the effect if the point is affected, and noise: a contaminated
Gaussian, whose outliers ``outlier_runs`` finds. Level, effect and noise are integrated out. Their priors:

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
from scipy.special import log_ndtr

from regbot.stats.outlier_runs import EvidenceModel, RunTable, inner_products, outlier_weights, plausible_sets

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
        return mass_before(self.prior)


@dataclass(frozen=True)
class Posterior:
    """Posterior of the culprit, the noise and the effect."""

    culprit: Floats
    """Probability of each hypothesis. Their sum is 1 minus ``no_culprit``."""
    no_culprit: float
    noise: float
    """Standard deviation of a run's log time: root mean square over the posterior."""
    effect: float
    effect_sd: float
    """Mean and standard deviation of the effect as a log-ratio, given that there is a culprit."""


def mass_before(mass: Floats) -> Floats:
    """Return, for each point, the sum of ``mass`` over the hypotheses that affect the point."""
    return np.concatenate([[0.0], np.cumsum(mass)])


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
    pairs that it was estimated from; 0 if the user stated it. Raises ValueError if ``smallest`` or ``noise`` is not
    positive."""
    if not 0 < smallest < math.inf:
        raise ValueError(f"the smallest effect is {smallest}; it must be positive")
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


def posterior(model: CulpritModel, samples: Sequence[Sample]) -> Posterior:
    """Return the posterior after ``samples``. If the probability that there is a culprit is 0, the effect is that of
    the prior."""
    beliefs = group_posterior(model, samples)
    group_mass = beliefs.posterior.sum(axis=(1, 2))
    if (culprit_mass := float(group_mass.sum())) > 0:
        component_weights = beliefs.posterior.sum(axis=2) / culprit_mass  # shape (groups, effects), sum 1
        effect = float((component_weights * beliefs.effect_mean).sum())
        mean_square = float((component_weights * (beliefs.effect_mean**2 + beliefs.effect_var)).sum())
    else:
        effect, mean_square = float(model.effects.mean()), float((model.effects**2).mean())
    return Posterior(
        culprit=split_groups(model, beliefs.labels, group_mass, beliefs.prior),
        no_culprit=beliefs.no_culprit,
        noise=beliefs.noise,
        effect=effect,
        effect_sd=math.sqrt(max(0.0, mean_square - effect**2)),
    )


def is_noise_known(model: CulpritModel, samples: Sequence[Sample]) -> bool:
    """Return whether the noise is known well enough to trust the posterior: it is on record, or at least
    ``MIN_REPEATS`` runs repeat a point in the same stratum."""
    if model.noise_on_record:
        return True
    distinct_runs = {(sample.stratum, sample.point) for sample in samples}
    return len(samples) - len(distinct_runs) >= MIN_REPEATS


class GroupPosterior(NamedTuple):
    """Posterior over groups of hypotheses. A group is a set of hypotheses that the runs do not distinguish."""

    labels: NDArray[np.intp]
    """Number of the group of each hypothesis. The hypotheses of a group are neighbours."""
    hits: Floats
    """Array of shape (groups, measured points): 1 if the hypotheses of the group affect the point, else 0."""
    prior: Floats
    """Prior probability of each group."""
    posterior: Floats
    """Array of shape (groups, effects, noises): joint posterior probabilities. Their sum is 1 minus ``no_culprit``."""
    no_culprit: float
    """Posterior probability that no commit is the culprit."""
    noise: float
    """Standard deviation of a run's log time: root mean square over the posterior."""
    effect_mean: Floats
    effect_var: Floats
    """Arrays of shape (groups, effects): posterior mean and variance of each Gaussian of the effect, at the noise
    ``noise``."""
    strata: "Strata"
    """Sums over the runs of each stratum and point."""


class Strata(NamedTuple):
    """Sums over the runs of each stratum and point. The weight of a run is near 1, and smaller the more probably the
    run is an outlier."""

    names: list[str]
    """Names of the strata."""
    points: NDArray[np.intp]
    """Numbers of the measured points."""
    counts: Floats
    """Array of shape (strata, measured points): sums of weights."""
    sums: Floats
    """Array of the same shape: sums of weighted values. The mean of all runs is subtracted from each value first."""


def group_posterior(model: CulpritModel, samples: Sequence[Sample]) -> GroupPosterior:
    """Return the posterior after ``samples``, as a sum over the plausible sets of outliers."""
    table = _tabulate_runs(samples)
    # Hypotheses between two neighbouring measured points form a group.
    measured_before = np.searchsorted(table.points, np.arange(len(model.prior)), side="right")
    labels = measured_before - measured_before[0]
    hits = (np.arange(len(table.points)) >= np.unique(measured_before)[:, None]).astype(float)
    prior = np.bincount(labels, weights=model.prior).astype(float)
    with np.errstate(divide="ignore"):
        log_group_prior = np.log(np.append(prior, model.no_culprit))  # the last value is for no culprit
        log_noise_prior = np.log(model.noise_prior)
    smallest, largest = float(model.effects[0]), float(model.effects[-1])
    evidence_model = EvidenceModel(hits, log_group_prior, model.noises, log_noise_prior, smallest, largest)
    outliers = plausible_sets(table, evidence_model)
    # For each set of outliers: ``affected`` is A, the inner product of the indicator of affected runs with itself,
    # ``slope`` is B, its product with the values, and ``residual`` is the product of the values with themselves.
    # ``log_prior`` is the log prior probability of the set, with factors of its likelihood.
    fit = inner_products(table, hits, outliers)
    variances = model.noises**2
    # Shape (sets, noises): logarithm of prior times likelihood if no run is affected, up to a constant.
    # ``table.freedom`` has the degrees of freedom of the values.
    log_unaffected = log_noise_prior - table.freedom * np.log(model.noises) - fit.residual[:, None] / (2 * variances)
    log_unaffected += fit.log_prior[:, None]
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
    # From logarithms to probabilities. Subtract the largest logarithm first, so that exp does not overflow.
    top = max(float(joint.max(initial=-math.inf)), float(no_culprit.max()))
    joint, no_culprit = np.exp(joint - top), np.exp(no_culprit - top)
    total = float(joint.sum() + no_culprit.sum())
    joint, no_culprit = joint / total, no_culprit / total
    noise = math.sqrt(float((joint.sum(axis=(0, 1, 2)) + no_culprit.sum(axis=0)) @ variances))
    # Moments of the effect at this noise, for each set; then the mean over the sets by their posterior shares.
    variance_ratio = 1 + fit.affected[:, :, None] / noise**2 * model.widths**2
    mean = (model.effects + model.widths**2 * fit.slope[:, :, None] / noise**2) / variance_ratio
    var = model.widths**2 / variance_ratio  # shape (sets, groups, effects)
    by_set = joint.sum(axis=3)  # shape (sets, groups, effects)
    with np.errstate(invalid="ignore", divide="ignore"):
        set_shares = by_set / by_set.sum(axis=0)
    set_shares[:, by_set.sum(axis=0) == 0] = 1 / len(outliers)
    effect_mean = (set_shares * mean).sum(axis=0)
    effect_var = (set_shares * (var + mean**2)).sum(axis=0) - effect_mean**2
    set_posterior = joint.sum(axis=(1, 2, 3)) + no_culprit.sum(axis=1)
    run_weights = set_posterior @ outlier_weights(outliers)
    sums = table.sum_strata(run_weights[None, :])
    return GroupPosterior(
        labels=labels,
        hits=hits,
        prior=prior,
        posterior=joint.sum(axis=0),
        no_culprit=float(no_culprit.sum()),
        noise=noise,
        effect_mean=effect_mean,
        effect_var=np.maximum(effect_var, 0.0),
        strata=Strata(table.strata, table.points, sums.counts[0], sums.sums[0]),
    )


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


def split_groups(model: CulpritModel, labels: NDArray[np.intp], group_mass: Floats, prior_mass: Floats) -> Floats:
    """Return the probability of each hypothesis: that of its group, divided in proportion to the prior."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(prior_mass > 0, group_mass / prior_mass, 0.0)
    return model.prior * ratio[labels]
