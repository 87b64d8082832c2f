"""Compare the dispatcher that a workload requested with the dispatcher that was executed.

Of all backends, only the dispatcher can change a verdict. In the static tier, other backends run on a CPU, so their
kernels always differ from the requested ones. If they differ between the arms, this is only a warning.
"""

from collections.abc import Iterator, Sequence

from regbot.ledgers.catalogue import DISPATCHER_OFF, DISPATCHER_ON
from regbot.ledgers.patterns import DispatcherChange
from regbot.records.config import LIBRARY_DISPATCHERS
from regbot.records.run import Run

DISPATCHER = "dispatcher"
LOCAL = "local"
"""What the guest reports for expert-parallel groups of one rank, which exchange nothing."""


def dispatcher_change(base: Run | None, head: Run | None) -> DispatcherChange | None:
    """Return the dispatcher change if both arms request the same dispatcher and exactly one arm executes it, else
    None."""
    if base is None or head is None:
        return None
    base_backend, head_backend = base.backends.get(DISPATCHER), head.backends.get(DISPATCHER)
    if base_backend is None or head_backend is None or base_backend.requested != head_backend.requested:
        return None
    requested, executed = base_backend.requested, (base_backend.executed, head_backend.executed)
    if executed.count(requested) != 1:
        return None
    # The name of the finding: head no longer executes the requested dispatcher, or only head executes it.
    return DispatcherChange(DISPATCHER_OFF if executed[0] == requested else DISPATCHER_ON, requested, *executed)


def dispatcher_problems(base: Run, head: Run) -> Iterator[str]:
    """Yield a message for each arm that did not execute the requested dispatcher, which makes the comparison invalid.
    If only one arm did not, the difference is a finding, and nothing is yielded."""
    if dispatcher_change(base, head) is None:
        yield from (*unmet_dispatcher_request(base), *unmet_dispatcher_request(head))


def unmet_dispatcher_request(run: Run) -> Iterator[str]:
    backend = run.backends.get(DISPATCHER)
    if backend is not None and backend.executed != backend.requested:
        yield (
            f"{run.arm.name} requested dispatcher {backend.requested!r} and executed {backend.executed!r} "
            f"({backend.evidence}); make it available, or request the one that runs"
        )


def uncertain_dispatcher(runs: Sequence[Run], requested: str) -> Iterator[str]:
    """Yield why the runs of one arm do not prove which dispatcher the arm executes, or that it ran nothing.
    ``requested`` is the dispatcher that the workload requests, '' if the layer chooses one."""
    name = runs[0].arm.name
    # A run whose profile failed has no ledger, so it may not show its dispatcher. Its step times are good all the same.
    # It may therefore count without showing a dispatcher, if another run of the arm shows one. Otherwise every run must
    # show one.
    executed = {run.backends[DISPATCHER].executed for run in runs if DISPATCHER in run.backends}
    counted_runs = [run for run in runs if run.profile is None or run.ledger is not None]
    runs_to_check = counted_runs if any(DISPATCHER in run.backends for run in counted_runs) else runs
    if len(executed) > 1:
        yield f"{name} executed different dispatchers in different runs: {', '.join(sorted(executed))}"
    elif requested and not all(DISPATCHER in run.backends for run in runs_to_check):
        yield (
            f"{name} requested dispatcher {requested!r}, and a run does not show which one it executed, because its "
            "step was not counted"
        )
    elif requested in LIBRARY_DISPATCHERS and executed == {LOCAL}:
        yield (
            f"{name} requested dispatcher {requested!r}, and the expert-parallel groups have one rank on this node, so "
            "it ran nothing; time it on more GPUs"
        )


def backend_warnings(base: Run, head: Run) -> Iterator[str]:
    """Yield a warning for each backend, other than the dispatcher, that differs between the arms."""
    for name in sorted((base.backends.keys() & head.backends.keys()) - {DISPATCHER}):
        base_executed, head_executed = base.backends[name].executed, head.backends[name].executed
        if base_executed != head_executed:
            yield f"{name}: base executed {base_executed!r}, head executed {head_executed!r}"
