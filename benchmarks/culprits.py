"""Simulated bisections: regbot's search in ranges of commits with or without a culprit.

A range has the commit good, and after it ``commits`` candidates. The log time of a run is Gaussian around the level of
its commit. The level is 0 before the culprit. At the culprit and after it, the level is ``ratio`` standard deviations
(sds) of a run. The search and its driver are those of ``regbot bisect``; only the runs are simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from regbot.bisect.driver import MeasurementRequest, drive
from regbot.bisect.noisy import SearchSettings, SearchState, compute_search
from regbot.bisect.span import Span, build_span
from regbot.records.bisection import Observation, Point

SEED = 20260810
SD = 0.01
"""Standard deviation of the log time of a run, which is stated to regbot. It is also the smallest slowdown of a search.
"""

UNDERSTATED = 1.5
"""The true noise over the stated noise, in the searches with an understated noise."""

INDIFFERENCE = 0.01
NO_CULPRIT_EVERY = 10
"""Every tenth case has no culprit."""

MOST_RUNS = 1000
"""Limit on runs, so large that it decides nothing."""

CHECK_PAIRS = 8
SUMMARY = "cost"
SESSION = "here"


@dataclass(frozen=True)
class Case:
    """One simulated range. Cases with the same numbers have the same culprit and the same noise for all methods."""

    commits: int
    ratio: float
    number: int

    def stream(self, use: int) -> Generator:
        """Return a generator of random numbers. Each ``use`` has its own sequence."""
        return np.random.default_rng([SEED, self.commits, round(1000 * self.ratio), self.number, use])

    @property
    def culprit(self) -> int | None:
        """Position of the culprit, from 1 to ``commits``; None in every tenth case."""
        has_none = self.number % NO_CULPRIT_EVERY == NO_CULPRIT_EVERY - 1
        return None if has_none else 1 + int(self.stream(0).integers(self.commits))

    def level(self, place: int) -> float:
        """Return the mean log time at a position."""
        return self.ratio * SD if self.culprit is not None and place >= self.culprit else 0.0

    def runs(self) -> Generator:
        """Return the generator of the noise of a bisection's runs, in the order in which the runs begin."""
        return self.stream(1)


class BisectResult(NamedTuple):
    """Result and cost of a bisection by regbot."""

    named: int | None
    """Position that the search named before any confirmation; None for no culprit, -1 at the limit of the runs."""
    answer: int | None
    """Position named at the end, without culprits that the gate has cleared. Values as in ``named``."""
    cleared: int
    """Number of culprits that the gate has cleared."""
    search: int
    """Number of search runs."""
    builds: int
    """Number of commits that the search ran."""
    confirm: int
    """Number of runs that compare a culprit with its parent."""


class SimulatedRuns:
    """Replaces the measurements of ``regbot bisect`` by simulated ones."""

    def __init__(self, case: Case) -> None:
        self._case, self._noise = case, case.runs()

    def stratum(self) -> str:
        return SESSION

    def measure(self, request: MeasurementRequest) -> Observation:
        return observation(request, self._noise.normal(self._case.level(place_of(request.point)), SD))


@cache
def span(commits: int) -> Span:
    keys = [f"{place:040x}" for place in range(commits + 1)]
    return build_span(
        [
            Point(commit=key, tree=key, parents=keys[place - 1 : place] if place else [])
            for place, key in enumerate(keys)
        ]
    )


def place_of(point: Point) -> int:
    return int(point.commit, 16)


def observation(request: MeasurementRequest, value: float) -> Observation:
    return Observation(
        point=request.point.key,
        purpose=request.purpose,
        usable=True,
        values={SUMMARY: value},
        stratum=SESSION,
        contrast=request.contrast,
        block=request.block,
        slot=request.index_in_block,
        wall_s=1.0,
    )


def check_of(case: Case) -> list[Observation]:
    """Return the runs of the check that reported the slowdown."""
    noise = case.stream(2)
    points = span(case.commits).points
    return [
        observation(MeasurementRequest(point, "reused", block=number), noise.normal(case.level(place_of(point)), SD))
        for number in range(CHECK_PAIRS)
        for point in (points[0], points[-1])
    ]


def bisect(case: Case, known: Sequence[Observation] = (), noise: float = SD, noise_pairs: int = 0) -> BisectResult:
    """Bisect ``case`` with regbot. ``known`` has the observations that exist before the bisection. ``noise`` is the
    noise that regbot has on record, estimated from ``noise_pairs``.
    """
    first: list[int | None] = []
    observations = list(known)
    settings = SearchSettings(noise, noise_pairs, SD, MOST_RUNS, SUMMARY, INDIFFERENCE, case.number)

    def choose(so_far: Sequence[Observation], stratum: str) -> MeasurementRequest | None:
        state = compute_search(span(case.commits), so_far, stratum, settings)
        if not first and state.status != "searching":
            first.append(named_by(state))
        return state.request

    drive(observations, choose, SimulatedRuns(case), lambda _: None)
    state = compute_search(span(case.commits), observations, "", settings)
    search_runs = [observation for observation in observations if observation.purpose == "search"]
    return BisectResult(
        named=first[0],
        answer=named_by(state),
        cleared=len(state.cleared),
        search=len(search_runs),
        builds=len({observation.point for observation in search_runs}),
        confirm=sum(observation.purpose == "confirm" for observation in observations),
    )


def with_understated_noise(case: Case) -> BisectResult:
    """Search with a stated noise that is too small. The true noise is ``UNDERSTATED`` times as large."""
    return bisect(case, noise=SD / UNDERSTATED)


def with_check(case: Case) -> BisectResult:
    """Search in the session of the check. The noise on record is that of the check's pairs."""
    known = check_of(case)
    values = np.array([run.values[SUMMARY] for run in known])
    pair_sd = float((values[1::2] - values[::2]).std(ddof=1))
    return bisect(case, known, pair_sd / sqrt(2), CHECK_PAIRS)


def named_by(state: SearchState) -> int | None:
    """Return the position that a search names; None for no culprit, -1 if the search has no result."""
    if state.status == "none":
        return None
    return state.place if state.status == "found" else -1
