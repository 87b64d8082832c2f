"""Simulated bisections: ranges with a culprit or none, and regbot's search let loose on them.

A range has good and after it ``commits`` candidates. A run is Gaussian around the level of its commit: 0 before the
culprit, ``ratio`` run sds from it on. The search is the one of ``regbot bisect`` itself, its driver included; simulated
are the runs alone.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from regbot.bisect.driver import drive
from regbot.bisect.noisy import Node, Pace, Terms, Wanted, walk, wants
from regbot.bisect.span import Noise, Span, span_of
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import linear

SEED = 20260810
SD = 0.01
"""Of a run, as a log-ratio. It is on record, and a slowdown of one sd is the smallest that is looked for."""

INDIFFERENCE = 0.01
POSTERIOR, NONE_PRIOR = 0.95, 0.1
EVERY = 10
"""Every tenth case has no culprit."""

MOST_RUNS = 1000
"""Search runs at most, so that the cap decides nothing."""

CHECK_PAIRS = 12
SESSION_SD = 0.5
"""Between the levels of two sessions, or two nodes, in sds of a run."""

DURATION_CV = 0.2
SUMMARY = "cost"
HERE, CHECK = "here", "check"


@dataclass(frozen=True)
class Case:
    """One range. The same numbers make the same case and the same noise, for whatever method."""

    commits: int
    ratio: float
    number: int

    def stream(self, use: int) -> Generator:
        return np.random.default_rng([SEED, self.commits, round(1000 * self.ratio), self.number, use])

    @property
    def culprit(self) -> int | None:
        """From 1 to ``commits``; None in every tenth case."""
        none = self.number % EVERY == EVERY - 1
        return None if none else 1 + int(self.stream(0).integers(self.commits))

    def level(self, place: int) -> float:
        """Log time of the code there."""
        return self.ratio * SD if self.culprit is not None and place >= self.culprit else 0.0

    def runs(self) -> Generator:
        """Noise of the runs of a bisection, in the order in which they are begun."""
        return self.stream(1)


class Found(NamedTuple):
    """What a bisection said and took."""

    named: int | None
    """By the search, before any confirmation: a place, None for "none", -1 where the runs gave out."""
    answer: int | None
    """In the end, what the gate has cleared left out."""
    beside: int
    """Further culprits that were named before it or after it, and that the gate has not cleared."""
    cleared: int
    """Culprits that the gate has cleared."""
    search: int
    builds: int
    """Commits that the search ran."""
    confirm: int
    remainder: int


class Runs:
    """Takes the place of real measurements."""

    def __init__(self, case: Case) -> None:
        self._case, self._noise = case, case.runs()

    def stratum(self, slot: int) -> str:
        return f"{HERE} {slot}" if slot else HERE

    def measure(self, wanted: Wanted, slot: int) -> Observation:
        value = self._noise.normal(self._case.level(place_of(wanted.point)), SD)
        return observation(wanted, value, self.stratum(slot))


@cache
def span(commits: int) -> Span:
    keys = [f"{place:040x}" for place in range(commits + 1)]
    points = [
        Point(commit=key, tree=key, parents=keys[place - 1 : place] if place else []) for place, key in enumerate(keys)
    ]
    return span_of(points, linear(commits + 1), NONE_PRIOR, SD)


def place_of(point: Point) -> int:
    return int(point.commit, 16)


def observation(wanted: Wanted, value: float, stratum: str) -> Observation:
    return Observation(
        point=wanted.point.key,
        purpose=wanted.purpose,
        usable=True,
        values={SUMMARY: value},
        stratum=stratum,
        contrast=wanted.contrast,
        block=wanted.block,
        slot=wanted.slot,
        wall_s=1.0,
    )


def terms(case: Case, confirm: bool) -> Terms:
    return Terms(Noise(SD), POSTERIOR, MOST_RUNS, SUMMARY, INDIFFERENCE, confirm, case.number)


def check_of(case: Case, stratum: str, offset: float = 0.0) -> list[Observation]:
    """The runs of the check that saw the slowdown."""
    noise = case.stream(2)
    points = span(case.commits).points
    return [
        observation(
            Wanted(point, "reused", block=number), noise.normal(case.level(place_of(point)) + offset, SD), stratum
        )
        for number in range(CHECK_PAIRS)
        for point in (points[0], points[-1])
    ]


def bisect(case: Case, confirm: bool = True, known: Sequence[Observation] = ()) -> Found:
    """The whole bisection of ``case`` by regbot. ``known``: observations that there are before it begins."""
    first: list[int | None] = []
    observations = list(known)

    def next_wanted(
        made: Sequence[Observation], pending: Sequence[tuple[Wanted, str]], stratum: str
    ) -> Sequence[Wanted]:
        node = stand(case, made, pending, stratum, confirm)
        if not first and node.status != "searching":
            first.append(named_by(node))
        return wants(node)

    drive(observations, next_wanted, Runs(case), lambda _: None)
    node = stand(case, observations, (), HERE, confirm)
    by_purpose = {purpose: [each for each in observations if each.purpose == purpose] for purpose in PURPOSES}
    return Found(
        named=first[0],
        answer=named_by(node),
        beside=sum(each.status == "found" for child in node.children.values() for each in nodes(child)),
        cleared=len(node.refuted),
        search=len(by_purpose["search"]),
        builds=len({each.point for each in by_purpose["search"]}),
        confirm=len(by_purpose["confirm"]),
        remainder=len(by_purpose["remainder"]),
    )


PURPOSES = ("search", "confirm", "remainder")


def with_check_elsewhere(case: Case) -> Found:
    """The search alone, after a check in another session."""
    offset = case.stream(3).normal(0, SESSION_SD * SD)
    return bisect(case, confirm=False, known=check_of(case, CHECK, offset))


def with_check_here(case: Case) -> Found:
    """The search alone, in the session of the check."""
    return bisect(case, confirm=False, known=check_of(case, HERE))


def stand(
    case: Case,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    stratum: str,
    confirm: bool,
) -> Node:
    return walk(span(case.commits), observations, pending, stratum, terms(case, confirm), Pace(), lambda _: None)


def named_by(node: Node) -> int | None:
    if node.status == "none":
        return None
    return node.place if node.status == "found" else -1


def nodes(node: Node) -> list[Node]:
    return [node, *(each for child in node.children.values() for each in nodes(child))]


class Timed(NamedTuple):
    """A search on several slots."""

    named: int | None
    runs: int
    wall: float
    """Until the last run has ended, in mean runs."""


def on_slots(case: Case, slots: int, one_level: bool) -> Timed:
    """The search alone, on so many slots of an engine whose clock is simulated.

    The loop is that of ``regbot.bisect.driver``. ``one_level``: the slots are alike, and known to be; else each is a
    node of its own level, as regbot takes them.
    """
    noise, durations = case.runs(), case.stream(4)
    offsets = case.stream(5).normal(0, SESSION_SD * SD, slots) * (not one_level)
    strata = [HERE if one_level or not slot else f"{HERE} {slot}" for slot in range(slots)]
    spread = sqrt(log(1 + DURATION_CV**2))
    free, clock, begun = list(range(slots)), 0.0, 0
    observations: list[Observation] = []
    running: list[tuple[float, int, int, Wanted]] = []
    while True:
        while free:
            pending = [(wanted, strata[slot]) for _, _, slot, wanted in sorted(running, key=lambda run: run[1])]
            wanted = wants(stand(case, observations, pending, strata[free[0]], confirm=False))
            if not wanted:
                break
            end = clock + float(durations.lognormal(-(spread**2) / 2, spread))
            begun += 1
            heapq.heappush(running, (end, begun, free.pop(0), wanted[0]))
        if not running:
            node = stand(case, observations, (), strata[0], confirm=False)
            return Timed(named_by(node), len(observations), clock)
        clock, _, slot, ended = heapq.heappop(running)
        value = noise.normal(case.level(place_of(ended.point)) + offsets[slot], SD)
        observations.append(observation(ended, value, strata[slot]))
        free = sorted((*free, slot))
