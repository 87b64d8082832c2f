"""Step times of ranks, compared with the marks that they leave."""

import os
from pathlib import Path

import pytest

from regbot.records.run import RankSteps, RawRun
from regbot.workloads.ranks import BEGUN, ENDED, STEADY, find_step_fault, read_marks, timing_of


@pytest.mark.parametrize("jump_after", ["", BEGUN, STEADY])
def test_a_clock_that_jumps_back_an_hour_during_a_run_voids_the_run(tmp_path: Path, jump_after: str) -> None:
    """The run is measured again, because nothing shows how long its steps took."""
    now = 1_800_000_000
    for name, at_s in ((BEGUN, 0), (STEADY, 2), (ENDED, 10)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now + at_s, now + at_s))
        if name == jump_after:
            now -= 3600
    rank = RankSteps(step_s=[1.0] * 10, cpu_s=[1.0] * 10, wait_s=[0.0] * 10, memory_bytes=[1] * 10, peak_bytes=1)
    raws = {0: RawRun(request="x", workload="x", variant="x", rank=0, steps=rank)}
    fault = find_step_fault(timing_of(raws, requested=10, cut=2, marks=read_marks(tmp_path)))
    assert fault.endswith("its clock is wrong or was replaced") if jump_after else fault == ""
