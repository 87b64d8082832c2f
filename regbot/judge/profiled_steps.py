"""Ledgers of timed runs, for steps that no trace can count because their code is compiled or captured in CUDA graphs.

A trace refuses compiled code, or runs it eagerly on a paper GPU and says so. The timed runs execute the compiled code
and profile three of its steps. If the profiles of both arms are usable, they are compared like traces. If they are not,
the collectives of the real program are unknown, and the workload is INVALID. The same holds if the profiles of one arm
differ.
"""

from collections.abc import Iterator, Sequence

from regbot.judge.pairs import is_head_only
from regbot.judge.validity import (
    TracedRuns,
    distrust_run,
    find_missing_expert_traffic,
    list_conflicts,
    list_incomparabilities,
)
from regbot.records.ledger import Ledger
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
    problems += [problem for arm in arms for problem in _find_contradictions(runs, arm.name)]
    base, head = chosen
    if not problems and base is not None and head is not None:
        problems = [
            *list_incomparabilities(base, head),
            *find_missing_expert_traffic(base, head),
            *list_conflicts(base, head, "invalid"),
        ]
    if problems or base is None or head is None:
        reasons = [*problems, *(traced.validity.reasons if not is_profiled else [])]
        return TracedRuns(Validity(status="INVALID", reasons=[clip_message(reason) for reason in reasons]))
    proof = "the collectives were counted in timed runs of both arms; the profiles show every planted collective"
    conflicts = [text for text in list_conflicts(base, head, "warning") if text not in traced.warnings]
    return TracedRuns(Validity(status="PASS", reasons=[proof]), base, head, (*conflicts, *_list_warnings(base, head)))


def choose_run(runs: Sequence[Run], arm: str) -> Run | None:
    """Return the last run of ``arm`` whose profile gave a ledger, else its last profiled run, else its last run."""
    arm_runs = [run for run in runs if run.outcome == "ok" and run.arm.name == arm]
    arm_runs.sort(key=lambda run: (run.profile is not None, _has_usable_ledger(run)))  # stable: ties keep their order
    return arm_runs[-1] if arm_runs else None


def _has_usable_ledger(run: Run) -> bool:
    """Whether the run has a ledger that can be used. A ledger from a profile with a problem cannot."""
    return run.ledger is not None and (run.profile is None or not run.profile.problem)


def _find_contradictions(runs: Sequence[Run], arm: str) -> Iterator[str]:
    """Yield a message if the profiles of one arm's runs show different collectives.

    The verdict compares only one profile of each arm. If an arm's profiles differ from each other, that comparison may
    come out equal by chance. Phases may differ: they depend on the thread that issued a call.
    """
    ledgers = [
        run.ledger
        for run in runs
        if run.arm.name == arm and run.profile is not None and run.ledger is not None and _has_usable_ledger(run)
    ]
    first, *others = [_sum_collectives(ledger) for ledger in ledgers] or [{}]
    for other in others:
        different = sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
        if different:
            kind, axis, group_size, dtype, role = different[0]
            amounts = [sums.get(different[0], (0, 0)) for sums in (first, other)]
            (count, size), (other_count, other_size) = amounts
            more = f", and {len(different) - 1} more" if len(different) > 1 else ""
            yield (
                f"{arm}: the profiles of its runs differ, so the collectives of its step are not certain: {role} "
                f"{kind} over {axis} ({group_size} ranks, {dtype}) is {count} calls of {size:,} bytes in all in one "
                f"run, {other_count} of {other_size:,} in another{more}"
            )
            return


def _sum_collectives(ledger: Ledger) -> dict[tuple[str, str, int, str, str], tuple[int, int]]:
    """Return number and bytes of a ledger's collectives, by kind, axis, group size, dtype and role."""
    sums: dict[tuple[str, str, int, str, str], tuple[int, int]] = {}
    for entry in ledger.entries:
        key = (entry.kind, entry.axis, entry.group_size, entry.dtype, entry.role)
        count, size = sums.get(key, (0, 0))
        sums[key] = (count + entry.count, size + entry.bytes)
    return sums


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
    elif run.profile is not None and not _has_usable_ledger(run):
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
