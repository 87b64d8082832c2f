"""Bisections in this process: points without a repository, measurements without a launch, and the search let loose on
them by the driver itself."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from regbot.bisect.driver import drive
from regbot.bisect.exact_search import ExactSpan, next_requests
from regbot.bisect.noisy import (
    MeasurementRequest,
    RunCosts,
    SearchSettings,
    SearchState,
    collect_requests,
    compute_search,
)
from regbot.bisect.span import Noise, NoisySpan, build_span
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import Bools, affected_on_line

SD = 0.01
"""Of a run, as a log-ratio; it is on record."""

TERMS = SearchSettings(Noise(SD), posterior=0.95, most_runs=150, summary="cost", indifference=0.01)


def key(number: int) -> str:
    return f"{number:040x}"


def number_of(point: Point | str) -> int:
    return int(point if isinstance(point, str) else point.commit, 16)


def point(number: int, parents: Sequence[int] = (), weight: float = 1.0, same: bool = False) -> Point:
    """The point of that number; observations name it by its number in 40 hexadecimal digits."""
    return Point(
        commit=key(number), tree=key(number), parents=[key(n) for n in parents], weight=weight, same_as_before=same
    )


def line(count: int, same: Collection[int] = (), suspects: Mapping[int, float] | None = None) -> list[Point]:
    """Good, which is 0, and as many points after it. ``same``: those that run the code of the one before."""
    heavy = suspects or {}
    return [point(n, [n - 1] if n else [], heavy.get(n, 1.0), n in same) for n in range(count + 1)]


def graph(parents: Sequence[Sequence[int]], same: Collection[int] = ()) -> tuple[list[Point], Bools]:
    """Points with these parents, of smaller numbers, and which of them contain which."""
    contains = [{0}]
    for number, mine in enumerate(parents[1:], start=1):
        contains.append({number}.union(*(contains[each] for each in mine)))
    affected = np.array([[k in held for held in contains] for k in range(1, len(parents))], dtype=bool)
    return [point(n, mine, same=n in same) for n, mine in enumerate(parents)], affected.reshape(-1, len(parents))


def span(count: int, smallest: float = SD, same: Collection[int] = ()) -> NoisySpan:
    return build_span(line(count, same), affected_on_line(count + 1), 0.1, smallest)


def step(at: int, effect: float) -> Callable[[int], float]:
    """Slower by ``effect`` from that number on."""
    return lambda number: effect if number >= at else 0.0


@dataclass
class Runs:
    """Takes the place of real measurements: a level for every point, and noise.

    The noise depends on the point, and on how often it was run, and on nothing else: so the same choices see the same
    values, in whatever order runs end.
    """

    level: Callable[[int], float]
    sd: float = SD
    seed: int = 0
    broken: Collection[int] = ()
    fails: Callable[[MeasurementRequest, int], str] = lambda wanted, turn: ""
    """Why a run fails, '' where it does not; ``turn`` counts the point's runs from 0. "void": the node spoils it."""
    session: str = "here"
    apart: bool = False
    """Whether each slot is a node of its own."""
    most_delay_s: float = 0.0
    made: list[MeasurementRequest] = field(default_factory=list)
    running: int = 0
    together: int = 0
    """Most runs at a time."""
    turns: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def after(self, observations: Sequence[Observation]) -> "Runs":
        """As it would be once these were measured."""
        self.turns = Counter(observation.point for observation in observations)
        return self

    def stratum(self, slot: int) -> str:
        return f"{self.session} {slot}" if self.apart else self.session

    def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
        number = number_of(wanted.point)
        with self.lock:
            turn = self.turns[wanted.point.key]
            self.turns[wanted.point.key] += 1
            self.made.append(wanted)
            self.running += 1
            self.together = max(self.together, self.running)
        rng = np.random.default_rng([self.seed, number, turn])
        if self.most_delay_s:
            time.sleep(self.most_delay_s * float(rng.random()))
        reason = "does not build" if number in self.broken else self.fails(wanted, turn)
        value = self.level(number) + (0.5 * slot if self.apart else 0.0) + float(rng.normal(0, self.sd))
        with self.lock:
            self.running -= 1
        return Observation(
            point=wanted.point.key,
            entry=wanted.entry,
            purpose=wanted.purpose,
            contrast=wanted.contrast,
            block=wanted.block,
            slot=wanted.index_in_block,
            usable=not reason,
            void=reason == "void",
            reason=reason,
            values={} if reason else {"cost": value},
            stratum=self.stratum(slot),
        )


@dataclass
class Searched:
    """A search that has ended."""

    root: SearchState
    observations: list[Observation]

    def count(self, purpose: str) -> int:
        return sum(observation.purpose == purpose for observation in self.observations)

    @property
    def culprits(self) -> list[int]:
        """Numbers of all that were found, in order."""
        return sorted(number_of(node.span.points[node.place]) for node in nodes(self.root) if node.status == "found")


def nodes(root: SearchState) -> list[SearchState]:
    return [root, *(node for child in root.children.values() for node in nodes(child))]


def search(
    asked: NoisySpan,
    runs: Runs,
    terms: SearchSettings = TERMS,
    slots: int = 1,
    observations: Sequence[Observation] = (),
    expand_merge: Callable[[Point], NoisySpan | None] = lambda _: None,
    pace: RunCosts | None = None,
    is_enough: Callable[[], bool] = lambda: False,
    keep: Callable[[Observation], None] = lambda _: None,
) -> Searched:
    """The noisy search to its end."""
    made = list(observations)

    def chosen(
        known: Sequence[Observation], pending: Sequence[tuple[MeasurementRequest, str]], stratum: str
    ) -> Sequence[MeasurementRequest]:
        return collect_requests(
            compute_search(asked, known, pending, stratum, terms, pace or RunCosts(), expand_merge=expand_merge)
        )

    drive(made, chosen, runs, keep, slots, is_enough)
    return Searched(compute_search(asked, made, (), "", terms, pace or RunCosts(), expand_merge=expand_merge), made)


@dataclass
class Values:
    """Takes the place of exact measurements: a value for every point, by workload. None: it cannot be measured."""

    state: Callable[[int, str], object]
    made: list[tuple[int, str]] = field(default_factory=list)
    most_delay_s: float = 0.0
    void: list[int] = field(default_factory=list)
    """Points whose next measurement the node spoils."""

    def stratum(self, slot: int) -> str:
        return f"slot {slot}"

    def measure(self, wanted: MeasurementRequest, slot: int) -> Observation:
        number = number_of(wanted.point)
        self.made.append((number, wanted.entry))
        if self.most_delay_s:
            time.sleep(self.most_delay_s * (number * 7 % 5) / 5)
        result = self.state(number, wanted.entry)
        void = number in self.void
        if void:
            self.void.remove(number)
        return Observation(
            point=wanted.point.key,
            entry=wanted.entry,
            purpose="search",
            usable=result is not None and not void,
            void=void,
            state="" if result is None or void else str(result),
            reason="does not build" if result is None else "the node was not fit" if void else "",
        )


def trace(
    stretch: ExactSpan,
    values: Values,
    entries: Sequence[str] = ("",),
    slots: int = 1,
    expand: Callable[[Point], ExactSpan | None] = lambda _: None,
    most_runs: int = 10_000,
) -> list[Observation]:
    """The exact search to its end."""
    made: list[Observation] = []

    def chosen(
        known: Sequence[Observation], pending: Sequence[tuple[MeasurementRequest, str]], _: str
    ) -> Sequence[MeasurementRequest]:
        return next_requests(stretch, entries, known, pending, expand, most_runs)

    drive(made, chosen, values, lambda _: None, slots)
    return made


def log2_up(count: int) -> int:
    return math.ceil(math.log2(count)) if count > 1 else 0
