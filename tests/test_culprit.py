"""The posterior of a culprit, held against brute force; what leaves it as it is; and the choice of the next run."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from bisect_cases import graph
from regbot.stats import next_run
from regbot.stats.culprit import (
    LARGEST,
    Bools,
    Floats,
    Posterior,
    Question,
    Sample,
    believe,
    linear,
    noise_is_seen,
    posterior,
    question,
    sets,
)
from regbot.stats.next_run import choose, costs

SD = 0.01


def asked(count: int, **more: Any) -> Question:
    """A line with so many candidates."""
    terms: dict[str, Any] = {"weights": [1.0] * count, "none": 0.1, "smallest": 0.01, "noise": SD, **more}
    return question(linear(count + 1), **terms)


def runs(levels: Sequence[float], times: int, seed: int = 0, sd: float = SD, stratum: str = "a") -> list[Sample]:
    """So many runs of every point."""
    rng = np.random.default_rng(seed)
    return [
        Sample(place, float(level + rng.normal(0, sd)), stratum)
        for _ in range(times)
        for place, level in enumerate(levels)
    ]


def anywhere(question: Question) -> Bools:
    return np.ones(question.affected.shape[1], dtype=bool)


def all_of(found: Posterior) -> Floats:
    return np.append(found.culprit, found.none)


# ---- against brute force


def by_brute_force(asked: Question, samples: Sequence[Sample]) -> tuple[Floats, float, float]:
    """Probabilities with none last, root mean square noise, mean effect: by summing over a grid of everything."""
    strata = sorted({sample.stratum for sample in samples})
    low, high = min(s.value for s in samples), max(s.value for s in samples)
    effects = np.linspace(asked.effects[0] / 3, asked.effects[-1] * 1.6, 150)
    prior_of_effect = np.mean(
        [norm.pdf(effects, mean, width) for mean, width in zip(asked.effects, asked.widths, strict=True)], axis=0
    )
    prior_of_effect /= prior_of_effect.sum()
    none = np.zeros(asked.affected.shape[1], dtype=bool)
    likelihood = np.zeros((len(asked.prior) + 1, len(asked.noises), len(effects)))
    for number, sd in enumerate(asked.noises):
        reach = 8 * sd + (0.0 if math.isinf(asked.level_sd) else 5 * asked.level_sd)
        levels = np.arange(low - effects[-1] - reach, high + reach, sd / 2 / math.sqrt(len(samples)))
        for k, hit in enumerate([*asked.affected, none]):
            each = [
                np.prod(
                    [
                        norm_pdf(s.value, levels + effects[:, None] * hit[s.point], sd)
                        for s in samples
                        if s.stratum == n
                    ],
                    axis=0,
                )
                for n in strata
            ]
            likelihood[k, number] = over_levels(each, levels, asked.level_sd)
    weights = np.append(asked.prior, asked.none)[:, None, None] * asked.noise_prior[:, None] * prior_of_effect
    found = likelihood * weights / (likelihood * weights).sum()
    noise = math.sqrt(float(found.sum(axis=(0, 2)) @ asked.noises**2))
    of_culprits = found[:-1].sum(axis=(0, 1))
    return found.sum(axis=(1, 2)), noise, float(of_culprits @ effects / of_culprits.sum())


def norm_pdf(value: float, mean: Floats, sd: float) -> Floats:
    found: Floats = np.exp(-((value - mean) ** 2) / (2 * sd**2)) / sd
    return found


def over_levels(each: Sequence[Floats], levels: Floats, level_sd: float) -> Floats:
    """Each stratum's likelihood, [effects, levels], summed over its level: flat, or drawn around a common one."""
    step = levels[1] - levels[0]
    if math.isinf(level_sd):
        flat: Floats = np.prod([values.sum(axis=1) * step for values in each], axis=0)
        return flat
    common = np.arange(levels[0], levels[-1], level_sd / 4)
    drawn = norm.pdf(levels[:, None], common, level_sd)
    found: Floats = np.prod([values @ drawn * step for values in each], axis=0).sum(axis=1) * level_sd / 4
    return found


ONE = [
    Sample(0, 0.003, "a"),
    Sample(3, 0.031, "a"),
    Sample(1, -0.004, "a"),
    Sample(2, 0.012, "a"),
    Sample(3, 0.02, "a"),
]
TWO = [*ONE, Sample(0, 0.061, "b"), Sample(2, 0.07, "b"), Sample(3, 0.105, "b")]


@pytest.mark.parametrize("samples", [ONE, TWO], ids=["one stratum", "two strata"])
@pytest.mark.parametrize("level_sd", [math.inf, 0.03], ids=["levels apart", "levels drawn"])
@pytest.mark.parametrize(("noise", "pairs"), [(SD, 0), (SD, 6)], ids=["known noise", "noise on record"])
def test_the_posterior_is_that_of_a_sum_over_everything_unknown(
    samples: list[Sample], level_sd: float, noise: float, pairs: int
) -> None:
    one = asked(3, noise=noise, pairs=pairs, largest=0.06, level_sd=level_sd, weights=[1, 2, 1])
    found = posterior(one, samples)
    expected, sd, effect = by_brute_force(one, samples)
    assert all_of(found) == pytest.approx(expected, abs=1e-3)
    assert found.noise == pytest.approx(sd, rel=1e-3)
    assert found.effect == pytest.approx(effect, rel=1e-3 if not pairs else 0.05)


@pytest.mark.parametrize("samples", [ONE, TWO], ids=["one stratum", "two strata"])
def test_so_is_that_of_unknown_noise(samples: list[Sample]) -> None:
    one = asked(3, noise=None, largest=0.06)
    few = Question(one.affected, one.prior, one.effects, one.widths, one.noises[4:18:3], np.full(5, 0.2))
    found = posterior(few, samples)
    expected, sd, _ = by_brute_force(few, samples)
    assert all_of(found) == pytest.approx(expected, abs=1e-3)
    assert found.noise == pytest.approx(sd, rel=1e-3)


@pytest.mark.parametrize("count", [48, 49, 50, 98])
def test_no_number_of_runs_is_special(count: int) -> None:
    """49 times 1/49 is not 1 on a computer; what is left over once passed for a level that strata have in common."""
    one = asked(4, noise=None, smallest=0.05, largest=0.4)
    few = Question(one.affected, one.prior, one.effects, one.widths, np.array([0.06, 0.075, 0.09]), np.full(3, 1 / 3))
    rng = np.random.default_rng(1)
    samples = [Sample(n % 5, float(0.3 * (n % 5 >= 3) + rng.normal(0, 0.08)), "a") for n in range(count)]
    expected, sd, _ = by_brute_force(few, samples)
    assert posterior(few, samples).noise == pytest.approx(sd, rel=1e-4)
    assert all_of(posterior(few, samples)) == pytest.approx(expected, abs=1e-3)


def test_a_posterior_without_runs_is_the_prior() -> None:
    found = posterior(asked(4, weights=[1, 2, 3, 4]), [])
    assert all_of(found) == pytest.approx([0.09, 0.18, 0.27, 0.36, 0.1])


# ---- what changes nothing

SAMPLES = st.lists(
    st.builds(
        Sample,
        point=st.integers(0, 6),
        value=st.floats(-0.1, 0.1),
        stratum=st.sampled_from(["a", "b", "c"]),
    ),
    min_size=1,
    max_size=25,
)
NOISES = st.sampled_from([{"noise": None}, {"noise": SD}, {"noise": SD, "pairs": 8}])


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, noise=NOISES, level_sd=st.sampled_from([math.inf, 0.02]), seed=st.integers(0, 99))
def test_probabilities_make_one_and_the_order_of_the_runs_does_not_matter(
    samples: list[Sample], noise: dict[str, Any], level_sd: float, seed: int
) -> None:
    one = asked(6, level_sd=level_sd, **noise)
    found = posterior(one, samples)
    assert all_of(found).sum() == pytest.approx(1)
    assert (all_of(found) >= 0).all()
    mixed = [samples[place] for place in np.random.default_rng(seed).permutation(len(samples))]
    assert all_of(posterior(one, mixed)) == pytest.approx(all_of(found), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, noise=NOISES, shift=st.floats(-5, 5))
def test_the_level_of_a_stratum_does_not_matter(samples: list[Sample], noise: dict[str, Any], shift: float) -> None:
    one = asked(6, **noise)
    moved = [s._replace(value=s.value + shift) if s.stratum == "a" else s for s in samples]
    assert all_of(posterior(one, moved)) == pytest.approx(all_of(posterior(one, samples)), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, scale=st.sampled_from([0.01, 0.5, 3.0, 1000.0]), level_sd=st.sampled_from([math.inf, 0.02]))
def test_the_unit_does_not_matter(samples: list[Sample], scale: float, level_sd: float) -> None:
    one = asked(6, level_sd=level_sd)
    more = {"smallest": 0.01 * scale, "noise": SD * scale, "largest": LARGEST * scale}
    other = asked(6, level_sd=level_sd * scale, **more)
    scaled = posterior(other, [s._replace(value=s.value * scale) for s in samples])
    assert all_of(scaled) == pytest.approx(all_of(posterior(one, samples)), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(samples=SAMPLES, noise=NOISES, point=st.integers(0, 6), value=st.floats(-5, 5))
def test_one_run_of_a_stratum_teaches_nothing(
    samples: list[Sample], noise: dict[str, Any], point: int, value: float
) -> None:
    one = asked(6, **noise)
    found = posterior(one, [*samples, Sample(point, value, "alone")])
    assert all_of(found) == pytest.approx(all_of(posterior(one, samples)), abs=1e-6)


def test_one_run_of_a_stratum_does_teach_where_levels_are_known_to_be_alike() -> None:
    one = asked(6, level_sd=0.001)
    samples = runs([0.0] * 7, 3)
    alone = [*samples, *(Sample(5, 0.05, name) for name in "bcd")]
    assert posterior(one, alone).none < 0.01 < 0.5 < posterior(one, samples).none


def test_runs_of_two_strata_are_never_compared_with_each_other() -> None:
    """A slow node that ran the bad end only makes nobody a culprit."""
    one = asked(6)
    there = [*runs([0.0] * 7, 2), *(Sample(6, 0.3 + 0.001 * n, "slow node") for n in range(6))]
    assert posterior(one, there).none > 0.5


@pytest.mark.parametrize("noise", [SD, None])
def test_a_large_offset_costs_no_precision(noise: float | None) -> None:
    one = asked(6, noise=noise)
    samples = runs([0, 0, 0, 0.03, 0.03, 0.03, 0.03], 3)
    far = [s._replace(value=s.value + 1000) for s in samples]
    assert all_of(posterior(one, far)) == pytest.approx(all_of(posterior(one, samples)), abs=1e-6)


# ---- what it believes


def test_the_prior_counts_as_it_should() -> None:
    samples = runs([0, 0, 0, 0.012, 0.012], 1)
    plain = posterior(asked(4), samples)
    heavy = posterior(asked(4, weights=[1, 1, 3, 1]), samples)
    assert heavy.culprit[2] / heavy.culprit[1] == pytest.approx(3 * plain.culprit[2] / plain.culprit[1])
    assert heavy.culprit[3] / heavy.culprit[1] == pytest.approx(plain.culprit[3] / plain.culprit[1])
    doubtful = posterior(asked(4, none=0.5), samples)
    assert doubtful.none / doubtful.culprit.sum() == pytest.approx(9 * plain.none / plain.culprit.sum())
    assert posterior(asked(4, none=0.0), samples).none == 0
    cleared = posterior(asked(4, weights=[1, 1, 0, 1]), samples)
    assert cleared.culprit[2] == 0
    assert all_of(cleared).sum() == pytest.approx(1)


def test_what_no_run_has_told_apart_stays_as_the_prior_has_it() -> None:
    samples = [Sample(place, value, "a") for place, value in ((0, 0.0), (4, 0.05), (8, 0.05), (0, 0.001))]
    found = posterior(asked(8, weights=[1, 2, 1, 4, 1, 1, 1, 1]), samples)
    assert found.culprit[:4] / found.culprit[:4].sum() == pytest.approx([1 / 8, 2 / 8, 1 / 8, 4 / 8])


@pytest.mark.parametrize("noise", [SD, None])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_step_is_found_where_it_is(at: int, noise: float | None) -> None:
    found = posterior(asked(6, noise=noise), runs([0.05 * (place >= at) for place in range(7)], 4))
    assert found.culprit[at - 1] > 0.99
    assert found.effect == pytest.approx(0.05, rel=0.2)
    assert found.noise == pytest.approx(SD, rel=0.3)


@pytest.mark.parametrize("noise", [SD, None])
def test_no_step_is_none(noise: float | None) -> None:
    assert posterior(asked(6, noise=noise, smallest=0.02), runs([0.0] * 7, 8)).none > 0.95


@pytest.mark.parametrize("noise", [SD, None])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_what_became_faster_is_no_culprit(at: int, noise: float | None) -> None:
    found = posterior(asked(6, noise=noise), runs([-0.05 * (place >= at) for place in range(7)], 4))
    assert found.culprit.max() < 0.5


@pytest.mark.parametrize("noise", [SD, None, 1e-6])
@pytest.mark.parametrize("effect", [math.log(100), 30.0])
def test_an_effect_beyond_all_that_is_looked_for_is_found_too(effect: float, noise: float | None) -> None:
    one = asked(6, noise=noise)
    samples = runs([effect * (place >= 4) for place in range(7)], 4, sd=noise or SD)
    found = posterior(one, samples)
    assert np.isfinite([*all_of(found), found.effect, found.effect_sd, found.noise]).all()
    assert found.culprit[3] > 0.95
    assert choose(one, samples, "a", anywhere(one)) in range(7)


@pytest.mark.parametrize("noise", [SD, None])
def test_values_that_are_all_equal_are_none(noise: float | None) -> None:
    one = asked(6, noise=noise)
    found = posterior(one, [Sample(place, 0.25, "a") for place in range(7)] * 6)
    assert np.isfinite([*all_of(found), found.effect, found.effect_sd, found.noise]).all()
    assert found.none > 0.9


def test_a_history_with_branches_is_no_line() -> None:
    """Good, two branches of two commits, their merge."""
    points, affected = graph([[], [0], [1], [0], [3], [2, 4]])
    for at in range(1, len(points)):
        one = question(affected, [1] * 5, 0.1, 0.01, SD)
        found = posterior(one, runs([0.05 * bool(affected[at - 1, place]) for place in range(6)], 4))
        assert found.culprit[at - 1] > 0.95


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"smallest": 0.0}, "smallest effect"),
        ({"smallest": math.nan}, "smallest effect"),
        ({"smallest": math.inf}, "smallest effect"),
        ({"noise": 0.0}, "noise"),
        ({"noise": math.nan}, "noise"),
    ],
)
def test_a_question_without_sense_is_refused(more: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        asked(4, **more)


# ---- sets


def test_what_broken_points_hide_is_one_set() -> None:
    available = np.array([True, True, False, False, True, True])
    of = sets(asked(5), available)
    assert of[1] == of[2] == of[3]
    assert len({of[0], of[1], of[4]}) == 3
    assert len(set(sets(asked(90), np.ones(91, dtype=bool)))) == 90


def test_sets_of_a_history_with_branches_are_those_that_no_point_tells_apart() -> None:
    _, affected = graph([[], [0], [1], [0], [3], [2, 4]])
    one = question(affected, [1] * 5, 0.1, 0.01, SD)
    for broken in itertools.combinations(range(1, 5), 2):
        available = np.ones(6, dtype=bool)
        available[list(broken)] = False
        of = sets(one, available)
        for a, b in itertools.combinations(range(5), 2):
            alike = bool((affected[a, available] == affected[b, available]).all())
            assert (of[a] == of[b]) == alike


# ---- the choice


def test_slots_that_are_filled_at_the_start_run_good_bad_the_middle_and_the_quarters() -> None:
    one = asked(64)
    begun: list[Sample] = []
    for _ in range(9):
        begun.append(Sample(choose(one, [], "a", anywhere(one), begun), 0.0, "a"))
    assert [sample.point for sample in begun] == [0, 64, 32, 16, 48, 0, 64, 0, 64]


def test_a_range_of_one_commit_runs_good_and_bad_in_turns() -> None:
    one = asked(1)
    begun: list[Sample] = []
    for _ in range(4):
        begun.append(Sample(choose(one, [], "a", anywhere(one), begun), 0.0, "a"))
    assert [sample.point for sample in begun] == [0, 1, 0, 1]


def test_the_opening_keeps_to_what_can_be_measured() -> None:
    one = asked(64)
    available = anywhere(one)
    available[[0, 16, 31, 32, 33, 64]] = False
    begun: list[Sample] = []
    for _ in range(5):
        begun.append(Sample(choose(one, [], "a", available, begun), 0.0, "a"))
    points = [sample.point for sample in begun]
    assert points[:2] == [1, 63]
    assert available[points].all()
    assert len(set(points)) == 5


def test_what_runs_on_another_node_does_not_prolong_the_opening_of_this_one() -> None:
    one = asked(64)
    samples = [Sample(place, 0.05 * (place >= 20) + 0.001 * place / 64, "a") for place in (0, 64, 32, 16, 48)]
    elsewhere = [Sample(0, 0.0, f"another {n}") for n in range(6)]
    alone = choose(one, samples, "a", anywhere(one))
    assert 16 < alone < 32
    assert choose(one, samples, "a", anywhere(one), elsewhere) == alone


def test_a_second_stratum_of_a_known_spread_opens_with_one_run() -> None:
    samples = [*runs([0.0, 0.0, 0.0, 0.05, 0.05], 3), Sample(0, 0.0, "b")]
    apart, drawn = asked(4), asked(4, level_sd=0.001)
    assert choose(apart, samples, "b", anywhere(apart)) == 4
    one = asked(4, level_sd=0.001)
    assert choose(drawn, [*samples], "b", anywhere(drawn)) == choose(
        one, [s._replace(stratum="a") for s in samples], "a", anywhere(one)
    )


@settings(max_examples=40, deadline=None)
@given(
    samples=SAMPLES,
    noise=NOISES,
    level_sd=st.sampled_from([math.inf, 0.02]),
    broken=st.sets(st.integers(0, 6), max_size=6),
    pending=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["a", "b"])), max_size=3),
    built=st.sets(st.integers(0, 6)),
)
def test_a_point_that_cannot_be_measured_is_never_chosen(
    samples: list[Sample],
    noise: dict[str, Any],
    level_sd: float,
    broken: set[int],
    pending: list[tuple[int, str]],
    built: set[int],
) -> None:
    one = asked(6, level_sd=level_sd, **noise)
    available = anywhere(one)
    available[list(broken)] = False
    running = [Sample(point, 0.0, stratum) for point, stratum in pending]
    chosen = choose(one, samples, "a", available, running, costs(7, built, 1.0, 5.0))
    assert available[chosen]
    assert choose(one, samples, "a", available, running, costs(7, built, 1.0, 5.0)) == chosen


def test_a_range_where_nothing_can_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no point that can be measured"):
        choose(asked(4), [], "a", np.zeros(5, dtype=bool))


def test_where_a_build_costs_much_what_is_built_is_run() -> None:
    one = asked(64)
    samples = [*runs([0.0], 2), Sample(20, 0.001, "a"), *(Sample(64, 0.015 + 0.001 * n, "a") for n in range(2))]
    assert choose(one, samples, "a", anywhere(one)) not in (0, 20, 64)
    dear = costs(65, {0, 64, 20}, 1.0, 1000.0)
    assert choose(one, samples, "a", anywhere(one), costs=dear) in (0, 20, 64)
    cheap = costs(65, {0, 64, 20}, 1.0, 0.0)
    assert choose(one, samples, "a", anywhere(one), costs=cheap) == choose(one, samples, "a", anywhere(one))


def test_a_point_costs_a_run_and_a_build_where_it_is_not_built() -> None:
    assert costs(4, {1, 3}, 10.0, 60.0).tolist() == [70.0, 10.0, 70.0, 10.0]


def test_two_slots_do_not_run_the_same_point_where_another_teaches_more() -> None:
    one = asked(64)
    samples = [*runs([0.0], 3), *(Sample(64, 0.1 + 0.001 * n, "a") for n in range(3))]
    begun: list[Sample] = []
    for _ in range(3):
        begun.append(Sample(choose(one, samples, "a", anywhere(one), begun), 0.0, "a"))
    points = sorted(sample.point for sample in begun)
    assert min(b - a for a, b in itertools.pairwise(points)) >= 4


def test_what_is_imagined_of_one_node_has_one_level() -> None:
    """Two runs of a node that is not known yet would else differ by far more than any commit makes them."""
    one = asked(8)
    samples = runs([0.05 * (place >= 4) for place in range(9)], 2)
    for first, second in next_run._imagined(one, samples, [Sample(0, 0.0, "new"), Sample(8, 0.0, "new")], seed=0):
        assert abs(second.value - first.value) < 0.05 + 10 * SD


def information(one: Question, samples: Sequence[Sample], stratum: str = "a") -> Floats:
    points = np.arange(one.affected.shape[1])
    return next_run._information(one, believe(one, samples), stratum, points)


def test_a_run_that_all_hypotheses_agree_on_teaches_nothing() -> None:
    sole = question(linear(2), [1], 0.0, 0.01, SD)
    assert information(sole, runs([0.0, 0.05], 2)) == pytest.approx([0.0, 0.0], abs=1e-9)
    either = question(linear(2), [1], 0.1, 0.01, SD)
    assert (information(either, runs([0.0, 0.02], 1)) > 1e-3).all()
    sure = information(asked(8), runs([0.3 * (place >= 3) for place in range(9)], 6))
    assert sure == pytest.approx(np.zeros(9), abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(samples=SAMPLES, noise=NOISES, level_sd=st.sampled_from([math.inf, 0.02]))
def test_information_is_never_negative_and_never_more_than_there_is_to_know(
    samples: list[Sample], noise: dict[str, Any], level_sd: float
) -> None:
    one = asked(6, level_sd=level_sd, **noise)
    gains = information(one, samples)
    assert (gains >= 0).all()
    assert (gains <= math.log(7) * 1.05).all()


def test_information_is_that_of_brute_force_where_only_level_and_culprit_are_unknown() -> None:
    effect, count = 0.02, 5
    affected = linear(count + 1)
    prior = np.full(count, 0.9 / count)
    one = Question(affected, prior, np.array([effect]), np.array([1e-9]), np.array([SD]), np.ones(1))
    samples = [*runs([0, 0, 0.02, 0.02, 0.02, 0.02], 1, seed=4)[::5], Sample(3, 0.012, "a")]
    belief = all_of(posterior(one, samples))
    rows = np.vstack([affected, np.zeros(count + 1, dtype=bool)])
    for point, gain in enumerate(information(one, samples)):
        means = np.array([np.mean([s.value - effect * row[s.point] for s in samples]) for row in rows])
        sd = SD * math.sqrt(1 + 1 / len(samples))
        values = np.linspace(-0.15, 0.2, 4001)
        density = norm.pdf(values[:, None], means + effect * rows[:, point], sd)
        mixed = density @ belief
        known = np.where(density > 0, density * np.log(np.maximum(density, 1e-300) / mixed[:, None]), 0) @ belief
        assert gain == pytest.approx(float(known.sum() * (values[1] - values[0])), rel=0.03, abs=1e-4)


def test_no_search_stalls() -> None:
    """Choosing only the middle of the posterior would: it never learns the levels of good and bad."""
    one = asked(64)
    right = 0
    for seed in range(30):
        rng = np.random.default_rng([7, seed])
        at = int(rng.integers(64))
        samples: list[Sample] = []
        found = posterior(one, samples)
        while max(found.none, float(found.culprit.max())) < 0.95:
            assert len(samples) < 150
            point = choose(one, samples, "a", anywhere(one))
            samples.append(Sample(point, float(2 * SD * one.affected[at, point] + rng.normal(0, SD)), "a"))
            found = posterior(one, samples)
        right += int(np.argmax(found.culprit)) == at
    assert right >= 28


def test_without_a_noise_on_record_nothing_is_believed_before_runs_were_repeated() -> None:
    unknown = question(linear(2), [1.0], none=0.1, smallest=0.02, noise=None)
    available = np.ones(2, dtype=bool)
    samples: list[Sample] = []
    order = []
    for value in (0.0, 0.1, 0.1, 0.0):
        assert not noise_is_seen(unknown, samples)
        order.append(choose(unknown, samples, "here", available))
        samples.append(Sample(order[-1], value, "here"))
    assert (sorted(order), noise_is_seen(unknown, samples)) == ([0, 0, 1, 1], True)
    known = question(linear(2), [1.0], none=0.1, smallest=0.02, noise=0.05)
    assert noise_is_seen(known, [])
