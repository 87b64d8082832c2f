"""The nodes that the slots of a bisection have for themselves."""

import threading
import time
from collections import Counter
from contextlib import ExitStack

from regbot.bisect.measure import observed
from regbot.bisect.noisy import MOVED, Wanted
from regbot.engines import Engine, Needs, Seat, SeatLostError
from regbot.records.bisection import Observation
from regbot.text import printable


class Seats:
    """A seat for each slot, from its first measurement to the end; another where its nodes are lost. A context."""

    def __init__(self, engine: Engine, needs: Needs) -> None:
        self._engine, self._needs = engine, needs
        self._session = time.time_ns()
        self._lock = threading.Lock()
        self._moves: Counter[int] = Counter()
        self._taken: dict[int, tuple[Seat, ExitStack]] = {}

    def __enter__(self) -> "Seats":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as every:  # one that cannot be given back keeps none of the others
            for slot in list(self._taken):
                every.callback(self._leave, slot)

    def of(self, slot: int) -> Seat:
        """The slot's seat; waits where it has none yet. Only one thread asks for one slot.

        Raises NoSeatError, and SeatLostError where another may be had.
        """
        if slot not in self._taken:
            stack = ExitStack()
            seat = stack.enter_context(self._engine.seat(self._needs))
            with self._lock:
                self._taken[slot] = seat, stack
        return self._taken[slot][0]

    def lost(self, slot: int, wanted: Wanted, error: SeatLostError) -> Observation:
        """Leave nodes that went away, before they were had or under a run: nothing is known of the point."""
        stratum = self.stratum(slot)
        self.leave(slot)
        return observed(wanted, stratum, usable=False, void=True, reason=printable(str(error))[:4000])

    def leave(self, slot: int) -> None:
        """The slot's nodes are gone: the next ones are another stratum."""
        self._moves[slot] += 1
        self._leave(slot)

    def stratum(self, slot: int) -> str:
        """What the runs of a slot have in common, before and after it has its seat."""
        moves = self._moves[slot]
        return f"{self._session} {slot}{f'{MOVED}{moves}' if moves else ''}"

    def _leave(self, slot: int) -> None:
        with self._lock:
            taken = self._taken.pop(slot, None)
        if taken is not None:
            taken[1].close()
