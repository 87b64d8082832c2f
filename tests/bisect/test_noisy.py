"""The search on noisy values: whom it names, whom it clears, and how it ends."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from regbot.bisect.driver import VOID_LIMIT, MeasurementRequest
from regbot.records.bisection import Observation
from regbot.stats.paired import LOOKS
from support.bisect_cases import SD, TERMS, Runs, Searched, key, number_of, search, span, step

CHECK_PAIRS = 8


@pytest.mark.parametrize("culprit", [1, 13, 32])
@pytest.mark.parametrize("noise", [SD, None])
def test_the_culprit_is_named_and_confirmed_against_its_parent(culprit: int, noise: float | None) -> None:
    result = search(span(32), Runs(step(culprit, 5 * SD)), replace(TERMS, noise=noise))
    assert result.culprit == culprit
    gate = result.state.confirmation.gate
    assert gate is not None
    assert gate.decision == "regressed"
    pairs = [run for run in result.observations if run.purpose == "confirm"]
    assert {number_of(run.point) for run in pairs} == {culprit - 1, culprit}
    assert len(pairs) == 2 * gate.pairs


@pytest.mark.parametrize("level", [step(99, 0.0), step(10, -5 * SD)])
def test_nobody_is_accused_of_nothing_or_of_a_speed_up(level: Callable[[int], float]) -> None:
    result = search(span(32), Runs(level, seed=1))
    assert (result.state.status, result.count("confirm")) == ("none", 0)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_commit_that_its_pairs_contradict_is_not_named_and_the_search_goes_on(seed: int) -> None:
    """The first search runs of 40 to 44 are slow by mishap."""

    class Mishap(Runs):
        def measure(self, wanted: MeasurementRequest) -> Observation:
            result = super().measure(wanted)
            is_slow = wanted.purpose == "search" and number_of(wanted.point) in range(40, 45)
            if not is_slow or sum(number_of(made.point) in range(40, 45) for made in self.made) > 5:
                return result
            return result.model_copy(update={"values": {"cost": result.values["cost"] + 4 * SD}})

    result = after_check("here", step(45, 4 * SD), seed, Mishap)
    assert result.culprit == 45
    assert len({run.contrast for run in result.observations if run.purpose == "confirm"}) > 1


@pytest.mark.parametrize("culprit", [5, 20, 45])
def test_broken_points_do_not_end_a_search(culprit: int) -> None:
    broken = [*range(15, 25), 45]
    result = search(span(64), Runs(step(culprit, 5 * SD), broken=broken))
    named = [number_of(result.state.span.points[place]) for place in result.state.likeliest]
    assert result.state.status == "found"
    assert culprit in named
    assert set(named) <= {culprit, *range(15, 26), 45, 46}
    assert sum(not run.usable for run in result.observations) <= 10


def test_the_limit_of_runs_ends_a_search_that_more_runs_continue() -> None:
    short = search(span(64), Runs(step(20, 3 * SD)), replace(TERMS, most_runs=6))
    assert (short.state.status, len(short.observations)) == ("undecided", 6)
    longer = search(span(64), Runs(step(20, 3 * SD), seed=1), observations=short.observations)
    assert longer.culprit == 20
    limit = longer.count("search") + 2
    open_end = search(span(64), Runs(step(20, 3 * SD), seed=1), replace(TERMS, most_runs=limit), short.observations)
    assert open_end.state.status == "found"
    assert open_end.state.confirmation.gate is None


def test_void_runs_are_repeated_and_many_in_a_row_end_the_search() -> None:
    once = Runs(step(4, 5 * SD), fails=lambda wanted, turn: "void" if wanted.purpose == "confirm" and not turn else "")
    assert search(span(8), once).culprit == 4
    always = search(span(8), Runs(step(4, 5 * SD), fails=lambda wanted, _: "void" * (wanted.purpose == "confirm")))
    assert sum(run.void for run in always.observations) == VOID_LIMIT
    assert always.state.confirmation.request is None or always.state.confirmation.gate is None
    fit = Runs(step(4, 5 * SD), session="another node", seed=2)
    assert search(span(8), fit, observations=always.observations).state.confirmation.gate is not None


def test_a_confirmation_whose_runs_fail_says_why() -> None:
    runs = Runs(step(4, 5 * SD), fails=lambda wanted, _: "crashed" if wanted.purpose == "confirm" else "")
    result = search(span(8), runs)
    assert (result.state.status, result.state.confirmation.failure) == ("found", "crashed")


# ---- after a check


def after_check(stratum: str, level: Callable[[int], float], seed: int = 0, kind: type[Runs] = Runs) -> Searched:
    """The search after a check of good and bad. The search runs in the stratum "here"."""
    rng = np.random.default_rng(5)
    check = [
        Observation(
            point=key(place),
            purpose="reused",
            usable=True,
            values={"cost": level(place) + float(rng.normal(0, SD))},
            stratum=stratum,
            block=pair,
        )
        for pair in range(CHECK_PAIRS)
        for place in (0, 64)
    ]
    return search(span(64), kind(level, seed=seed), observations=check)


@pytest.mark.parametrize("seed", range(3))
def test_in_the_session_of_a_check_whole_blocks_confirm_by_the_posterior(seed: int) -> None:
    chained, apart = (after_check(stratum, step(20, 4 * SD), seed) for stratum in ("here", "another"))
    assert chained.culprit == apart.culprit == 20
    gates = chained.state.confirmation.gate, apart.state.confirmation.gate
    assert gates[0] is not None
    assert gates[1] is not None
    assert gates[0].pairs < LOOKS[0] <= gates[1].pairs
    assert gates[0].decision == "regressed"
    _, bounds = gates[0].tests["cost"]
    assert bounds.low < 4 * SD < bounds.high
    runs, runs_apart = (found.count("search") + found.count("confirm") for found in (chained, apart))
    assert runs < runs_apart
