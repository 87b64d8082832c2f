"""Shared by the tests of command and others."""

from typing import Any

from regbot.records.config import Workload
from regbot.workloads import Task, single_task
from regbot.workloads.shapes import load_shape


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
