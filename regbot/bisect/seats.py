"""The nodes that the slots of a bisection have for themselves."""

import threading
import time
from collections import Counter
from contextlib import ExitStack

from regbot.engines import Engine, Needs, Seat


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
        """The slot's seat; waits where it has none yet. Only one thread asks for one slot. Raises NoSeatError."""
        if slot not in self._taken:
            stack = ExitStack()
            seat = stack.enter_context(self._engine.seat(self._needs))
            with self._lock:
                self._taken[slot] = seat, stack
        return self._taken[slot][0]

    def lost(self, slot: int) -> None:
        """The slot's nodes are gone: the next ones are another stratum."""
        self._moves[slot] += 1
        self._leave(slot)

    def stratum(self, slot: int) -> str:
        """What the runs of a slot have in common, before and after it has its seat."""
        return f"{self._session} {slot}.{self._moves[slot]}"

    def _leave(self, slot: int) -> None:
        with self._lock:
            taken = self._taken.pop(slot, None)
        if taken is not None:
            taken[1].close()
