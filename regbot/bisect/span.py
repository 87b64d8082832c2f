"""The range that a search works on: commits or versions in order, and which of them could not be measured."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from regbot.records.bisection import Observation, Point

END_ATTEMPTS = 2
"""Number of attempts at measuring good and bad before they count as failed. Both ends are needed for an answer."""

GOLDEN_SHARE = 0.618034
"""Multiples of this share are spread evenly over 0 to 1. They take the place of random numbers in ``skip_broken``."""


@dataclass(frozen=True)
class Span:
    """The places of a range in order, good first. Points that run the same code form one place."""

    points: tuple[Point, ...]
    """For each place, the first point that runs the code of the place. Only this point can be the culprit."""
    place_by_key: Mapping[str, int]
    """Key of every point -> number of its place."""
    merge: str = ""
    """Key of the merge that brought in the commits of this range; '' if the range is no branch of a merge."""

    @property
    def last(self) -> int:
        """The place of bad."""
        return len(self.points) - 1


ExpandMerge = Callable[[Point], Span | None]
"""Returns the range of the commits that a merge brought in; None if the commit is no merge or its branch cannot be
searched.
"""


def build_span(points: Sequence[Point], merge: str = "") -> Span:
    first_points: list[Point] = []
    place_by_key: dict[str, int] = {}
    for point in points:
        if not first_points or not point.same_as_before:
            first_points.append(point)
        place_by_key[point.key] = len(first_points) - 1
    return Span(tuple(first_points), place_by_key, merge)


def find_broken(span: Span, observations: Sequence[Observation], entry: str = "") -> dict[int, Observation]:
    """Return the places whose measurement failed and that have no value, each with its last failure.

    Good and bad are broken only after ``END_ATTEMPTS`` failures.
    """
    broken: dict[int, Observation] = {}
    failures: Counter[int] = Counter()
    measured = set()
    for observation in observations:
        place = span.place_by_key.get(observation.point)
        if place is None or observation.entry != entry or observation.void:
            continue
        if observation.usable:
            measured.add(place)
            continue
        failures[place] += 1
        if place not in (0, span.last) or failures[place] >= END_ATTEMPTS:
            broken[place] = observation
    return {place: observation for place, observation in broken.items() if place not in measured}


def skip_broken(wanted: int, free: Sequence[int]) -> int:
    """Return the place of ``free`` to measure where ``wanted`` is broken or beside broken places.

    As ``git bisect skip`` does, this jumps away from ``wanted``, by a distance that differs after each failure, because
    broken commits are often neighbours. No random number is drawn, so a resumed search makes the same choices.
    """
    nearest_first = sorted(free, key=lambda place: (abs(place - wanted), place))
    share = len(free) * GOLDEN_SHARE % 1
    return nearest_first[int(len(free) * share**1.5)]
