"""The range of commits or versions that a noisy search works on, and the analysis of its runs.

Points that run the same code form one place. A measurement of one of these points holds for all of them, and only the
first of them can be the culprit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from regbot.bisect.exact import find_places
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import (
    Bools,
    CulpritModel,
    Floats,
    Posterior,
    Sample,
    affected_on_line,
    culprit_model,
    hypothesis_sets,
    posterior,
)

END_ATTEMPTS = 2
"""Number of attempts at measuring good and bad before they count as failed. Both ends are needed for an answer."""


@dataclass(frozen=True)
class Noise:
    """What is known about the noise of one run before the search."""

    sd: float | None
    """Standard deviation of the logarithm of a run's time; None if no noise is on record."""
    pairs: int = 0
    """Number of pairs that ``sd`` was estimated from; 0 if the user stated it."""


@dataclass(frozen=True)
class NoisySpan:
    """The places of a range in order, good first, with their priors."""

    name: str
    """The runs of this span have this name as ``Observation.contrast``. It is '' for the whole range."""
    points: tuple[Point, ...]
    """For each place, the first point that runs the code of the place."""
    weights: tuple[float, ...]
    """Prior suspicion of every place but the first."""
    affected: Bools
    """Array with a row for each candidate and a column for each place. Element [k, p] is whether place p contains the
    commit of the candidate at place k + 1.
    """
    places: Mapping[str, int]
    """Key of every point -> number of its place."""
    no_culprit: float
    """Prior probability that no place is the culprit."""
    smallest: float
    """Smallest slowdown to look for, as a log-ratio."""
    merge: str = ""
    """The merge that brought in the commits of this span; '' if the span is no branch of a merge."""
    remainder: bool = False
    """Whether this span is the range before or after a culprit."""

    @cached_property
    def is_line(self) -> bool:
        """Whether every place contains all places before it, as in a history without branches."""
        return bool(np.array_equal(self.affected, affected_on_line(len(self.points))))

    def before(self, place: int) -> int:
        """Return the place to compare ``place`` with.

        It is the place of the first parent. If the span has no such place, it is the last earlier place that does not
        contain the commit of ``place``.
        """
        parents = self.points[place].parents
        if parents and (parent_place := self.places.get(parents[0])) is not None and parent_place < place:
            return parent_place
        contains_commit = self.affected[place - 1]  # the row of ``place``: which places contain its commit
        return int(np.flatnonzero(~contains_commit[:place])[-1])

    def part(self, name: str, first: int, last: int, no_culprit: float, smallest: float) -> "NoisySpan":
        """Return the span from place ``first`` to place ``last``, in which a further culprit is searched.

        ``no_culprit`` is the prior probability that the span has no culprit. ``smallest`` is its smallest slowdown to
        look for.
        """
        return replace(
            self,
            name=name,
            points=self.points[first : last + 1],
            weights=self.weights[first:last],
            affected=self.affected[first:last, first : last + 1],
            places={key: place - first for key, place in self.places.items() if first <= place <= last},
            no_culprit=no_culprit,
            smallest=smallest,
            remainder=True,
        )


@dataclass(frozen=True)
class SpanAnalysis:
    """Analysis of the runs in a span."""

    samples: tuple[Sample, ...]
    available: Bools
    """One element for each place: False if its measurement has failed and none has succeeded."""
    posterior: Posterior
    likeliest: tuple[int, ...]
    """The likeliest places. There are several if they cannot be separated, because the points between them cannot be
    measured.
    """
    probability: float
    """Probability that one of the likeliest places is the culprit."""


def build_span(
    points: Sequence[Point], affected: Bools, no_culprit: float, smallest: float, name: str = "", merge: str = ""
) -> NoisySpan:
    """Build the span of a range, with one place for each series of points that run the same code.

    Element [k, x] of ``affected`` is whether points[x] contains the commit points[k + 1]. The parameters after it are
    fields of ``NoisySpan``. The span numbers its places 0, 1, 2. ``exact`` instead numbers a place by its first point.
    """
    first_points = find_places([point.same_as_before for point in points])
    distinct = sorted(set(first_points))
    candidate_rows = [first - 1 for first in distinct[1:]]
    place_by_first_point = {first: place for place, first in enumerate(distinct)}
    return NoisySpan(
        name=name,
        points=tuple(points[first] for first in distinct),
        weights=tuple(points[first].weight for first in distinct[1:]),
        affected=affected[candidate_rows][:, distinct],
        places={point.key: place_by_first_point[first] for point, first in zip(points, first_points, strict=True)},
        no_culprit=no_culprit,
        smallest=smallest,
        merge=merge,
    )


def build_culprit_model(span: NoisySpan, noise: Noise, cleared_places: Sequence[int] = ()) -> CulpritModel:
    """Build the culprit model of a span. ``cleared_places`` are places that a confirmation has cleared."""
    weights: Floats = np.array(span.weights, dtype=float)
    weights[[place - 1 for place in cleared_places]] = 0.0  # the first place (good) has no weight
    return culprit_model(span.affected, weights, span.no_culprit, span.smallest, noise.sd, noise.pairs)


def analyse_span(
    span: NoisySpan, model: CulpritModel, observations: Sequence[Observation], summary: str
) -> SpanAnalysis:
    """Analyse the observations in a span. ``summary`` is the compared summary of a run: median, mean or cost."""
    samples, broken = collect_samples(span, observations, summary)
    available = np.ones(len(span.points), dtype=bool)
    available[sorted(broken)] = False
    span_posterior = posterior(model, samples)
    # Hypotheses that no run can separate have the same group number. A hypothesis with the prior 0 has been cleared.
    group_by_hypothesis = hypothesis_sets(model, available)
    probabilities = np.bincount(group_by_hypothesis, weights=span_posterior.culprit)
    likeliest_group = int(np.argmax(probabilities))
    is_likeliest = (group_by_hypothesis == likeliest_group) & (model.prior > 0)
    # Hypothesis k is that the place k + 1 is the culprit, because the first place is good.
    likeliest = tuple(int(hypothesis) + 1 for hypothesis in np.flatnonzero(is_likeliest))
    return SpanAnalysis(tuple(samples), available, span_posterior, likeliest, float(probabilities[likeliest_group]))


def collect_samples(
    span: NoisySpan, observations: Sequence[Observation], summary: str
) -> tuple[list[Sample], dict[int, Observation]]:
    """Return the samples in a span, and the places that cannot be measured, each with its last failure.

    Both ends are needed, so each end is tried again after its first failure.
    """
    samples, broken, failures = [], {}, Counter[int]()
    ends = (0, len(span.points) - 1)
    for observation in observations:
        place = span.places.get(observation.point)
        if place is None or observation.void:
            continue
        if observation.usable:
            samples.append(Sample(place, observation.values[summary], stratum_of(observation)))
            continue
        failures[place] += 1
        if place not in ends or failures[place] == END_ATTEMPTS:
            broken[place] = observation
    measured = {sample.point for sample in samples}
    return samples, {place: observation for place, observation in broken.items() if place not in measured}


def failing_places(span: NoisySpan, observations: Sequence[Observation], times: int) -> list[int]:
    """Return the places whose last ``times`` runs all failed. Earlier runs of such a place may have succeeded."""
    failures_in_a_row: dict[int, int] = {}
    for observation in observations:
        if (place := span.places.get(observation.point)) is not None and not observation.void:
            failures_in_a_row[place] = 0 if observation.usable else failures_in_a_row.get(place, 0) + 1
    return [place for place, failures in failures_in_a_row.items() if failures >= times]


def stratum_of(run: Observation) -> str:
    """Return the stratum of a run.

    Step times are compared within a stratum only. Runs of one node and session form a stratum. Each block of a
    confirmation is a stratum of its own, so that a drift of the node between blocks cancels.
    """
    return f"{run.stratum} {run.contrast} {run.block}" if run.purpose == "confirm" else run.stratum
