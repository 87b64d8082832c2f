"""A part of the axis in which a culprit is looked for, and what the runs in it say so far.

Points that run the same code are one place: what is measured at one of them holds for all, and only the first of them
can be the culprit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from regbot.bisect.exact import classes
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import Bools, Floats, Posterior, Question, Sample, linear, posterior, question, sets

END_ATTEMPTS = 2
"""So often good and bad are tried where they fail: without one of them there is no answer at all."""


@dataclass(frozen=True)
class Noise:
    """What is known of the noise of one run. ``sd`` of its log time; None where nothing is on record."""

    sd: float | None
    pairs: int = 0


@dataclass(frozen=True)
class Span:
    """Places in order, good first. ``name`` tells the runs that were made for it from others."""

    name: str
    points: tuple[Point, ...]
    """One for each place: the first that runs its code."""
    weights: tuple[float, ...]
    """Prior suspicion of every place but the first."""
    affected: Bools
    """[places - 1, places] As ``stats.culprit`` has it."""
    places: Mapping[str, int]
    """Key of every point, the others of a place among them -> its place."""
    none: float
    """Prior probability that no place is to blame."""
    smallest: float
    """Log-ratio below which a slowdown is none."""
    merge: str = ""
    """The merge whose branch this is."""
    remainder: bool = False
    """Whether it is what a culprit has left over."""

    @cached_property
    def is_line(self) -> bool:
        return bool(np.array_equal(self.affected, linear(len(self.points))))

    def before(self, place: int) -> int:
        """The place before one: its first parent, or the last place that does not contain it."""
        parents = self.points[place].parents
        if parents and (first := self.places.get(parents[0])) is not None and first < place:
            return first
        return int(np.flatnonzero(~self.affected[place - 1][:place])[-1])

    def part(self, name: str, first: int, last: int, none: float, smallest: float) -> "Span":
        """The places from ``first`` to ``last``, to ask whether something is left there."""
        return replace(
            self,
            name=name,
            points=self.points[first : last + 1],
            weights=self.weights[first:last],
            affected=self.affected[first:last, first : last + 1],
            places={key: place - first for key, place in self.places.items() if first <= place <= last},
            none=none,
            smallest=smallest,
            remainder=True,
        )


@dataclass(frozen=True)
class Standing:
    """What is known of a span."""

    samples: tuple[Sample, ...]
    available: Bools
    """[places] That can be measured, as far as is known."""
    belief: Posterior
    likeliest: tuple[int, ...]
    """Places of the likeliest set: those that cannot be told apart, because what lies between cannot be measured."""
    probability: float
    """Of that set."""


def span_of(
    points: Sequence[Point], affected: Bools, none: float, smallest: float, name: str = "", merge: str = ""
) -> Span:
    """The places of a range. ``affected`` is that of the points."""
    of = classes([point.same_as_before for point in points])
    firsts = sorted(set(of))
    number = {first: place for place, first in enumerate(firsts)}
    return Span(
        name=name,
        points=tuple(points[first] for first in firsts),
        weights=tuple(points[first].weight for first in firsts[1:]),
        affected=affected[[first - 1 for first in firsts[1:]]][:, firsts],
        places={point.key: number[first] for point, first in zip(points, of, strict=True)},
        none=none,
        smallest=smallest,
        merge=merge,
    )


def asked(span: Span, noise: Noise, refuted: Sequence[int] = ()) -> Question:
    """The question of a span. ``refuted``: places that a confirmation has cleared."""
    weights: Floats = np.array(span.weights, dtype=float)
    weights[[place - 1 for place in refuted]] = 0.0
    return question(span.affected, weights, span.none, span.smallest, noise.sd, noise.pairs)


def stand(span: Span, the_question: Question, observations: Sequence[Observation], summary: str) -> Standing:
    """What the observations make of a span."""
    samples, broken = samples_of(span, observations, summary)
    available = np.ones(len(span.points), dtype=bool)
    available[sorted(broken)] = False
    belief = posterior(the_question, samples)
    of = sets(the_question, available)
    together = np.bincount(of, weights=belief.culprit)
    best = int(np.argmax(together))
    likeliest = tuple(int(place) + 1 for place in np.flatnonzero((of == best) & (the_question.prior > 0)))
    return Standing(tuple(samples), available, belief, likeliest, float(together[best]))


def samples_of(
    span: Span, observations: Sequence[Observation], summary: str
) -> tuple[list[Sample], dict[int, Observation]]:
    """The runs in a span, and the places that cannot be measured, each with what was said of it.

    The ends are needed, so what fails there once is tried again.
    """
    samples, broken, failures = [], {}, Counter[int]()
    ends = (0, len(span.points) - 1)
    for each in observations:
        place = span.places.get(each.point)
        if place is None or each.void:
            continue
        if each.usable:
            samples.append(Sample(place, each.values[summary], stratum_of(each)))
            continue
        failures[place] += 1
        if place not in ends or failures[place] == END_ATTEMPTS:
            broken[place] = each
    measured = {sample.point for sample in samples}
    return samples, {place: each for place, each in broken.items() if place not in measured}


def failing(span: Span, observations: Sequence[Observation], times: int) -> list[int]:
    """Places whose last runs have all failed, so many at least: whatever they gave before, they give no more."""
    in_a_row: dict[int, int] = {}
    for each in observations:
        if (place := span.places.get(each.point)) is not None and not each.void:
            in_a_row[place] = 0 if each.usable else in_a_row.get(place, 0) + 1
    return [place for place, failures in in_a_row.items() if failures >= times]


def stratum_of(run: Observation) -> str:
    """Runs of one node and session have one level; the blocks of a confirmation one each, so that drift cancels."""
    return f"{run.stratum} {run.contrast} {run.block}" if run.purpose == "confirm" else run.stratum
