"""What was asked for against what ran: the dispatcher gate.

Only the dispatcher decides here. Other backends (attention, grouped GEMM) run on a CPU in the static tier, where their
kernels differ from the ones that were asked for by nature; a difference between the arms is a warning.
"""

from collections.abc import Iterator, Sequence

from regbot.ledgers.catalogue import DISPATCHER_OFF, DISPATCHER_ON
from regbot.ledgers.patterns import DispatcherChange
from regbot.records.run import Backend, Run

DISPATCHER = "dispatcher"


def dispatcher_change(base: Run, head: Run) -> DispatcherChange | None:
    """One request that exactly one arm honoured; None in every other case."""
    asked, now = base.backends.get(DISPATCHER), head.backends.get(DISPATCHER)
    if asked is None or now is None or asked.requested != now.requested or _honoured(asked) == _honoured(now):
        return None
    pattern = DISPATCHER_OFF if _honoured(asked) else DISPATCHER_ON
    return DispatcherChange(pattern, asked.requested, asked.executed, now.executed)


def dispatcher_problems(base: Run, head: Run) -> Iterator[str]:
    """Why the dispatcher leaves the comparison invalid: an arm that did not run what it was asked to, unless the other
    arm shows with the same request that it could."""
    if dispatcher_change(base, head) is not None:
        return
    for run in (base, head):
        yield from not_honoured(run)


def not_honoured(run: Run) -> Iterator[str]:
    """That a run did not execute the dispatcher it was asked for; nothing where it did, or nobody asked."""
    backend = run.backends.get(DISPATCHER)
    if backend is not None and not _honoured(backend):
        yield (
            f"{run.arm.name} asked for dispatcher {backend.requested!r} and executed {backend.executed!r} "
            f"({backend.evidence}); make it available, or ask for the one that runs"
        )


def unsettled(runs: Sequence[Run], asked: str) -> Iterator[str]:
    """Why the runs of one arm do not tell which dispatcher the arm executes; nothing where they do.

    ``asked`` is what the workload asks for, '' where it leaves the choice to the layer.
    """
    name = runs[0].arm.name
    executed = {run.backends[DISPATCHER].executed for run in runs if DISPATCHER in run.backends}
    if len(executed) > 1:
        yield f"{name} executed different dispatchers in different runs: {', '.join(sorted(executed))}"
    elif asked and not all(DISPATCHER in run.backends for run in runs):
        yield (
            f"{name} was asked for dispatcher {asked!r}, and a run does not show which one it executed (its step was "
            "not counted); a dispatcher that was not seen is not taken to be the one asked for"
        )


def backend_warnings(base: Run, head: Run) -> Iterator[str]:
    """Other backends that executed differently in the two arms."""
    for name in sorted((base.backends.keys() & head.backends.keys()) - {DISPATCHER}):
        ours, theirs = base.backends[name].executed, head.backends[name].executed
        if ours != theirs:
            yield f"{name}: base executed {ours!r}, head executed {theirs!r}"


def _honoured(backend: Backend) -> bool:
    return backend.executed == backend.requested
