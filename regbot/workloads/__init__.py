"""Workloads: the trusted side of running each kind of training code and reading what it left."""

from regbot.workloads.guest import Limits, bare_run, guest_folder, interpreter, trace, trace_together
from regbot.workloads.launch import needs_of, time_run
from regbot.workloads.ranks import digest, ledger_of
from regbot.workloads.task import Task, plan, plan_of, single_task, smoke_task, timed_tasks, timed_variant, unfit_for
from regbot.workloads.timed import Place

__all__ = [
    "Limits",
    "Place",
    "Task",
    "bare_run",
    "digest",
    "guest_folder",
    "interpreter",
    "ledger_of",
    "needs_of",
    "plan",
    "plan_of",
    "single_task",
    "smoke_task",
    "time_run",
    "timed_tasks",
    "timed_variant",
    "trace",
    "trace_together",
    "unfit_for",
]
