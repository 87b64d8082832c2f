"""Can the claimed times be true? What a session says of its runs, held against clocks that it has no hand in.

The harness held a guest's step times against its own clock when it read them (``regbot.workloads.ranks``). A session
that has crossed a boundary since is held to the same again, and to the time that the whole job took: timed runs follow
one another, so together they cannot take longer than the job that ran them.
"""

from collections.abc import Iterator, Sequence

from regbot.records.run import Run, Timing
from regbot.records.session import Session

STEPS_TOLERANCE, STEADY_TOLERANCE = 0.05, 0.02
"""Of all steps together and of those after the warm-up, as the harness allows."""
TOLERANCE_S = 0.25
"""Or this much, where it is more."""
JOB_TOLERANCE_S = 120.0
"""Between two machines' clocks, and the seconds to which they are told."""


def impossible(session: Session, job_s: float) -> list[str]:
    """Why the times of ``session`` cannot all be those of a job that took ``job_s`` seconds; [] where they can.

    Runs of earlier sessions are of other jobs: they are held to their own clocks, and not to this job's.
    """
    own = [run for run in session.runs if run.joined is None]
    return [*contradicted(session.runs), *_of_all(own, job_s)]


def contradicted(runs: Sequence[Run]) -> list[str]:
    """How the times that runs claim contradict the clocks that stand beside them, each told once."""
    return list(dict.fromkeys(reason for run in runs for reason in _of_one(run)))


def _of_one(run: Run) -> Iterator[str]:
    timing = run.timing
    if run.tier != "timed" or run.outcome != "ok" or timing is None:
        return
    name = f"a timed run of {run.arm.name}"
    claimed = max(sum(rank.step_s) for rank in timing.ranks.values())
    if claimed > run.wall_s + TOLERANCE_S:
        yield f"{name} claims {claimed:.4g} s for its steps, and lived {run.wall_s:.4g} s"
    if timing.clock == "log":
        return  # printed, by a program that the harness does not see into
    if timing.harness_s is None or (timing.harness_steady_s is None and len(timing.step_s) > timing.cut):
        yield f"{name} was not timed by the harness's own clock"
        return
    for rank in timing.ranks.values():
        if _apart(sum(rank.step_s), timing.harness_s, STEPS_TOLERANCE):
            yield _contradiction(name, "its steps", sum(rank.step_s), timing.harness_s)
        steady = sum(rank.step_s[timing.cut :])
        if timing.harness_steady_s is not None and _steady_apart(steady, timing):
            yield _contradiction(name, "its steps after the warm-up", steady, timing.harness_steady_s)


def _of_all(runs: Sequence[Run], job_s: float) -> Iterator[str]:
    timed = sum(run.wall_s for run in runs if run.tier == "timed")
    if timed > job_s + JOB_TOLERANCE_S:
        yield f"the timed runs claim {timed:.0f} s together, and the whole job took {job_s:.0f} s"
    longest = max((run.wall_s for run in runs if run.tier == "static"), default=0.0)
    if longest > job_s + JOB_TOLERANCE_S:
        yield f"one trace claims {longest:.0f} s, and the whole job took {job_s:.0f} s"


def _steady_apart(claimed_s: float, timing: Timing) -> bool:
    seen = timing.harness_steady_s
    return len(timing.step_s) > timing.cut and seen is not None and _apart(claimed_s, seen, STEADY_TOLERANCE)


def _apart(claimed_s: float, seen_s: float, tolerance: float) -> bool:
    return abs(claimed_s - seen_s) > max(TOLERANCE_S, tolerance * seen_s)


def _contradiction(name: str, what: str, claimed_s: float, seen_s: float) -> str:
    return f"{name} claims {claimed_s:.4g} s for {what}, and by the harness's clock they took {seen_s:.4g} s"
