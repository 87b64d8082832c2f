"""The search on exact values over several workloads and ranges: what to measure next, and what changed where.

A culprit that is a merge opens the range of the commits that it brought. A second workload is asked first where the
first one changed: one commit mostly changes them all.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from regbot.bisect import exact
from regbot.bisect.noisy import Wanted
from regbot.bisect.span import END_ATTEMPTS
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import Bools, Floats

TOLD_APART = 10.0
"""How much more suspicious a point where another workload has changed is than all others together."""

Expand = Callable[[Point], "Stretch | None"]
"""The range of the commits that a merge brought; None for a commit that is none."""


@dataclass(frozen=True)
class Stretch:
    """A range whose values are compared. ``affected`` is None for a line."""

    points: tuple[Point, ...]
    affected: Bools | None = None
    merge: str = ""

    @cached_property
    def of(self) -> list[int]:
        return exact.classes([point.same_as_before for point in self.points])

    @cached_property
    def firsts(self) -> list[int]:
        return sorted(set(self.of))

    @cached_property
    def number(self) -> dict[str, int]:
        return {point.key: of for point, of in zip(self.points, self.of, strict=True)}


@dataclass
class Found:
    """A change in one workload."""

    entry: str
    stretch: Stretch
    before: int
    candidates: tuple[int, ...]
    inside: list["Found"] = field(default_factory=list)
    """Where a merge brought it: the commits of the branch that did. Empty where it is the merge itself."""

    def last(self) -> list["Found"]:
        """The changes as far down as they were traced."""
        return [each for found in self.inside for each in found.last()] or [self]


def next_wanted(
    stretch: Stretch,
    entries: Sequence[str],
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    expand: Expand,
    most_runs: int,
) -> list[Wanted]:
    """The next measurement, at most one; [] where nothing more can be learned now."""
    made = sum(not each.cached for each in observations) + len(pending)
    if made >= most_runs:
        return []
    for entry in entries:
        suspects = {
            each.stretch.points[place].key
            for other in entries
            if other != entry
            for found in changes(stretch, other, observations, expand)
            for each in (found, *found.last())
            for place in each.candidates
        }
        for part in _parts(stretch, entry, observations, expand):
            if found := _next(part, entry, observations, pending, suspects):
                return found
    return []


def changes(stretch: Stretch, entry: str, observations: Sequence[Observation], expand: Expand) -> list[Found]:
    """The changes that are told apart as far as can be."""
    states, broken = values_of(stretch, entry, observations)
    found = [
        Found(entry, stretch, step.before, step.candidates)
        for step in (
            exact.steps_on_line(stretch.of, states, broken)
            if stretch.affected is None
            else _step_in_history(stretch, stretch.affected, states, broken)
        )
    ]
    for each in found:
        if len(each.candidates) == 1 and (branch := expand(stretch.points[each.candidates[0]])) is not None:
            each.inside = changes(branch, entry, observations, expand)
    return found


def values_of(
    stretch: Stretch, entry: str, observations: Sequence[Observation]
) -> tuple[dict[int, str], dict[int, Observation]]:
    """The values of a range's classes, and those that cannot be measured."""
    states: dict[int, str] = {}
    broken: dict[int, Observation] = {}
    failures: Counter[int] = Counter()
    ends = (stretch.of[0], stretch.of[-1])  # without one of them there is no answer at all: they are tried again
    for each in observations:
        place = stretch.number.get(each.point)
        if place is None or each.entry != entry:
            continue
        if each.usable:
            states[place] = each.state
        elif not each.void:
            failures[place] += 1
            if place not in ends or failures[place] >= END_ATTEMPTS:
                broken[place] = each
    return states, {place: each for place, each in broken.items() if place not in states}


def _parts(stretch: Stretch, entry: str, observations: Sequence[Observation], expand: Expand) -> list[Stretch]:
    """The range, and those of the merges that were found in it."""
    parts = [stretch]
    for each in changes(stretch, entry, observations, expand):
        if len(each.candidates) == 1 and (branch := expand(each.stretch.points[each.candidates[0]])) is not None:
            parts += _parts(branch, entry, observations, expand)
    return parts


def _next(
    stretch: Stretch,
    entry: str,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    suspects: set[str],
) -> list[Wanted]:
    states, broken = values_of(stretch, entry, observations)
    running = {stretch.number[w.point.key] for w, _ in pending if w.entry == entry and w.point.key in stretch.number}
    heavy = TOLD_APART * sum(point.weight for point in stretch.points)
    weights = [point.weight + heavy * (point.key in suspects) for point in stretch.points]
    if stretch.affected is None:
        chosen = exact.next_on_line(stretch.of, weights, states, broken, running, 1)
    else:
        chosen = _next_in_history(stretch, stretch.affected, weights, states, broken, running)
    return [Wanted(stretch.points[chosen[0]], "search", entry=entry)] if chosen else []


def _next_in_history(
    stretch: Stretch,
    affected: Bools,
    weights: Sequence[float],
    states: dict[int, str],
    broken: dict[int, Observation],
    running: set[int],
) -> list[int]:
    """What tells the candidates apart; then the culprit and its parent, if only others have told of them."""
    places = {of: place for place, of in enumerate(stretch.firsts)}
    prior: Floats = np.array([weights[of] for of in stretch.firsts[1:]])
    chosen = exact.next_in_history(
        _of_classes(stretch, affected),
        prior,
        {places[of]: state for of, state in states.items()},
        [places[of] for of in broken],
        [places[of] for of in running],
        1,
    )
    if chosen:
        return [stretch.firsts[place] for place in chosen]
    shown = (
        of
        for step in _step_in_history(stretch, affected, states, broken)
        for of in (_parent(stretch, step.candidates[0]), *step.candidates)
    )
    return [of for of in shown if of not in states and of not in broken and of not in running][:1]


def _step_in_history(
    stretch: Stretch, affected: Bools, states: dict[int, str], broken: dict[int, Observation]
) -> list[exact.Step]:
    last = stretch.of[-1]
    if 0 not in states or last not in states or states[0] == states[last]:
        return []
    apart = _of_classes(stretch, affected)
    places = {of: place for place, of in enumerate(stretch.firsts)}
    at = {places[of]: state for of, state in states.items()}
    if exact.next_in_history(apart, np.ones(len(apart)), at, [places[of] for of in broken], (), 1):
        return []
    left = tuple(stretch.firsts[int(place) + 1] for place in np.flatnonzero(exact.remaining(apart, at)))
    if not left:
        return []
    # Where the parent was not measured, the nearest that the culprit was made from stands for it.
    first = left[0]
    made_from = [of for of in stretch.firsts[1:] if of < first and affected[of - 1, first]]
    known = [0, *(of for of in made_from if states.get(of) == states[0])]
    parent = _parent(stretch, first)
    return [exact.Step(parent if parent in known else known[-1], left)]


def _of_classes(stretch: Stretch, affected: Bools) -> Bools:
    """``affected`` with one row and one column for each class."""
    return affected[[of - 1 for of in stretch.firsts[1:]]][:, stretch.firsts]


def _parent(stretch: Stretch, place: int) -> int:
    """The place of the first parent; good where that is not in the range."""
    parents = stretch.points[place].parents
    return next((stretch.number[parent] for parent in parents if parent in stretch.number), 0)
