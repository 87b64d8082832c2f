"""Choice of the next run of a bisection: the run with the most expected information about the culprit per second.

The next run may repeat the good or the bad end. A search that always runs the commit in the middle of the posterior
never learns the levels of the two ends.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from regbot.stats.culprit import Bools, CulpritModel, Floats, Posterior, Sample, is_noise_known, posterior

NEGLIGIBLE = 1e-5
"""Groups of hypotheses with a smaller probability are ignored in the choice of the next run."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
"""Nodes and weights of Gauss-Hermite quadrature, for means over a standard normal distribution."""


def choose_next_run(
    model: CulpritModel, samples: Sequence[Sample], stratum: str, available: Bools, costs: Floats | None = None
) -> int:
    """Return the point to run next in ``stratum``: the one with the most expected information per unit of ``costs``.

    The first two runs of a stratum are the two ends. If the noise is not known, the ends are repeated until it is.
    ``available`` and ``costs`` have a value for each point. At least one point is available."""
    points = np.flatnonzero(available)
    good_end, bad_end = int(points[0]), int(points[-1])
    run_points = [sample.point for sample in samples if sample.stratum == stratum]
    if len(run_points) < 2:
        return bad_end if good_end in run_points else good_end
    if not is_noise_known(model, samples):
        return min((bad_end, good_end), key=run_points.count)
    worth = _information_gain(model, posterior(model, samples), stratum, points)
    if costs is not None:
        worth = worth / costs[points]
    return int(points[int(np.argmax(worth))])


def _information_gain(model: CulpritModel, beliefs: Posterior, stratum: str, points: NDArray[np.intp]) -> Floats:
    """Return, for each of ``points``, the mutual information in nats between the hypothesis and the value of a run. The
    value is a mixture of Gaussians: two for each group (the point is affected or not), one for "no culprit"."""
    group_ids = np.flatnonzero(beliefs.group_mass > NEGLIGIBLE)
    if not group_ids.size:
        return np.zeros(len(points))
    group_mass, group_prior = beliefs.group_mass[group_ids], beliefs.group_prior[group_ids]
    group_effect, group_effect_var = beliefs.group_effect[group_ids], beliefs.group_effect_var[group_ids]
    # The mixture: first all groups with the point not affected, then all groups with it affected, then no culprit.
    level, share, level_var = _stratum_level(beliefs, beliefs.hits[group_ids], stratum)
    run_var = beliefs.noise**2 + level_var  # without the uncertainty of the effect
    # The level already includes the part ``share`` of the effect, because some runs in the level are affected. A run
    # therefore differs from the level by this multiple of the effect:
    if_unaffected, if_affected = -share, 1 - share
    means = np.concatenate([level + if_unaffected * group_effect, level + if_affected * group_effect, [level]])
    variances = np.concatenate(
        [run_var + if_unaffected**2 * group_effect_var, run_var + if_affected**2 * group_effect_var, [run_var]]
    )
    # Shape (points, groups): share of the group's prior probability that belongs to hypotheses which affect the point.
    prior_before_group = np.concatenate([[0.0], np.cumsum(beliefs.group_prior)[:-1]])[group_ids]
    affected_mass = model.prior_before[points][:, None] - prior_before_group
    affected_shares = np.clip(affected_mass / group_prior, 0.0, 1.0)
    weights = np.concatenate(
        [
            group_mass * (1 - affected_shares),
            group_mass * affected_shares,
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


def _stratum_level(beliefs: Posterior, hits: Floats, stratum: str) -> tuple[float, Floats, float]:
    """Return the mean value of a stratum, the share of affected runs in that mean for each group, and the variance of
    the mean, which is very large for a stratum without runs."""
    if stratum not in beliefs.table.strata:
        return 0.0, np.zeros(len(hits)), 1e6 * beliefs.noise**2
    row = beliefs.table.strata.index(stratum)
    run_weight = float(beliefs.counts[row].sum())
    level = float(beliefs.sums[row].sum()) / run_weight
    affected_share = hits @ beliefs.counts[row] / run_weight
    return level, affected_share, beliefs.noise**2 / run_weight


def run_costs(points: int, built: Collection[int], run_s: float, build_s: float) -> Floats:
    """Return the seconds of a run of each point. A point that is not in ``built`` also needs the build time
    ``build_s``."""
    seconds = np.full(points, run_s + build_s)
    seconds[list(built)] = run_s
    return seconds
