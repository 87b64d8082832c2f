"""The run that would teach most about the culprit.

It is the one with the most expected information about the hypothesis, per cost of a run. It may be a run of good or bad
again: choosing only the commit in the middle of the posterior stalls, because it never learns the levels.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from regbot.stats.culprit import (
    Beliefs,
    Bools,
    Floats,
    Question,
    Sample,
    believe,
    noise_is_seen,
    posterior,
    products,
    spread_out,
)

NEGLIGIBLE = 1e-5
"""Probability below which a group of hypotheses has no say in the choice of the next run."""

QUANTILES = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
SPLIT_GROUPS = 5
"""What divides the hypotheses: a quantile of the posterior, or the middle of one of the likeliest groups."""

FANTASIES = 6
"""Outcomes that are imagined for the runs that have not ended, to choose one that teaches something beside them."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


def choose(
    asked: Question,
    samples: Sequence[Sample],
    stratum: str,
    available: Bools,
    pending: Sequence[Sample] = (),
    costs: Floats | None = None,
    seed: int = 0,
) -> int:
    """The point to run next in ``stratum``: the most expected information about the culprit per cost.

    ``available``: [points] that can be measured. ``pending``: runs that have not ended, whatever their value.
    ``costs``: [points] of a run there, in any unit; all alike by default. Raises ValueError where none is available.
    """
    there = np.flatnonzero(available)
    if not there.size:
        raise ValueError("there is no point that can be measured")
    begun = [each.point for each in (*samples, *pending) if each.stratum == stratum]
    ended = sum(each.stratum == stratum for each in samples)
    if opening := _opening(asked, there, begun, ended):
        return opening[0]
    if not noise_is_seen(asked, [*samples, *pending]):
        return min((int(there[-1]), int(there[0])), key=begun.count)
    known = believe(asked, samples)
    points = _worth_a_look(asked, known, there)
    gains = np.zeros(len(points))
    for imagined in _imagined(asked, samples, pending, seed):
        gains += _information(asked, believe(asked, [*samples, *imagined]), stratum, points)
    if costs is not None:
        gains = gains / costs[points]
    return int(points[int(np.argmax(gains))])


def _opening(asked: Question, there: NDArray[np.intp], begun: Sequence[int], ended: int) -> list[int]:
    """The first runs of a stratum, before its level is known: good, then bad, then what lies between.

    A second stratum needs one run only, since the effect is known as well as the others know it.
    """
    least = 2 if math.isinf(asked.level_sd) else 1
    if ended >= least:
        return []
    ends = [int(there[0]), int(there[-1])]
    reach = (asked.prior.astype(np.float32) @ asked.contains)[there]
    between = [int(there[int(np.argmin(np.abs(reach - share * reach.max())))]) for share in (0.5, 0.25, 0.75)]
    order = [*dict.fromkeys((*ends, *between))]
    return [point for point in order if point not in begun] or [min(ends, key=begun.count)]


def _worth_a_look(asked: Question, found: Beliefs, there: NDArray[np.intp]) -> NDArray[np.intp]:
    """Points that may teach most: those that were run, and those that divide the hypotheses."""
    each = found.groups.sum(axis=(1, 2))
    whole = spread_out(asked, found.labels, each, found.mass)
    likeliest = [int(group) for group in np.argsort(-each)[:SPLIT_GROUPS]]
    rows = [whole, *(np.where(found.labels == group, asked.prior, 0.0) for group in likeliest)]
    reach = (np.array(rows, dtype=np.float32) @ asked.contains)[:, there]  # [1 + groups, points]
    chosen = {int(there[0]), int(there[-1]), *np.intersect1d(found.strata.points, there).tolist()}
    for number, row in enumerate(reach):
        total = float(rows[number].sum())
        for share in QUANTILES if number == 0 else (0.5,):
            chosen.add(int(there[int(np.argmin(np.abs(row - share * total)))]))
    return np.array(sorted(chosen), dtype=np.intp)


def _information(asked: Question, found: Beliefs, stratum: str, points: NDArray[np.intp]) -> Floats:
    """Mutual information, in nats, of the hypothesis and a run at each of ``points``.

    What a run shows under a group of hypotheses is taken as two Gaussians, affected and not.
    """
    each = found.groups.sum(axis=(1, 2))
    kept = np.flatnonzero(each > NEGLIGIBLE)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = found.groups[kept].sum(axis=2) / each[kept, None]  # of the effect, in each group
    if not kept.size:
        return np.zeros(len(points))
    hits = asked.contains[found.first[kept]][:, found.strata.points].astype(float)
    level, share, level_var = _level(asked, found, hits, stratum)
    mean, var = found.effect_mean[kept], found.effect_var[kept]
    means, variances = [], []
    for moved in (-share, 1 - share):  # the level is lowered by what the affected runs in it were slower
        centre = (spread * mean).sum(axis=1)
        square = (spread * (mean**2 + var)).sum(axis=1)
        means.append(level + moved * centre)
        variances.append(found.noise**2 + level_var + moved**2 * np.maximum(square - centre**2, 0.0))
    all_means = np.concatenate([*means, [level]])
    all_vars = np.concatenate([*variances, [found.noise**2 + level_var]])
    fractions = np.array([_affected_share(asked, found, int(point), kept) for point in points])
    weights = np.concatenate(
        [each[kept] * (1 - fractions), each[kept] * fractions, np.full((len(points), 1), found.none)], axis=1
    )
    at = (all_means[:, None] + np.sqrt(all_vars)[:, None] * _NODES).reshape(-1)
    log_density = -((at - all_means[:, None]) ** 2) / (2 * all_vars[:, None]) - np.log(all_vars)[:, None] / 2
    own = -np.log(all_vars) / 2 - 0.5  # mean log density of each under itself, constants left out as above
    mixed = np.log(np.maximum(weights @ np.exp(log_density), 1e-300)).reshape(len(points), len(all_means), -1)
    expected = mixed @ (_NODE_WEIGHTS / _NODE_WEIGHTS.sum())
    gain: Floats = (weights * (own - expected)).sum(axis=1) / weights.sum(axis=1)
    return np.maximum(gain, 0.0)


def _level(asked: Question, found: Beliefs, hits: Floats, stratum: str) -> tuple[float, Floats, float]:
    """The level of a stratum were no run affected; for each group, the effect's share in it; its variance."""
    strata = found.strata
    shared = products(strata, hits, found.noise, asked.level_sd)
    row = strata.names.index(stratum) if stratum in strata.names else None
    runs = float(strata.counts[row].sum()) if row is not None else 0.0
    own = float(strata.sums[row].sum()) / runs if row is not None else 0.0
    own_share = hits @ strata.counts[row] / runs if row is not None else np.zeros(len(hits))
    if math.isinf(asked.level_sd):
        return own, own_share, found.noise**2 / runs if runs else 1e6 * found.noise**2
    trust = runs * asked.level_sd**2 / (found.noise**2 + runs * asked.level_sd**2)
    spread = asked.level_sd**2 * (1 - trust)
    common, share, var = 0.0, np.zeros(len(hits)), 0.0
    if shared.ones > 0:
        common, share, var = shared.values / shared.ones, shared.affected_ones / shared.ones, 1 / shared.ones
    level = trust * own + (1 - trust) * common
    return level, trust * own_share + (1 - trust) * share, (1 - trust) ** 2 * var + spread


def _affected_share(asked: Question, found: Beliefs, point: int, kept: NDArray[np.intp]) -> Floats:
    """Of each group, the share of its prior whose hypotheses affect ``point``."""
    hit = np.bincount(found.labels, weights=asked.prior * asked.affected[:, point], minlength=len(found.mass))
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Floats = np.where(found.mass > 0, hit / found.mass, 0.0)[kept]
    return np.clip(share, 0.0, 1.0)


def _imagined(asked: Question, samples: Sequence[Sample], pending: Sequence[Sample], seed: int) -> list[list[Sample]]:
    """Outcomes of the pending runs, drawn from what is believed; one empty list where none is pending."""
    if not pending:
        return [[]]
    found = believe(asked, samples)
    each = np.append(spread_out(asked, found.labels, found.groups.sum(axis=(1, 2)), found.mass), found.none)
    middle = math.fsum(sample.value for sample in samples) / len(samples) if samples else 0.0
    rng = np.random.default_rng([seed, len(samples), len(pending)])
    known = posterior(asked, samples)
    hits = asked.contains[:, found.strata.points].astype(float)
    outcomes = []
    for place in (np.arange(FANTASIES) + rng.random()) / FANTASIES:
        truth = min(int(np.searchsorted(np.cumsum(each) / each.sum(), place)), len(each) - 1)
        effect = max(0.0, rng.normal(known.effect, known.effect_sd)) if truth < len(asked.prior) else 0.0
        imagined = []
        off: dict[str, float] = {}  # what the level is off by, the same for all runs of a stratum
        for run in pending:
            rows = hits[truth : truth + 1] if effect else np.zeros((1, len(found.strata.points)))
            level, share, var = _level(asked, found, rows, run.stratum)
            slower = effect * (bool(effect) and bool(asked.affected[truth, run.point]))
            shift = off.setdefault(run.stratum, rng.normal(0, math.sqrt(var)))
            value = level - effect * float(share[0]) + shift + slower + rng.normal(0, found.noise)
            imagined.append(Sample(run.point, middle + value, run.stratum))
        outcomes.append(imagined)
    return outcomes


def costs(points: int, built: Collection[int], run_s: float, build_s: float) -> Floats:
    """[points] Seconds of a run there: a point that is not built is built first."""
    found = np.full(points, run_s + build_s)
    found[list(built)] = run_s
    return found
