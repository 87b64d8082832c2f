"""The search on values that are compared for equality, on lines, on histories with branches, and inside merges."""

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regbot.bisect.exact import (
    ValueStep,
    changes_on_line,
    find_places,
    max_measurements,
    next_in_history,
    next_on_line,
    remaining_hypotheses,
)
from regbot.bisect.exact_search import ExactSpan, ValueChange, find_changes, next_requests, place_values
from regbot.bisect.noisy import MeasurementRequest
from regbot.records.bisection import Observation, Point
from support.bisect_cases import Values, graph, key, line, log2_up, number_of, point, trace


def on_line(
    states: Sequence[object],
    same: Sequence[int] = (),
    weights: Mapping[int, float] | None = None,
    slots: int = 1,
    seed: int = 0,
) -> tuple[list[ValueStep], list[int]]:
    """The changes that are found on a line with these values, None for what cannot be measured; and what was measured.

    With several slots, what is running ends in any order.
    """
    of = find_places([number in same for number in range(len(states))])
    heavy = [(weights or {}).get(number, 1.0) for number in range(len(states))]
    known: dict[int, str] = {}
    broken: set[int] = set()
    pending: list[int] = []
    made: list[int] = []
    ends = random.Random(seed)
    while True:
        while len(pending) < slots:
            chosen = next_on_line(of, heavy, known, broken, pending, slots - len(pending))
            assert not set(chosen) & set(pending)
            assert len(set(chosen)) == len(chosen)
            if not chosen:
                break
            pending += chosen
            made += chosen
        if not pending:
            return changes_on_line(of, known, broken), made
        ended = pending.pop(ends.randrange(len(pending)))
        assert ended not in known
        assert ended not in broken
        value = states[ended]
        if value is None:
            broken.add(ended)
        else:
            known[ended] = str(value)


# ---- a line


@settings(max_examples=150, deadline=None)
@example(count=31, place=0.9375, hidden={1, 23}, slots=1, seed=0)
@given(
    count=st.integers(1, 120),
    place=st.floats(0, 1, exclude_max=True),
    hidden=st.sets(st.integers(1, 119), max_size=12),
    slots=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_one_change_is_found_whatever_is_broken(
    count: int, place: float, hidden: set[int], slots: int, seed: int
) -> None:
    culprit = 1 + int(place * count)
    broken = {number for number in hidden if number < count}
    states = [None if n in broken else n >= culprit for n in range(count + 1)]
    steps, made = on_line(states, slots=slots, seed=seed)
    before = max(n for n in range(culprit) if n not in broken)
    shown = min(n for n in range(culprit, count + 1) if n not in broken)
    assert steps == [ValueStep(before, tuple(range(before + 1, shown + 1)))]
    assert culprit in steps[0].candidates
    if slots == 1 and not broken:
        assert len(made) <= max_measurements(count)


def test_broken_points_seldom_cost_more_than_their_own_measurements() -> None:
    """A search avoids the neighbours of a broken point, so a span is not always divided into even halves.

    Few searches take more measurements than a search without broken points and the broken ones that were tried, and on
    average a search takes fewer.
    """
    generator = random.Random(0)
    more = []
    for _ in range(2000):
        count = generator.randint(1, 120)
        culprit = generator.randint(1, count)
        broken = {number for number in generator.sample(range(1, 120), generator.randint(0, 12)) if number < count}
        _, made = on_line([None if number in broken else number >= culprit for number in range(count + 1)])
        more.append(len(made) - max_measurements(count) - len(broken & set(made)))
    assert np.mean(more) < 0
    assert np.mean(np.array(more) > 0) < 0.03


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 63, 64, 65, 200])
def test_one_change_takes_no_more_measurements_than_a_binary_search_and_both_ends(count: int) -> None:
    assert max_measurements(count) == 2 + log2_up(count)
    took = [len(on_line([n >= culprit for n in range(count + 1)])[1]) for culprit in range(1, count + 1)]
    assert max(took) == max_measurements(count)


@settings(max_examples=100, deadline=None)
@example(light=set(range(1, 66)), culprit=3, count=131)
@given(light=st.sets(st.integers(1, 131)), culprit=st.integers(1, 131), count=st.integers(1, 131))
def test_commits_of_little_suspicion_cost_no_measurement_beyond_a_binary_search(
    light: set[int], culprit: int, count: int
) -> None:
    culprit = min(culprit, count)
    steps, made = on_line([n >= culprit for n in range(count + 1)], weights=dict.fromkeys(light, 0.05))
    assert steps == [ValueStep(culprit - 1, (culprit,))]
    assert len(made) <= 2 + log2_up(count)


def test_equal_ends_are_the_end_of_the_search() -> None:
    steps, made = on_line([1, 2, 2, 2, 1])
    assert (steps, made) == ([], [0, 4])


@pytest.mark.parametrize("broken", [[0], [4], [0, 4]])
def test_an_end_that_cannot_be_measured_is_the_end_of_the_search(broken: list[int]) -> None:
    steps, made = on_line([None if n in broken else n >= 2 for n in range(5)])
    assert steps == []
    assert set(made) <= {0, 4}


@settings(max_examples=100, deadline=None)
@given(jumps=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True), slots=st.integers(1, 4))
def test_several_changes_are_each_found(jumps: list[int], slots: int) -> None:
    states = [sum(n >= jump for jump in jumps) for n in range(61)]
    steps, made = on_line(states, slots=slots)
    assert steps == [ValueStep(jump - 1, (jump,)) for jump in sorted(jumps)]
    if slots == 1:
        assert len(made) <= 2 + 6 * len(jumps)


def test_a_change_and_the_way_back_are_two_changes_where_something_between_them_was_measured() -> None:
    states = ["a" if n < 20 else "b" if n < 40 else "a" if n < 50 else "c" for n in range(65)]
    steps, _ = on_line(states)
    assert steps == [ValueStep(19, (20,)), ValueStep(39, (40,)), ValueStep(49, (50,))]


def test_neighbours_of_the_culprit_that_are_broken_are_reported_with_it() -> None:
    states = [None if n in (9, 10, 11) else n >= 10 for n in range(17)]
    steps, _ = on_line(states)
    assert steps == [ValueStep(8, (9, 10, 11, 12))]


@settings(max_examples=100, deadline=None)
@given(
    same=st.sets(st.integers(1, 40), max_size=35),
    choice=st.integers(0, 40),
    broken=st.sets(st.integers(1, 39)),
    n=st.integers(1, 4),
)
def test_points_that_run_the_same_code_share_one_measurement(
    same: set[int], choice: int, broken: set[int], n: int
) -> None:
    of = find_places([number in same for number in range(41)])
    firsts = sorted(set(of))
    culprit = firsts[choice % len(firsts)]
    states = [
        None if of[number] in broken and of[number] not in (0, of[-1]) else of[number] >= culprit
        for number in range(41)
    ]
    steps, made = on_line(states, sorted(same), slots=n)
    assert set(made) <= set(firsts)
    assert len(made) == len(set(made))
    if culprit:
        assert len(steps) == 1
        assert culprit in steps[0].candidates
        assert set(steps[0].candidates) <= set(firsts)
    else:
        assert steps == []


def test_a_range_that_runs_the_same_code_everywhere_takes_one_measurement() -> None:
    assert on_line([1] * 6, [1, 2, 3, 4, 5]) == ([], [0])


@pytest.mark.parametrize("suspect", range(1, 65))
def test_a_suspect_who_is_guilty_saves_measurements(suspect: int) -> None:
    states = [n >= suspect for n in range(65)]
    steps, made = on_line(states, weights={suspect: 1000.0})
    assert steps == [ValueStep(suspect - 1, (suspect,))]
    assert len(made) <= 4
    assert set(made) == {0, 64, suspect - 1, suspect}


@pytest.mark.parametrize("suspect", [1, 13, 32, 64])
def test_a_suspect_who_is_innocent_costs_two_measurements_at_most(suspect: int) -> None:
    for culprit in range(1, 65):
        steps, made = on_line([n >= culprit for n in range(65)], weights={suspect: 20.0})
        assert steps == [ValueStep(culprit - 1, (culprit,))]
        assert len(made) <= max_measurements(64) + 2


def test_the_suspicion_of_a_broken_point_is_on_the_one_after_it() -> None:
    of = list(range(9))
    weights = [1.0] * 9
    weights[3] = 1000.0
    assert next_on_line(of, weights, {0: "a", 8: "b", 4: "b"}, [3], [], 1) == [2]
    assert next_on_line(of, weights, {0: "a", 8: "b", 2: "a"}, [3], [], 1) == [4]


def test_while_a_suspect_is_measured_the_one_before_it_is_measured_too() -> None:
    of = list(range(9))
    weights = [1.0] * 9
    weights[5] = 1000.0
    assert next_on_line(of, weights, {0: "a", 8: "b"}, [], [5], 1) == [4]
    assert sorted(next_on_line(of, weights, {0: "a", 8: "b"}, [], [], 2)) == [4, 5]


@settings(max_examples=60, deadline=None)
@given(culprit=st.integers(1, 64), slots=st.integers(2, 6), seed=st.integers(0, 99))
def test_no_slot_waits_while_something_can_be_measured(culprit: int, slots: int, seed: int) -> None:
    """Slots wait for the ends, and where fewer points are open than there are slots."""
    of = list(range(65))
    known: dict[int, str] = {0: "a", 64: "b"}
    pending: list[int] = []
    ends = random.Random(seed)
    while True:
        chosen = next_on_line(of, [1.0] * 65, known, [], pending, slots - len(pending))
        pending += chosen
        low = max(n for n in known if known[n] == "a")
        high = min(n for n in known if known[n] == "b")
        inside = [n for n in pending if low < n < high]
        assert len(pending) == slots or len(inside) == high - low - 1
        if not pending:
            break
        ended = pending.pop(ends.randrange(len(pending)))
        known[ended] = "b" if ended >= culprit else "a"
    assert high == culprit == low + 1


# ---- a history with branches


@st.composite
def histories(draw: st.DrawFn) -> list[list[int]]:
    """Parents of every point. Everything comes from good and ends in bad, which is the last."""
    count = draw(st.integers(1, 20))
    parents: list[list[int]] = [[]]
    for number in range(1, count + 1):
        first = draw(st.integers(max(0, number - 4), number - 1))
        others = draw(st.lists(st.integers(0, number - 1), max_size=1))
        parents.append(list(dict.fromkeys([first, *others])))
    tips = set(range(count + 1)) - {each for mine in parents for each in mine}
    return [*parents, sorted(tips)] if len(tips) > 1 else parents


def states_of(points: Sequence[Point], affected: np.ndarray, culprit: int) -> list[bool]:
    return [bool(number and affected[culprit - 1, number]) for number in range(len(points))]


@settings(max_examples=120, deadline=None)
@given(parents=histories(), choice=st.integers(0, 99), slots=st.integers(1, 4), seed=st.integers(0, 9))
def test_the_culprit_stays_among_what_is_left_until_it_is_alone(
    parents: list[list[int]], choice: int, slots: int, seed: int
) -> None:
    points, affected = graph(parents)
    last = len(points) - 1
    culprit = 1 + choice % last
    prior = np.full(last, 1 / last)
    known: dict[int, str] = {}
    pending: list[int] = []
    ends = random.Random(seed)
    while True:
        chosen = next_in_history(affected, prior, known, [], pending, slots - len(pending))
        assert not set(chosen) & {*pending, *known}
        assert len(set(chosen)) == len(chosen)
        pending += chosen
        if not pending:
            break
        ended = pending.pop(ends.randrange(len(pending)))
        known[ended] = str(affected[culprit - 1, ended])
        if 0 in known:
            assert remaining_hypotheses(affected, known)[culprit - 1]
    assert np.flatnonzero(remaining_hypotheses(affected, known)).tolist() == [culprit - 1]


@settings(max_examples=120, deadline=None)
@given(
    parents=histories(),
    choice=st.integers(0, 99),
    hidden=st.sets(st.integers(1, 20), max_size=6),
    slots=st.integers(1, 4),
)
def test_a_history_ends_in_a_set_that_no_measurable_point_divides(
    parents: list[list[int]], choice: int, hidden: set[int], slots: int
) -> None:
    points, affected = graph(parents)
    last = len(points) - 1
    culprit = 1 + choice % last
    broken = {number for number in hidden if number < last}
    states = states_of(points, affected, culprit)
    values = Values(lambda number, _: None if number in broken else states[number])
    stretch = ExactSpan(tuple(points), affected)
    made = trace(stretch, values, slots=slots)
    assert len(values.made) == len(set(values.made))
    (result,) = find_changes(stretch, "", made, lambda _: None)
    measurable = np.array([number not in broken for number in range(last + 1)])
    alike = (affected[:, measurable] == affected[culprit - 1, measurable]).all(axis=1)
    assert list(result.candidates) == (np.flatnonzero(alike) + 1).tolist()
    known, _ = place_values(stretch, "", made)
    assert known[result.before] == known[0]
    assert not affected[culprit - 1, result.before]


@settings(max_examples=60, deadline=None)
@given(parents=histories(), choice=st.integers(0, 99))
def test_a_culprit_and_its_parent_are_measured_themselves(parents: list[list[int]], choice: int) -> None:
    """What others tell of them is enough to know the culprit, but not to show what it changed."""
    points, affected = graph(parents)
    culprit = 1 + choice % (len(points) - 1)
    states = states_of(points, affected, culprit)
    stretch = ExactSpan(tuple(points), affected)
    made = trace(stretch, Values(lambda number, _: states[number]))
    measured = {number_of(observation.point) for observation in made}
    (result,) = find_changes(stretch, "", made, lambda _: None)
    assert result.before == parents[culprit][0]
    assert {culprit, result.before} <= measured


def test_the_parent_of_a_culprit_stands_where_only_its_other_child_told_of_it() -> None:
    """1 has the children 2 and 3: that 2 is as good as good clears 1 too."""
    points, affected = graph([[], [0], [1], [1], [2, 3]])
    stretch = ExactSpan(tuple(points), affected)
    made = trace(stretch, Values(lambda number, _: number in (3, 4)))
    (result,) = find_changes(stretch, "", made, lambda _: None)
    assert (result.candidates, result.before) == ((3,), 1)
    broken = trace(stretch, Values(lambda number, _: None if number == 1 else number in (3, 4)))
    (result,) = find_changes(stretch, "", broken, lambda _: None)
    assert (result.candidates, result.before) == ((3,), 0)


@settings(max_examples=80, deadline=None)
@given(parents=histories(), choice=st.integers(0, 99), same=st.sets(st.integers(1, 21), max_size=12))
def test_a_history_measures_the_same_code_once(parents: list[list[int]], choice: int, same: set[int]) -> None:
    """A merge of a branch that nothing else had been added to has the code of the branch's tip."""
    same = {number for number in same if number < len(parents) and parents[number] == [number - 1]}
    points, affected = graph(parents, same)
    stretch = ExactSpan(tuple(points), affected)
    culprit = stretch.places[choice % len(stretch.places)]
    states = states_of(points, affected, culprit) if culprit else [False] * len(points)
    values = Values(lambda number, _: states[number])
    made = trace(stretch, values, most_runs=100)
    assert {number for number, _ in values.made} <= set(stretch.places)
    assert len(values.made) == len(set(values.made))
    result = find_changes(stretch, "", made, lambda _: None)
    assert [each.candidates for each in result] == ([(culprit,)] if culprit else [])


def test_a_merge_without_code_of_its_own_is_measured_by_the_tip_of_its_branch() -> None:
    points, affected = graph([[], [0], [1], [0, 2]], same=[3])
    stretch = ExactSpan(tuple(points), affected)
    values = Values(lambda number, _: number >= 2)
    made = trace(stretch, values, most_runs=100)
    assert sorted(number for number, _ in values.made) == [0, 1, 2]
    assert [each.candidates for each in find_changes(stretch, "", made, lambda _: None)] == [(2,)]


def test_in_a_history_a_suspect_saves_measurements() -> None:
    parents = [[], *([n] for n in range(30)), [0], *([n] for n in range(31, 60)), [30, 60]]
    points, affected = graph(parents)
    points[45] = points[45].model_copy(update={"weight": 1000.0})
    states = states_of(points, affected, 45)
    values = Values(lambda number, _: states[number])
    made = trace(ExactSpan(tuple(points), affected), values)
    assert len(made) <= 4


def test_slots_divide_a_history_on_both_sides_of_what_is_running() -> None:
    _, affected = graph([[], *([n] for n in range(64))])
    prior = np.full(64, 1 / 64)
    known = {0: "a", 64: "b"}
    assert next_in_history(affected, prior, known, [], [], 3) in ([32, 16, 48], [32, 48, 16])
    assert set(next_in_history(affected, prior, known, [], [32], 2)) == {16, 48}
    assert next_in_history(affected, prior, {**known, 48: "b"}, [], [32], 1)[0] in (16, 40)


# ---- several workloads, and merges


def stretch_of(count: int, **more: object) -> ExactSpan:
    return ExactSpan(tuple(line(count, **more)))  # type: ignore[arg-type]


def found_in(
    stretch: ExactSpan,
    made: Sequence[Observation],
    entry: str = "",
    expand: Callable[[Point], ExactSpan | None] = lambda _: None,
) -> list[ValueChange]:
    return find_changes(stretch, entry, made, expand)


def test_a_second_workload_that_the_same_commit_changed_takes_four_measurements() -> None:
    for culprit in (1, 2, 31, 40, 63, 64):
        values = Values(lambda number, entry, at=culprit: number >= at)
        stretch = stretch_of(64)
        made = trace(stretch, values, ["one", "two", "three"])
        count = {entry: sum(each == entry for _, each in values.made) for entry in ("one", "two", "three")}
        assert count["one"] <= max_measurements(64)
        assert (count["two"] <= 4, count["three"] <= 4) == (True, True)
        for entry in ("one", "two", "three"):
            assert [result.candidates for result in found_in(stretch, made, entry)] == [(culprit,)]


def test_a_second_workload_that_another_commit_changed_is_traced_to_it() -> None:
    values = Values(lambda number, entry: number >= {"one": 10, "two": 50}[entry])
    stretch = stretch_of(64)
    made = trace(stretch, values, ["one", "two"])
    assert [result.candidates for result in found_in(stretch, made, "one")] == [(10,)]
    assert [result.candidates for result in found_in(stretch, made, "two")] == [(50,)]
    assert len(made) <= 2 * max_measurements(64) + 3


def test_a_workload_that_nothing_changed_takes_two_measurements() -> None:
    values = Values(lambda number, entry: entry == "one" and number >= 10)
    made = trace(stretch_of(64), values, ["one", "two"])
    assert sum(entry == "two" for _, entry in values.made) == 2
    assert len(made) == len(set(values.made))


def test_a_workload_that_cannot_be_measured_does_not_stop_another() -> None:
    values = Values(lambda number, entry: None if entry == "one" else number >= 10)
    stretch = stretch_of(64)
    made = trace(stretch, values, ["one", "two"])
    assert found_in(stretch, made, "one") == []
    assert [result.candidates for result in found_in(stretch, made, "two")] == [(10,)]


@pytest.mark.parametrize("slots", [2, 4])
def test_slots_measure_side_by_side_and_nothing_twice(slots: int) -> None:
    values = Values(lambda number, entry: number >= {"one": 10, "two": 50}[entry], most_delay_s=0.002)
    stretch = stretch_of(64)
    made = trace(stretch, values, ["one", "two"], slots)
    assert len(values.made) == len(set(values.made))
    assert [result.candidates for result in found_in(stretch, made, "one")] == [(10,)]
    assert [result.candidates for result in found_in(stretch, made, "two")] == [(50,)]


def test_no_more_is_measured_than_is_allowed() -> None:
    values = Values(lambda number, _: number >= 10)
    assert len(trace(stretch_of(64), values, most_runs=5)) == 5
    assert len(trace(stretch_of(64), values, slots=4, most_runs=5)) == 5


def test_what_the_cache_had_is_not_counted_as_measured() -> None:
    stretch = stretch_of(64)
    made = trace(stretch, Values(lambda number, _: number >= 10))
    cached = [observation.model_copy(update={"cached": True}) for observation in made[:5]]
    assert next_requests(stretch, [""], cached, [], lambda _: None, 1)
    assert next_requests(stretch, [""], made[:5], [], lambda _: None, 5) == []
    running = [(MeasurementRequest(stretch.points[n], "search"), "slot 0") for n in (3, 4)]
    assert next_requests(stretch, [""], made[:3], running, lambda _: None, 5) == []


def test_a_measurement_that_the_node_spoilt_is_made_again() -> None:
    values = Values(lambda number, _: number >= 10, void=[64, 32])
    stretch = stretch_of(64)
    made = trace(stretch, values)
    assert [result.candidates for result in found_in(stretch, made)] == [(10,)]
    assert [number for number, _ in values.made].count(64) == 2
    assert sum(observation.void for observation in made) == 2


def test_one_measurement_that_failed_does_not_outweigh_one_that_did_not() -> None:
    stretch = stretch_of(4)
    made = trace(stretch, Values(lambda number, _: number >= 2))
    failed = made[-1].model_copy(update={"usable": False, "state": "", "reason": "no memory"})
    assert place_values(stretch, "", [*made, failed]) == place_values(stretch, "", made)
    assert place_values(stretch, "", [failed, *made]) == place_values(stretch, "", made)


def merged(culprit: int, at: int = 5) -> tuple[ExactSpan, Callable[[Point], ExactSpan | None], Values]:
    """A line of ten whose fifth is the merge of a branch of eight, 100 to 108; and a branch of three in the branch, 200
    to 203, that 104 merges. 100 is 3 on the line, 200 is 102."""
    outer = tuple(point(n, [n - 1, 108] if n == at else [n - 1] if n else []) for n in range(11))
    branch = (
        point(3),
        *(point(n, [n - 1, 203] if n == 104 else [n - 1 if n > 101 else 3]) for n in range(101, 109)),
    )
    deep = (point(102), *(point(n, [n - 1 if n > 201 else 102]) for n in range(201, 204)))
    inside = {key(at): ExactSpan(branch, merge=key(at)), key(104): ExactSpan(deep, merge=key(104))}

    def state(number: int, _: str) -> object:
        if culprit < 100:
            return number >= culprit and number < 100
        has = number >= at if number < 100 else number >= culprit if number < 200 and culprit < 200 else False
        if culprit >= 200:
            has = number >= culprit if number >= 200 else number >= 104 if number >= 100 else number >= at
        return has

    return ExactSpan(outer), lambda each: inside.get(each.key), Values(state)


@pytest.mark.parametrize("culprit", [101, 103, 105, 108])
def test_a_merge_that_is_the_culprit_is_descended_into(culprit: int) -> None:
    stretch, expand, values = merged(culprit)
    made = trace(stretch, values, expand=expand)
    (result,) = found_in(stretch, made, expand=expand)
    assert result.candidates == (5,)
    (last,) = result.innermost()
    assert last.span.merge == key(5)
    assert [last.span.points[place].key for place in last.candidates] == [key(culprit)]


def test_so_is_a_merge_in_its_branch() -> None:
    stretch, expand, values = merged(202)
    (result,) = found_in(stretch, trace(stretch, values, expand=expand), expand=expand)
    (last,) = result.innermost()
    assert [last.span.points[place].key for place in last.candidates] == [key(202)]
    assert last.span.merge == key(104)


def test_a_merge_whose_branch_is_innocent_is_to_blame_itself() -> None:
    stretch, expand, values = merged(5)
    made = trace(stretch, values, expand=expand)
    (result,) = found_in(stretch, made, expand=expand)
    assert result.innermost() == [result]
    assert result.candidates == (5,)
    assert sum(number >= 100 for number, _ in values.made) == 1


def test_only_a_merge_that_is_the_culprit_is_descended_into() -> None:
    stretch, expand, values = merged(7)
    trace(stretch, values, expand=expand)
    assert all(number < 100 for number, _ in values.made)


def test_a_second_workload_is_asked_first_where_the_branch_has_changed_the_first() -> None:
    stretch, expand, values = merged(107)
    made = trace(stretch, values, ["one", "two"], expand=expand)
    count = {entry: sum(each == entry for _, each in values.made) for entry in ("one", "two")}
    assert count["two"] <= 4 + 4
    for entry in ("one", "two"):
        ((last,),) = (result.innermost() for result in found_in(stretch, made, entry, expand))
        assert [last.span.points[place].key for place in last.candidates] == [key(107)]
