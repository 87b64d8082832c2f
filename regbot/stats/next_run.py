"""Choice of the next run of a bisection: the run with the most expected information about the culprit per cost.

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
SPLIT_GROUPS = 5
"""Candidate points split all hypotheses in half or at the quantiles ``SPLIT_QUANTILES`` of the posterior, or split one
of the ``SPLIT_GROUPS`` likeliest groups in half.
"""

BETWEEN_SHARES = (0.5, 0.25, 0.75)
"""Shares of the prior probability at which points between the ends are run, most important first."""

NEAR_SHARE = 1 / 8
"""A point stands in for a share if its prior probability differs from the share by at most this value, half of the
distance between two shares. In a range with few points, the nearest point between the ends stands in even if it is
farther away.
"""
LOWEST_CHANCE = 0.15
"""A point stands in for a share only if its chance to give a value is at least this. After three failures around a
point, its chance is an eighth.
"""

IMAGINED_OUTCOMES = 6
"""Number of outcomes drawn for the pending runs, so that the next run adds information to what the pending runs will
show.
"""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


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
    """Return the point to run next in ``stratum``: the one with the most expected information per cost.

    ``chances``: [points] the chance that a run of the point gives a value; 0 if the point cannot be measured.
    ``pending``: runs that have not ended; their values are ignored. ``costs``: [points] cost of a run, in any unit;
    None means equal costs. Raises ValueError if no point can be measured.
    """
    points = np.flatnonzero(chances)
    if not points.size:
        raise ValueError("no point can be measured")
    begun_points = [sample.point for sample in (*samples, *pending) if sample.stratum == stratum]
    ended_runs = sum(sample.stratum == stratum for sample in samples)
    if opening := _opening_points(model, chances, begun_points, ended_runs):
        return opening[0]
    if not is_noise_known(model, [*samples, *pending]):
        return min((int(points[-1]), int(points[0])), key=begun_points.count)
    beliefs = group_posterior(model, samples)
    candidates = _candidate_points(model, beliefs, chances)
    gains = np.zeros(len(candidates))
    for imagined in imagine_outcomes(model, samples, pending, seed):
        later_beliefs = group_posterior(model, [*samples, *imagined]) if imagined else beliefs
        gains += _information_gain(model, later_beliefs, stratum, candidates)
    gains *= chances[candidates]
    if costs is not None:
        gains = gains / costs[candidates]
    return int(candidates[int(np.argmax(gains))])


def _opening_points(
    model: CulpritModel, chances: Floats | Bools, begun_points: Sequence[int], ended_runs: int
) -> list[int]:
    """Return points for the first runs of a stratum, best first: the good end, the bad end, then points in between.

    Returns [] if two or more runs of the stratum have ended.
    """
    if ended_runs >= 2:
        return []
    points = np.flatnonzero(chances)
    ends = [int(points[0]), int(points[-1])]
    order = [*dict.fromkeys((*ends, *_points_between(model, chances).values()))]
    return [point for point in order if point not in begun_points] or [min(ends, key=begun_points.count)]


def runs_before_none(
    model: CulpritModel,
    samples: Sequence[Sample],
    stratum: str,
    chances: Floats | Bools,
    pending: Sequence[Sample] = (),
) -> list[int]:
    """Return the points to run in ``stratum`` before a search may answer "none".

    A slowdown that a later commit removed does not show at the ends. So points between the ends must be run, at a
    quarter, a half and three quarters of the prior probability. A run says something about its point only if its
    stratum also has a run of the good end, because each stratum has its own level. ``chances``: as in
    ``choose_next_run``. ``pending``: runs that have not ended; their points are not returned.
    """
    points = np.flatnonzero(chances)
    if not points.size:
        return []
    good = int(points[0])
    strata_with_good = {sample.stratum for sample in samples if sample.point == good}
    done = {sample.point for sample in samples if sample.stratum in strata_with_good}
    done |= {sample.point for sample in pending}
    between = [point for point in dict.fromkeys(_points_between(model, chances).values()) if point not in done]
    level_runs = (*samples, *pending)
    if between and not any(sample.stratum == stratum and sample.point == good for sample in level_runs):
        return [good, *between]
    return between


def unmeasured_shares(model: CulpritModel, chances: Floats | Bools) -> list[float]:
    """Return the shares of the prior probability near which no point can be measured.

    Returns [] if there is no point between the ends. ``chances``: as in ``choose_next_run``.
    """
    if len(chances) < 3:
        return []
    points = _points_between(model, chances)
    return [share for share in sorted(BETWEEN_SHARES) if share not in points]


def _points_between(model: CulpritModel, chances: Floats | Bools) -> dict[float, int]:
    """Return, for each of ``BETWEEN_SHARES``, a point between the ends near this share of the prior probability.

    A share is left out if no point near it can be measured. A point with a small chance is replaced by another near
    point with a larger chance.
    """
    reach = (model.prior.astype(np.float32) @ model.contains)[1:-1]  # without the ends
    if not reach.size:
        return {}
    reach = reach / model.prior.sum()
    points = {}
    for share in BETWEEN_SHARES:
        distance = np.abs(reach - share)
        is_near = distance <= max(NEAR_SHARE, distance.min()) + 1e-6
        usable = is_near & (np.asarray(chances[1:-1], dtype=float) >= LOWEST_CHANCE)
        if usable.any():
            points[share] = 1 + int(np.argmax(usable * chances[1:-1] * (1 - distance)))
    return points


def split_worth(part: Floats, total: float) -> Floats:
    """Return the worth of a split of the probability ``total`` into ``part`` and the rest, which is largest for halves.

    It is proportional to the probability that the culprit and another draw from the same distribution are on different
    sides.
    """
    worth: Floats = part * (total - part)
    return worth


def _candidate_points(model: CulpritModel, beliefs: GroupPosterior, chances: Floats | Bools) -> NDArray[np.intp]:
    """Return points that may be informative: measured points, and points that split the hypotheses."""
    available_points = np.flatnonzero(chances)
    group_mass = beliefs.posterior.sum(axis=(1, 2))
    all_groups = split_groups(model, beliefs.labels, group_mass, beliefs.prior)
    likeliest_groups = [int(group) for group in np.argsort(-group_mass)[:SPLIT_GROUPS]]
    rows = [all_groups, *(np.where(beliefs.labels == group, model.prior, 0.0) for group in likeliest_groups)]
    reach = (np.array(rows, dtype=np.float32) @ model.contains)[:, available_points]  # [1 + groups, points]
    chosen = {
        int(available_points[0]),
        int(available_points[-1]),
        *np.intersect1d(beliefs.strata.points, available_points).tolist(),
    }
    for number, row in enumerate(reach):
        total = float(rows[number].sum())
        chosen.add(int(available_points[int(np.argmax(chances[available_points] * split_worth(row, total)))]))
        for share in SPLIT_QUANTILES if number == 0 else ():
            chosen.add(int(available_points[int(np.argmin(np.abs(row - share * total)))]))
    return np.array(sorted(chosen), dtype=np.intp)


def _information_gain(model: CulpritModel, beliefs: GroupPosterior, stratum: str, points: NDArray[np.intp]) -> Floats:
    """Return [points] the mutual information, in nats, between the hypothesis and the value of a run at each of
    ``points``.

    The value of a run under a group of hypotheses is approximated by two Gaussians: one for the case that the point is
    affected, one for the case that it is not.
    """
    group_mass = beliefs.posterior.sum(axis=(1, 2))
    group_ids = np.flatnonzero(group_mass > NEGLIGIBLE)
    with np.errstate(invalid="ignore", divide="ignore"):
        # distribution of the effect in each group
        spread = beliefs.posterior[group_ids].sum(axis=2) / group_mass[group_ids, None]
    if not group_ids.size:
        return np.zeros(len(points))
    hits = model.contains[beliefs.first[group_ids]][:, beliefs.strata.points].astype(float)
    level, share, level_var = _stratum_level(beliefs, hits, stratum)
    mean, var = beliefs.effect_mean[group_ids], beliefs.effect_var[group_ids]
    means, variances = [], []
    # The level already includes the part ``share`` of the effect, because some runs in the level are affected.
    for shift in (-share, 1 - share):
        centre = (spread * mean).sum(axis=1)
        square = (spread * (mean**2 + var)).sum(axis=1)
        means.append(level + shift * centre)
        variances.append(beliefs.noise**2 + level_var + shift**2 * np.maximum(square - centre**2, 0.0))
    all_means = np.concatenate([*means, [level]])
    all_vars = np.concatenate([*variances, [beliefs.noise**2 + level_var]])
    fractions = np.array([_affected_share(model, beliefs, int(point), group_ids) for point in points])
    weights = np.concatenate(
        [
            group_mass[group_ids] * (1 - fractions),
            group_mass[group_ids] * fractions,
            np.full((len(points), 1), beliefs.no_culprit),
        ],
        axis=1,
    )
    values = (all_means[:, None] + np.sqrt(all_vars)[:, None] * _NODES).reshape(-1)
    log_density = -((values - all_means[:, None]) ** 2) / (2 * all_vars[:, None]) - np.log(all_vars)[:, None] / 2
    # Mean log density of each Gaussian under itself. It leaves out the same constant as ``log_density``.
    own_log_density = -np.log(all_vars) / 2 - 0.5
    mixture = np.maximum(weights @ np.exp(log_density), 1e-300)
    mixture_log_density = np.log(mixture).reshape(len(points), len(all_means), -1)
    expected_log_density = mixture_log_density @ (_NODE_WEIGHTS / _NODE_WEIGHTS.sum())
    gain: Floats = (weights * (own_log_density - expected_log_density)).sum(axis=1) / weights.sum(axis=1)
    return np.maximum(gain, 0.0)


def _stratum_level(beliefs: GroupPosterior, hits: Floats, stratum: str) -> tuple[float, Floats, float]:
    """Return the mean value of a stratum, the share of affected runs in that mean for each group, and the variance of
    the mean.
    """
    strata = beliefs.strata
    row = strata.names.index(stratum) if stratum in strata.names else None
    runs = float(strata.counts[row].sum()) if row is not None else 0.0
    level = float(strata.sums[row].sum()) / runs if row is not None else 0.0
    share = hits @ strata.counts[row] / runs if row is not None else np.zeros(len(hits))
    return level, share, beliefs.noise**2 / runs if runs else 1e6 * beliefs.noise**2


def _affected_share(model: CulpritModel, beliefs: GroupPosterior, point: int, group_ids: NDArray[np.intp]) -> Floats:
    """Return [groups] the share of each group's prior mass that belongs to hypotheses that affect ``point``."""
    affected_mass = np.bincount(
        beliefs.labels, weights=model.prior * model.affected[:, point], minlength=len(beliefs.prior)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Floats = np.where(beliefs.prior > 0, affected_mass / beliefs.prior, 0.0)[group_ids]
    return np.clip(share, 0.0, 1.0)


def imagine_outcomes(
    model: CulpritModel, samples: Sequence[Sample], pending: Sequence[Sample], seed: int
) -> list[list[Sample]]:
    """Return outcomes of the pending runs, drawn from the posterior. Returns one empty outcome if no run is pending."""
    if not pending:
        return [[]]
    beliefs = group_posterior(model, samples)
    probabilities = np.append(
        split_groups(model, beliefs.labels, beliefs.posterior.sum(axis=(1, 2)), beliefs.prior), beliefs.no_culprit
    )
    middle = math.fsum(sample.value for sample in samples) / len(samples) if samples else 0.0
    rng = np.random.default_rng([seed, len(samples), len(pending)])
    summary = posterior(model, samples)
    hits = model.contains[:, beliefs.strata.points].astype(float)
    outcomes = []
    for quantile in (np.arange(IMAGINED_OUTCOMES) + rng.random()) / IMAGINED_OUTCOMES:
        truth = min(
            int(np.searchsorted(np.cumsum(probabilities) / probabilities.sum(), quantile)), len(probabilities) - 1
        )
        effect = max(0.0, rng.normal(summary.effect, summary.effect_sd)) if truth < len(model.prior) else 0.0
        outcome = []
        level_errors: dict[str, float] = {}  # error of each stratum's level, shared by all runs of the stratum
        for run in pending:
            affected_points = hits[truth : truth + 1] if effect else np.zeros((1, len(beliefs.strata.points)))
            level, share, var = _stratum_level(beliefs, affected_points, run.stratum)
            slowdown = effect * (bool(effect) and bool(model.affected[truth, run.point]))
            level_error = level_errors.setdefault(run.stratum, rng.normal(0, math.sqrt(var)))
            value = level - effect * float(share[0]) + level_error + slowdown + rng.normal(0, beliefs.noise)
            outcome.append(Sample(run.point, middle + value, run.stratum))
        outcomes.append(outcome)
    return outcomes


def run_costs(points: int, built: Collection[int], run_s: float, build_s: float) -> Floats:
    """Return [points] seconds of a run. A point that is not in ``built`` also needs the build time ``build_s``."""
    seconds = np.full(points, run_s + build_s)
    seconds[list(built)] = run_s
    return seconds
