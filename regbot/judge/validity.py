"""Judge the validity of the traced runs of a workload: choose the runs to compare, and list every reason to distrust
them. Without such a reason they are compared; otherwise the workload is INVALID.

There is one exception. If head fails twice while base runs, the result is FAIL, because the pull request is the cause.
If head crashed, its traceback must show that the pull request is the cause (``crashes.py``).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems
from regbot.judge.crashes import explain_doubt
from regbot.judge.preflight.facts import facts_of_run
from regbot.judge.preflight.rules import find_conflicts
from regbot.ledgers.cells import EXPERT_AXIS, moves_tokens
from regbot.records.changed_lines import ChangedFile, Side
from regbot.records.config import FRAMEWORKS, GEOMETRY_KEYS, LIBRARY_DISPATCHERS
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger, Scalar
from regbot.records.preflight import PreflightConflict
from regbot.records.run import Arm, Outcome, Run
from regbot.records.session import Session, SessionHeader
from regbot.records.text.clip import clip_message, short_commit
from regbot.records.text.words import count, listed
from regbot.records.verdict import Status, Validity

MAX_SIGNATURES = 2000
"""Largest number of different kinds of collectives in two ledgers, which cost time. Real programs have about a hundred.
"""

MAX_NAMED = 3
"""A reason names at most this many files."""

BROKEN: frozenset[Outcome] = frozenset({"crashed", "hung", "no_record", "short", "diverged"})
"""Outcomes that the code under test causes. The others show no fault of it: regbot could not measure it, an earlier run
hung, or the node was lost."""

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


_TEST = re.compile(r"(?:^|/)(?:tests?/|test_|conftest\.py$)")


class TracedRuns(NamedTuple):
    """The runs of one workload whose ledgers are compared, None if they cannot be compared, and their validity."""

    validity: Validity
    base: Run | None = None
    head: Run | None = None
    warnings: tuple[str, ...] = ()
    needs_profile: bool = False
    """Whether the code of the step is compiled, so that no trace can count it. A timed run can profile the step."""


def examine_traced_runs(session: Session, workload: str) -> TracedRuns:
    header = session.header
    if workload in header.untraced:  # a training command, of which only the step log is read
        if not any(run.tier == "timed" and run.workload == workload for run in session.runs):
            return TracedRuns(make_validity("INVALID", f"{workload} is a command, and it was not timed"))
        limitation = "only the command's step log was read; its collectives and the code that it ran are not known"
        return TracedRuns(make_validity("PASS", limitation), warnings=(limitation,))
    traces = [run for run in session.runs if run.tier == "static" and run.workload == workload]
    base_runs, head_runs = ([run for run in traces if run.arm.name == arm] for arm in ("base", "head"))
    if missing := [name for name, runs in (("base", base_runs), ("head", head_runs)) if not runs]:
        reason = f"{workload} was planned, but there is no run of {' and none of '.join(missing)}"
        return TracedRuns(make_validity("INVALID", reason))
    # Of each arm, the last run that ended well, else the last run.
    base, head = (
        next((run for run in reversed(runs) if run.outcome == "ok"), runs[-1]) for runs in (base_runs, head_runs)
    )
    if base.outcome == "ok" and head.outcome in BROKEN:
        return TracedRuns(_judge_broken_head(head_runs, header.changed_files))
    if failed_runs := [run for run in (base, head) if run.outcome != "ok"]:
        validity = make_validity("INVALID", *describe_failures(failed_runs))
        return TracedRuns(validity, needs_profile=all(run.refusal == "compiled" for run in failed_runs))

    # Only the timed runs can show if a dispatcher of a GPU library runs: a trace runs a substitute for it.
    requested = {run.backends[DISPATCHER].requested for run in (base, head) if DISPATCHER in run.backends}
    is_left_to_timed_runs = bool(header.timed) and bool(requested & {*LIBRARY_DISPATCHERS})
    unmet_requests = [*dispatcher_problems(base, head)]
    problems, warnings_of_rules = compare_runs(base, head, [] if is_left_to_timed_runs else unmet_requests)
    problems = [*_distrust_both(base, head, session), *problems]
    warnings = (
        *warnings_of_rules,
        *environment_warnings(base, head),
        *backend_warnings(base, head),
        *_own_warnings(base, head),
    )
    if problems:
        return TracedRuns(make_validity("INVALID", *problems), warnings=warnings)
    if unmet_requests:
        warnings += ("the trace is of a substitute dispatcher, because the requested one needs GPUs",)
    seen = " and ".join(str(run.ledger.liveness.seen) for run in (base, head) if run.ledger and run.ledger.liveness)
    proof = f"both arms ran their own commit's code; the counter saw every planted collective ({seen})"
    return TracedRuns(make_validity("PASS", proof, *_name_unexercised_files(base, head, header)), base, head, warnings)


def not_comparable(base: Ledger, head: Ledger, names: tuple[str, str] = ("base", "head")) -> str | None:
    """Return why two ledgers cannot be compared, as a phrase after "the ledgers"; None if they can be."""
    base_name, head_name = names
    signatures = {
        (entry.kind, entry.axis, entry.group_size, entry.dtype, entry.phase, entry.role)
        for entry in (*base.entries, *head.entries)
    }
    if len(signatures) > MAX_SIGNATURES:
        return (
            f"have {len(signatures):,} different kinds of collectives, more than the {MAX_SIGNATURES:,} of any program"
        )
    for phrase, base_value, head_value in (
        ("were counted in different ways:", repr(base.source), repr(head.source)),
        ("are of programs for different devices:", base.device, head.device),
        ("were traced for different GPUs:", base.gpu or DEFAULT_PAPER_GPU, head.gpu or DEFAULT_PAPER_GPU),
        ("cover different things: scope", repr(base.scope), repr(head.scope)),
        # The counts of a whole file are sums over all steps.
        (
            "cover different numbers of steps:",
            *(ledger.steps if base.scope == "whole" else None for ledger in (base, head)),
        ),
        ("are of another workload:", base.workload, head.workload),
        ("are of another variant:", base.variant, head.variant),
        ("are of another world size:", base.world_size, head.world_size),
        ("are of another rank:", base.rank, head.rank),
    ):
        if base_value is not None and head_value is not None and base_value != head_value:
            return f"{phrase} {base_value} in {base_name}, {head_value} in {head_name}"
    if sorted(base.patches) != sorted(head.patches):  # what a trace replaces, because it has no GPU
        one_sided = sorted(set(base.patches) ^ set(head.patches))
        return f"were traced with different replacements: {'; '.join(one_sided[:3])}"
    return None


def changed_config(base: Ledger, head: Ledger) -> dict[str, tuple[Scalar, Scalar]]:
    """Return the keys of the resolved configuration that differ, with the values in base and head; None if missing."""
    pairs = {key: (base.config.get(key), head.config.get(key)) for key in sorted(base.config | head.config)}
    return {key: values for key, values in pairs.items() if values[0] != values[1]}


def changed_software(base: Ledger, head: Ledger) -> dict[str, tuple[str, str]]:
    """Return the packages that both ledgers list in different versions, with the versions in base and head."""
    pairs = {name: (base.software[name], head.software[name]) for name in sorted(base.software.keys() & head.software)}
    return {name: versions for name, versions in pairs.items() if versions[0] != versions[1]}


def _name_unexercised_files(base: Run, head: Run, header: SessionHeader) -> Iterator[str]:
    """Yield which changed Python files the traces did not load, or of which they ran no changed line. Tests are left
    out. The verdict says nothing about such changes.
    """
    left_out = {*header.inert_files, *filter(_TEST.search, header.changed_files or ())}
    changed = [path for path in header.changed_files or () if path.endswith(".py") and path not in left_out]
    loaded = {path for run in (base, head) if run.code is not None for path in run.code.files}
    unloaded = [path for path in changed if path not in loaded]
    files = header.changed_lines.files if header.changed_lines is not None else []
    idle = [file.head for file in files if file.head in changed and _is_idle(file, {"base": base, "head": head})]
    facts = [f"did not load {listed(unloaded, MAX_NAMED)}"] if unloaded else []
    facts += [f"ran no changed line of {listed(idle, MAX_NAMED)}"] if idle else []
    if facts:
        share = f"{len(unloaded) + len(idle)} of {count(len(changed), 'changed Python file')}"
        yield f"not exercised: {share}: the trace {' and '.join(facts)}"


def _is_idle(file: ChangedFile, runs: Mapping[Side, Run]) -> bool:
    """Return whether the diff touches lines of functions in ``file``, and none of these ran in either arm."""
    touched: list[str] = []
    for side, run in runs.items():
        lines = run.code.lines.get(file.path(side)) if run.code is not None else None
        hunks = [hunk.lines(side) for hunk in file.hunks]  # in order, so that the first that ends behind a line decides
        stops = [hunk.stop for hunk in hunks]
        for state, ranges in (("ran", lines.ran), ("idle", lines.idle)) if lines is not None else ():
            for first, last in ranges:
                place = bisect_right(stops, first)
                touched += [state] if place < len(hunks) and hunks[place].start <= last else []
    return {*touched} == {"idle"}


def _judge_broken_head(runs: list[Run], changed_files: Sequence[str] | None) -> Validity:
    """FAIL after two failed attempts, INVALID after one, and if a crash does not show a fault of the pull request."""
    failures = {run.attempt: run for run in runs if run.outcome in BROKEN}
    (last_failure,) = describe_failures(runs[-1:])
    if len(failures) < 2:
        return make_validity("INVALID", f"{last_failure}; base ran. Head was tried only once: run the check again")
    doubts = (explain_doubt(run.crash, changed_files) for run in failures.values() if run.crash is not None)
    if doubt := next(filter(None, doubts), ""):
        return make_validity("INVALID", f"{doubt}. Base ran, but {last_failure}")
    attempts = "both attempts" if len(failures) == 2 else f"all {len(failures)} attempts"
    return make_validity("FAIL", f"in {attempts}, {last_failure}; base ran")


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
    name = run.arm.name
    is_planned = (run.arm.commit, run.arm.tree, run.arm.overrides) == (planned.commit, planned.tree, planned.overrides)
    # A run taken over from an earlier session may be of another base, or of a head with the same change.
    is_same_change = name == "base" and run.arm.overrides == planned.overrides
    is_equivalent = run.is_from_earlier_session and (is_same_change or run.arm.behaves_like(planned))
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
    for name_of_property in ("workload", "variant"):
        ledger_value, run_value = getattr(ledger, name_of_property), getattr(run, name_of_property)
        if ledger_value is not None and ledger_value != run_value:
            yield f"{name}: the ledger is of {name_of_property} {ledger_value!r}, the run of {run_value!r}"


def _distrust_both(base: Run, head: Run, session: Session) -> list[str]:
    foreign = [run.code.foreign.items() for run in (base, head) if run.code is not None]
    shared_texts = {  # sentence about one arm -> sentence about both arms
        _describe_foreign_import(arm, *imported): _describe_foreign_import("base and head", *imported)
        for imported in (foreign[0] & foreign[1] if len(foreign) == 2 else ())
        for arm in ("base", "head")
    }
    reasons = [*distrust_run(base, session.header.base), *distrust_run(head, session.header.head)]
    return list(dict.fromkeys(shared_texts.get(reason, reason) for reason in reasons))


def _describe_foreign_import(arms: str, package: str, path: str) -> str:
    return f"{arms} imported {package} from {path}, outside the checkout; uninstall it or fix 'source_roots'"


def compare_runs(base: Run, head: Run, unmet_requests: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return why the ledgers of two runs cannot be compared, with ``unmet_requests`` among the reasons, and warnings by
    the rules of ``regbot preflight``."""
    problems: list[str] = []
    if base.ledger is not None and head.ledger is not None:
        if reason := not_comparable(base.ledger, head.ledger):
            problems.append(f"not comparable: the ledgers {reason}")
        for name in ("shape", "variant"):
            base_value, head_value = getattr(base, name), getattr(head, name)
            if base_value != head_value:
                problems.append(f"not comparable: {name} {base_value} in base, {head_value} in head")
        for key, (base_setting, head_setting) in changed_config(base.ledger, head.ledger).items():
            if key in GEOMETRY_KEYS:
                settings = f"{key} is {base_setting!r} in base, {head_setting!r} in head"
                problems.append(f"not comparable: {settings}, but the shape fixes it")
    conflicts, warnings = _list_conflicts(base, head)
    return [*problems, *unmet_requests, *_find_missing_expert_traffic(base, head), *conflicts], warnings


def _find_missing_expert_traffic(base: Run, head: Run) -> Iterator[str]:
    """Yield a reason if neither arm moves tokens between expert-parallel ranks: such a step does not test sharding of
    experts."""
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


def _list_conflicts(base: Run, head: Run) -> tuple[list[str], list[str]]:
    """Return the violated rules of ``regbot preflight`` that make the runs invalid, and those that only give a warning,
    once for both arms. A conflict in base alone counts as a warning, because head no longer has it."""
    conflicts: dict[str, dict[str, PreflightConflict]] = {}  # by rule and arm
    for run in (base, head):
        if run.adapter in FRAMEWORKS and run.ledger is not None:
            for conflict in find_conflicts(run.ledger.config, facts_of_run(run)):
                conflicts.setdefault(conflict.rule, {})[run.arm.name] = conflict
    invalid: list[str] = []
    warnings: list[str] = []
    for by_arm in conflicts.values():
        conflict = by_arm.get("head") or by_arm["base"]
        arms = " of base, repaired in head" if "head" not in by_arm else " of head" if len(by_arm) == 1 else ""
        is_invalid = "head" in by_arm and conflict.severity == "invalid"
        text = f"preflight{arms}: {conflict.description} ({conflict.values}); {conflict.fix}"
        (invalid if is_invalid else warnings).append(text)
    return invalid, warnings


def environment_warnings(base: Run, head: Run) -> Iterator[str]:
    base_environment, head_environment = base.environment, head.environment
    if base_environment is None or head_environment is None:
        return
    for field in ("torch", "toolkit", "nccl", "jax", "jaxlib"):
        versions = [getattr(environment, field) or "unknown" for environment in (base_environment, head_environment)]
        if versions[0] != versions[1]:
            name = "NCCL" if field == "nccl" else field
            yield f"{name} is {versions[0]} in base, {versions[1]} in head; this may cause differences"
    for field, phrase in (
        ("packages", "the installed packages differ"),
        ("variables", "environment variables differ"),
        ("model", "regbot's own model code differs"),
    ):
        if getattr(base_environment, field) != getattr(head_environment, field):
            yield f"{phrase} between base and head; this may cause differences"


def _own_warnings(base: Run, head: Run) -> Iterator[str]:
    base_warnings, head_warnings = (
        dict.fromkeys([*run.warnings, *(run.ledger.warnings if run.ledger else [])]) for run in (base, head)
    )
    for warning in base_warnings | head_warnings:
        arms = [name for name, warnings in (("base", base_warnings), ("head", head_warnings)) if warning in warnings]
        yield warning if len(arms) == 2 else f"{arms[0]}: {warning}"


def make_validity(status: Status, *reasons: str) -> Validity:
    return Validity(status=status, reasons=[clip_message(reason) for reason in reasons])
