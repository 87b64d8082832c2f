"""Judge the validity of the traced runs of a workload: choose the runs to compare, and list every reason to distrust
them.

Two runs are compared only if all of these conditions hold; otherwise the workload is INVALID, with the reason:

- Both runs ended well and ran the planned commits.
- Their collectives were counted in the same way.
- Their counters saw all planted collectives.

There is one exception. If head fails twice while base runs, the result is FAIL, because the pull request is the cause.
If head crashed, its traceback must show that the pull request is the cause (``crashes.py``).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems
from regbot.judge.crashes import explain_doubt
from regbot.judge.preflight import Conflict, facts_of_run, find_conflicts
from regbot.ledgers.cells import EXPERT_AXIS, moves_tokens
from regbot.records.config import FRAMEWORKS, GEOMETRY_KEYS, LIBRARY_DISPATCHERS
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger, Scalar
from regbot.records.run import Arm, Outcome, Run
from regbot.records.session import Session
from regbot.records.text.clip import clip_message, short_commit
from regbot.records.verdict import Validity

MAX_SIGNATURES = 2000
"""Largest number of different kinds of collectives in two ledgers: by kind, axis, group size, dtype, phase and role. A
comparison costs time for each of them. Real programs have about a hundred."""

BROKEN: frozenset[Outcome] = frozenset({"crashed", "hung", "no_record", "short", "diverged"})
"""Outcomes that the code under test causes. The other outcomes of a failed run show no fault of the code: after
bad_record and refused, regbot could not measure the code. A skipped run was not started, because an earlier run hung.
A lost run lost its node."""

OUTCOME_PHRASES: dict[Outcome, str] = {
    "ok": "ran",
    "crashed": "crashed",
    "hung": "ran into the time limit",
    "no_record": "ended without a result",
    "bad_record": "left a result that cannot be used",
    "refused": "cannot be measured",
    "skipped": "did not run",
    "short": "ended with fewer steps than requested",
    "diverged": "did not train",
    "lost": "lost its node",
}


class TracedRuns(NamedTuple):
    """The runs of one workload whose ledgers are compared, and their validity.

    ``base`` and ``head`` are the runs to compare. Both are None if the runs cannot be compared.
    """

    validity: Validity
    base: Run | None = None
    head: Run | None = None
    warnings: tuple[str, ...] = ()
    needs_profile: bool = False
    """Whether the code of the step is compiled, so that no trace can count it. A timed run can profile the step."""


def examine_traced_runs(session: Session, workload: str) -> TracedRuns:
    """Return the traced runs to compare for one planned entry. If they cannot be compared, the validity says why."""
    header = session.header
    if workload in header.untraced:  # a training command, of which only the step log is read
        return _examine_command(session, workload)
    base_runs = _static_runs(session, workload, header.base)
    head_runs = _static_runs(session, workload, header.head)
    missing_arms = [arm for arm, runs in (("base", base_runs), ("head", head_runs)) if not runs]
    if missing_arms:
        return _invalid_result([f"{workload} was planned, but there is no run of {' and none of '.join(missing_arms)}"])
    base, head = _last_usable(base_runs), _last_usable(head_runs)
    if base.outcome == "ok" and head.outcome in BROKEN:
        return TracedRuns(_judge_broken_head(head_runs, header.changed_files))
    if failed_runs := [run for run in (base, head) if run.outcome != "ok"]:
        result = _invalid_result(describe_failures(failed_runs))
        # Code of the step is compiled, so no trace can count it. A timed run can profile the step.
        all_refused_as_compiled = all(run.refusal == "compiled" for run in failed_runs)
        return result._replace(needs_profile=all_refused_as_compiled)

    problems = [
        *_distrust_both(base, head, session),
        *list_incomparabilities(base, head),
        *([] if _is_left_to_timed_runs(session, base, head) else dispatcher_problems(base, head)),
        *find_missing_expert_traffic(base, head),
        *list_conflicts(base, head, "invalid"),
    ]
    warnings = (
        *list_conflicts(base, head, "warning"),
        *environment_warnings(base, head),
        *backend_warnings(base, head),
        *_own_warnings(base, head),
    )
    # A dispatcher problem that is not in ``problems`` was left to the timed runs.
    if not problems and any(dispatcher_problems(base, head)):
        warnings += ("the trace is of a substitute dispatcher, because the requested one needs GPUs",)
    if problems:
        return _invalid_result(problems, warnings)
    return TracedRuns(Validity(status="PASS", reasons=[_describe_proof(base, head)]), base, head, warnings)


def _examine_command(session: Session, workload: str) -> TracedRuns:
    """Return the validity of a command, which has no traced runs. It is INVALID if the command was not timed either."""
    if not any(run.tier == "timed" and run.workload == workload for run in session.runs):
        return _invalid_result([f"{workload} is a command, and it was not timed"])
    limitation = "only the command's step log was read; its collectives and the code that it ran are not known"
    return TracedRuns(Validity(status="PASS", reasons=[limitation]), warnings=(limitation,))


def _is_left_to_timed_runs(session: Session, base: Run, head: Run) -> bool:
    """Whether only the timed runs can show if the requested dispatcher runs.

    A trace computes no values, and a dispatcher of a GPU library (``LIBRARY_DISPATCHERS``) cannot run without them. The
    trace therefore runs a substitute for it, and the timed runs must show that the real one runs.
    """
    requested = {run.backends[DISPATCHER].requested for run in (base, head) if DISPATCHER in run.backends}
    return bool(session.header.timed) and bool(requested & {*LIBRARY_DISPATCHERS})


def not_comparable(base: Ledger, head: Ledger, names: tuple[str, str] = ("base", "head")) -> str | None:
    """Return why two ledgers cannot be compared, as a phrase that follows "the ledgers"; None if they can be compared.
    ``names`` are the names of both ledgers in the phrase."""
    base_name, head_name = names
    signatures = {
        (entry.kind, entry.axis, entry.group_size, entry.dtype, entry.phase, entry.role)
        for entry in (*base.entries, *head.entries)
    }
    if len(signatures) > MAX_SIGNATURES:
        return (
            f"have {len(signatures):,} different kinds of collectives, more than the {MAX_SIGNATURES:,} of any program"
        )
    if base.source != head.source:
        return f"were counted in different ways: {base.source!r} in {base_name}, {head.source!r} in {head_name}"
    if None not in (base.device, head.device) and base.device != head.device:
        return f"are of programs for different devices: {base.device} in {base_name}, {head.device} in {head_name}"
    # Older ledgers do not record which GPU the paper GPU imitated. It was the default one.
    base_gpu, head_gpu = base.gpu or DEFAULT_PAPER_GPU, head.gpu or DEFAULT_PAPER_GPU
    if base_gpu != head_gpu:
        return f"were traced for different GPUs: {base_gpu} in {base_name}, {head_gpu} in {head_name}"
    if base.scope != head.scope:
        return f"cover different things: scope {base.scope!r} in {base_name}, {head.scope!r} in {head_name}"
    if base.scope == "whole" and base.steps != head.steps:  # "whole": the counts are sums over all steps
        return f"cover different numbers of steps: {base.steps} in {base_name}, {head.steps} in {head_name}"
    for property_name, base_value, head_value in (
        ("workload", base.workload, head.workload),
        ("variant", base.variant, head.variant),
        ("world size", base.world_size, head.world_size),
        ("rank", base.rank, head.rank),
    ):
        if base_value is not None and head_value is not None and base_value != head_value:
            return f"are of another {property_name}: {base_value} in {base_name}, {head_value} in {head_name}"
    if sorted(base.patches) != sorted(head.patches):  # what a trace replaces, because it has no GPU
        one_sided = sorted(set(base.patches) ^ set(head.patches))
        return f"were traced with different replacements: {'; '.join(one_sided[:3])}"
    return None


def changed_config(base: Ledger, head: Ledger) -> dict[str, tuple[Scalar, Scalar]]:
    """Return the keys of the resolved configuration that differ, with the values in base and head. A value is None if
    the arm lacks the key."""
    keys = sorted(base.config.keys() | head.config.keys())
    return {
        key: (base.config.get(key), head.config.get(key))
        for key in keys
        if base.config.get(key) != head.config.get(key)
    }


def changed_software(base: Ledger, head: Ledger) -> dict[str, tuple[str, str]]:
    """Return the packages whose version differs between two ledgers, with the versions in base and head. A package that
    only one ledger lists is left out, because the other ledger may not have recorded it."""
    names = sorted(base.software.keys() & head.software.keys())
    return {
        name: (base.software[name], head.software[name]) for name in names if base.software[name] != head.software[name]
    }


def _static_runs(session: Session, workload: str, arm: Arm) -> list[Run]:
    return [run for run in session.runs if (run.tier, run.workload, run.arm.name) == ("static", workload, arm.name)]


def _last_usable(runs: list[Run]) -> Run:
    """Return the last run that ended well, else the last run."""
    return next((run for run in reversed(runs) if run.outcome == "ok"), runs[-1])


def _judge_broken_head(runs: list[Run], changed_files: Sequence[str] | None) -> Validity:
    """Return the validity of a workload whose head failed while base ran. ``runs`` are the runs of head.

    It is FAIL after two failed attempts, INVALID after one. It is also INVALID if a crash does not show a fault of
    the pull request.
    """
    failures = {run.attempt: run for run in runs if run.outcome in BROKEN}
    last_failure = describe_failure(runs[-1])
    if len(failures) < 2:
        return Validity(
            status="INVALID", reasons=[f"{last_failure}; base ran. Head was tried only once: run the check again"]
        )
    attempts = "both attempts" if len(failures) == 2 else f"all {len(failures)} attempts"
    crashes = [run.crash for run in failures.values() if run.crash is not None]
    doubts = [doubt for crash in crashes if (doubt := explain_doubt(crash, changed_files))]
    if doubts:
        return Validity(status="INVALID", reasons=[clip_message(f"{doubts[0]}. Base ran, but {last_failure}")])
    return Validity(status="FAIL", reasons=[f"in {attempts}, {last_failure}; base ran"])


def describe_failure(run: Run) -> str:
    """Return how a run ended, with its reason."""
    return describe_failures([run])[0]


def describe_failures(runs: Sequence[Run]) -> list[str]:
    """Return how each run ended, with its reason. Runs of both arms that ended in the same way share a text."""
    arms: dict[tuple[Outcome, str], list[str]] = {}
    for run in runs:
        arms.setdefault((run.outcome, run.reason), []).append(run.arm.name)
    return [
        f"{' and '.join(names)} {OUTCOME_PHRASES[outcome]}{f': {reason}' if reason else ''}"
        for (outcome, reason), names in arms.items()
    ]


def distrust_code(run: Run, planned: Arm) -> Iterator[str]:
    """Yield the reasons to distrust that a run executed the code of the planned commit."""
    name = run.arm.name
    is_planned = (run.arm.commit, run.arm.tree, run.arm.overrides) == (planned.commit, planned.tree, planned.overrides)
    # A run taken over from an earlier session may have another commit that behaves the same.
    is_equivalent = run.is_from_earlier_session and run.arm.behaves_like(planned)
    if not is_planned and not is_equivalent:
        run_commit, planned_commit = short_commit(run.arm.commit), short_commit(planned.commit)
        yield f"{name} was run at {run_commit}, not at the planned {planned_commit} with its overrides"
    if run.adapter == "command":
        return  # regbot does not run inside a command, and the verdict says so
    if run.code is None:
        yield f"{name} does not prove which code it ran: the record has no code proof"
    else:
        # ``watched`` has the packages that were imported from the commit's worktree. ``foreign`` has the packages of
        # the checkout that were imported from elsewhere.
        if run.adapter in FRAMEWORKS and not run.code.watched and not run.code.foreign:
            yield (
                f"{name} ran an installed {run.adapter} and no code of its commit; set 'source_roots' to the folder of "
                "the sources"
            )
        for package, path in sorted(run.code.foreign.items()):
            yield _describe_foreign_import(name, package, path)


def distrust_run(run: Run, planned: Arm) -> Iterator[str]:
    """Yield the reasons to distrust one traced run."""
    name, ledger = run.arm.name, run.ledger
    yield from distrust_code(run, planned)
    if ledger is None:
        yield f"{name} has no ledger: a missing count is not 0"
        return
    if ledger.liveness is None:
        yield f"{name}: the counter was not tested with planted collectives, so its counts prove nothing"
    elif not ledger.liveness.proven:
        liveness = ledger.liveness
        yield (
            f"{name}: the counter missed collectives ({liveness.seen} of {liveness.planted} planted ones seen, "
            f"sequence numbers advanced by {liveness.sequence_advance} for {liveness.sequence_counted} counted), so "
            "its counts prove nothing"
        )
    for property_name, ledger_value, run_value in (
        ("workload", ledger.workload, run.workload),
        ("variant", ledger.variant, run.variant),
    ):
        if ledger_value is not None and ledger_value != run_value:
            yield f"{name}: the ledger is of {property_name} {ledger_value!r}, the run of {run_value!r}"


def _distrust_both(base: Run, head: Run, session: Session) -> list[str]:
    """Return the reasons to distrust the traced runs of both arms. An import that both arms made is listed once."""
    # Sentence about an import in one arm -> sentence about the same import in both arms.
    shared_texts: dict[str, str] = {}
    if base.code is not None and head.code is not None:
        for package, path in base.code.foreign.items() & head.code.foreign.items():
            shared_text = _describe_foreign_import("base and head", package, path)
            for arm in ("base", "head"):
                shared_texts[_describe_foreign_import(arm, package, path)] = shared_text
    reasons = [*distrust_run(base, session.header.base), *distrust_run(head, session.header.head)]
    return list(dict.fromkeys(shared_texts.get(reason, reason) for reason in reasons))


def _describe_foreign_import(arms: str, package: str, path: str) -> str:
    return f"{arms} imported {package} from {path}, outside the checkout; uninstall it or fix 'source_roots'"


def list_incomparabilities(base: Run, head: Run) -> Iterator[str]:
    """Yield the reasons why two trusted runs cannot be compared."""
    if base.ledger is None or head.ledger is None:
        return
    if reason := not_comparable(base.ledger, head.ledger):
        yield f"not comparable: the ledgers {reason}"
    for property_name, base_value, head_value in (
        ("shape", base.shape, head.shape),
        ("variant", base.variant, head.variant),
    ):
        if base_value != head_value:
            yield f"not comparable: {property_name} {base_value} in base, {head_value} in head"
    for key, (base_setting, head_setting) in changed_config(base.ledger, head.ledger).items():
        if key in GEOMETRY_KEYS:
            yield f"not comparable: {key} is {base_setting!r} in base, {head_setting!r} in head, but the shape fixes it"


def find_missing_expert_traffic(base: Run, head: Run) -> Iterator[str]:
    """Yield a reason to distrust the comparison if neither arm moves tokens between expert-parallel ranks.

    A step without such traffic does not test how experts are sharded. If only one arm moves tokens, the difference is a
    finding.
    """
    if base.ledger is None or head.ledger is None:
        return
    ledgers = (base.ledger, head.ledger)
    is_dense = any("dense" in run.variant.split("-") for run in (base, head))
    if is_dense or any(ledger.config.get("mlp") == "dense" for ledger in ledgers):  # a dense model has no experts
        return
    ranks = max(ledger.axes[EXPERT_AXIS].size if EXPERT_AXIS in ledger.axes else 1 for ledger in ledgers)
    if ranks > 1 and not any(moves_tokens(entry) for ledger in ledgers for entry in ledger.entries):
        yield (
            f"neither arm moves payload between the {ranks} ranks of {EXPERT_AXIS}, so expert parallelism was not "
            "measured. Check that the layer uses the mesh['ep'] that build_layer receives"
        )


def list_conflicts(base: Run, head: Run, severity: str) -> Iterator[str]:
    """Yield the preflight conflicts in the resolved configurations that have the severity ``severity`` ("warning" or
    "invalid"). A conflict is a violated rule of ``regbot preflight``. A conflict in both arms is yielded once.

    A conflict in base alone counts as a warning, because head no longer has it.
    """
    conflicts_by_rule: dict[str, dict[str, Conflict]] = {}
    for run in (base, head):
        if run.adapter in FRAMEWORKS and run.ledger is not None:
            for conflict in find_conflicts(run.ledger.config, facts_of_run(run)):
                conflicts_by_rule.setdefault(conflict.rule.id, {})[run.arm.name] = conflict
    for conflict_by_arm in conflicts_by_rule.values():
        is_repaired = "head" not in conflict_by_arm
        conflict = conflict_by_arm["base" if is_repaired else "head"]
        conflict_severity = "warning" if is_repaired else conflict.rule.severity
        if severity == conflict_severity:
            arm_note = " of base, repaired in head" if is_repaired else " of head"
            if len(conflict_by_arm) == 2:
                arm_note = ""
            yield f"preflight{arm_note}: {conflict.rule.what} ({conflict.values}); {conflict.rule.fix}"


def environment_warnings(base: Run, head: Run) -> Iterator[str]:
    """Yield the differences between the software environments of two runs."""
    base_environment, head_environment = base.environment, head.environment
    if base_environment is None or head_environment is None:
        return
    if base_environment.torch != head_environment.torch:
        yield f"torch is {base_environment.torch} in base, {head_environment.torch} in head; this may cause differences"
    for property_name, base_version, head_version in (
        ("toolkit", base_environment.toolkit, head_environment.toolkit),
        ("NCCL", base_environment.nccl, head_environment.nccl),
        ("jax", base_environment.jax, head_environment.jax),
        ("jaxlib", base_environment.jaxlib, head_environment.jaxlib),
    ):
        if base_version != head_version:
            yield (
                f"{property_name} is {base_version or 'unknown'} in base, {head_version or 'unknown'} in head; this "
                "may cause differences"
            )
    if base_environment.packages != head_environment.packages:
        yield "the installed packages differ between base and head; this may cause differences"
    if base_environment.variables != head_environment.variables:
        yield "environment variables differ between base and head; this may cause differences"
    if base_environment.model != head_environment.model:
        yield "regbot's own model code differs between base and head; this may cause differences"


def _own_warnings(base: Run, head: Run) -> Iterator[str]:
    """Yield the warnings in the records of both runs and their ledgers. A warning that both arms have is yielded once,
    without the name of an arm."""
    base_warnings, head_warnings = (
        dict.fromkeys([*run.warnings, *(run.ledger.warnings if run.ledger else [])]) for run in (base, head)
    )
    for warning in base_warnings | head_warnings:
        if warning in base_warnings and warning in head_warnings:
            yield warning
        else:
            yield f"{'base' if warning in base_warnings else 'head'}: {warning}"


def _describe_proof(base: Run, head: Run) -> str:
    """Return why the traces of both arms can be trusted. The numbers in parentheses are planted collectives."""
    counts = " and ".join(str(run.ledger.liveness.seen) for run in (base, head) if run.ledger and run.ledger.liveness)
    return f"both arms ran their own commit's code; the counter saw every planted collective ({counts})"


def _invalid_result(reasons: list[str], warnings: tuple[str, ...] = ()) -> TracedRuns:
    return TracedRuns(
        Validity(status="INVALID", reasons=[clip_message(reason) for reason in reasons]), warnings=warnings
    )
