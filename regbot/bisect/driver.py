"""Runs a bisection: asks what to measure next, measures it, writes it down, asks again.

An observation is on the disk before the next choice is made, so a bisection that was ended goes on from its log with
nothing lost and nothing counted twice. Where several slots are free, several measurements run at a time; they may end
in any order.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Literal, ParamSpec, TypeVar

from regbot.bisect.measure import Measurer
from regbot.bisect.noisy import Wanted
from regbot.records.bisection import Observation

Pending = Sequence[tuple[Wanted, str]]
Next = Callable[[Sequence[Observation], Pending, str], Sequence[Wanted]]
"""What to measure next: from all observations, what is running (and in which stratum), and the stratum that is free."""

P = ParamSpec("P")
T = TypeVar("T")

Ended = Literal["done", "enough", "spoilt"]

GLANCE_S = 1.0
"""A wait without end can miss an interrupt that comes just before it begins, or to another thread."""

VOID_LIMIT = 5
"""So many runs in a row that the node spoilt end a bisection: the node is not fit."""


def drive(
    observations: list[Observation],
    next_wanted: Next,
    measurer: Measurer,
    keep: Callable[[Observation], None],
    slots: int = 1,
    enough: Callable[[], bool] = lambda: False,
    say: Callable[[Wanted], None] = lambda _: None,
) -> Ended:
    """Measure until nothing more is wanted, or it is ``enough``; ``observations`` grows by what is measured.

    What is measured when ``enough`` turns true, or when a measurement or ``keep`` fails, is waited for and kept; an
    interrupt waits for nothing. Raises what ``measurer`` and ``keep`` raise.
    """
    before = len(observations)
    free = list(range(slots))
    running: dict[Future[Observation], tuple[Wanted, int]] = {}
    pool: Executor = ThreadPoolExecutor(slots) if slots > 1 else _Here()

    def take(done: Future[Observation]) -> None:
        _, slot = running.pop(done)
        free.append(slot)
        observation = done.result()
        keep(observation)
        observations.append(observation)

    try:
        while True:
            while free and not enough() and not _spoilt(observations[before:]):
                pending = [(wanted, measurer.stratum(slot)) for wanted, slot in running.values()]
                wanted = next_wanted(observations, pending, measurer.stratum(free[0]))
                if not wanted:
                    break
                slot = free.pop(0)
                say(wanted[0])
                running[pool.submit(measurer.measure, wanted[0], slot)] = (wanted[0], slot)
            if not running:
                return "spoilt" if _spoilt(observations[before:]) else "enough" if enough() else "done"
            ended = wait(running, GLANCE_S, FIRST_COMPLETED).done
            for done in sorted(ended, key=lambda done: running[done][1]):
                take(done)
            free.sort()
    except BaseException as error:
        patience = None if isinstance(error, Exception) else 0.0
        for done in wait(running, timeout=patience).done:
            if done.exception() is None:
                take(done)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Here(Executor):
    """Measures in the thread of the caller, so that an interrupt ends the measurement too."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _spoilt(observations: Sequence[Observation]) -> bool:
    last = observations[-VOID_LIMIT:]
    return len(last) == VOID_LIMIT and all(each.void for each in last)
