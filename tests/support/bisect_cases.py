"""Bisections in this process: points without a repository, measurements without a launch, and the search let loose on
them by the driver itself."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from regbot.bisect.driver import MeasurementRequest, drive
from regbot.bisect.exact import next_request
from regbot.bisect.noisy import SearchSettings, SearchState, compute_search
from regbot.bisect.span import Span, build_span
from regbot.records.bisection import Observation, Point

SD = 0.01
"""Of a run, as a log-ratio; it is on record."""

TERMS = SearchSettings(SD, noise_pairs=0, smallest=SD, most_runs=200, summary="cost", indifference=0.01)


def key(number: int) -> str:
    return f"{number:040x}"


def number_of(point: Point | str) -> int:
    return int(point if isinstance(point, str) else point.commit, 16)


def line(count: int, same: Collection[int] = (), merges: Collection[int] = ()) -> list[Point]:
    """Good, which is 0, and as many points after it, named by their numbers. ``same``: those that run the code of the
    one before. ``merges``: those with a second parent."""
    return [
        Point(
            commit=key(n),
            tree=key(n),
            parents=[key(n - 1)] * bool(n) + [key(1000 + n)] * (n in merges),
            same_as_before=n in same,
        )
        for n in range(count + 1)
    ]


def span(count: int, same: Collection[int] = ()) -> Span:
    return build_span(line(count, same))


def step(at: int, effect: float) -> Callable[[int], float]:
    """Slower by ``effect`` from that number on."""
    return lambda number: effect if number >= at else 0.0


@dataclass
class Runs:
    """Takes the place of real measurements: a level for every point, and noise that depends on the point, and on how
    often it was run, and on nothing else."""

    level: Callable[[int], float]
    sd: float = SD
    seed: int = 0
    broken: Collection[int] = ()
    fails: Callable[[MeasurementRequest, int], str] = lambda wanted, turn: ""
    """Why a run fails, '' where it does not; ``turn`` counts the point's runs from 0. "void": the node spoils it."""
    session: str = "here"
    made: list[MeasurementRequest] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)

    def stratum(self) -> str:
        return self.session

    def measure(self, wanted: MeasurementRequest) -> Observation:
        number = number_of(wanted.point)
        turn = self.turns[wanted.point.key]
        self.turns[wanted.point.key] += 1
        self.made.append(wanted)
        reason = "does not build" if number in self.broken else self.fails(wanted, turn)
        value = self.level(number) + float(np.random.default_rng([self.seed, number, turn]).normal(0, self.sd))
        return Observation(
            point=wanted.point.key,
            purpose=wanted.purpose,
            contrast=wanted.contrast,
            block=wanted.block,
            slot=wanted.index_in_block,
            usable=not reason,
            void=reason == "void",
            reason=reason,
            values={} if reason else {"cost": value},
            stratum=self.session,
        )


@dataclass
class Searched:
    """A search that has ended."""

    state: SearchState
    observations: list[Observation]

    def count(self, purpose: str) -> int:
        return sum(observation.purpose == purpose for observation in self.observations)

    @property
    def culprit(self) -> int | None:
        return number_of(self.state.span.points[self.state.place]) if self.state.status == "found" else None


def search(
    asked: Span, runs: Runs, terms: SearchSettings = TERMS, observations: Sequence[Observation] = ()
) -> Searched:
    """The noisy search to its end."""
    made = list(observations)
    drive(made, lambda known, stratum: compute_search(asked, known, stratum, terms).request, runs, lambda _: None)
    return Searched(compute_search(asked, made, "", terms), made)


@dataclass
class Values:
    """Takes the place of exact measurements: a value for every point, by workload. None: it cannot be measured."""

    state: Callable[[int, str], object]
    made: list[tuple[int, str]] = field(default_factory=list)

    def stratum(self) -> str:
        return ""

    def measure(self, wanted: MeasurementRequest) -> Observation:
        number = number_of(wanted.point)
        self.made.append((number, wanted.entry))
        result = self.state(number, wanted.entry)
        return Observation(
            point=wanted.point.key,
            entry=wanted.entry,
            purpose="search",
            usable=result is not None,
            state="" if result is None else str(result),
            reason="does not build" if result is None else "",
        )


def trace(
    stretch: Span,
    values: Values,
    entries: Sequence[str] = ("",),
    expand: Callable[[Point], Span | None] = lambda _: None,
) -> list[Observation]:
    """The exact search to its end."""
    made: list[Observation] = []
    drive(made, lambda known, _: next_request(stretch, entries, known, expand), values, lambda _: None)
    return made
