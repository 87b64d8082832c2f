"""Ledgers of timed runs, for steps that no trace can count because their code is compiled or captured in CUDA graphs.

The timed runs execute the compiled code and profile three of its steps. If the profiles of both arms are usable, they
are compared like traces. If they are not, or if two profiles of one arm differ, the workload is INVALID.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from regbot.judge.pairs import is_head_only
from regbot.judge.validity import TracedRuns, compare_runs, distrust_run, make_validity
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.records.session import Session

HEAD_ALONE = (
    "the timed steps are compiled. Only head was timed, so no profiles were compared; the collectives are those of the "
    "traces, in which compiled code runs eagerly"
)


def examine_profiles(session: Session, workload: str, traced: TracedRuns) -> TracedRuns | None:
    """Return the timed runs whose ledgers are compared, and their validity. None if profiles are not needed: the traces
    counted the steps and no timed run was profiled, or they failed for another reason than compiled code."""
    runs = [run for run in session.timed_runs(workload) if run.outcome == "ok"]
    is_profiled = any(run.profile is not None for run in runs)
    if not traced.needs_profile:
        if not is_profiled or traced.base is None:
            return None
        if all(is_head_only(run) for run in runs):
            return TracedRuns(make_validity("PASS"), warnings=(HEAD_ALONE,))
    base, head = choose_run(runs, "base"), choose_run(runs, "head")
    problems: list[str] = []
    for arm, run in ((session.header.base, base), (session.header.head, head)):
        problems += [*_distrust(arm, run, is_profiled), *_find_contradictions(runs, arm.name)]
    warnings: list[str] = []
    if not problems and base is not None and head is not None:
        problems, warnings = compare_runs(base, head)
    if problems or base is None or head is None:
        # Without profiles, also say why the traces did not count the step.
        return TracedRuns(make_validity("INVALID", *problems, *([] if is_profiled else traced.validity.reasons)))
    proof = "the collectives were counted in timed runs of both arms; the profiles show every planted collective"
    warnings = [warning for warning in warnings if warning not in traced.warnings]
    for run in (base, head):
        if run.profile is not None:
            reason = run.profile.reason
            warnings.append(f"{run.arm.name}: three timed steps were profiled and none was counted ({reason})")
        warnings += [
            f"{run.arm.name}: {warning}" for warning in (run.ledger.warnings if run.ledger is not None else ())
        ]
    return TracedRuns(make_validity("PASS", proof), base, head, tuple(warnings))


def choose_run(runs: Sequence[Run], arm: str) -> Run | None:
    """Return the last run of ``arm`` whose profile gave a ledger, else its last profiled run, else its last run."""
    arm_runs = [run for run in reversed(runs) if run.outcome == "ok" and run.arm.name == arm]
    return max(arm_runs, key=lambda run: (run.profile is not None, _has_usable_ledger(run)), default=None)


def _has_usable_ledger(run: Run) -> bool:
    return run.ledger is not None and (run.profile is None or not run.profile.problem)


def _find_contradictions(runs: Sequence[Run], arm: str) -> Iterator[str]:
    """Yield a message if the profiles of one arm differ: the verdict compares only one of each arm. Phases are not
    compared, because a profile derives them from the thread that issued a call."""
    profiled_runs = [run for run in runs if run.arm.name == arm and run.profile and _has_usable_ledger(run)]
    first_sums, *other_runs_sums = [_sum_collectives(run.ledger) for run in profiled_runs if run.ledger] or [{}]
    for sums in other_runs_sums:
        if keys := sorted(key for key in first_sums.keys() | sums.keys() if first_sums.get(key) != sums.get(key)):
            kind, axis, group_size, dtype, role = keys[0]
            first_count, first_bytes = first_sums.get(keys[0], (0, 0))
            other_count, other_bytes = sums.get(keys[0], (0, 0))
            more = f", and {len(keys) - 1} more" if len(keys) > 1 else ""
            yield (
                f"{arm}: the profiles of its runs differ, so the collectives of its step are not certain: {role} "
                f"{kind} over {axis} ({group_size} ranks, {dtype}) is {first_count} calls of {first_bytes:,} bytes in "
                f"all in one run, {other_count} of {other_bytes:,} in another{more}"
            )
            return


def _sum_collectives(ledger: Ledger) -> dict[tuple[str, str, int, str, str], tuple[int, int]]:
    """Return the calls and bytes of the collectives of a step."""
    calls: Counter[tuple[str, str, int, str, str]] = Counter()
    total_bytes = calls.copy()
    for entry in ledger.entries:
        key = (entry.kind, entry.axis, entry.group_size, entry.dtype, entry.role)
        calls[key] += entry.count
        total_bytes[key] += entry.bytes
    return {key: (calls[key], total_bytes[key]) for key in calls}


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
