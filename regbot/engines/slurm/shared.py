"""A seat that several launches share. The first launch reserves it, and ``close`` releases it."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from regbot.engines.engine import Seat
from regbot.engines.launch import Launch, LaunchResult, SeatLostError


class SharedSeat:
    """A seat that is reserved when it is first needed. Any number of threads may run launches in it. While one waits
    for the reservation, the others wait too, but ``close`` does not."""

    def __init__(self, reserve: Callable[[], AbstractContextManager[Seat]]) -> None:
        self._reserve = reserve
        # A thread keeps the first lock while it waits for nodes. The second lock protects the fields below.
        self._reserve_lock, self._lock = threading.Lock(), threading.Lock()
        self._current: tuple[Seat, ExitStack] | None = None  # the seat, and the stack that releases it
        self._users = 0  # number of launches in the seat

    def run(self, launch: Launch) -> LaunchResult:
        """Raises the exceptions of ``Seat.run``. If the nodes are lost, the next launch reserves new ones."""
        with self._reserve_lock:
            with self._lock:
                current = self._current
                self._users += 1
            try:
                if current is None:
                    stack = ExitStack()
                    current = stack.enter_context(self._reserve()), stack
                    self._current = current
            except BaseException:
                self._leave()
                raise
        seat, _ = current
        try:
            return seat.run(launch)
        except SeatLostError:
            self.close(seat)
            raise
        finally:
            self._leave()

    def close(self, seat: Seat | None = None, only_if_idle: bool = False) -> None:
        """Release the seat, even while a launch runs in it unless ``only_if_idle``. If ``seat`` is given, release only
        this one: another thread may already have replaced it."""
        with self._lock:
            if self._current is None or (seat or self._current[0]) is not self._current[0]:
                return
            if only_if_idle and self._users:
                return
            (_, stack), self._current = self._current, None
        stack.close()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
