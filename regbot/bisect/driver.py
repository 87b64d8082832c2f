"""The measuring loop of a bisection: choose a measurement, make it, write it down.

Every observation is written to disk before the next choice. An interrupted bisection therefore continues from its log:
no finished measurement is lost, and none is counted twice. With several free slots, several measurements run at the
same time and may end in any order.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Literal, ParamSpec, TypeVar

from regbot.bisect.measure import Measurer
from regbot.bisect.noisy import MeasurementRequest
from regbot.records.bisection import Observation

Pending = Sequence[tuple[MeasurementRequest, str]]
"""The running requests, each with its stratum."""
ChooseRequests = Callable[[Sequence[Observation], Pending, str], Sequence[MeasurementRequest]]
"""A function that chooses the next measurements. Its arguments are all observations, the running requests with their
strata, and the stratum of the free slot.
"""

P = ParamSpec("P")
T = TypeVar("T")

StopReason = Literal["done", "enough", "spoilt"]
"""Why the loop stopped. done: no request is left. enough: a request is left, but ``is_enough`` returned true. spoilt:
too many runs in a row were void.
"""

POLL_S = 1.0
"""Maximum seconds of one wait. A wait without a limit can miss an interrupt that arrives just before the wait or in
another thread.
"""

VOID_LIMIT = 5
"""After this many void runs in a row the bisection stops, because the node is unfit."""


def drive(
    observations: list[Observation],
    next_requests: ChooseRequests,
    measurer: Measurer,
    write_observation: Callable[[Observation], None],
    slots: int = 1,
    is_enough: Callable[[], bool] = lambda: False,
    *,
    announce: Callable[[MeasurementRequest], None] = lambda _: None,
) -> StopReason:
    """Measure until no request is left, ``is_enough`` returns true, or ``VOID_LIMIT`` runs in a row are void.

    At most ``slots`` measurements run at the same time. Each observation is written and appended to ``observations``.
    Before the function returns, it waits for the running measurements and writes them. It also does so before it raises
    an error of ``measurer`` or ``write_observation``. After an interrupt it does not wait. ``announce`` is called with
    each request before its measurement.
    """
    first_new = len(observations)  # the observations before this index are not of this call
    free = list(range(slots))  # the slots in which nothing runs
    running: dict[Future[Observation], tuple[MeasurementRequest, int]] = {}  # each with its request and slot
    pool: Executor = ThreadPoolExecutor(slots) if slots > 1 else _InlineExecutor()

    def record(future: Future[Observation]) -> None:
        """Free the slot of a finished measurement, and write its observation."""
        _, slot = running.pop(future)
        free.append(slot)
        observation = future.result()
        write_observation(observation)
        observations.append(observation)

    try:
        while True:
            while free and not is_enough() and not _has_void_streak(observations[first_new:]):
                pending = [(request, measurer.stratum(slot)) for request, slot in running.values()]
                requests = next_requests(observations, pending, measurer.stratum(free[0]))
                if not requests:
                    break
                slot, next_request = free.pop(0), requests[0]
                announce(next_request)
                future = pool.submit(measurer.measure, next_request, slot)
                running[future] = (next_request, slot)
            if not running:
                if _has_void_streak(observations[first_new:]):
                    return "spoilt"
                # If the last measurement both ended the search and reached a limit, the search is done.
                has_request = is_enough() and next_requests(observations, (), measurer.stratum(free[0]))
                return "enough" if has_request else "done"
            finished = wait(running, POLL_S, FIRST_COMPLETED).done
            slot_by_future = {future: slot for future, (_, slot) in running.items()}
            for future in sorted(finished, key=slot_by_future.__getitem__):
                record(future)
            free.sort()
    except BaseException as error:
        wait_forever, no_wait = None, 0.0  # an interrupt (KeyboardInterrupt) is no ``Exception``, and does not wait
        wait_s = wait_forever if isinstance(error, Exception) else no_wait
        for future in wait(running, timeout=wait_s).done:
            if future.exception() is None:
                record(future)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _InlineExecutor(Executor):
    """Executor that runs each call in the caller's thread, so that an interrupt also stops the measurement."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _has_void_streak(observations: Sequence[Observation]) -> bool:
    """Return whether the last ``VOID_LIMIT`` observations are all void."""
    last = observations[-VOID_LIMIT:]
    return len(last) == VOID_LIMIT and all(observation.void for observation in last)
