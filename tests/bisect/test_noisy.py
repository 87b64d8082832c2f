"""The search on noisy values, driven as in earnest, with simulated runs; and what it may cost, said beforehand."""

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regbot.bisect.driver import VOID_LIMIT, drive
from regbot.bisect.exact import max_measurements
from regbot.bisect.forecast import UNKNOWN_NOISE, find_obstacle, forecast, simulate
from regbot.bisect.noisy import (
    BLOCK_VOID_LIMIT,
    MAX_ATTEMPTS,
    MAX_REMAINDER_RUNS,
    MAX_UNCONFIRMED_CULPRITS,
    ContrastSides,
    MeasurementRequest,
    RunCosts,
    collect_requests,
    compute_search,
    evaluate_contrast,
)
from regbot.bisect.reuse import ReusedRuns
from regbot.bisect.span import (
    Noise,
    NoisySpan,
    analyse_span,
    build_culprit_model,
    build_span,
    collect_samples,
    failing_places,
)
from regbot.records.bisection import BisectionHeader, Observation, Point
from regbot.sessions.blocks import draw_order
from regbot.stats.culprit import affected_on_line
from regbot.stats.paired import LOOKS, Thresholds
from support.bisect_cases import (
    SD,
    TERMS,
    Runs,
    Searched,
    graph,
    key,
    line,
    nodes,
    number_of,
    point,
    search,
    span,
    step,
)

QUICK = replace(TERMS, confirm=False)


def place_of(found: Searched) -> int:
    return number_of(found.root.span.points[found.root.place])


def blocks_of(observations: Sequence[Observation]) -> dict[tuple[str, int], list[Observation]]:
    result: dict[tuple[str, int], list[Observation]] = {}
    for observation in observations:
        if observation.purpose == "confirm":
            result.setdefault((observation.contrast, observation.block), []).append(observation)
    return result


# ---- the culprit, and what is left


@pytest.mark.parametrize("ratio", [3, 10])
@pytest.mark.parametrize("culprit", [1, 13, 32])
def test_the_culprit_is_found_and_confirmed_against_its_parent(culprit: int, ratio: float) -> None:
    found = search(span(32), Runs(step(culprit, ratio * SD)))
    assert (found.root.status, found.culprits) == ("found", [culprit])
    gate = found.root.gate
    assert gate is not None
    assert (gate.decision, found.root.gate_finished) == ("regressed", True)
    _, shown = gate.tests["cost"]
    assert shown.low < ratio * SD < shown.high
    confirmed = {number_of(observation.point) for observation in found.observations if observation.purpose == "confirm"}
    assert confirmed == {culprit - 1, culprit}
    assert found.count("search") <= 60
    assert [child.status for child in found.root.children.values()] == ["none"] * (1 if culprit in (1, 32) else 2)


def test_where_no_confirmation_is_asked_for_none_is_run() -> None:
    result = search(span(32), Runs(step(13, 5 * SD)), QUICK)
    assert (result.culprits, result.count("confirm"), result.root.gate) == ([13], 0, None)


@pytest.mark.parametrize("noise", [Noise(SD), Noise(SD, 8), Noise(None)])
def test_nothing_is_found_where_there_is_nothing(noise: Noise) -> None:
    result = search(span(16, smallest=3 * SD), Runs(lambda _: 0.0), replace(TERMS, noise=noise))
    assert (result.root.status, result.culprits, result.count("confirm")) == ("none", [], 0)


@pytest.mark.parametrize("noise", [Noise(SD), Noise(SD, 8), Noise(None)])
def test_a_slowdown_that_a_later_commit_undid_is_named(noise: Noise) -> None:
    """Good and bad are equally fast, so only runs between them show it."""
    undone = Runs(lambda place: 8 * SD if 10 <= place < 40 else 0.0)
    result = search(span(64), undone, replace(TERMS, noise=noise))
    assert (result.root.status, result.culprits[:1]) == ("found", [10])


def test_a_search_that_ends_before_it_looked_between_good_and_bad_is_undecided() -> None:
    result = search(span(64, smallest=8 * SD), Runs(lambda _: 0.0), replace(TERMS, most_runs=4))
    assert result.root.status == "undecided"
    assert result.root.analysis is not None
    assert result.root.analysis.posterior.no_culprit > 0.95


@pytest.mark.parametrize("noise", [Noise(SD), Noise(None)])
def test_bad_that_is_faster_than_good_accuses_nobody(noise: Noise) -> None:
    result = search(span(16), Runs(step(7, -5 * SD)), replace(TERMS, noise=noise))
    assert result.root.status in ("none", "undecided")
    assert result.culprits == []


@pytest.mark.parametrize("seed", range(4))
def test_a_second_culprit_is_found_in_what_the_first_leaves(seed: int) -> None:
    first, second = [(6, 25), (12, 20), (3, 30), (10, 22)][seed]
    runs = Runs(lambda n: 4 * SD * ((n >= first) + (n >= second)), seed=seed)
    found = search(span(32), runs)
    assert found.culprits == [first, second]
    assert all(
        node.gate is not None and node.gate.decision == "regressed"
        for node in nodes(found.root)
        if node.status == "found"
    )
    assert found.count("confirm") >= 16


def test_what_is_asked_of_the_rest_is_counted_apart_and_bounded() -> None:
    """A second change of a fifth of the first is too small to be told; the question ends all the same."""
    result = search(span(32), Runs(lambda n: 4 * SD * (n >= 10) + 0.8 * SD * (n >= 25), seed=3))
    by_question = Counter(
        observation.contrast for observation in result.observations if observation.purpose == "remainder"
    )
    assert all(count <= MAX_REMAINDER_RUNS for count in by_question.values())
    assert set(by_question) <= {f"before {key(10)}", f"after {key(10)}"}
    assert result.root.children["after"].status in ("none", "undecided")
    assert all(observation.contrast == "" for observation in result.observations if observation.purpose == "search")


def test_points_that_run_the_same_code_are_one_place() -> None:
    same = range(5, 20)
    result = search(span(32, same=same), Runs(step(4, 5 * SD)))
    assert result.culprits == [4]
    assert not {number_of(observation.point) for observation in result.observations} & set(same)


def test_what_was_measured_at_a_point_holds_for_the_place_that_runs_its_code() -> None:
    one = span(6, same=[3, 4])
    made = [Observation(point=key(n), purpose="search", usable=True, values={"cost": float(n)}) for n in (2, 3, 4, 5)]
    samples, _ = collect_samples(one, made, "cost")
    assert [(sample.point, sample.value) for sample in samples] == [(2, 2.0), (2, 3.0), (2, 4.0), (3, 5.0)]


# ---- what cannot be measured


def test_points_beside_the_culprit_that_cannot_be_measured_make_a_set_with_it() -> None:
    found = search(span(32), Runs(step(13, 5 * SD), broken=(11, 12, 13)))
    assert found.root.analysis is not None
    assert (found.root.status, found.root.analysis.likeliest) == ("found", (11, 12, 13, 14))
    assert found.root.place == 14
    assert found.root.analysis.probability >= 0.95
    confirmed = {number_of(observation.point) for observation in found.observations if observation.purpose == "confirm"}
    assert confirmed == {10, 14}
    assert found.root.gate is not None
    assert found.root.gate.decision == "regressed"


def test_a_point_that_cannot_be_measured_is_tried_once() -> None:
    runs = Runs(step(13, 5 * SD), broken=range(2, 32, 3))
    search(span(32), runs)
    tried = Counter(number_of(wanted.point) for wanted in runs.made)
    assert all(tried[number] <= 1 for number in range(2, 32, 3))


@pytest.mark.parametrize("end", [0, 16])
def test_an_end_that_cannot_be_measured_is_the_end(end: int) -> None:
    result = search(span(16), Runs(step(7, 5 * SD), broken=(end,)))
    assert result.root.status == "unmeasurable"
    assert len(result.observations) <= 3


def test_a_point_that_fails_after_it_could_be_measured_is_not_tried_for_ever() -> None:
    """It hangs, say, from its second run on: each try takes as long as a run may."""
    runs = Runs(step(13, 2 * SD), fails=lambda wanted, turn: "hangs" if number_of(wanted.point) == 32 and turn else "")
    result = search(span(32), runs, replace(QUICK, posterior=0.999))
    assert sum(not observation.usable for observation in result.observations) == MAX_ATTEMPTS
    assert result.culprits == [13]


def test_where_every_point_fails_the_search_gives_up() -> None:
    result = search(span(2), Runs(step(1, 0.5 * SD), fails=lambda wanted, turn: "hangs" if turn else ""), QUICK)
    assert result.root.status == "undecided"
    assert len(result.observations) <= 3 * (1 + MAX_ATTEMPTS)


def test_failures_in_a_row_are_counted_since_the_last_run_that_ended_well() -> None:
    one = span(4)

    def made(words: str) -> list[Observation]:
        return [
            Observation(
                point=key(2), purpose="search", usable=w == "+", void=w == "0", values={"cost": 0.0} if w == "+" else {}
            )
            for w in words
        ]

    assert failing_places(one, made("--"), 2) == [2]
    assert failing_places(one, made("+-0-"), 2) == [2]
    assert failing_places(one, made("--+-"), 2) == []
    assert failing_places(one, made("-00"), 2) == []


def test_a_run_that_the_node_spoilt_is_not_held_against_the_commit() -> None:
    runs = Runs(step(13, 5 * SD), fails=lambda wanted, turn: "void" if turn == 0 else "")
    result = search(span(32), runs)
    assert result.culprits == [13]
    assert result.root.analysis is not None
    assert result.root.analysis.available.all()
    assert any(observation.void for observation in result.observations)


def test_a_node_that_spoils_every_run_ends_the_search_and_a_fit_one_goes_on() -> None:
    spoilt = search(span(32), Runs(step(13, 5 * SD), fails=lambda wanted, turn: "void"))
    assert (len(spoilt.observations), spoilt.root.status) == (VOID_LIMIT, "searching")
    again = search(span(32), Runs(step(13, 5 * SD)).after(spoilt.observations), observations=spoilt.observations)
    assert again.culprits == [13]


# ---- the confirmation


def test_blocks_of_a_confirmation_are_complete_and_in_the_order_that_was_drawn() -> None:
    result = search(span(32), Runs(step(13, 3 * SD)))
    orders = set()
    for (name, block), runs in blocks_of(result.observations).items():
        order = draw_order(TERMS.seed, name, block)
        orders.add(order)
        assert [run.slot for run in runs] == [0, 1, 2, 3]
        assert [number_of(run.point) for run in runs] == [12 if letter == "A" else 13 for letter in order]
    assert orders <= {"ABBA", "BAAB"}
    drawn = Counter(draw_order(seed, "x", block) for seed in range(40) for block in range(1, 7))
    assert min(drawn["ABBA"], drawn["BAAB"]) > 80
    assert set(drawn) == {"ABBA", "BAAB"}


def confirmed(fails: Any) -> Searched:
    def why(wanted: MeasurementRequest, turn: int) -> str:
        return str(fails(wanted)) if wanted.purpose == "confirm" else ""

    return search(span(32), Runs(step(13, 5 * SD), fails=why))


def test_a_block_with_a_failed_run_is_repeated_once() -> None:
    failed: list[MeasurementRequest] = []

    def once(wanted: MeasurementRequest) -> str:
        if wanted.block == 1 and wanted.index_in_block == 2 and not failed:
            failed.append(wanted)
            return "crashed"
        return ""

    result = confirmed(once)
    blocks = blocks_of(result.observations)
    first = blocks[f"{key(13)} against its parent", 1]
    assert [each.slot for each in first] == [0, 1, 2, 0, 1, 2, 3]
    assert result.root.gate is not None
    assert (result.root.gate.decision, result.root.failure) == ("regressed", "")


def test_a_block_that_fails_twice_ends_the_confirmation_undecided() -> None:
    found = confirmed(lambda wanted: "crashed" if wanted.block == 1 and wanted.index_in_block == 1 else "")
    assert (found.root.status, found.root.gate, found.root.gate_finished) == ("found", None, True)
    assert found.root.failure == "crashed"
    assert sum(not observation.usable for observation in found.observations) == MAX_ATTEMPTS
    later = confirmed(lambda wanted: "crashed" if wanted.block == 3 and wanted.index_in_block == 1 else "")
    assert later.root.gate is not None


def test_a_block_that_the_node_spoilt_is_begun_again_and_costs_no_attempt() -> None:
    spoilt: list[MeasurementRequest] = []

    def thrice(wanted: MeasurementRequest) -> str:
        if wanted.block == 1 and wanted.index_in_block == 2 and len(spoilt) < 3:
            spoilt.append(wanted)
            return "void"
        return ""

    result = confirmed(thrice)
    assert result.root.gate is not None
    assert (result.root.gate.decision, result.root.failure) == ("regressed", "")


def test_a_culprit_that_spoils_the_node_every_time_ends_the_confirmation() -> None:
    """Its parent never does, so the driver's own limit on spoilt runs in a row is never met."""
    found = confirmed(lambda wanted: "void" if number_of(wanted.point) == 13 else "")
    assert (found.root.status, found.root.gate, found.root.gate_finished) == ("found", None, True)
    assert found.root.failure == "void"
    assert sum(observation.void for observation in found.observations) == BLOCK_VOID_LIMIT


def test_a_block_that_one_session_has_begun_is_begun_again_in_the_next() -> None:
    """The runs of a pair stand side by side on one node, or they say nothing of each other."""
    whole = search(span(32), Runs(step(13, 5 * SD)))
    begun = next(n for n, each in enumerate(whole.observations) if each.purpose == "confirm")
    for cut in range(begun + 1, begun + 5):
        there = Runs(step(13, 5 * SD), session="another node", seed=5)
        result = search(span(32), there, observations=whole.observations[:cut])
        assert result.culprits == [13]
        for runs in blocks_of(result.observations).values():
            of = [run.stratum for run in runs]
            last = [run for run in runs if run.stratum == of[-1]]
            assert [each.slot for each in last] == [0, 1, 2, 3]
        made = sum(observation.block == 1 for observation in result.observations)
        assert made == (4 if cut == begun + 4 else 4 + cut - begun)


def test_a_culprit_that_the_gate_clears_is_taken_out_and_the_search_goes_on() -> None:
    """The first runs of 18 and 19 are slow by mishap; 20 is to blame."""

    def level(number: int) -> float:
        return 5 * SD if number >= 20 else 0.0

    class Mishap(Runs):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            early = self.turns[wanted.point.key] < 3 and wanted.purpose == "search"
            result = super().measure(wanted, slot)
            slow = early and number_of(wanted.point) in (18, 19)
            return result.model_copy(update={"values": {"cost": result.values["cost"] + 5 * SD}}) if slow else result

    result = search(span(32), Mishap(level))
    cleared = {observation.contrast for observation in result.observations if observation.purpose == "confirm"}
    assert f"{key(18)} against its parent" in cleared
    assert 18 in result.root.cleared_places or place_of(result) == 20
    assert result.culprits == [20]


def test_a_search_whose_culprits_are_all_cleared_gives_up_and_accuses_nobody() -> None:
    """Search runs slow down with the place, and pairs show nothing: the runs do not fit the model."""

    class Moody(Runs):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            result = super().measure(wanted, slot)
            slow = 8 * SD * (number_of(wanted.point) >= 16) if wanted.purpose == "search" else 0.0
            return result.model_copy(update={"values": {"cost": result.values["cost"] + slow}})

    result = search(span(32), Moody(lambda _: 0.0))
    contrasts = {observation.contrast for observation in result.observations if observation.purpose == "confirm"}
    assert result.root.status in ("none", "undecided")
    assert 1 <= len(contrasts) <= MAX_UNCONFIRMED_CULPRITS + 1


def test_a_set_that_is_cleared_counts_as_one() -> None:
    """Sets of two were once counted as two, and the limit was stepped over."""

    class Moody(Runs):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            result = super().measure(wanted, slot)
            if not result.usable:
                return result
            slow = 0.5 * SD * number_of(wanted.point) if wanted.purpose != "confirm" else 0.0
            return result.model_copy(update={"values": {"cost": result.values["cost"] + slow}})

    result = search(
        span(64), Moody(lambda _: 0.0, sd=SD / 10, broken=range(1, 64, 2)), replace(TERMS, noise=Noise(SD / 10))
    )
    contrasts = {observation.contrast for observation in result.observations if observation.purpose == "confirm"}
    assert len(contrasts) <= MAX_UNCONFIRMED_CULPRITS + 1


def test_a_gate_clears_what_it_proves_to_be_alike_and_confirms_what_it_proves_to_differ() -> None:
    parent, culprit = point(0), point(1, [0])
    limits = Thresholds(0.02, 0.01)

    def made(effect: float) -> list[Observation]:
        result: list[Observation] = []
        rng = np.random.default_rng(0)
        while wanted := evaluate_contrast(ContrastSides("x", parent, culprit), result, [], 0, limits).requests:
            value = effect * (wanted[0].point.key == key(1)) + float(rng.normal(0, 0.002))
            result.append(Runs(lambda _: 0.0).measure(wanted[0], 0).model_copy(update={"values": {"cost": value}}))
        return result

    for effect, decision in ((0.05, "regressed"), (0.0, "no_change"), (-0.05, "improved")):
        result = evaluate_contrast(ContrastSides("x", parent, culprit), made(effect), [], 0, limits)
        assert result.gate is not None
        assert (result.gate.decision, result.finished, result.gate.pairs) == (decision, True, LOOKS[0])
    between = evaluate_contrast(ContrastSides("x", parent, culprit), made(0.015), [], 0, limits)
    assert between.gate is not None
    assert between.gate.pairs in LOOKS


# ---- merges


def branching(culprit: int) -> tuple[NoisySpan, Any, Runs]:
    """A line of 16 whose ninth is the merge of a branch of eight, 101 to 108, which left it at 5."""
    points = line(16)
    points[9] = point(9, [8, 108])
    outer = build_span(points, affected_on_line(17), 0.1, SD)
    branch = [point(5), *(point(n, [n - 1 if n > 101 else 5]) for n in range(101, 109))]
    brought = build_span(branch, affected_on_line(9), 0.2, SD, f"inside {key(9)}", key(9))

    def level(number: int) -> float:
        slow = number >= culprit if number > 100 or culprit < 100 else number >= 9
        return 6 * SD * (slow if number < 100 or culprit > 100 else False)

    return outer, lambda each: brought if each.key == key(9) else None, Runs(level)


def test_a_merge_that_is_the_culprit_is_descended_into() -> None:
    outer, inside, runs = branching(104)
    found = search(outer, runs, expand_merge=inside)
    assert found.culprits == [9, 104]
    child = found.root.children["inside"]
    assert (child.status, child.span.merge) == ("found", key(9))
    assert child.gate is not None
    assert child.gate.decision == "regressed"
    assert list(found.root.children) == ["inside", "before", "after"]


def test_a_merge_whose_branch_is_innocent_is_to_blame_itself() -> None:
    outer, inside, runs = branching(9)
    result = search(outer, runs, expand_merge=inside)
    assert result.culprits == [9]
    assert result.root.children["inside"].status == "none"


def test_what_is_asked_of_the_rest_of_a_branch_is_no_search_either() -> None:
    outer, inside, runs = branching(104)
    result = search(outer, runs, expand_merge=inside)
    names = {f"before {key(104)}", f"after {key(104)}"}
    rest = [observation for observation in result.observations if observation.contrast in names]
    child = result.root.children["inside"]
    assert rest
    assert all(each.purpose == "remainder" for each in rest)
    assert set(child.children) == {"before", "after"}
    assert all(value.span.remainder and value.span.merge == key(9) for value in child.children.values())
    assert not child.span.remainder


@pytest.mark.parametrize("culprit", range(1, 8))
def test_the_culprit_of_a_history_with_branches_is_found(culprit: int) -> None:
    points, affected = graph([[], [0], [1], [2], [1], [4], [3, 5], [6]])
    one = build_span(points, affected, 0.1, SD)
    result = search(one, Runs(lambda n: 6 * SD * bool(n and affected[culprit - 1, n])))
    assert (result.culprits, result.root.children) == ([culprit], {})
    confirmed = {
        number_of(observation.point) for observation in result.observations if observation.purpose == "confirm"
    }
    assert confirmed == {culprit, number_of(points[culprit].parents[0])}


# ---- resuming


def test_the_next_run_is_told_from_the_runs_that_ended_alone() -> None:
    """So a bisection that was killed at any moment goes on as if nothing had happened."""
    one = span(16)
    whole = search(one, Runs(step(7, 4 * SD)))
    for cut, made in enumerate(whole.observations):
        (wanted,) = collect_requests(
            compute_search(one, whole.observations[:cut], (), "here", TERMS, RunCosts(), expand_merge=lambda _: None)
        )
        assert (wanted.point.key, wanted.purpose, wanted.contrast, wanted.block, wanted.index_in_block) == (
            made.point,
            made.purpose,
            made.contrast,
            made.block,
            made.slot,
        )
    assert (
        collect_requests(
            compute_search(one, whole.observations, (), "here", TERMS, RunCosts(), expand_merge=lambda _: None)
        )
        == []
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_bisection_that_was_cut_off_ends_as_it_would_have(share: float) -> None:
    whole = search(span(16), Runs(step(7, 4 * SD), seed=2))
    known = whole.observations[: int(share * len(whole.observations))]
    again = search(span(16), Runs(step(7, 4 * SD), seed=2).after(known), observations=known)
    assert again.observations == whole.observations


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_bisection_that_goes_on_in_another_session_finds_the_same(share: float) -> None:
    """Where all runs are slower by half; its own runs are compared with each other only."""
    whole = search(span(16), Runs(step(7, 5 * SD), seed=2))
    known = whole.observations[: int(share * len(whole.observations))]
    there = Runs(lambda n: 0.4 + 5 * SD * (n >= 7), session="later", seed=9)
    assert search(span(16), there, observations=known).culprits == [7]


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_however_often_a_bisection_is_cut_off_no_slot_of_a_block_is_run_twice(cuts: list[int]) -> None:
    made: list[Observation] = []
    runs = Runs(step(4, 6 * SD))
    for cut in [*cuts, 500]:
        until = len(made) + cut
        made = search(
            span(8), runs, observations=made, is_enough=lambda until=until: len(runs.made) >= until
        ).observations  # type: ignore[misc]
    assert len(made) == len(runs.made)
    for block in blocks_of(made).values():
        assert [each.slot for each in block] == [0, 1, 2, 3]


# ---- slots


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["one level", "a level for each slot"])
@pytest.mark.parametrize("culprit", [1, 11, 32])
def test_four_slots_find_the_same_culprit_in_whatever_order_runs_end(culprit: int, apart: bool) -> None:
    runs = Runs(step(culprit, 5 * SD), most_delay_s=0.03, apart=apart)
    result = search(span(32), runs, slots=4)
    assert result.culprits == [culprit]
    assert runs.together >= 3
    assert result.count("search") <= 60
    for block in blocks_of(result.observations).values():
        assert [each.slot for each in block] == [0, 1, 2, 3]
        assert len({each.stratum for each in block}) == 1


def test_four_slots_begin_at_four_points() -> None:
    runs = Runs(step(11, 5 * SD), most_delay_s=0.01)
    search(span(32), runs, slots=4)
    assert {number_of(wanted.point) for wanted in runs.made[:4]} == {0, 32, 16, 8}


@pytest.mark.parametrize("slots", [1, 4])
def test_the_limit_of_search_runs_is_kept(slots: int) -> None:
    terms = replace(TERMS, most_runs=10)
    runs = Runs(step(20, 1.2 * SD), most_delay_s=0.001 if slots > 1 else 0.0)
    result = search(span(64), runs, terms, slots)
    assert (result.root.status, result.count("search"), result.count("confirm")) == ("undecided", 10, 0)
    assert result.root.analysis is not None
    more = search(span(64), runs, replace(TERMS, most_runs=25), observations=result.observations)
    assert more.count("search") == 25


# ---- the driver


class Recorder:
    """What was kept, and what was raised instead."""

    def __init__(self, fail_at: int = -1) -> None:
        self.kept: list[Observation] = []
        self.fail_at = fail_at

    def __call__(self, observation: Observation) -> None:
        if len(self.kept) == self.fail_at:
            self.fail_at = -1
            raise KeyboardInterrupt
        self.kept.append(observation)


def anything(known: Sequence[Observation], pending: Sequence[Any], stratum: str) -> list[MeasurementRequest]:
    number = len(known) + len(pending)
    return [MeasurementRequest(point(number), "search")] if number < 12 else []


def test_every_observation_is_kept_before_the_next_is_chosen() -> None:
    recorder = Recorder()
    made: list[Observation] = []

    def chosen(known: Sequence[Observation], pending: Sequence[Any], stratum: str) -> list[MeasurementRequest]:
        assert list(known) == recorder.kept
        return anything(known, pending, stratum)

    drive(made, chosen, Runs(lambda _: 0.0), recorder)
    assert made == recorder.kept
    assert len(made) == 12


def test_what_is_enough_ends_the_search_when_what_is_running_has_ended() -> None:
    recorder = Recorder()
    made: list[Observation] = []
    begun: list[MeasurementRequest] = []
    runs = Runs(lambda _: 0.0, most_delay_s=0.002)
    drive(made, anything, runs, recorder, 4, is_enough=lambda: len(begun) >= 6, announce=begun.append)
    assert (len(made), len(runs.made), runs.running) == (6, 6, 0)
    assert made == recorder.kept
    drive(made, anything, runs, recorder, 4, is_enough=lambda: True)
    assert len(made) == 6


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("slots", [1, 4])
def test_an_error_of_a_measurement_loses_nothing_that_ended_and_leaves_nothing_running(
    slots: int, error: type[BaseException]
) -> None:
    class Failing(Runs):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            if number_of(wanted.point) == 5:
                raise error("disk full")
            time.sleep(0.002 * number_of(wanted.point))  # those after it end after it
            return super().measure(wanted, slot)

    runs, recorder = Failing(lambda _: 0.0), Recorder()
    made: list[Observation] = []
    with pytest.raises(error):
        drive(made, anything, runs, recorder, slots)
    assert made == recorder.kept
    if slots == 1 or error is OSError:  # an interrupt waits for nothing that others run
        assert runs.running == 0
        assert len(made) == len(runs.made)
        assert {number_of(observation.point) for observation in made} >= set(range(5))


@pytest.mark.parametrize("slots", [1, 4])
def test_an_interrupt_while_the_driver_waits_loses_only_what_it_could_not_keep(slots: int) -> None:
    runs, recorder = Runs(lambda _: 0.0, most_delay_s=0.005), Recorder(fail_at=3)
    made: list[Observation] = []
    with pytest.raises(KeyboardInterrupt):
        drive(made, anything, runs, recorder, slots)
    assert runs.running == 0 or slots > 1, "it waits for nothing"
    assert made == recorder.kept
    assert slots > 1 or len(made) == len(runs.made) - 1


def test_with_one_slot_a_measurement_runs_where_an_interrupt_reaches_it() -> None:
    threads = set()

    class Here(Runs):
        def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
            threads.add(threading.current_thread())
            return super().measure(wanted, slot)

    drive([], anything, Here(lambda _: 0.0), lambda _: None)
    assert threads == {threading.main_thread()}


def test_spoilt_runs_of_an_earlier_day_do_not_end_the_search_at_once() -> None:
    void = Observation(point=key(0), purpose="search", usable=False, void=True, reason="the node was not fit")
    made = [void] * VOID_LIMIT
    drive(
        made,
        lambda known, pending, stratum: anything(known[VOID_LIMIT:], pending, stratum),
        Runs(lambda _: 0.0),
        lambda _: None,
    )
    assert len(made) == VOID_LIMIT + 12


# ---- spans


def test_the_place_before_one_is_its_first_parent_or_the_last_that_does_not_contain_it() -> None:
    points, affected = graph([[], [0], [1], [0], [3], [2, 4]])
    one = build_span(points, affected, 0.1, SD)
    assert [one.before(place) for place in range(1, 6)] == [0, 1, 0, 3, 2]
    nameless = build_span([point.model_copy(update={"parents": []}) for point in points], affected, 0.1, SD)
    assert [nameless.before(place) for place in range(1, 6)] == [0, 1, 2, 3, 4]
    assert not one.is_line
    assert span(5).is_line


def test_a_part_of_a_span_is_a_span_of_its_own() -> None:
    part = span(16, same=[4, 5]).part("after", 3, 9, 0.7, 0.02)
    assert [number_of(point) for point in part.points] == [3, 6, 7, 8, 9, 10, 11]
    assert (part.is_line, part.remainder, part.no_culprit, part.smallest) == (True, True, 0.7, 0.02)
    assert part.places[key(5)] == 0
    assert part.places[key(3)] == 0
    assert part.places[key(11)] == 6
    assert key(12) not in part.places


def test_runs_of_each_block_have_a_level_of_their_own() -> None:
    one = span(4)

    def run(purpose: str, block: int, value: float) -> Observation:
        return Observation.model_validate(
            {
                "point": key(1),
                "purpose": purpose,
                "usable": True,
                "values": {"cost": value},
                "stratum": "s",
                "block": block,
            }
        )

    samples, _ = collect_samples(
        one, [run("search", 0, 1), run("confirm", 1, 2), run("confirm", 2, 3), run("search", 0, 4)], "cost"
    )
    assert len({sample.stratum for sample in samples}) == 3
    assert samples[0].stratum == samples[3].stratum


def test_a_standing_names_the_set_and_its_probability() -> None:
    one = span(8)
    made = [
        Observation(
            point=key(n), purpose="search", usable=True, values={"cost": 0.1 * (n >= 4) + 0.001 * m}, stratum="s"
        )
        for m in range(3)
        for n in (0, 2, 5, 8)
    ]
    made += [Observation(point=key(n), purpose="search", usable=False, reason="no") for n in (3, 4)]
    result = analyse_span(one, build_culprit_model(one, Noise(SD)), made, "cost")
    assert result.likeliest == (3, 4, 5)
    assert result.probability == pytest.approx(float(result.posterior.culprit[2:5].sum()))
    refuted = analyse_span(one, build_culprit_model(one, Noise(SD), (4,)), made, "cost")
    assert refuted.likeliest == (3, 5)


# ---- what it may cost


def header(points: list[Point], **more: Any) -> BisectionHeader:
    terms = {"on": "time", "exact": False, "entries": ["moe"], "smallest_pct": 5.0, "most_runs": 200, **more}
    return BisectionHeader(regbot="0", created="2026-01-01T00:00:00+00:00", points=points, **terms)


def test_the_plan_of_an_exact_search_is_its_most_measurements() -> None:
    exact = header(line(64), on="ledger", exact=True, entries=["one", "two"])
    plan = forecast(exact, span(64), ReusedRuns())
    assert (plan.expected_runs, plan.runs_90, plan.success, plan.possible) == (16, 16, 1, True)
    assert plan.expected_runs == 2 * max_measurements(64)
    assert (plan.commits, plan.different, plan.confirm_runs) == (64, 64, 0)
    same = forecast(
        header(line(64, same=range(2, 34)), on="ledger", exact=True), span(64, same=range(2, 34)), ReusedRuns()
    )
    assert (same.commits, same.different, same.expected_runs) == (64, 32, 7)


def test_the_plan_without_noise_on_record_says_what_would_tell() -> None:
    plan = forecast(header(line(32)), span(32), ReusedRuns())
    assert (plan.possible, plan.expected_runs, plan.success, plan.ratio) == (True, None, None, None)
    assert plan.reasons == [UNKNOWN_NOISE]


@pytest.mark.slow
def test_the_plan_of_a_noisy_search_is_what_trials_of_it_took() -> None:
    one = span(16, smallest=math.log(1.05))
    plan = forecast(header(line(16), noise_pct=2.0), one, ReusedRuns(run_s=60.0))
    assert plan.ratio == pytest.approx(math.log(1.05) / math.log(1.02))
    assert plan.expected_runs is not None
    assert plan.runs_90 is not None
    assert plan.success is not None
    assert plan.expected_builds is not None
    assert 6 < plan.expected_runs < 30
    assert plan.expected_runs < plan.runs_90 < 50
    assert plan.success > 0.9
    assert 4 < plan.expected_builds < plan.expected_runs
    assert plan.expected_min == pytest.approx(plan.expected_runs)
    assert (plan.possible, plan.confirm_runs) == (True, 2 * LOOKS[-1])
    assert plan.reasons == ["the plan is for a slowdown of 5%, the smallest that the search looks for"]
    unconfirmed = forecast(header(line(16), noise_pct=2.0, confirm=False), one, ReusedRuns(run_s=60.0))
    assert unconfirmed == plan.model_copy(update={"confirm_runs": 0})


@pytest.mark.slow
def test_runs_of_the_check_that_are_used_again_make_the_plan_cheaper() -> None:
    one = span(16, smallest=math.log(1.05))
    pairs = [
        Observation(point=key(n), purpose="reused", usable=True, values={"median": 0.05 * bool(n)}, stratum="check")
        for _ in range(12)
        for n in (0, 16)
    ]
    known = ReusedRuns(tuple(pairs), 2.0, 12, math.log(1.05))
    with_check, without = (
        forecast(header(line(16), noise_pct=2.0), one, each) for each in (known, replace(known, observations=()))
    )
    assert with_check.expected_runs is not None
    assert without.expected_runs is not None
    assert with_check.expected_runs < 0.95 * without.expected_runs
    assert with_check.reasons == []


@pytest.mark.parametrize(
    ("more", "reused", "said"),
    [
        ({"noise_pct": 10.0, "smallest_pct": 5.0}, ReusedRuns(), "takes too many runs"),
        ({"noise_pct": 2.0}, ReusedRuns(effect=-0.01), "are good and bad swapped?"),
        ({"noise_pct": 2.0}, ReusedRuns(effect=0.01), "a slowdown of 1.01% among runs that differ by 2%"),
        ({"noise_pct": 2.0}, ReusedRuns(effect=0.05), ""),
        ({}, ReusedRuns(effect=-0.01), ""),
        ({"noise_pct": 10.0, "on": "command", "exact": True}, ReusedRuns(), ""),
    ],
)
def test_what_cannot_succeed_is_refused_before_it_begins(more: dict[str, Any], reused: ReusedRuns, said: str) -> None:
    one = span(8, smallest=math.log(1.05))
    refusal = find_obstacle(header(line(8), **more), one, reused)
    assert said in refusal
    assert bool(said) == bool(refusal)
    if said and "swapped" not in said:
        plan = forecast(header(line(8), most_runs=8, **more), one, reused)
        assert (plan.possible, plan.reasons[0]) == (False, refusal)


def test_a_plan_whose_runs_are_too_few_says_so() -> None:
    plan = forecast(header(line(64), noise_pct=4.0, most_runs=10), span(64, smallest=math.log(1.05)), ReusedRuns())
    assert not plan.possible
    assert plan.success is not None
    assert plan.success < 0.5
    assert "allow more with --runs" in plan.reasons[0]


def test_a_simulated_search_is_the_same_whenever_it_is_asked_for() -> None:
    one = build_culprit_model(span(32), Noise(SD))
    first, again = (simulate(one, 11, 3 * SD, SD, 200, 0.95, rng=np.random.default_rng(5)) for _ in range(2))
    assert first == again
    assert first.culprit == 11
    assert simulate(one, None, 0.0, SD, 400, 0.95, rng=np.random.default_rng(5)).culprit is None


def test_the_last_run_that_is_allowed_counts() -> None:
    one = build_culprit_model(span(32), Noise(SD))
    took = simulate(one, 11, 3 * SD, SD, 200, 0.95, rng=np.random.default_rng(5)).runs
    assert simulate(one, 11, 3 * SD, SD, took, 0.95, rng=np.random.default_rng(5)).culprit == 11
    assert simulate(one, 11, 3 * SD, SD, took - 1, 0.95, rng=np.random.default_rng(5)).culprit == -1


@pytest.mark.slow
def test_a_range_of_one_commit_is_not_accused_by_two_runs_of_unknown_noise() -> None:
    for seed in range(20):
        unknown = replace(TERMS, noise=Noise(None))
        result = search(span(2), Runs(lambda _: 0.0, seed=seed), unknown)
        assert len(result.observations) >= 4
        assert result.root.status == "none" or result.root.gate is None or result.root.gate.decision != "regressed"
