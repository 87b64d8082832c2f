"""Claimed step times, compared with the harness's clock and with the duration of the whole job."""

import pytest

from regbot.judge.clocks import find_impossible_times
from regbot.records.run import Run
from support.timed_builder import noisy, play, session_of, slot, timed_run, timing

JOB_S = 3600.0


def reasons(*runs: Run, job_s: float = JOB_S) -> list[str]:
    return find_impossible_times(session_of(runs), job_s)


def test_a_session_as_it_is_measured_is_possible() -> None:
    runs = play(noisy(1.05, 0.01))
    assert reasons(*runs) == []
    assert reasons(*runs, job_s=sum(run.wall_s for run in runs)) == []


def run_of(step_s: float, **changes: object) -> Run:
    return timed_run(slot(1, 0, "base"), step_s, timing=timing([step_s] * 8, **changes))


@pytest.mark.parametrize("seen", [0.5, 1.2])
def test_steps_that_contradict_the_harness_are_impossible(seen: float) -> None:
    assert "but the harness's clock measured" in reasons(run_of(1.0, harness_s=8.0 * seen))[0]
    (only,) = reasons(run_of(1.0, harness_steady_s=6.0 * seen))
    assert "after the warm-up" in only


@pytest.mark.parametrize("lacking", ["harness_s", "harness_steady_s"])
def test_times_without_a_clock_of_the_harness_are_impossible(lacking: str) -> None:
    assert "not timed by the harness's own clock" in reasons(run_of(1.0, **{lacking: None}))[0]


def test_logged_times_cannot_exceed_the_run_time_of_their_process() -> None:
    printed = timing([1.0] * 8, clock="log", harness_s=None, harness_steady_s=None)
    run = timed_run(slot(1, 0, "base"), 1.0, timing=printed)
    assert reasons(run) == []
    assert "but the process ran for 2 s" in reasons(run.model_copy(update={"wall_s": 2.0}))[0]


def test_runs_together_cannot_take_longer_than_their_job() -> None:
    runs = [run_of(1.0).model_copy(update={"wall_s": 100.0}) for _ in range(5)]
    assert reasons(*runs, job_s=400.0) == [], "two machines' clocks differ"
    assert reasons(*runs, job_s=300.0) == ["the timed runs together claim 500 s, but the whole job took 300 s"]


def test_traces_run_side_by_side_but_none_longer_than_the_job() -> None:
    session = session_of([])
    longer = [run.model_copy(update={"wall_s": 90.0}) for run in session.runs]
    assert find_impossible_times(session.model_copy(update={"runs": longer}), 10.0) == []
    longer = [run.model_copy(update={"wall_s": 900.0}) for run in session.runs]
    assert "one trace claims 900 s" in find_impossible_times(session.model_copy(update={"runs": longer}), 10.0)[0]


def of_before(run: Run) -> Run:
    return run.model_copy(update={"joined": "a" * 64})


def test_runs_of_earlier_sessions_are_of_other_jobs() -> None:
    long = of_before(run_of(1.0)).model_copy(update={"wall_s": 1e6})
    assert reasons(long) == []
    assert "the whole job took" in reasons(long.model_copy(update={"joined": None}))[0]


def test_runs_of_earlier_sessions_are_compared_with_their_own_clocks() -> None:
    (only,) = reasons(*play(noisy(1.0, 0.01)), of_before(run_of(1.0, harness_s=4.0)))
    assert "claims 8 s for its steps, but the harness's clock measured 4 s" in only
