"""A reservation on a Slurm that answers late. tests/cluster tests reservations on a real one."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from regbot.engines.engine import Needs
from regbot.engines.slurm.commands import RETRY_S, Slurm
from regbot.engines.slurm.limits import Partition, SeatLayout
from regbot.engines.slurm.reservation import Reservation
from regbot.records.config import SlurmSettings


class LateSlurm(Slurm):
    """A Slurm whose controller queued a job but did not confirm it in time, so that regbot submitted another one."""

    def __init__(self, took_s: float) -> None:
        super().__init__({})
        self.took_s = took_s
        self.cancelled: list[str] = []

    def submit(self, options: Sequence[str], script: str, tag: str) -> str:
        time.sleep(self.took_s)
        return "102"

    def find_tagged(self, tag: str) -> list[str]:
        return ["101", "102"]

    def jobs(self) -> dict[str, object]:  # type: ignore[override]
        return {}

    def cancel(self, number: str) -> None:
        self.cancelled.append(number)


@pytest.mark.parametrize(("took_s", "cancelled"), [(0.0, ["102"]), (RETRY_S, ["102", "101"])])
def test_a_repeated_submission_leaves_no_second_job(took_s: float, cancelled: list[str], tmp_path: Path) -> None:
    slurm = LateSlurm(took_s)
    partition = Partition("bench", ("n1",), 8, None, "UP")
    seat = Reservation(slurm, SlurmSettings(), partition, SeatLayout(1, 1, 1), Needs(1), tmp_path / "seat")
    seat.submit()
    seat.release()
    assert slurm.cancelled == cancelled
