"""Ledgers of timed runs, for steps that no trace can count because their code is compiled or captured in CUDA graphs.

The timed runs execute the compiled code and profile three of its steps. If the profiles of both arms are usable, they
are compared like traces. If they are not, or if two profiles of one arm differ, the workload is INVALID.
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
from regbot.records.text.clip import clip_message
from regbot.records.verdict import Validity

HEAD_ALONE = (
    "the timed steps are compiled. Only head was timed, so no profiles were compared; the collectives are those of the "
    "traces, in which compiled code runs eagerly"
)


def examine_profiles(session: Session, workload: str, traced: TracedRuns) -> TracedRuns | None:
    """Return the timed runs whose ledgers are compared, and their validity. None if profiles are not needed: the traces
    counted the steps and no timed run was profiled, or they failed for another reason than compiled code."""
    header, runs = session.header, [run for run in session.timed_runs(workload) if run.outcome == "ok"]
    is_profiled = any(run.profile is not None for run in runs)
    has_traces = traced.base is not None
    if not traced.needs_profile and not (is_profiled and has_traces):
        return None
    if not traced.needs_profile and all(is_head_only(run) for run in runs):
        return TracedRuns(Validity(status="PASS", reasons=[]), warnings=(HEAD_ALONE,))
    base, head = choose_run(runs, "base"), choose_run(runs, "head")
    problems = [
        *_distrust(header.base, base, is_profiled),
        *_distrust(header.head, head, is_profiled),
        *_find_contradictions(runs, "base"),
        *_find_contradictions(runs, "head"),
    ]
    if not problems and base is not None and head is not None:
        problems = [
            *list_incomparabilities(base, head),
            *find_missing_expert_traffic(base, head),
            *list_conflicts(base, head, "invalid"),
        ]
    if problems or base is None or head is None:
        # Without profiles, also say why the traces did not count the step.
        reasons = [*problems, *(traced.validity.reasons if not is_profiled else [])]
        return TracedRuns(Validity(status="INVALID", reasons=[clip_message(reason) for reason in reasons]))
    proof = "the collectives were counted in timed runs of both arms; the profiles show every planted collective"
    # Violated rules of ``regbot preflight`` that only give a warning.
    conflicts = [text for text in list_conflicts(base, head, "warning") if text not in traced.warnings]
    return TracedRuns(Validity(status="PASS", reasons=[proof]), base, head, (*conflicts, *_list_warnings(base, head)))


def choose_run(runs: Sequence[Run], arm: str) -> Run | None:
    """Return the last run of ``arm`` whose profile gave a ledger, else its last profiled run, else its last run."""
    arm_runs = [run for run in runs if run.outcome == "ok" and run.arm.name == arm]
    # The best run comes last. Sorting is stable, so among equally good runs the last run of the session comes last.
    arm_runs.sort(key=lambda run: (run.profile is not None, _has_usable_ledger(run)))
    return arm_runs[-1] if arm_runs else None


def _has_usable_ledger(run: Run) -> bool:
    return run.ledger is not None and (run.profile is None or not run.profile.problem)


def _find_contradictions(runs: Sequence[Run], arm: str) -> Iterator[str]:
    """Yield a message if the profiles of one arm differ: the verdict compares only one of each arm. Phases are not
    compared, because a profile derives them from the thread that issued a call."""
    ledgers = [
        run.ledger
        for run in runs
        if run.arm.name == arm and run.profile is not None and run.ledger is not None and _has_usable_ledger(run)
    ]
    if not ledgers:
        return
    first_sums, *other_runs_sums = [_sum_collectives(ledger) for ledger in ledgers]
    for sums in other_runs_sums:
        keys = first_sums.keys() | sums.keys()
        different_keys = sorted(key for key in keys if first_sums.get(key) != sums.get(key))
        if different_keys:
            key = different_keys[0]
            kind, axis, group_size, dtype, role = key
            first_count, first_bytes = first_sums.get(key, (0, 0))
            other_count, other_bytes = sums.get(key, (0, 0))
            more = f", and {len(different_keys) - 1} more" if len(different_keys) > 1 else ""
            yield (
                f"{arm}: the profiles of its runs differ, so the collectives of its step are not certain: {role} "
                f"{kind} over {axis} ({group_size} ranks, {dtype}) is {first_count} calls of {first_bytes:,} bytes in "
                f"all in one run, {other_count} of {other_bytes:,} in another{more}"
            )
            return


def _sum_collectives(ledger: Ledger) -> dict[tuple[str, str, int, str, str], tuple[int, int]]:
    sums: dict[tuple[str, str, int, str, str], tuple[int, int]] = {}
    for entry in ledger.entries:
        key = (entry.kind, entry.axis, entry.group_size, entry.dtype, entry.role)
        count, total_bytes = sums.get(key, (0, 0))
        sums[key] = (count + entry.count, total_bytes + entry.bytes)
    return sums


def _distrust(arm: Arm, run: Run | None, is_profiled: bool) -> Iterator[str]:
    """Yield why the ledger of one arm's timed run cannot be used. ``is_profiled``: some run of the session was
    profiled. Profiles take the place of a count: ``run.profile`` is None if a step of the run was counted."""
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
