"""Choice of the next run of a bisection: the run with the most expected information about the culprit per second.

The next run may repeat the good or the bad end. A search that always runs the commit in the middle of the posterior
makes no progress, because it never learns the levels of the two ends.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from regbot.stats.culprit import (
    Bools,
    CulpritModel,
    Floats,
    GroupPosterior,
    Sample,
    group_posterior,
    is_noise_known,
    posterior,
    split_groups,
)

NEGLIGIBLE = 1e-5
"""Groups of hypotheses with a smaller probability are ignored in the choice of the next run."""

SPLIT_QUANTILES = (0.1, 0.25, 0.4, 0.6, 0.75, 0.9)
"""Candidate points split the posterior of all hypotheses in half or at these quantiles."""
SPLIT_GROUPS = 5
"""Candidate points also split each of this many likeliest groups of hypotheses in half."""

BETWEEN_SHARES = (0.5, 0.25, 0.75)
"""Shares of the prior probability at which points between the ends are run, most important first."""

NEAR_SHARE = 1 / 8
"""A point is near one of ``BETWEEN_SHARES`` if the prior probability that it is affected differs from the share by at
most this value, half of the distance between two shares. In a range with few points, the nearest point between the ends
counts as near even if it is farther away.
"""
LOWEST_CHANCE = 0.15
"""A point may be run for one of ``BETWEEN_SHARES`` only if its chance to give a value is at least this. After three
failures around a point, its chance is an eighth.
"""

IMAGINED_OUTCOMES = 6
"""Number of outcomes drawn for the pending runs, so that the next run adds information to what the pending runs will
show.
"""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
"""Nodes and weights of Gauss-Hermite quadrature, for means over a standard normal distribution."""


def choose_next_run(
    model: CulpritModel,
    samples: Sequence[Sample],
    stratum: str,
    chances: Floats | Bools,
    pending: Sequence[Sample] = (),
    costs: Floats | None = None,
    *,
    seed: int = 0,
) -> int:
    """Return the point to run next in ``stratum``: the one with the most expected information per unit of ``costs``.

    The first two runs of a stratum are the two ends. If the noise is not known, the ends are repeated until it is.

    ``chances``: for each point, the chance that a run of it gives a value; 0 if the point cannot be measured.
    ``pending``: runs that have not ended; their values are ignored. ``costs``: for each point, what a run of it takes,
    such as its seconds (``run_costs``); None if all runs take the same. Raises ValueError if no point can be measured.
    """
    points = np.flatnonzero(chances)
    if not points.size:
        raise ValueError("no point can be measured")
    begun_points = [sample.point for sample in (*samples, *pending) if sample.stratum == stratum]
    ended_runs = sum(sample.stratum == stratum for sample in samples)
    if opening := _opening_points(model, chances, begun_points, ended_runs):
        return opening[0]
    if not is_noise_known(model, [*samples, *pending]):  # pending runs count as repeats already
        good_end, bad_end = int(points[0]), int(points[-1])
        return min((bad_end, good_end), key=begun_points.count)  # the end with fewer runs
    beliefs = group_posterior(model, samples)
    candidates = _candidate_points(model, beliefs, chances)
    summed_gains = np.zeros(len(candidates))
    for outcome in imagine_outcomes(model, samples, pending, seed):
        later_beliefs = group_posterior(model, [*samples, *outcome]) if outcome else beliefs
        summed_gains += _information_gain(model, later_beliefs, stratum, candidates)
    worth = summed_gains * chances[candidates]
    if costs is not None:
        worth = worth / costs[candidates]
    return int(candidates[int(np.argmax(worth))])


def _opening_points(
    model: CulpritModel, chances: Floats | Bools, begun_points: Sequence[int], ended_runs: int
) -> list[int]:
    """Return points for the first runs of a stratum, best first: the good end, the bad end, then points in between.

    ``begun_points`` has the point of every run of the stratum that has begun; these points are left out. If nothing is
    left, the result is the end with fewer runs. Returns [] if two or more runs of the stratum have ended.
    """
    if ended_runs >= 2:
        return []
    points = np.flatnonzero(chances)
    ends = [int(points[0]), int(points[-1])]
    order = [*dict.fromkeys((*ends, *_points_between(model, chances).values()))]
    new_points = [point for point in order if point not in begun_points]
    return new_points or [min(ends, key=begun_points.count)]


def runs_before_none(
    model: CulpritModel,
    samples: Sequence[Sample],
    stratum: str,
    chances: Floats | Bools,
    pending: Sequence[Sample] = (),
) -> list[int]:
    """Return the points to run in ``stratum`` before a search may answer "none", that is, no culprit.

    A slowdown that a later commit removed does not show at the ends. So points between the ends must be run, at a
    quarter, a half and three quarters of the prior probability. A run says something about its point only if its
    stratum also has a run of the good end, because each stratum has its own level. ``chances``: as in
    ``choose_next_run``. ``pending``: runs that have not ended; their points are not returned.
    """
    points = np.flatnonzero(chances)
    if not points.size:
        return []
    good_end = int(points[0])
    strata_with_good_end = {sample.stratum for sample in samples if sample.point == good_end}
    measured = {sample.point for sample in samples if sample.stratum in strata_with_good_end}
    measured_or_pending = measured | {sample.point for sample in pending}
    points_between = dict.fromkeys(_points_between(model, chances).values())
    missing = [point for point in points_between if point not in measured_or_pending]
    has_good_end = any(sample.stratum == stratum and sample.point == good_end for sample in (*samples, *pending))
    if missing and not has_good_end:
        return [good_end, *missing]
    return missing


def unmeasured_shares(model: CulpritModel, chances: Floats | Bools) -> list[float]:
    """Return those of ``BETWEEN_SHARES`` near which no point can be measured.

    Returns [] if there is no point between the ends. ``chances``: as in ``choose_next_run``.
    """
    if len(chances) < 3:
        return []
    points = _points_between(model, chances)
    return [share for share in sorted(BETWEEN_SHARES) if share not in points]


def _points_between(model: CulpritModel, chances: Floats | Bools) -> dict[float, int]:
    """Return, for each of ``BETWEEN_SHARES``, a point between the ends near this share of the prior probability.

    For example, the point for the share 0.5 contains the culprit with a prior probability of about one half. A share is
    left out if no point near it can be measured. A point with a small chance is replaced by another near point with a
    larger chance.
    """
    inner_chances = np.asarray(chances[1:-1], dtype=float)  # without the two ends
    # For each inner point, the prior probability that it contains the culprit, given that there is one.
    affected_share = (model.prior.astype(np.float32) @ model.contains)[1:-1]
    if not affected_share.size:
        return {}
    affected_share = affected_share / model.prior.sum()
    points = {}
    for share in BETWEEN_SHARES:
        distance = np.abs(affected_share - share)
        is_near = distance <= max(NEAR_SHARE, distance.min()) + 1e-6  # with a tolerance for rounding errors
        is_usable = is_near & (inner_chances >= LOWEST_CHANCE)
        if is_usable.any():
            best_inner = int(np.argmax(is_usable * inner_chances * (1 - distance)))
            points[share] = 1 + best_inner  # the inner points begin at point 1
    return points


def split_worth(part: Floats, total: float) -> Floats:
    """Return how much a split of the probability ``total`` into ``part`` and the rest is worth. A split into halves is
    worth most.

    The worth is proportional to the probability that two commits, chosen independently from this distribution, are on
    different sides of the split.
    """
    rest = total - part
    worth: Floats = part * rest
    return worth


def _candidate_points(model: CulpritModel, beliefs: GroupPosterior, chances: Floats | Bools) -> NDArray[np.intp]:
    """Return points that may be informative: the ends, measured points, and points that split the hypotheses.

    The posterior of all hypotheses is split in half and at ``SPLIT_QUANTILES``. Each of the likeliest groups is split
    in half.
    """
    available_points = np.flatnonzero(chances)
    available_chances = chances[available_points]
    group_mass = beliefs.posterior.sum(axis=(1, 2))
    all_hypotheses = split_groups(model, beliefs.labels, group_mass, beliefs.prior)
    likeliest_groups = [int(group) for group in np.argsort(-group_mass)[:SPLIT_GROUPS]]
    group_distributions = [np.where(beliefs.labels == group, model.prior, 0.0) for group in likeliest_groups]
    distributions = [all_hypotheses, *group_distributions]  # probabilities of the hypotheses, not normalised
    # Shape (distributions, points): probability of the hypotheses that affect the point.
    affected_mass = (np.array(distributions, dtype=np.float32) @ model.contains)[:, available_points]
    positions = {0, len(available_points) - 1}  # the two ends, as indices of ``available_points``
    for distribution, mass in zip(distributions, affected_mass, strict=True):
        worth = available_chances * split_worth(mass, float(distribution.sum()))
        positions.add(int(np.argmax(worth)))
    total = float(all_hypotheses.sum())
    for quantile in SPLIT_QUANTILES:
        positions.add(int(np.argmin(np.abs(affected_mass[0] - quantile * total))))
    measured_points = np.intersect1d(beliefs.strata.points, available_points).tolist()
    chosen = {*measured_points, *(int(available_points[position]) for position in positions)}
    return np.array(sorted(chosen), dtype=np.intp)


def _information_gain(model: CulpritModel, beliefs: GroupPosterior, stratum: str, points: NDArray[np.intp]) -> Floats:
    """Return, for each of ``points``, the mutual information in nats between the hypothesis and the value of a run at
    this point.

    The value of a run is a mixture of Gaussians. Each group of hypotheses has two: one for the case that the point is
    not affected, one for the case that it is. "No culprit" has one. Groups of negligible probability are left out.
    """
    group_mass = beliefs.posterior.sum(axis=(1, 2))
    group_ids = np.flatnonzero(group_mass > NEGLIGIBLE)
    if not group_ids.size:
        return np.zeros(len(points))
    # Mean and variance of the effect in each group, over the Gaussians of the effect's posterior.
    component_weights = beliefs.posterior[group_ids].sum(axis=2) / group_mass[group_ids, None]
    mean, var = beliefs.effect_mean[group_ids], beliefs.effect_var[group_ids]
    group_effect = (component_weights * mean).sum(axis=1)
    mean_square = (component_weights * (mean**2 + var)).sum(axis=1)
    group_effect_var = np.maximum(mean_square - group_effect**2, 0.0)
    # The mixture: first all groups with the point not affected, then all groups with it affected, then no culprit.
    # Shape (groups, measured points): 1 if the group affects the point, by one hypothesis that represents the group.
    hits = model.contains[beliefs.first[group_ids]][:, beliefs.strata.points].astype(float)
    level, share, level_var = _stratum_level(beliefs, hits, stratum)
    run_var = beliefs.noise**2 + level_var  # without the uncertainty of the effect
    # The level already includes the part ``share`` of the effect, because some runs in the level are affected. A run
    # therefore differs from the level by this multiple of the effect:
    if_unaffected, if_affected = -share, 1 - share
    means = np.concatenate([level + if_unaffected * group_effect, level + if_affected * group_effect, [level]])
    variances = np.concatenate(
        [run_var + if_unaffected**2 * group_effect_var, run_var + if_affected**2 * group_effect_var, [run_var]]
    )
    affected_shares = np.array([_affected_share(model, beliefs, int(point), group_ids) for point in points])
    weights = np.concatenate(
        [
            group_mass[group_ids] * (1 - affected_shares),
            group_mass[group_ids] * affected_shares,
            np.full((len(points), 1), beliefs.no_culprit),
        ],
        axis=1,
    )  # shape (points, Gaussians)
    # Mutual information: the mean, over the Gaussians, of log(density of the Gaussian / density of the mixture).
    values = (means[:, None] + np.sqrt(variances)[:, None] * _NODES).reshape(-1)
    log_density = -((values - means[:, None]) ** 2) / (2 * variances[:, None]) - np.log(variances)[:, None] / 2
    # Mean log density of each Gaussian under itself. It leaves out the same constant as ``log_density``.
    own_log_density = -np.log(variances) / 2 - 0.5
    mixture_density = np.maximum(weights @ np.exp(log_density), 1e-300)
    mixture_log_density = np.log(mixture_density).reshape(len(points), len(means), -1)
    expected_log_density = mixture_log_density @ (_NODE_WEIGHTS / _NODE_WEIGHTS.sum())
    gain: Floats = (weights * (own_log_density - expected_log_density)).sum(axis=1) / weights.sum(axis=1)
    return np.maximum(gain, 0.0)


def _stratum_level(beliefs: GroupPosterior, hits: Floats, stratum: str) -> tuple[float, Floats, float]:
    """Return the mean value of a stratum, the share of affected runs in that mean for each group, and the variance of
    the mean. Nothing is known about the level of a stratum without runs, so its variance is very large.

    ``hits``: array of shape (groups, measured points) with 1 where the group affects the point, else 0.
    """
    strata = beliefs.strata
    if stratum not in strata.names:
        return 0.0, np.zeros(len(hits)), 1e6 * beliefs.noise**2
    row = strata.names.index(stratum)
    run_weight = float(strata.counts[row].sum())
    level = float(strata.sums[row].sum()) / run_weight
    affected_share = hits @ strata.counts[row] / run_weight
    return level, affected_share, beliefs.noise**2 / run_weight


def _affected_share(model: CulpritModel, beliefs: GroupPosterior, point: int, group_ids: NDArray[np.intp]) -> Floats:
    """Return, for each group of ``group_ids``, the share of its prior probability that belongs to hypotheses which
    affect ``point``."""
    affected_mass = np.bincount(
        beliefs.labels, weights=model.prior * model.affected[:, point], minlength=len(beliefs.prior)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Floats = np.where(beliefs.prior > 0, affected_mass / beliefs.prior, 0.0)[group_ids]
    return np.clip(share, 0.0, 1.0)


def imagine_outcomes(
    model: CulpritModel, samples: Sequence[Sample], pending: Sequence[Sample], seed: int
) -> list[list[Sample]]:
    """Return ``IMAGINED_OUTCOMES`` outcomes of the pending runs, drawn from the posterior. An outcome has one sample
    for each pending run. Returns one empty outcome if no run is pending.

    For each outcome a hypothesis is drawn first, then the effect, then the values of the runs.
    """
    if not pending:
        return [[]]
    beliefs = group_posterior(model, samples)
    group_mass = beliefs.posterior.sum(axis=(1, 2))
    culprit_probabilities = split_groups(model, beliefs.labels, group_mass, beliefs.prior)
    probabilities = np.append(culprit_probabilities, beliefs.no_culprit)
    cumulative = np.cumsum(probabilities) / probabilities.sum()
    no_culprit = len(model.prior)  # index of "no culprit" in ``probabilities``, after all hypotheses
    # ``group_posterior`` subtracts the mean of all values.
    mean_value = math.fsum(sample.value for sample in samples) / len(samples) if samples else 0.0
    rng = np.random.default_rng([seed, len(samples), len(pending)])
    whole_posterior = posterior(model, samples)
    # Shape (hypotheses, measured points): 1 if the hypothesis affects the point.
    hits = model.contains[:, beliefs.strata.points].astype(float)
    outcomes = []
    # The quantiles of the posterior are evenly spaced, with one random offset.
    for quantile in (np.arange(IMAGINED_OUTCOMES) + rng.random()) / IMAGINED_OUTCOMES:
        hypothesis = min(int(np.searchsorted(cumulative, quantile)), no_culprit)
        effect = (
            max(0.0, rng.normal(whole_posterior.effect, whole_posterior.effect_sd)) if hypothesis != no_culprit else 0.0
        )
        outcome = []
        level_errors: dict[str, float] = {}  # error of each stratum's level, shared by all runs of the stratum
        for run in pending:
            has_effect = effect > 0
            # One row, because ``_stratum_level`` takes one row for each group.
            affected_points = hits[hypothesis : hypothesis + 1] if has_effect else np.zeros((1, hits.shape[1]))
            level, share, var = _stratum_level(beliefs, affected_points, run.stratum)
            slowdown = effect if has_effect and model.affected[hypothesis, run.point] else 0.0
            level_error = level_errors.setdefault(run.stratum, rng.normal(0, math.sqrt(var)))
            # The level already includes ``share`` of the effect, because some runs in the level are affected.
            value = level - effect * float(share[0]) + level_error + slowdown + rng.normal(0, beliefs.noise)
            outcome.append(Sample(run.point, mean_value + value, run.stratum))
        outcomes.append(outcome)
    return outcomes


def run_costs(points: int, built: Collection[int], run_s: float, build_s: float) -> Floats:
    """Return the seconds of a run of each point. A point that is not in ``built`` also needs the build time
    ``build_s``."""
    seconds = np.full(points, run_s + build_s)
    seconds[list(built)] = run_s
    return seconds
