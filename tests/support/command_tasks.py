"""Shared by the tests of command and others."""

from typing import Any

from regbot.records.config import Workload
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task


def command_task(command: tuple[str, ...], timeout_s: float = 60.0, **workload: Any) -> Task:
    given = Workload(
        adapter="command",
        command=list(command),
        shapes=["mixtral-8x7b"],
        variant="cpu",
        timeout_min=timeout_s / 60,
        **workload,
    )
    return single_task("train", given, load_shape("mixtral-8x7b"), "ep")
