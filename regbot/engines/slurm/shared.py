"""A seat that several launches share. The first launch reserves it, and ``close`` releases it."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from regbot.engines.engine import Seat
from regbot.engines.launch import Launch, LaunchResult, SeatLostError

Reserve = Callable[[], AbstractContextManager[Seat]]
"""Reserves a seat until the context exits."""


class SharedSeat:
    """A seat (reserved nodes) that is reserved when first needed. Any number of threads may run launches in it.

    While one thread waits for the reservation, other threads that call ``run`` wait too. ``close`` and
    ``close_if_idle`` do not wait for the reservation.
    """

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        # A thread keeps the first lock while it waits for nodes. The second lock protects the fields below.
        self._reserve_lock, self._lock = threading.Lock(), threading.Lock()
        self._current: tuple[ExitStack, Seat] | None = None  # the seat, with the stack that releases it
        self._users = 0  # number of launches in the seat

    def run(self, launch: Launch) -> LaunchResult:
        """Run ``launch`` in the shared seat. Raises the exceptions of ``Seat.run``.

        If the nodes are lost, the seat is released. The next launch reserves a new one.
        """
        seat = self._acquire()
        try:
            return seat.run(launch)
        except SeatLostError:
            self._release(seat)
            raise
        finally:
            with self._lock:
                self._users -= 1

    def close_if_idle(self) -> None:
        """Release the seat, but not while a launch runs in it."""
        with self._lock:
            seat = self._current_seat() if self._users == 0 else None
        if seat is not None:
            self._release(seat)

    def close(self) -> None:
        """Release the seat, even while a launch runs in it."""
        with self._lock:
            seat = self._current_seat()
        if seat is not None:
            self._release(seat)

    def _current_seat(self) -> Seat | None:
        if self._current is None:
            return None
        _, seat = self._current
        return seat

    def _acquire(self) -> Seat:
        """Return the seat, and count the caller as a user. Reserve a seat first if there is none."""
        with self._reserve_lock:
            if self._current is None:
                stack = ExitStack()
                new_seat = stack.enter_context(self._reserve())
                with self._lock:
                    self._current = stack, new_seat
            with self._lock:
                self._users += 1
                seat = self._current_seat()
                assert seat is not None
                return seat

    def _release(self, seat: Seat) -> None:
        """Release ``seat``. Do nothing if another thread has already released or replaced it."""
        with self._lock:
            if self._current is None:
                return
            stack, current_seat = self._current
            if current_seat is not seat:
                return
            self._current = None
        stack.close()
