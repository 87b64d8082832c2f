"""Workloads: the trusted code that runs each kind of training code and reads its results."""

from regbot.workloads.guest import Checkout, Limits, Scratch, bare_run, interpreter, trace, trace_together
from regbot.workloads.launch import needs_of, time_run
from regbot.workloads.ranks import digest, ledger_of
from regbot.workloads.task import (
    PAPER_ADAPTERS,
    SMALL_NODES,
    Task,
    plan,
    plan_of,
    single_task,
    smoke_task,
    task_on_node,
    timed_tasks,
    timed_variant,
    unfit_for,
)
from regbot.workloads.timed import RunSpec

__all__ = [
    "PAPER_ADAPTERS",
    "SMALL_NODES",
    "Checkout",
    "Limits",
    "RunSpec",
    "Scratch",
    "Task",
    "bare_run",
    "digest",
    "interpreter",
    "ledger_of",
    "needs_of",
    "plan",
    "plan_of",
    "single_task",
    "smoke_task",
    "task_on_node",
    "time_run",
    "timed_tasks",
    "timed_variant",
    "trace",
    "trace_together",
    "unfit_for",
]
