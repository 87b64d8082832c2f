"""The search on exact values, which are compared for equality: ledgers, counts, numbers from a simulator.

If two measured neighbours on the line differ, a change lies between them. The suspicion of a point is its prior weight
as the culprit. The next point to measure is chosen so that about half of the suspicion lies on each side of it. Where
points cannot be measured, the choice also depends on the estimated chance that a measurement succeeds
(``broken.success_chances``). If the value changed twice, both changes are searched. Like any bisection, the search
misses a change that was undone before the next measured point.

Neighbouring points that run the same code form a place. They share one value, so only one of them is measured. In this
module a place is the number of its first point: if points 3, 4 and 5 run the same code, their place is 3.

Common parameters:

``place_of_point``  the place of each point
``states``          place -> its measured value, as text
``broken``          places that could not be measured
``pending``         places that are being measured now

In a history with branches, the search answers one question only: which commit made the value differ from good's value?
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regbot.bisect.broken import success_chances
from regbot.stats.culprit import Bools, Floats
from regbot.stats.next_run import split_worth


class _Gap(NamedTuple):
    """The places that can still be measured between two measured neighbours with different values."""

    inside: list[tuple[int, float]]
    """Each of these places with its suspicion, which includes that of the broken places just before it."""
    end: float
    """Suspicion of the places after the last one in ``inside``, including the later neighbour."""


class ValueStep(NamedTuple):
    """A change of the value between two measured neighbours."""

    before: int
    """The neighbour before the change, as a place."""
    candidates: tuple[int, ...]
    """Places after ``before``, up to and including the next measured place. One of them made the change."""


def find_places(same_as_before: Sequence[bool]) -> list[int]:
    """Return the place of each point: the number of the first point in the unbroken series with the same code.

    ``same_as_before`` says for each point whether it runs the same code as the point before it. For example, [False,
    True, False] gives [0, 0, 2].
    """
    place = 0
    place_of_point = []
    for number, same in enumerate(same_as_before):
        if not same:
            place = number
        place_of_point.append(place)
    return place_of_point


def next_on_line(
    place_of_point: Sequence[int],
    weights: Sequence[float],
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
    slots: int,
) -> list[int]:
    """Return the places to measure next, at most ``slots``; [] if nothing more can be learned now.

    ``weights`` has the suspicion of each point. The two ends are measured first. Pending places are never returned.

    A suspect has a weight above 1: the user named it, or another workload changed there. Without suspects and broken
    places, a search for one change takes at most ``max_measurements``. For this, the number of candidates on each side
    of a chosen place is limited. With suspects or broken places there is no limit, because the search may then need
    more measurements.
    """
    first, last = place_of_point[0], place_of_point[-1]
    open_ends = [end for end in dict.fromkeys((first, last)) if end not in states and end not in broken]
    if open_ends:
        return [end for end in open_ends if end not in pending][:slots]
    if first in broken or last in broken:
        return []
    chosen: list[int] = []
    chances = success_chances(len(place_of_point), states, broken)
    measurements_left = max_measurements(len(set(place_of_point)) - 1) - len(states)
    has_suspect = max(weights) > 1
    # If n measurements are left after this one, each side may have at most 2**n candidates.
    largest_side = math.inf if broken or has_suspect else 2.0 ** (measurements_left - 1)
    gaps = _open_gaps(place_of_point, weights, states, broken, pending)
    while gaps and len(chosen) < slots:
        gaps.sort(key=_sum_suspicion, reverse=True)
        gap = gaps.pop(0)
        middle = _find_middle(gap, chances, largest_side)
        place, _ = gap.inside[middle]
        chosen.append(place)
        gaps += _split_gap(gap, [middle])
    return chosen


def changes_on_line(
    place_of_point: Sequence[int], states: Mapping[int, str], broken: Collection[int]
) -> list[ValueStep]:
    """Return the changes that no further measurement can narrow down, in order.

    All candidates of such a change are broken, except for the last one, which was measured.
    """
    return [
        step
        for step in differing_neighbours(place_of_point, states)
        if all(place in broken for place in step.candidates[:-1])
    ]


def differing_neighbours(place_of_point: Sequence[int], states: Mapping[int, str]) -> list[ValueStep]:
    """Return the changes between measured neighbours, in order, each with all its candidates."""
    places = list(dict.fromkeys(place_of_point))
    return [
        ValueStep(before, tuple(place for place in places if before < place <= after))
        for before, after in _measured_neighbours(place_of_point, states)
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
    """Return the points to measure next in a history with branches, at most ``slots``; [] if nothing can be learned.

    A hypothesis is a commit that may be the culprit. In the array ``affected``, element [h, p] says whether point p
    contains the commit of hypothesis h. Element [h] of ``prior`` is the suspicion of this commit. Here every point is a
    place of its own, and point 0 is good. The chosen points divide the remaining suspicion best.
    """
    last = affected.shape[1] - 1
    open_ends = [end for end in (0, last) if end not in states and end not in broken]
    if open_ends:
        return [end for end in open_ends if end not in pending][:slots]
    if 0 in broken or last in broken or states[0] == states[last]:
        return []
    chances = success_chances(last + 1, states, broken)
    is_free = np.ones(last + 1, dtype=bool)  # whether the point is neither measured, broken, pending nor chosen
    is_free[[*states, *broken, *pending]] = False
    # A part is a set of hypotheses that no measurement separates. Pending and chosen points count as measured.
    parts = [remaining_hypotheses(affected, states)]
    for point in pending:
        parts = _split_parts(parts, affected[:, point])
    chosen: list[int] = []
    while parts and len(chosen) < slots:
        parts.sort(key=lambda part: -float(prior[part].sum()))
        part = parts[0]
        # For each point: the suspicion of those commits of the part that the point contains.
        contained_suspicion = prior[part] @ affected[part]
        total = float(prior[part].sum())
        separates = affected[part].any(axis=0) & ~affected[part].all(axis=0)
        useful = np.flatnonzero(is_free & separates)
        if not useful.size:
            parts.pop(0)
            continue
        # A point is worth most if its measurement halves the suspicion and probably succeeds.
        worth = chances[useful] * split_worth(contained_suspicion[useful], total)
        point = int(useful[int(np.argmax(worth))])
        chosen.append(point)
        is_free[point] = False
        parts = _split_parts(parts, affected[:, point])
    return chosen


def remaining_hypotheses(affected: Bools, states: Mapping[int, str]) -> Bools:
    """Return for each hypothesis whether it agrees with all measured values.

    A hypothesis is a commit that may be the culprit. In the array ``affected``, element [h, p] says whether point p
    contains the commit of hypothesis h. A hypothesis agrees if two things are true: every measured point that contains
    the commit differs from good, and every other measured point equals good. Point 0 is good.
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
    """Return the maximum number of measurements, including both ends, of a search for one change.

    After the two ends, each measurement halves the candidates: 2 + ceil(log2(candidates)) in all.
    """
    return 2 + max(0, candidate_count - 1).bit_length()


def _measured_neighbours(place_of_point: Sequence[int], states: Mapping[int, str]) -> list[tuple[int, int]]:
    measured = [place for place in dict.fromkeys(place_of_point) if place in states]
    return list(pairwise(measured))


def _open_gaps(
    place_of_point: Sequence[int],
    weights: Sequence[float],
    states: Mapping[int, str],
    broken: Collection[int],
    pending: Collection[int],
) -> list[_Gap]:
    """Return the places that can still be measured between neighbours that differ, with the suspicion of each place.

    The suspicion of a broken place is added to the next place, because a change in the broken place shows there first.
    """
    gaps = []
    suspicion_of_place = dict.fromkeys(place_of_point, 0.0)
    for place, weight in zip(place_of_point, weights, strict=True):
        suspicion_of_place[place] += weight
    for step in differing_neighbours(place_of_point, states):
        *between, after = step.candidates
        inside: list[tuple[int, float]] = []
        carried = 0.0
        for place in between:
            carried += suspicion_of_place[place]
            if place not in broken:
                inside.append((place, carried))
                carried = 0.0
        carried += suspicion_of_place[after]
        pending_indices = [index for index, (place, _) in enumerate(inside) if place in pending]
        gaps += _split_gap(_Gap(inside, carried), pending_indices)
    return gaps


def _split_gap(gap: _Gap, indices: Sequence[int]) -> list[_Gap]:
    """Divide a gap at ``indices`` of ``gap.inside``. Return the parts that still have places to measure.

    The place at such an index is measured or pending, so it ends the part before it.
    """
    parts = []
    start = 0
    for index in indices:
        _, suspicion = gap.inside[index]
        parts.append(_Gap(gap.inside[start:index], suspicion))
        start = index + 1
    parts.append(_Gap(gap.inside[start:], gap.end))
    return [part for part in parts if part.inside]


def _sum_suspicion(gap: _Gap) -> float:
    return sum(weight for _, weight in gap.inside) + gap.end


def _find_middle(gap: _Gap, chances: Floats, largest_side: float) -> int:
    """Return the index in ``gap.inside`` of the place at which both sides carry about the same suspicion.

    The suspicion of this place counts for the side before it: if the place made the change, its value already differs.
    ``chances`` has, for each point, the chance that it can be measured.

    Each side has a limit for the number of candidates: ``largest_side``, or a power of two if that is larger. To get
    this power of two, the number of candidates is rounded up to a power of two and halved. For example, 5 candidates
    are rounded up to 8. Half of 8 is 4, so they may be divided into 4 and 1.
    """
    places = np.array([place for place, _ in gap.inside])
    suspicion_before = np.cumsum([suspicion for _, suspicion in gap.inside])
    # ``split_worth`` is largest if the place divides the suspicion into halves.
    worth = chances[places] * split_worth(suspicion_before, _sum_suspicion(gap))
    candidate_count = len(places) + 1
    counts_before = np.arange(1, candidate_count)
    half_of_power_of_two = 2.0 ** ((candidate_count - 1).bit_length() - 1)
    limit = max(largest_side, half_of_power_of_two)
    larger_sides = np.maximum(counts_before, candidate_count - counts_before)
    # A place that divides the candidates too unevenly gets the worth -1, so it is never chosen.
    return int(np.argmax(np.where(larger_sides <= limit, worth, -1.0)))
