"""Exclusive node reservations (seats) for the slots of a bisection."""

import threading
import time
from collections import Counter
from contextlib import ExitStack

from regbot.bisect.measure import build_observation
from regbot.bisect.noisy import MOVED_MARKER, MeasurementRequest
from regbot.engines import Engine, Needs, Seat, SeatLostError
from regbot.records.bisection import Observation
from regbot.text.clip import clip_message
from regbot.text.printable import printable


class Seats:
    """The seats of the slots, at most one for each slot.

    A slot keeps its seat from its first measurement to the end. The seat is replaced if its nodes are lost. Use this
    class as a context manager.
    """

    def __init__(self, engine: Engine, needs: Needs, check_stratum: str = "") -> None:
        """``check_stratum`` is the stratum of a check whose level the runs of slot 0 share; '' if there is none."""
        self._engine, self._needs, self._check_stratum = engine, needs, check_stratum
        self._session = time.time_ns()
        self._lock = threading.Lock()
        self._moves: Counter[int] = Counter()
        self._seats: dict[int, tuple[Seat, ExitStack]] = {}

    def __enter__(self) -> "Seats":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # all seats are released, even if releasing one fails
            for slot in list(self._seats):
                stack.callback(self._release, slot)

    def seat(self, slot: int) -> Seat:
        """Return the seat of the slot. Wait for a new seat if the slot has none. Each slot must be used by one thread
        only.

        Raises NoSeatError if no seat is available, and SeatLostError if this seat was lost but another may be
        available.
        """
        if slot not in self._seats:
            stack = ExitStack()
            seat = stack.enter_context(self._engine.seat(self._needs))
            with self._lock:
                self._seats[slot] = seat, stack
        return self._seats[slot][0]

    def record_loss(self, slot: int, request: MeasurementRequest, error: SeatLostError) -> Observation:
        """Release the lost nodes of the slot and return a void observation. The loss says nothing about the point."""
        stratum = self.stratum(slot)
        self.replace(slot)
        return build_observation(request, stratum, usable=False, void=True, reason=clip_message(printable(str(error))))

    def replace(self, slot: int) -> None:
        """Release the lost nodes of the slot. The next nodes of the slot form another stratum."""
        self._moves[slot] += 1
        self._release(slot)

    def stratum(self, slot: int) -> str:
        """Return the stratum of the slot's runs."""
        moves = self._moves[slot]
        if self._check_stratum and not slot and not moves:
            return self._check_stratum
        return f"{self._session} {slot}{f'{MOVED_MARKER}{moves}' if moves else ''}"

    def _release(self, slot: int) -> None:
        with self._lock:
            entry = self._seats.pop(slot, None)
        if entry is not None:
            entry[1].close()
