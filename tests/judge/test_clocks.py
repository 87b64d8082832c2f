"""Claimed step times, compared with the harness's clock and with the duration of the whole job."""

import pytest

from regbot.judge.clocks import find_impossible_times
from regbot.records.run import Run
from support.timed_builder import noisy, play, session_of, slot, timed_run, timing

JOB_S = 3600.0


def reasons(*runs: Run, job_s: float = JOB_S) -> list[str]:
    return find_impossible_times(session_of(runs), job_s)


def run_of(wall_s: float = 13.0, joined: str | None = None, **changes: object) -> Run:
    """Return a run of eight steps of one second each, whose timing has these changes."""
    run = timed_run(slot(1, 0, "base"), 1.0, timing=timing([1.0] * 8, **changes))
    return run.model_copy(update={"wall_s": wall_s, "joined": joined})


PRINTED: dict[str, object] = {"clock": "log", "harness_s": None, "harness_steady_s": None}
EARLIER = "a" * 64


@pytest.mark.parametrize(
    ("runs", "job_s", "reason"),
    [
        ([run_of(harness_s=4.0)], JOB_S, "claims 8 s for its steps, but the harness's clock measured 4 s"),
        ([run_of(harness_s=9.6)], JOB_S, "claims 8 s for its steps, but the harness's clock measured 9.6 s"),
        (
            [run_of(harness_steady_s=3.0)],
            JOB_S,
            "for its steps after the warm-up, but the harness's clock measured 3 s",
        ),
        (
            [run_of(harness_steady_s=7.2)],
            JOB_S,
            "for its steps after the warm-up, but the harness's clock measured 7.2",
        ),
        ([run_of(harness_s=None)], JOB_S, "was not timed by the harness's own clock"),
        ([run_of(harness_steady_s=None)], JOB_S, "was not timed by the harness's own clock"),
        ([run_of(**PRINTED)], JOB_S, None),  # printed times cannot exceed the run time of their process
        ([run_of(wall_s=2.0, **PRINTED)], JOB_S, "but the process ran for 2 s"),
        ([run_of(wall_s=100.0)] * 5, 400.0, None),  # the clocks of two machines differ
        ([run_of(wall_s=100.0)] * 5, 300.0, "the timed runs together claim 500 s, but the whole job took 300 s"),
        ([run_of(wall_s=1e6, joined=EARLIER)], JOB_S, None),  # a run of an earlier session is of another job
        ([run_of(wall_s=1e6)], JOB_S, "the whole job took"),
        ([*play(noisy(1.0, 0.01)), run_of(joined=EARLIER, harness_s=4.0)], JOB_S, "the harness's clock measured 4 s"),
    ],
)
def test_times_that_another_clock_contradicts_are_impossible(runs: list[Run], job_s: float, reason: str | None) -> None:
    found = reasons(*runs, job_s=job_s)
    assert len(found) == (reason is not None)
    assert all((reason or "") in text for text in found)


def test_traces_run_side_by_side_but_none_longer_than_the_job() -> None:
    session = session_of([])
    for wall_s, expected in ((90.0, []), (900.0, ["one trace claims 900 s, but the whole job took 10 s"])):
        runs = [run.model_copy(update={"wall_s": wall_s}) for run in session.runs]
        assert find_impossible_times(session.model_copy(update={"runs": runs}), 10.0) == expected
