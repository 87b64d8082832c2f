"""Ledgers of timed runs, for steps that no trace can count because their code is compiled or captured in CUDA graphs.

A trace refuses compiled code, or runs it eagerly on a paper GPU and says so. The timed runs execute the compiled code
and profile three of its steps. If the profiles of both arms are usable, they are compared like traces. If they are not,
the collectives of the real program are unknown, and the workload is INVALID.
"""

from collections.abc import Iterator, Sequence

from regbot.judge.pairs import is_head_only
from regbot.judge.validity import (
    TracedRuns,
    distrust_run,
    find_missing_expert_traffic,
    list_incomparabilities,
)
from regbot.records.run import Arm, Run
from regbot.records.session import Session
from regbot.records.verdict import Validity
from regbot.text.clip import clip_message

HEAD_ALONE = (
    "the timed steps are compiled. Only head was timed, so no profiles were compared; the collectives are those of the "
    "traces, in which compiled code runs eagerly"
)


def examine_profiles(session: Session, workload: str, traced: TracedRuns) -> TracedRuns | None:
    """Return the timed runs whose ledgers are compared, and their validity. ``traced`` is the result of the traces.

    Return None if no timed run was profiled and the traces do not need it, or if the traces failed for another reason.
    """
    header, runs = session.header, [run for run in session.timed_runs(workload) if run.outcome == "ok"]
    is_profiled = any(run.profile is not None for run in runs)
    if not traced.needs_profile and (not is_profiled or traced.base is None):
        return None
    if not traced.needs_profile and all(is_head_only(run) for run in runs):
        return TracedRuns(Validity(status="PASS", reasons=[]), warnings=(HEAD_ALONE,))
    arms = (header.base, header.head)
    chosen = [choose_run(runs, arm.name) for arm in arms]
    problems = [problem for arm, run in zip(arms, chosen, strict=True) for problem in _distrust(arm, run, is_profiled)]
    base, head = chosen
    if not problems and base is not None and head is not None:
        problems = [*list_incomparabilities(base, head), *find_missing_expert_traffic(base, head)]
    if problems or base is None or head is None:
        reasons = [*problems, *(traced.validity.reasons if not is_profiled else [])]
        return TracedRuns(Validity(status="INVALID", reasons=[clip_message(reason) for reason in reasons]))
    proof = "the collectives were counted in timed runs of both arms; the profiles show every planted collective"
    return TracedRuns(Validity(status="PASS", reasons=[proof]), base, head, (*_list_warnings(base, head),))


def choose_run(runs: Sequence[Run], arm: str) -> Run | None:
    """Return the last run of ``arm`` whose profile gave a ledger, else its last profiled run, else its last run."""
    arm_runs = [run for run in runs if run.outcome == "ok" and run.arm.name == arm]
    arm_runs.sort(key=lambda run: (run.profile is not None, run.ledger is not None))  # keeps the order of equal runs
    return arm_runs[-1] if arm_runs else None


def _distrust(arm: Arm, run: Run | None, is_profiled: bool) -> Iterator[str]:
    """Yield why the ledger of one arm's timed run cannot be used. ``is_profiled``: some run of the session was
    profiled."""
    if run is None:
        yield f"{arm.name} has no timed run, so the collectives of its step are unknown"
    elif run.profile is None and is_profiled:
        yield (
            f"not comparable: a step of {arm.name} was counted, and steps of the other arm were profiled. The next "
            "runs of both are profiled: go on with --resume and a larger budget"
        )
    elif run.profile is not None and run.ledger is None:
        yield (
            f"{arm.name}: the collectives of its step are unknown. No step was counted ({run.profile.reason}), and the "
            f"profile gives no ledger: {run.profile.problem}"
        )
    else:
        yield from distrust_run(run, arm)


def _list_warnings(base: Run, head: Run) -> Iterator[str]:
    for run in (base, head):
        if run.profile is not None:
            yield f"{run.arm.name}: three timed steps were profiled and none was counted ({run.profile.reason})"
        for warning in run.ledger.warnings if run.ledger is not None else ():
            yield f"{run.arm.name}: {warning}"
