"""The search on exact values, which are compared for equality: ledgers, counts, numbers from a simulator.

If two measured neighbours on the line differ, a change lies between them. The suspicion of a point is its prior weight
as the culprit. The next point to measure is chosen so that about half of the suspicion lies on each side of it. Where
points cannot be measured, the choice also depends on the chance that the point can be (``broken``). If the value
changed twice, both changes are searched. Like any bisection, the search misses a change that was undone before the next
measured point.

Points that run the same code form a class and share one value, so only one point of a class is measured. In a history
with branches, the search answers one question only: which commit made the value differ from good's value?
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regbot.bisect.broken import success_chances
from regbot.stats.culprit import Bools, Floats
from regbot.stats.next_run import split_worth


class _OpenSpan(NamedTuple):
    """The measurable classes between two differing neighbours. ``inside`` has each class with its suspicion."""

    inside: list[tuple[int, float]]
    end: float
    """Suspicion of the points after the last class of ``inside``."""


class ValueStep(NamedTuple):
    """A change of the value between two measured neighbours. ``before`` is the neighbour before the change."""

    before: int
    candidates: tuple[int, ...]
    """Points after ``before``, up to the next measured point. One of them made the change."""


def code_classes(same_as_before: Sequence[bool]) -> list[int]:
    """Return the class of each point. A class is an unbroken series of points with the same code, named by its first
    point.
    """
    class_start = 0
    classes = []
    for number, same in enumerate(same_as_before):
        class_start = class_start if same and number else number
        classes.append(class_start)
    return classes


def next_on_line(
    classes: Sequence[int],
    weights: Sequence[float],
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
    slots: int,
) -> list[int]:
    """Return the points to measure next, at most ``slots``; [] if nothing more can be learned now.

    ``classes`` has the class of each point; ``states``, ``broken`` and ``pending`` contain classes. The two ends are
    measured first. Pending points are never returned. If all points can be measured and no weight is above 1, a search
    for one change takes at most ``max_measurements``, because small weights may change the order of the measurements,
    but not their number. A suspect has a weight above 1, and may cost more measurements.
    """
    ends = [end for end in (classes[0], classes[-1]) if end not in states and end not in broken]
    if ends:
        return [end for end in dict.fromkeys(ends) if end not in pending][:slots]
    if classes[0] in broken or classes[-1] in broken:
        return []
    chosen: list[int] = []
    chances = success_chances(len(classes), states, broken)
    halvings_left = max_measurements(len(set(classes)) - 1) - len(states)
    largest_side = math.inf if broken or max(weights) > 1 else 2.0 ** (halvings_left - 1)
    spans = _open_spans(classes, weights, states, broken, pending)
    while spans and len(chosen) < slots:
        spans.sort(key=lambda span: -_sum_suspicion(span))
        span = spans.pop(0)
        middle = _find_middle(span, chances, largest_side)
        chosen.append(span.inside[middle][0])
        spans += _split_span(span, [middle])
    return chosen


def changes_on_line(classes: Sequence[int], states: Mapping[int, str], broken: Collection[int]) -> list[ValueStep]:
    """Return the changes between measured neighbours that cannot be narrowed down further, in order."""
    return [
        step
        for step in differing_neighbours(classes, states)
        if all(code_class in broken or code_class == step.candidates[-1] for code_class in step.candidates)
    ]


def differing_neighbours(classes: Sequence[int], states: Mapping[int, str]) -> list[ValueStep]:
    """Return the changes between measured neighbours, in order, however many candidates they have."""
    return [
        ValueStep(before, tuple(code_class for code_class in dict.fromkeys(classes) if before < code_class <= after))
        for before, after in _neighbours(classes, states)
        if states[before] != states[after]
    ]


def next_in_history(
    affected: Bools,
    prior: Floats,
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
    slots: int,
) -> list[int]:
    """Return the points to measure next in a history with branches, at most ``slots``.

    The chosen points divide the remaining suspicion best.
    """
    last = affected.shape[1] - 1
    ends = [end for end in (0, last) if end not in states and end not in broken]
    if ends:
        return [end for end in ends if end not in pending][:slots]
    if 0 in broken or last in broken or states[0] == states[last]:
        return []
    chances = success_chances(last + 1, states, broken)
    is_free = np.ones(last + 1, dtype=bool)
    is_free[[*states, *broken, *pending]] = False
    # Parts are sets of hypotheses that no measurement separates. Pending and chosen points count as measured.
    parts = [remaining_hypotheses(affected, states)]
    for point in pending:
        parts = _split_parts(parts, affected[:, point])
    chosen: list[int] = []
    while parts and len(chosen) < slots:
        parts.sort(key=lambda part: -float(prior[part].sum()))
        reach = prior[parts[0]] @ affected[parts[0]]
        total = float(prior[parts[0]].sum())
        useful = np.flatnonzero(is_free & affected[parts[0]].any(axis=0) & ~affected[parts[0]].all(axis=0))
        if not useful.size:
            parts.pop(0)
            continue
        point = int(useful[int(np.argmax(chances[useful] * split_worth(reach[useful], total)))])
        chosen.append(point)
        is_free[point] = False
        parts = _split_parts(parts, affected[:, point])
    return chosen


def remaining_hypotheses(affected: Bools, states: Mapping[int, str]) -> Bools:
    """Return which hypotheses agree with all values. Shape: [hypotheses].

    A hypothesis agrees if exactly the points that contain its commit differ from good.
    """
    remaining = np.ones(len(affected), dtype=bool)
    for point, state in states.items():
        if point:
            remaining &= affected[:, point] == (state != states[0])
    return remaining


def _split_parts(parts: Sequence[Bools], contains_commit: Bools) -> list[Bools]:
    """Divide each part of the hypotheses by ``contains_commit``. Return the parts that still have several hypotheses.

    ``contains_commit`` says for each hypothesis whether the measured point contains its commit.
    """
    halves = (part & side for part in parts for side in (contains_commit, ~contains_commit))
    return [half for half in halves if np.count_nonzero(half) > 1]


def max_measurements(candidate_count: int) -> int:
    """Return the maximum number of measurements, including both ends, of a search for one change."""
    return 2 + max(0, candidate_count - 1).bit_length()


def _neighbours(classes: Sequence[int], states: Mapping[int, str]) -> list[tuple[int, int]]:
    measured = [code_class for code_class in dict.fromkeys(classes) if code_class in states]
    return list(pairwise(measured))


def _open_spans(
    classes: Sequence[int],
    weights: Sequence[float],
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
) -> list[_OpenSpan]:
    """Return the measurable classes between neighbours that differ, with the suspicion of each class.

    The suspicion of a broken class is added to the next class, because a change in the broken class shows there first.
    """
    spans = []
    weight_of = dict.fromkeys(classes, 0.0)
    for number, code_class in enumerate(classes):
        weight_of[code_class] += weights[number]
    for before, after in _neighbours(classes, states):
        if states[before] == states[after]:
            continue
        inside: list[tuple[int, float]] = []
        carried = 0.0
        for code_class in dict.fromkeys(classes):
            if not before < code_class <= after:
                continue
            carried += weight_of[code_class]
            if code_class not in broken and code_class != after:
                inside.append((code_class, carried))
                carried = 0.0
        pending_places = [place for place, (code_class, _) in enumerate(inside) if code_class in pending]
        spans += _split_span(_OpenSpan(inside, carried), pending_places)
    return spans


def _split_span(span: _OpenSpan, places: Sequence[int]) -> list[_OpenSpan]:
    """Divide a span at ``places``, which are indices of ``span.inside``.

    The class at such a place has a measurement, so it is the end of the part before it.
    """
    parts = []
    start = 0
    for place in places:
        parts.append(_OpenSpan(span.inside[start:place], span.inside[place][1]))
        start = place + 1
    return [part for part in (*parts, _OpenSpan(span.inside[start:], span.end)) if part.inside]


def _sum_suspicion(span: _OpenSpan) -> float:
    return sum(weight for _, weight in span.inside) + span.end


def _find_middle(span: _OpenSpan, chances: Floats, largest_side: float) -> int:
    """Return the place in ``span.inside`` at which both sides carry about the same suspicion.

    The suspicion of the class at this place counts for the side before it: if the class made the change, its value
    already differs. ``chances`` has the chance of each class that it can be measured. No side gets more candidates than
    the larger of two numbers: ``largest_side``, and half of the candidates when their number is rounded up to a power
    of two.
    """
    inside = np.array(span.inside)
    before = np.cumsum(inside[:, 1])
    worth = chances[inside[:, 0].astype(int)] * split_worth(before, _sum_suspicion(span))
    candidates = len(inside) + 1
    counts_before = np.arange(1, candidates)
    limit = max(largest_side, 2.0 ** ((candidates - 1).bit_length() - 1))
    is_allowed = np.maximum(counts_before, candidates - counts_before) <= limit
    return int(np.argmax(np.where(is_allowed, worth, -1.0)))
