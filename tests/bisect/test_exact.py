"""The search on exact values: which points it measures, and which changes it finds."""

import pytest

from regbot.bisect.exact import find_changes, innermost, max_measurements
from regbot.bisect.span import build_span
from regbot.records.bisection import Point
from support.bisect_cases import Values, key, line, number_of, span, trace


def found(made: list, stretch, entry: str = "", expand=lambda _: None) -> list[list[int]]:  # type: ignore[no-untyped-def,type-arg]
    """Of every change the numbers of its candidates."""
    changes = innermost(find_changes(stretch, entry, made, expand))
    return [[number_of(change.span.points[place]) for place in change.candidates] for change in changes]


@pytest.mark.parametrize("count", [1, 2, 3, 9, 64, 200])
def test_one_change_is_found_in_as_many_measurements_as_halving_takes(count: int) -> None:
    for culprit in {1, 2, count // 2, count - 1, count} - {0}:
        if culprit > count:
            continue
        values = Values(lambda number, _, culprit=culprit: number >= culprit)  # type: ignore[misc]
        assert found(trace(span(count), values), span(count)) == [[culprit]]
        assert len(values.made) <= max_measurements(count)


def test_points_that_run_the_same_code_are_measured_once() -> None:
    stretch = span(9, same=range(2, 9))
    values = Values(lambda number, _: number >= 9)
    assert found(trace(stretch, values), stretch) == [[9]]
    assert [number for number, _ in values.made] == [0, 9, 1]


def test_equal_ends_are_the_end() -> None:
    values = Values(lambda number, _: "same")
    assert found(trace(span(64), values), span(64)) == []
    assert len(values.made) == 2


def test_a_value_that_changed_twice_is_traced_to_both_changes() -> None:
    values = Values(lambda number, _: (number >= 20) + (number >= 50))
    assert found(trace(span(64), values), span(64)) == [[20], [50]]


@pytest.mark.parametrize("culprit", [20, 31, 45, 60])
def test_broken_points_are_left_by_jumps_and_those_beside_the_culprit_are_named_with_it(culprit: int) -> None:
    broken = range(30, 50)
    values = Values(lambda number, _: None if number in broken else number >= culprit)
    expected = [culprit] if culprit not in range(30, 51) else list(range(30, 51))
    assert found(trace(span(64), values), span(64)) == [expected]
    if culprit not in range(29, 52):
        assert len(values.made) <= max_measurements(64) + 8


def test_good_and_bad_are_tried_twice() -> None:
    values = Values(lambda number, _: None if number == 64 else 0)
    trace(span(64), values)
    assert [number for number, _ in values.made] == [0, 64, 64]
    first_try_fails = Values(lambda number, _: None if number == 64 and len(first_try_fails.made) < 3 else number >= 7)
    assert found(trace(span(64), first_try_fails), span(64)) == [[7]]


def test_a_second_workload_is_measured_first_where_the_first_one_changed() -> None:
    values = Values(lambda number, entry: number >= (40 if entry == "other" else 20))
    made = trace(span(64), values, entries=("first", "second"))
    assert found(made, span(64), "second") == [[20]]
    assert {number for number, entry in values.made if entry == "second"} == {0, 19, 20, 64}
    values.made.clear()
    made = trace(span(64), values, entries=("first", "other"))
    assert (found(made, span(64), "first"), found(made, span(64), "other")) == ([[20]], [[40]])


def test_a_merge_that_made_a_change_is_searched_and_stands_for_itself_where_its_branch_did_not() -> None:
    stretch = build_span(line(8, merges=[5]))
    fork, *commits = line(4)
    branch = build_span(
        [fork, *(point.model_copy(update={"commit": key(100 + number_of(point))}) for point in commits)], key(5)
    )

    def expand(point: Point) -> object:
        return branch if point.key == key(5) else None

    inside = Values(lambda number, _: number >= 103 or 5 <= number < 100)
    assert found(trace(stretch, inside, expand=expand), stretch, expand=expand) == [[103]]  # type: ignore[arg-type]
    itself = Values(lambda number, _: 5 <= number < 100)
    assert found(trace(stretch, itself, expand=expand), stretch, expand=expand) == [[5]]  # type: ignore[arg-type]
    lost = Values(lambda number, _: None if number > 100 else number >= 5)
    assert found(trace(stretch, lost, expand=expand), stretch, expand=expand) == [[5]]  # type: ignore[arg-type]
