"""The measuring loop of a bisection: choose a measurement, make it, write it down.

Every observation is written to disk before the next choice. An interrupted bisection therefore continues from its log:
no finished measurement is lost, and none is counted twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from regbot.records.bisection import Observation, Point, Purpose

VOID_LIMIT = 5
"""After this many void runs in a row the bisection stops, because the node is unfit."""


@dataclass(frozen=True)
class MeasurementRequest:
    """A request for one measurement."""

    point: Point
    purpose: Purpose = "search"
    entry: str = ""
    """The workload to trace, if the bisection compares ledgers; '' if it compares times or what a command prints."""
    contrast: str = ""
    """For a confirmation, the key of the culprit."""
    block: int = 0
    """Number of the block of a confirmation, from 1; 0 for a search run."""
    index_in_block: int = 0
    """Position of the run in the block, from 0."""


class Measurer(Protocol):
    """Makes the measurements of one bisection, one at a time."""

    def stratum(self) -> str:
        """Return the stratum of the next run: its node and session. Times are compared within a stratum only."""
        ...

    def measure(self, request: MeasurementRequest) -> Observation:
        """Make one measurement. Raises CheckoutError or OSError if a part of regbot itself fails."""
        ...


ChooseRequest = Callable[[Sequence[Observation], str], MeasurementRequest | None]
"""Chooses the next measurement from all observations and the stratum of the next run."""


def drive(
    observations: list[Observation],
    choose: ChooseRequest,
    measurer: Measurer,
    write: Callable[[Observation], None],
    announce: Callable[[MeasurementRequest], None] = lambda _: None,
) -> bool:
    """Measure until no request is left. Each observation is written and appended to ``observations``.

    Returns False if the loop stopped because ``VOID_LIMIT`` runs in a row were void. ``announce`` is called with each
    request before its measurement.
    """
    void_streak = 0
    while void_streak < VOID_LIMIT:
        request = choose(observations, measurer.stratum())
        if request is None:
            return True
        announce(request)
        observation = measurer.measure(request)
        write(observation)
        observations.append(observation)
        void_streak = void_streak + 1 if observation.void else 0
    return False
