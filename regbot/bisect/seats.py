"""Exclusive node reservations (seats) for the slots of a bisection.

A slot is one of several measurements that run at the same time. Each slot has nodes of its own.
"""

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
        """``needs`` says what a run needs: ranks and GPUs. ``check_stratum`` is the stratum of the check whose session
        slot 0 continues; '' if there is none.
        """
        self._engine, self._needs, self._check_stratum = engine, needs, check_stratum
        self._session = time.time_ns()
        self._lock = threading.Lock()
        self._moves: Counter[int] = Counter()  # how often each slot lost its nodes
        self._seats: dict[int, tuple[Seat, ExitStack]] = {}  # each seat with the stack that releases it

    def __enter__(self) -> "Seats":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # all seats are released, even if releasing one fails
            for slot in list(self._seats):
                stack.callback(self._release, slot)

    def seat(self, slot: int) -> Seat:
        """Return the seat of the slot. Wait for a new seat if the slot has none.

        Each slot must be used by one thread only. Raises NoSeatError if no seat is available, and SeatLostError if this
        seat was lost but another may be available.
        """
        if slot not in self._seats:
            stack = ExitStack()
            new_seat = stack.enter_context(self._engine.seat(self._needs))
            with self._lock:
                self._seats[slot] = new_seat, stack
        seat, _ = self._seats[slot]
        return seat

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
        """Return the stratum of the slot's runs: session, slot, and how often the slot lost its nodes.

        If the bisection continues the session of a check, slot 0 has the stratum of the check until it loses its nodes.
        """
        moves = self._moves[slot]
        if self._check_stratum and slot == 0 and moves == 0:
            return self._check_stratum
        return f"{self._session} {slot}" + (f"{MOVED_MARKER}{moves}" if moves else "")

    def _release(self, slot: int) -> None:
        """Give the nodes of the slot back to the engine, if the slot has a seat."""
        with self._lock:
            seat_with_stack = self._seats.pop(slot, None)
        if seat_with_stack is not None:
            _, stack = seat_with_stack
            stack.close()
