"""One timed run of any workload."""

from collections.abc import Mapping
from pathlib import Path

from regbot.engines import Needs, Seat
from regbot.records.run import Arm, Run
from regbot.records.session import TimedPlan
from regbot.workloads.command import time_command
from regbot.workloads.guest import Limits
from regbot.workloads.task import Task
from regbot.workloads.timed import Place, time_ranks


def needs_of(task: Task, minutes: float | None = None) -> Needs:
    """What a session of ``task`` must have for itself."""
    if task.workload.adapter == "command":
        return Needs(ranks=0, minutes=minutes, name=f"regbot {task.entry}")
    ranks = task.parallelism.world_size
    gpus = 0 if task.variant.size == "cpu" else ranks
    return Needs(ranks=ranks, gpus=gpus, minutes=minutes, name=f"regbot {task.entry}")


def time_run(
    task: Task,
    plan: TimedPlan,
    place: Place,
    arm: Arm,
    root: Path,
    seat: Seat,
    scratch: Path,
    limits: Limits,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Launch ``task`` once in the checkout ``root`` and time its steps. Never raises for what the code under test
    does."""
    how = time_command if task.workload.adapter == "command" else time_ranks
    return how(task, plan, place, arm, root, seat, scratch, limits, environment)
