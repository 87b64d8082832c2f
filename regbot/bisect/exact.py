"""The search on values that are compared for equality: ledgers, counts, what a simulator prints.

Where two neighbours on the line that were measured differ, something between them changed: the point in the middle of
the suspicion between them is measured next. So a count that changed twice is traced twice. What changed and changed
back between two equal neighbours is not seen, as by any bisection.

Points that run the same code share a value, and one of them is measured for all. In a history that is no line there is
one question only: which commit made it differ from good.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regbot.stats.culprit import Bools, Floats


class _Span(NamedTuple):
    """Classes that may be measured between two neighbours that differ, each with its suspicion."""

    inside: list[tuple[int, float]]
    end: float
    """Suspicion of what lies behind the last of them."""


class Step(NamedTuple):
    """A change between two neighbours that were measured, with nothing measurable between them."""

    before: int
    candidates: tuple[int, ...]
    """Points, one of which brought it; the last of them was measured, what comes before it could not be."""


def classes(same_as_before: Sequence[bool]) -> list[int]:
    """For each point the first point that runs the same code without a break."""
    first = 0
    found = []
    for number, same in enumerate(same_as_before):
        first = first if same and number else number
        found.append(first)
    return found


def next_on_line(
    of: Sequence[int],
    weights: Sequence[float],
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
    slots: int,
) -> list[int]:
    """Points to measure next, at most ``slots``, none of them pending; [] where nothing more can be learned now.

    ``of`` are the points' classes; ``states``, ``broken`` and ``pending`` are of classes. Both ends come first.
    """
    ends = [end for end in (of[0], of[-1]) if end not in states and end not in broken]
    if ends:
        return [end for end in dict.fromkeys(ends) if end not in pending][:slots]
    if of[0] in broken or of[-1] in broken:
        return []
    chosen: list[int] = []
    spans = _open(of, weights, states, broken, pending)
    while spans and len(chosen) < slots:
        spans.sort(key=lambda span: -_suspicion(span))
        span = spans.pop(0)
        middle = _middle(span)
        chosen.append(span.inside[middle][0])
        spans += _divided(span, [middle])
    return chosen


def steps_on_line(of: Sequence[int], states: Mapping[int, str], broken: Collection[int]) -> list[Step]:
    """The changes between measured neighbours that are as near to each other as can be, in order."""
    found = []
    for before, after in _neighbours(of, states):
        if states[before] != states[after]:
            between = [each for each in dict.fromkeys(of) if before < each <= after]
            if all(each in broken or each == after for each in between):
                found.append(Step(before, tuple(between)))
    return found


def next_in_history(
    affected: Bools,
    prior: Floats,
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
    slots: int,
) -> list[int]:
    """The same for a history with branches: points that leave least doubt, whichever way they turn out."""
    last = affected.shape[1] - 1
    ends = [end for end in (0, last) if end not in states and end not in broken]
    if ends:
        return [end for end in ends if end not in pending][:slots]
    if 0 in broken or last in broken or states[0] == states[last]:
        return []
    free = np.ones(last + 1, dtype=bool)
    free[[*states, *broken, *pending]] = False
    parts = [remaining(affected, states)]
    for point in pending:
        parts = _told_apart(parts, affected[:, point])
    chosen: list[int] = []
    while parts and len(chosen) < slots:
        parts.sort(key=lambda part: -float(prior[part].sum()))
        reach = prior[parts[0]] @ affected[parts[0]]
        total = float(prior[parts[0]].sum())
        inside = np.flatnonzero(free & affected[parts[0]].any(axis=0) & ~affected[parts[0]].all(axis=0))
        if not inside.size:
            parts.pop(0)
            continue
        point = int(inside[int(np.argmin(np.abs(reach[inside] - total / 2)))])
        chosen.append(point)
        free[point] = False
        parts = _told_apart(parts, affected[:, point])
    return chosen


def remaining(affected: Bools, states: Mapping[int, str]) -> Bools:
    """[hypotheses] Those that every value agrees with: a point that contains the culprit is not as good is."""
    left = np.ones(len(affected), dtype=bool)
    for point, state in states.items():
        if point:
            left &= affected[:, point] == (state != states[0])
    return left


def _told_apart(parts: Sequence[Bools], hit: Bools) -> list[Bools]:
    """The parts, each divided by whether the point that was measured contains the culprit."""
    halves = (part & side for part in parts for side in (hit, ~hit))
    return [half for half in halves if np.count_nonzero(half) > 1]


def most_measurements(different: int) -> int:
    """Measurements of a search for one change among so many candidates, both ends among them."""
    return 2 + max(0, different - 1).bit_length()


def _neighbours(of: Sequence[int], states: Mapping[int, str]) -> list[tuple[int, int]]:
    known = [each for each in dict.fromkeys(of) if each in states]
    return list(pairwise(known))


def _open(
    of: Sequence[int],
    weights: Sequence[float],
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
) -> list[_Span]:
    """What may be measured between neighbours that differ, with the suspicion that each carries.

    A class that is broken leaves its suspicion to the one after it, which would show what it brought.
    """
    spans = []
    share = dict.fromkeys(of, 0.0)
    for number, each in enumerate(of):
        share[each] += weights[number]
    for before, after in _neighbours(of, states):
        if states[before] == states[after]:
            continue
        inside: list[tuple[int, float]] = []
        carried = 0.0
        for each in dict.fromkeys(of):
            if not before < each <= after:
                continue
            carried += share[each]
            if each not in broken and each != after:
                inside.append((each, carried))
                carried = 0.0
        running = [place for place, (each, _) in enumerate(inside) if each in pending]
        spans += _divided(_Span(inside, carried), running)
    return spans


def _divided(span: _Span, at: Sequence[int]) -> list[_Span]:
    """The parts of a span between these places of it: one that is measured is the end of what lies before it."""
    parts = []
    first = 0
    for place in at:
        parts.append(_Span(span.inside[first:place], span.inside[place][1]))
        first = place + 1
    return [part for part in (*parts, _Span(span.inside[first:], span.end)) if part.inside]


def _suspicion(span: _Span) -> float:
    return sum(weight for _, weight in span.inside) + span.end


def _middle(span: _Span) -> int:
    """Where to divide a span so that both sides are as suspicious.

    A culprit at the point itself would show there, so its suspicion lies on the side before.
    """
    total = _suspicion(span)
    before, best, chosen = 0.0, math.inf, 0
    for number, (_, weight) in enumerate(span.inside):
        before += weight
        if abs(2 * before - total) < best:
            best, chosen = abs(2 * before - total), number
    return chosen
