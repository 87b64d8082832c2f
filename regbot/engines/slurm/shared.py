"""A seat that several launches share. The first launch reserves it, and ``close`` releases it."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from regbot.engines.engine import Seat
from regbot.engines.launch import Launch, LaunchResult, SeatLostError

Reserve = Callable[[], AbstractContextManager[Seat]]


class SharedSeat:
    """A seat that is reserved when first needed. Launches may run from any number of threads.

    While one thread waits for the reservation, other threads that call ``run`` wait too. ``close`` and
    ``close_if_idle`` do not wait for the reservation.
    """

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self._reserve_lock, self._lock = threading.Lock(), threading.Lock()
        self._current: tuple[ExitStack, Seat] | None = None
        self._users = 0

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
            seat = self._current[1] if self._current is not None and not self._users else None
        if seat is not None:
            self._release(seat)

    def close(self) -> None:
        """Release the seat, even while a launch runs in it."""
        with self._lock:
            seat = self._current[1] if self._current is not None else None
        if seat is not None:
            self._release(seat)

    def _acquire(self) -> Seat:
        with self._reserve_lock:
            if self._current is None:
                stack = ExitStack()
                seat = stack.enter_context(self._reserve())
                with self._lock:
                    self._current = stack, seat
            with self._lock:
                self._users += 1
                assert self._current is not None
                return self._current[1]

    def _release(self, seat: Seat) -> None:
        """Release ``seat``. Do nothing if another thread has already released or replaced it."""
        with self._lock:
            if self._current is None or self._current[1] is not seat:
                return
            stack, self._current = self._current[0], None
        stack.close()
