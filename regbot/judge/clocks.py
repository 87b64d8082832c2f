"""Check the step times of a session from an untrusted job against clocks that the code under test cannot influence: the
harness's own clock, and the duration of the job. Timed runs run one after another, so together they cannot take longer.
"""

from collections.abc import Iterator, Sequence

from regbot.records.run import Run
from regbot.records.session import Session

STEPS_TOLERANCE, STEADY_TOLERANCE = 0.05, 0.02
"""Relative tolerances for all steps together and for the steps after the warm-up. They equal those of the harness."""
TOLERANCE_S = 0.25
"""Absolute tolerance in seconds. The larger of the absolute and the relative tolerance applies."""
JOB_TOLERANCE_S = 120.0
"""Tolerance in seconds for the difference between the clocks of two machines, and for times rounded to seconds."""


def find_impossible_times(session: Session, job_s: float) -> list[str]:
    """Return why the times of ``session`` are impossible for a job that took ``job_s`` seconds; [] if they are
    possible. Runs of earlier sessions are only compared with the clocks in their own records."""
    reasons = find_contradicted_times(session.runs)
    runs = [run for run in session.runs if not run.is_from_earlier_session]
    timed_s = sum(run.wall_s for run in runs if run.tier == "timed")
    if timed_s > job_s + JOB_TOLERANCE_S:
        reasons.append(f"the timed runs together claim {timed_s:.0f} s, but the whole job took {job_s:.0f} s")
    # Traces run in parallel, so only the longest trace is compared with the job.
    longest_trace_s = max((run.wall_s for run in runs if run.tier == "static"), default=0.0)
    if longest_trace_s > job_s + JOB_TOLERANCE_S:
        reasons.append(f"one trace claims {longest_trace_s:.0f} s, but the whole job took {job_s:.0f} s")
    return reasons


def find_contradicted_times(runs: Sequence[Run]) -> list[str]:
    """Return how step times contradict the harness's clock in the same records, without duplicates."""
    return list(dict.fromkeys(reason for run in runs for reason in _check_run(run)))


def _check_run(run: Run) -> Iterator[str]:
    timing = run.timing
    if run.tier != "timed" or run.outcome != "ok" or timing is None:
        return
    name = f"a timed run of {run.arm.name}"
    # Each rank reports its own step times. The rank that claims most counts.
    claimed_s = max(sum(rank.step_s) for rank in timing.ranks.values())
    if claimed_s > run.wall_s + TOLERANCE_S:
        yield f"{name} claims {claimed_s:.4g} s for its steps, but the process ran for {run.wall_s:.4g} s"
    if timing.clock == "log":
        return  # the program printed these times itself, so there is no clock of the harness to compare with
    has_steady_steps = bool(timing.steady_s)
    # By the harness's clock, all steps took ``harness_s``, and the steps after the warm-up took ``harness_steady_s``.
    if timing.harness_s is None or (has_steady_steps and timing.harness_steady_s is None):
        yield f"{name} was not timed by the harness's own clock"
        return
    clocks = [("its steps", 0, timing.harness_s, STEPS_TOLERANCE)]
    if has_steady_steps and timing.harness_steady_s is not None:
        clocks.append(("its steps after the warm-up", timing.cut, timing.harness_steady_s, STEADY_TOLERANCE))
    for rank in timing.ranks.values():
        for steps, first_step, harness_s, tolerance in clocks:
            steps_s = sum(rank.step_s[first_step:])
            if abs(steps_s - harness_s) > max(TOLERANCE_S, tolerance * harness_s):
                yield f"{name} claims {steps_s:.4g} s for {steps}, but the harness's clock measured {harness_s:.4g} s"
