"""Simulated bisections: regbot's search in ranges of commits with or without a culprit.

A range has the commit good, and after it ``commits`` candidates. The log time of a run is Gaussian around the level of
its commit. The level is 0 before the culprit. At the culprit and after it, the level is ``ratio`` standard deviations
(sds) of a run. The search and its driver are those of ``regbot bisect``; only the runs are simulated.
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
from regbot.stats.culprit import affected_on_line

SEED = 20260810
SD = 0.01
"""Standard deviation of the log time of a run, which is stated to regbot. It is also the smallest slowdown of a search.
"""

UNDERSTATED, FAR_UNDERSTATED = 1.5, 2.0
"""The true noise over the stated noise, in the searches with an understated noise."""

SLOW_SHARE, SLOW_SCALE = 0.03, 10.0
"""Share of outliers among the runs, and their standard deviation over that of other runs, in the searches with
outliers."""

STATED_NOISE = Noise(SD)
INDIFFERENCE = 0.01
POSTERIOR, NONE_PRIOR = 0.95, 0.1
NO_CULPRIT_EVERY = 10
"""Every tenth case has no culprit."""

MOST_RUNS = 1000
"""Limit on search runs, so large that it decides nothing."""

CHECK_PAIRS = 8
SESSION_SD = 0.5
"""Standard deviation of the level of a session or a node, in sds of a run."""

DURATION_CV = 0.2
SUMMARY = "cost"
HERE, CHECK = "here", "check"


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
    beside: int
    """Number of further culprits that were named before or after the answer and that the gate has not cleared."""
    cleared: int
    """Number of culprits that the gate has cleared."""
    search: int
    """Number of search runs."""
    builds: int
    """Number of commits that the search ran."""
    confirm: int
    """Number of runs that compare a culprit with its parent."""
    remainder: int
    """Number of runs that look for a second culprit."""


class SimulatedRuns:
    """Replaces the measurements of ``regbot bisect`` by simulated ones."""

    def __init__(self, case: Case, has_outliers: bool = False) -> None:
        self._case, self._noise = case, case.runs()
        self._outliers = case.stream(6) if has_outliers else None

    def stratum(self, slot: int) -> str:
        return f"{HERE} {slot}" if slot else HERE

    def measure(self, request: MeasurementRequest, slot: int) -> Observation:
        is_outlier = self._outliers is not None and self._outliers.random() < SLOW_SHARE
        value = self._noise.normal(self._case.level(place_of(request.point)), SD * (SLOW_SCALE if is_outlier else 1))
        return observation(request, value, self.stratum(slot))


@cache
def span(commits: int) -> NoisySpan:
    keys = [f"{place:040x}" for place in range(commits + 1)]
    points = [
        Point(commit=key, tree=key, parents=keys[place - 1 : place] if place else []) for place, key in enumerate(keys)
    ]
    return build_span(points, affected_on_line(commits + 1), NONE_PRIOR, SD)


def place_of(point: Point) -> int:
    return int(point.commit, 16)


def observation(request: MeasurementRequest, value: float, stratum: str) -> Observation:
    return Observation(
        point=request.point.key,
        purpose=request.purpose,
        usable=True,
        values={SUMMARY: value},
        stratum=stratum,
        contrast=request.contrast,
        block=request.block,
        slot=request.index_in_block,
        wall_s=1.0,
    )


def search_settings(case: Case, confirm: bool, noise: Noise = STATED_NOISE) -> SearchSettings:
    return SearchSettings(noise, POSTERIOR, MOST_RUNS, SUMMARY, INDIFFERENCE, confirm, case.number)


def check_of(case: Case, stratum: str, offset: float = 0.0) -> list[Observation]:
    """Return the runs of the check that reported the slowdown. ``offset`` is added to all their levels."""
    noise = case.stream(2)
    points = span(case.commits).points
    return [
        observation(
            MeasurementRequest(point, "reused", block=number),
            noise.normal(case.level(place_of(point)) + offset, SD),
            stratum,
        )
        for number in range(CHECK_PAIRS)
        for point in (points[0], points[-1])
    ]


def bisect(
    case: Case,
    confirm: bool = True,
    known: Sequence[Observation] = (),
    noise: Noise = STATED_NOISE,
    has_outliers: bool = False,
) -> BisectResult:
    """Bisect ``case`` with regbot. ``known`` has the observations that exist before the bisection. ``noise`` is the
    noise that regbot has on record.
    """
    first: list[int | None] = []
    observations, settings = list(known), search_settings(case, confirm, noise)

    def next_requests(
        so_far: Sequence[Observation], pending: Sequence[tuple[MeasurementRequest, str]], stratum: str
    ) -> Sequence[MeasurementRequest]:
        root = compute_state(case, so_far, pending, stratum, settings)
        if not first and root.status != "searching":
            first.append(named_by(root))
        return collect_requests(root)

    drive(observations, next_requests, SimulatedRuns(case, has_outliers), lambda _: None)
    root = compute_state(case, observations, (), HERE, settings)
    by_purpose = {
        purpose: [observation for observation in observations if observation.purpose == purpose] for purpose in PURPOSES
    }
    return BisectResult(
        named=first[0],
        answer=named_by(root),
        beside=sum(state.status == "found" for child in root.children.values() for state in all_states(child)),
        cleared=len(root.cleared_places),
        search=len(by_purpose["search"]),
        builds=len({observation.point for observation in by_purpose["search"]}),
        confirm=len(by_purpose["confirm"]),
        remainder=len(by_purpose["remainder"]),
    )


PURPOSES = ("search", "confirm", "remainder")


def with_check_elsewhere(case: Case) -> BisectResult:
    """Search after a check in another session, without confirmation."""
    offset = case.stream(3).normal(0, SESSION_SD * SD)
    return bisect(case, confirm=False, known=check_of(case, CHECK, offset))


def with_understated_noise(case: Case, times: float = UNDERSTATED) -> BisectResult:
    """Search with a stated noise that is too small, without confirmation. The true noise is ``times`` as large."""
    return bisect(case, confirm=False, noise=Noise(SD / times))


def with_outliers(case: Case) -> BisectResult:
    """Search in which some runs are outliers, without confirmation."""
    return bisect(case, confirm=False, has_outliers=True)


def with_check_here(case: Case) -> BisectResult:
    """Search in the session of the check, with confirmation. The noise on record is that of the check's pairs."""
    known = check_of(case, HERE)
    values = np.array([run.values[SUMMARY] for run in known])
    pair_sd = float((values[1::2] - values[::2]).std(ddof=1))
    return bisect(case, known=known, noise=Noise(pair_sd / sqrt(2), CHECK_PAIRS))


def compute_state(
    case: Case,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
    settings: SearchSettings,
) -> SearchState:
    return compute_search(
        span(case.commits),
        observations,
        pending,
        stratum,
        settings,
        RunCosts(),
        expand_merge=lambda _: None,
    )


def named_by(state: SearchState) -> int | None:
    """Return the position that a search names; None for no culprit, -1 if the search has no result."""
    if state.status == "none":
        return None
    return state.place if state.status == "found" else -1


def all_states(root: SearchState) -> list[SearchState]:
    """Return a search and all searches below it."""
    return [root, *(state for child in root.children.values() for state in all_states(child))]


class SlotResult(NamedTuple):
    """Result and cost of a search on several slots."""

    named: int | None
    runs: int
    wall: float
    """Time until the last run has ended, in mean durations of a run."""


def on_slots(case: Case, slots: int, one_level: bool) -> SlotResult:
    """Search on several slots of an engine with a simulated clock, without confirmation.

    The loop does the same as ``regbot.bisect.driver``. If ``one_level`` is set, all slots have the same level, and
    regbot knows this. Otherwise each slot is a node with its own level, as regbot assumes.
    """
    noise, durations = case.runs(), case.stream(4)
    offsets = case.stream(5).normal(0, SESSION_SD * SD, slots) * (not one_level)
    strata = [HERE if one_level or not slot else f"{HERE} {slot}" for slot in range(slots)]
    spread = sqrt(log(1 + DURATION_CV**2))
    free, clock, begun = list(range(slots)), 0.0, 0
    settings = search_settings(case, confirm=False)
    observations: list[Observation] = []
    running: list[tuple[float, int, int, MeasurementRequest]] = []
    while True:
        while free:
            pending = [(request, strata[slot]) for _, _, slot, request in sorted(running, key=lambda run: run[1])]
            requests = collect_requests(compute_state(case, observations, pending, strata[free[0]], settings))
            if not requests:
                break
            end = clock + float(durations.lognormal(-(spread**2) / 2, spread))
            begun += 1
            heapq.heappush(running, (end, begun, free.pop(0), requests[0]))
        if not running:
            state = compute_state(case, observations, (), strata[0], settings)
            return SlotResult(named_by(state), len(observations), clock)
        clock, _, slot, ended = heapq.heappop(running)
        value = noise.normal(case.level(place_of(ended.point)) + offsets[slot], SD)
        observations.append(observation(ended, value, strata[slot]))
        free = sorted((*free, slot))
