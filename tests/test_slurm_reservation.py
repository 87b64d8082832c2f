"""A reservation on a Slurm that answers late; on a real one they are tested in tests/cluster."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from regbot.config import SlurmSettings
from regbot.engines.engine import Needs
from regbot.engines.slurm.commands import RETRY_S, Slurm
from regbot.engines.slurm.limits import Extent, Partition
from regbot.engines.slurm.reservation import Reservation


class Late(Slurm):
    """Its controller took a job and could not say so in time, so that another one was asked for."""

    def __init__(self, took_s: float) -> None:
        super().__init__({})
        self.took_s = took_s
        self.cancelled: list[str] = []

    def submit(self, options: Sequence[str], script: str, tag: str) -> str:
        time.sleep(self.took_s)
        return "102"

    def tagged(self, tag: str) -> list[str]:
        return ["101", "102"]

    def jobs(self) -> dict[str, object]:  # type: ignore[override]
        return {}

    def cancel(self, number: str) -> None:
        self.cancelled.append(number)


@pytest.mark.parametrize(("took_s", "cancelled"), [(0.0, ["102"]), (RETRY_S, ["102", "101"])])
def test_a_submission_that_was_repeated_leaves_no_second_job(
    took_s: float, cancelled: list[str], tmp_path: Path
) -> None:
    slurm = Late(took_s)
    partition = Partition("bench", ("n1",), 8, None, "UP")
    seat = Reservation(slurm, SlurmSettings(), partition, Extent(1, 1, 1), Needs(1), tmp_path / "seat")
    seat.submit()
    seat.release()
    assert slurm.cancelled == cancelled
