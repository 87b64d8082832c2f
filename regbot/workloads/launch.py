from regbot.engines import Needs, Seat
from regbot.records.run import Run
from regbot.workloads.command import time_command
from regbot.workloads.guest import Checkout, Scratch
from regbot.workloads.task import Task
from regbot.workloads.timed import RunSpec, time_ranks


def needs_of(task: Task, minutes: float | None = None) -> Needs:
    """Return what a session that times ``task`` needs from its seat, the nodes that are reserved for it. ``minutes`` is
    the session's expected duration; None means unknown.
    """
    is_command = task.workload.adapter == "command"  # for the engine, one process without ranks, on all nodes and GPUs
    ranks = 0 if is_command else task.parallelism.world_size
    gpus = ranks if task.timed_device == "cuda" else 0
    return Needs(ranks=ranks, gpus=gpus, minutes=minutes, name=f"regbot {task.entry}")


def time_run(task: Task, spec: RunSpec, checkout: Checkout, seat: Seat, scratch: Scratch) -> Run:
    """Launch ``task`` once in ``checkout`` and time its steps. The code under test cannot make this function raise."""
    launch = time_command if task.workload.adapter == "command" else time_ranks
    return launch(task, spec, checkout, seat, scratch)
