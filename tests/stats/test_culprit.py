"""The posterior of a culprit compared with brute force, its invariances, and the choice of the next run."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from regbot.stats.culprit import (
    Bools,
    CulpritModel,
    Floats,
    Posterior,
    Sample,
    culprit_model,
    is_noise_known,
    posterior,
)
from regbot.stats.next_run import choose_next_run, run_costs

SD = 0.01


def linear_model(count: int, **more: Any) -> CulpritModel:
    """Return the model of a linear range with ``count`` candidates."""
    terms: dict[str, Any] = {"weights": [1.0] * count, "no_culprit": 0.1, "smallest": 0.01, "noise": SD, **more}
    return culprit_model(**terms)


def affected_on_line(points: int) -> Bools:
    """Return the points that each hypothesis affects, as an array of shape (hypotheses, points)."""
    return np.triu(np.ones((points - 1, points), dtype=bool), 1)


def runs(levels: Sequence[float], times: int, seed: int = 0, sd: float = SD, stratum: str = "a") -> list[Sample]:
    """Return ``times`` runs of every point."""
    rng = np.random.default_rng(seed)
    return [
        Sample(place, float(level + rng.normal(0, sd)), stratum)
        for _ in range(times)
        for place, level in enumerate(levels)
    ]


def anywhere(culprit_model: CulpritModel) -> Bools:
    return np.ones(len(culprit_model.prior) + 1, dtype=bool)


def all_of(result: Posterior) -> Floats:
    return np.append(result.culprit, result.no_culprit)


# ---- against brute force


def by_brute_force(model: CulpritModel, samples: Sequence[Sample]) -> tuple[Floats, float, float]:
    """Return probabilities (none last), root mean square noise and mean effect by summing over a grid of all
    unknowns."""
    strata = sorted({sample.stratum for sample in samples})
    low, high = min(s.value for s in samples), max(s.value for s in samples)
    effects = np.linspace(model.effects[0] / 3, model.effects[-1] * 1.6, 150)
    prior_of_effect = np.mean(
        [norm.pdf(effects, mean, width) for mean, width in zip(model.effects, model.widths, strict=True)], axis=0
    )
    prior_of_effect /= prior_of_effect.sum()
    none = np.zeros(len(model.prior) + 1, dtype=bool)
    likelihood = np.zeros((len(model.prior) + 1, len(model.noises), len(effects)))
    for number, sd in enumerate(model.noises):
        levels = np.arange(low - effects[-1] - 8 * sd, high + 8 * sd, sd / 2 / math.sqrt(len(samples)))
        for k, hit in enumerate([*affected_on_line(len(none)), none]):
            value = [
                np.prod(
                    [
                        contaminated_pdf(s.value, levels + effects[:, None] * hit[s.point], sd)
                        for s in samples
                        if s.stratum == n
                    ],
                    axis=0,
                )
                for n in strata
            ]
            step = levels[1] - levels[0]  # the level is flat
            likelihood[k, number] = np.prod([values.sum(axis=1) * step for values in value], axis=0)
    weights = np.append(model.prior, model.no_culprit)[:, None, None] * model.noise_prior[:, None] * prior_of_effect
    result = likelihood * weights / (likelihood * weights).sum()
    noise = math.sqrt(float(result.sum(axis=(0, 2)) @ model.noises**2))
    of_culprits = result[:-1].sum(axis=(0, 1))
    return result.sum(axis=(1, 2)), noise, float(of_culprits @ effects / of_culprits.sum())


def contaminated_pdf(value: float, mean: Floats, sd: float) -> Floats:
    """Return the density of a run: with the probability 3%, its standard deviation is ten times as large."""
    result: Floats = 0.97 * norm.pdf(value, mean, sd) + 0.03 * norm.pdf(value, mean, 10 * sd)
    return result


ONE = [
    Sample(0, 0.003, "a"),
    Sample(3, 0.031, "a"),
    Sample(1, -0.004, "a"),
    Sample(2, 0.012, "a"),
    Sample(3, 0.02, "a"),
]
TWO = [*ONE, Sample(0, 0.061, "b"), Sample(2, 0.07, "b"), Sample(3, 0.105, "b")]
SLOW = [*ONE, Sample(1, 0.1, "a"), Sample(0, -0.002, "a")]
TWO_SLOW = [
    Sample(point, value, "a")
    for point, value in ((0, 0.0), (3, 0.02), (1, 0.09), (2, 0.021), (3, 0.024), (0, 0.001), (2, -0.06))
]
"""Runs of three commits, with 3% in the last of them, and one or two outliers."""


@pytest.mark.parametrize(
    "samples", [ONE, TWO, SLOW, TWO_SLOW], ids=["one stratum", "two strata", "an outlier", "two outliers"]
)
@pytest.mark.parametrize(("noise", "pairs"), [(SD, 0), (SD, 6)], ids=["stated noise", "noise on record"])
def test_posterior_equals_a_sum_over_all_unknowns(samples: list[Sample], noise: float, pairs: int) -> None:
    model = linear_model(3, noise=noise, pairs=pairs, largest=0.06, weights=[1, 2, 1])
    result = posterior(model, samples)
    expected, sd, effect = by_brute_force(model, samples)
    assert all_of(result) == pytest.approx(expected, abs=5e-3)
    assert result.noise == pytest.approx(sd, rel=0.03)
    assert result.effect == pytest.approx(effect, rel=0.02)


# ---- invariances

SAMPLES = st.lists(
    st.builds(Sample, point=st.integers(0, 6), value=st.floats(-0.1, 0.1), stratum=st.sampled_from(["a", "b", "c"])),
    min_size=1,
    max_size=25,
)
NOISES = st.sampled_from([{"noise": None}, {"noise": SD}, {"noise": SD, "pairs": 8}])


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, noise=NOISES, seed=st.integers(0, 99))
def test_probabilities_sum_to_one_and_the_order_of_runs_does_not_matter(
    samples: list[Sample], noise: dict[str, Any], seed: int
) -> None:
    model = linear_model(6, **noise)
    result = posterior(model, samples)
    assert all_of(result).sum() == pytest.approx(1)
    assert (all_of(result) >= 0).all()
    mixed = [samples[place] for place in np.random.default_rng(seed).permutation(len(samples))]
    assert all_of(posterior(model, mixed)) == pytest.approx(all_of(result), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(samples=SAMPLES, noise=NOISES, point=st.integers(0, 6), value=st.floats(-5, 5))
def test_a_single_run_of_a_stratum_adds_no_information(
    samples: list[Sample], noise: dict[str, Any], point: int, value: float
) -> None:
    model = linear_model(6, **noise)
    result = posterior(model, [*samples, Sample(point, value, "alone")])
    assert all_of(result) == pytest.approx(all_of(posterior(model, samples)), abs=1e-6)


# ---- results


def test_the_prior_counts_as_it_should() -> None:
    samples = runs([0, 0, 0, 0.012, 0.012], 1)
    plain = posterior(linear_model(4), samples)
    heavy = posterior(linear_model(4, weights=[1, 1, 3, 1]), samples)
    assert heavy.culprit[2] / heavy.culprit[1] == pytest.approx(3 * plain.culprit[2] / plain.culprit[1])
    assert heavy.culprit[3] / heavy.culprit[1] == pytest.approx(plain.culprit[3] / plain.culprit[1])
    doubtful = posterior(linear_model(4, no_culprit=0.5), samples)
    assert doubtful.no_culprit / doubtful.culprit.sum() == pytest.approx(9 * plain.no_culprit / plain.culprit.sum())
    assert posterior(linear_model(4, no_culprit=0.0), samples).no_culprit == 0
    cleared = posterior(linear_model(4, weights=[1, 1, 0, 1]), samples)
    assert cleared.culprit[2] == 0
    assert all_of(cleared).sum() == pytest.approx(1)


@pytest.mark.parametrize("noise", [SD, None])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_speedup_is_no_culprit(at: int, noise: float | None) -> None:
    result = posterior(linear_model(6, noise=noise), runs([-0.05 * (place >= at) for place in range(7)], 4))
    assert result.culprit.max() < 0.5


@pytest.mark.parametrize("noise", [SD, None, 1e-6])
@pytest.mark.parametrize("effect", [math.log(100), 30.0])
def test_an_effect_above_the_prior_maximum_is_located_too(effect: float, noise: float | None) -> None:
    model = linear_model(6, noise=noise)
    samples = runs([effect * (place >= 4) for place in range(7)], 4, sd=noise or SD)
    result = posterior(model, samples)
    assert np.isfinite([*all_of(result), result.effect, result.effect_sd, result.noise]).all()
    assert result.culprit[3] > 0.95
    assert choose_next_run(model, samples, "a", anywhere(model)) in range(7)


# ---- choice of the next run


@settings(max_examples=40, deadline=None)
@given(samples=SAMPLES, noise=NOISES, broken=st.sets(st.integers(0, 6), max_size=6), built=st.sets(st.integers(0, 6)))
def test_a_point_that_cannot_be_measured_is_never_chosen(
    samples: list[Sample], noise: dict[str, Any], broken: set[int], built: set[int]
) -> None:
    model = linear_model(6, **noise)
    available = anywhere(model)
    available[list(broken)] = False
    assert available[choose_next_run(model, samples, "a", available, run_costs(7, built, 1.0, 5.0))]


def test_without_recorded_noise_the_search_repeats_runs_first() -> None:
    unknown = culprit_model([1.0], no_culprit=0.1, smallest=0.02, noise=None)
    available = np.ones(2, dtype=bool)
    samples: list[Sample] = []
    order = []
    for value in (0.0, 0.1, 0.1, 0.0):
        assert not is_noise_known(unknown, samples)
        order.append(choose_next_run(unknown, samples, "here", available))
        samples.append(Sample(order[-1], value, "here"))
    assert (sorted(order), is_noise_known(unknown, samples)) == ([0, 0, 1, 1], True)
    known = culprit_model([1.0], no_culprit=0.1, smallest=0.02, noise=0.05)
    assert is_noise_known(known, [])
