"""A seat that several launches use at a time: it is had from the first of them on, and given back when asked."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from regbot.engines.engine import Ended, Launch, Seat, SeatLostError

Reserve = Callable[[], AbstractContextManager[Seat]]


class SharedSeat:
    """Any number of threads may run launches. Who waits for the seat holds nobody else up but those who wait for it."""

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self._making, self._lock = threading.Lock(), threading.Lock()
        self._held: tuple[ExitStack, Seat] | None = None
        self._users = 0

    def run(self, launch: Launch) -> Ended:
        """Raises what the seat raises; one that is lost is given back, and the next launch gets another."""
        seat = self._enter()
        try:
            return seat.run(launch)
        except SeatLostError:
            self._leave(seat)
            raise
        finally:
            with self._lock:
                self._users -= 1

    def close_if_idle(self) -> None:
        """Give it back unless something runs there."""
        with self._lock:
            seat = self._held[1] if self._held is not None and not self._users else None
        if seat is not None:
            self._leave(seat)

    def close(self) -> None:
        """Give it back, whatever runs there."""
        with self._lock:
            seat = self._held[1] if self._held is not None else None
        if seat is not None:
            self._leave(seat)

    def _enter(self) -> Seat:
        with self._making:
            if self._held is None:
                stack = ExitStack()
                seat = stack.enter_context(self._reserve())
                with self._lock:
                    self._held = stack, seat
            with self._lock:
                self._users += 1
                assert self._held is not None
                return self._held[1]

    def _leave(self, seat: Seat) -> None:
        """Only this one: another thread may have got the next one already."""
        with self._lock:
            if self._held is None or self._held[1] is not seat:
                return
            stack, self._held = self._held[0], None
        stack.close()
