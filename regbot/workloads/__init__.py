"""Workloads: the trusted side of running each kind of training code and reading what it left."""

from regbot.workloads.guest import Limits, bare_run, guest_folder, interpreter, trace
from regbot.workloads.task import Task, plan, single_task, smoke_task

__all__ = [
    "Limits",
    "Task",
    "bare_run",
    "guest_folder",
    "interpreter",
    "plan",
    "single_task",
    "smoke_task",
    "trace",
]
