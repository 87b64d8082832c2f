"""Selects which parts of a session are stored: the runs and traces of one arm, if all of them are good.

A reference judges many pull requests, so its requirements are stricter than those of a pair. A single bad run of the
arm (a failed run, a run of changed files, or a run on another node) keeps the whole session from being stored.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from regbot.baselines.names import STATIC_CLASS
from regbot.baselines.store import BaselineError, record_digest
from regbot.records.baseline import (
    ABSENT,
    ENTRY_PATTERN,
    MAX_LOADED_FILES,
    AnchorComparison,
    Baseline,
    EnvironmentKey,
    InvalidTime,
    Provenance,
    RunSummary,
    Series,
    format_time,
    parse_time,
)
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run, Tier
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.text.clip import LABEL_CHARACTERS, clip, short_commit
from regbot.records.verdict import RunVerdict, Throughput, Verdict
from regbot.stats.prediction import SESSION_RUNS

FUTURE_TOLERANCE = timedelta(hours=1)

DISPATCHER = "dispatcher"
_NULL_ID_DIGITS = frozenset("0")


@dataclass(frozen=True)
class Intake:
    origin: str
    who: str
    why: str
    arm: Literal["base", "head"] = "base"
    workloads: Sequence[str] = ()
    series: Series = "rolling"
    container: str | None = None
    """Digest of the image in which the session ran. If it is None, the digest in the record of each run is used."""
    against: AnchorComparison | None = None
    """Comparison with the anchor, stored with a timed session; None if the session did not measure the anchor."""


@dataclass(frozen=True)
class DistilledSession:
    """Content to store. A ``Baseline`` has the trace or the timed runs of one workload."""

    baselines: list[Baseline]
    ledgers: dict[str, Ledger]


def distil(session: Session, verdict: Verdict, intake: Intake, now: datetime) -> DistilledSession:
    """Return the baselines of one arm of a session: a trace and a timed session for each workload that has them.

    ``verdict`` is the verdict on the session. It determines which timed runs count, and their step times. Raises
    BaselineError if any run of the arm is unfit for a reference.
    """
    header = session.header
    arm = header.base if intake.arm == "base" else header.head
    _check_header(header, arm, intake.origin, now)
    if unknown := sorted(set(intake.workloads) - set(header.workloads)):
        advice = f"name one of {', '.join(header.workloads)}"
        raise BaselineError(intake.origin, f"has no workload {unknown[0]!r}", advice)
    distilled = DistilledSession(baselines=[], ledgers={})
    selected_entries = intake.workloads or header.workloads
    for entry in (entry for entry in header.workloads if entry in selected_entries):
        if any(plan.entry == entry and plan.injected_pct for plan in header.timed):
            problem = f"{entry}: its steps were slowed down on purpose"
            raise BaselineError(intake.origin, problem, "use a session that is no calibration")
        runs = [run for run in session.runs if run.workload == entry and _is_own_run(run, arm)]
        for run in runs:
            if fault := next(_find_faults(run, arm), None):
                raise BaselineError(intake.origin, f"{entry}: {fault}", "measure it again; nothing was stored")
        throughput = next((section.throughput for section in verdict.workloads if section.name == entry), None)
        # The verdict has the timed runs of both arms in the order of the session. Without a verdict, no run is paired.
        # ``pair`` of a run's verdict is None if the run is in no valid pair.
        run_verdicts = throughput.runs if throughput is not None else []
        paired_runs = [
            (run, run_verdict)
            for run, run_verdict in zip(session.timed_runs(entry), run_verdicts, strict=False)
            if _is_own_run(run, arm) and run_verdict.pair is not None
        ]
        plan = next((plan for plan in header.timed if plan.entry == entry), None)
        for tier in ("static", "timed"):
            if tier_runs := [run for run in runs if run.tier == tier]:
                _add_baseline(distilled, header, tier_runs, plan, throughput, paired_runs, intake)
    if not distilled.baselines:
        raise BaselineError(intake.origin, f"has no run of {arm.name}", "see what 'regbot check' reported about it")
    return distilled


def _is_own_run(run: Run, arm: Arm) -> bool:
    return run.arm.name == arm.name and not run.is_from_earlier_session


def environment_of(run: Run, container: str | None = None) -> EnvironmentKey:
    """Return the environment from the run's record. None in a field means unknown.

    Traces and runs without GPUs have no driver. If their record also names no toolkit or no NCCL, that component is
    ``ABSENT``, not unknown. ``container`` is the digest of the image; None for the digest in the run's record.
    """
    uses_no_gpu = run.tier == "static" or (run.node is not None and not run.node.gpus)
    absent_or_unknown = ABSENT if uses_no_gpu else None
    known = run.environment.model_dump() if run.environment is not None else {}
    return EnvironmentKey(
        driver=absent_or_unknown or (run.node.driver if run.node is not None else None),
        toolkit=known.get("toolkit") or absent_or_unknown,
        nccl=known.get("nccl") or absent_or_unknown,
        framework=next((f"{name} {known[name]}" for name in ("torch", "jax") if known.get(name)), None),
        python=known.get("python"),
        container=container or (run.node.container if run.node is not None else None),
        packages=known.get("packages"),
        variables=known.get("variables"),
        model=known.get("model"),
    )


def node_class_of(run: Run) -> str:
    """Return the node class of a run. All traces have the same class, ``STATIC_CLASS``. So has a run whose node is
    unknown.
    """
    return STATIC_CLASS if run.tier == "static" or run.node is None else run.node.node_class


def provenance_of(run: Run, header: SessionHeader, who: str, why: str, container: str | None = None) -> Provenance:
    return Provenance(
        who=who,
        why=why,
        node=run.node.name if run.node else None,
        container=container,
        platform=run.environment.platform if run.environment else None,
        revision=run.arm.revision,
        regbot=header.regbot,
    )


def _add_baseline(
    distilled: DistilledSession,
    header: SessionHeader,
    runs: Sequence[Run],
    plan: TimedPlan | None,
    throughput: Throughput | None,
    paired_runs: Sequence[tuple[Run, RunVerdict]],
    intake: Intake,
) -> None:
    """Add the baseline of ``runs``, those of one workload and tier, to ``distilled``.

    Only the timed runs in valid pairs (``paired_runs``, in session order) are stored, but all runs must have the same
    node, class, variant, dispatcher and environment. Raises BaselineError if they do not, or if there is nothing to
    store. ``plan`` and ``throughput`` are None if the workload was not timed.
    """
    last_run, tier = runs[-1], runs[-1].tier
    environment = environment_of(last_run, intake.container)
    context = f"{last_run.workload}, {tier}"
    _check_equal_properties(runs, intake, context)
    entry_match = ENTRY_PATTERN.fullmatch(last_run.workload)
    if entry_match is None:
        problem = f"{last_run.workload!r} is not a valid workload entry"
        raise BaselineError(intake.origin, problem, "use a session of regbot check")
    # Of several traces of one commit, the last counts.
    counted_runs = [run for run, _ in paired_runs] if tier == "timed" else [last_run]
    ledger = next((run.ledger for run in reversed(counted_runs) if run.ledger is not None), None)
    timed_plan = plan if tier == "timed" and counted_runs else None
    if timed_plan is None and (tier == "timed" or ledger is None):
        no_pair = "no run is in a valid pair: there are only warm launches, or no pair is valid"
        problem = no_pair if tier == "timed" else "has no ledger"
        raise BaselineError(intake.origin, f"{context}: {problem}", "continue the check with --resume, then add it")
    if ledger is not None:
        ledger = ledger.without_lines()  # so that code that moves leaves the stored ledger the same
        distilled.ledgers[record_digest(ledger)] = ledger
    step_s = None
    if timed_plan is not None and throughput is not None:
        step_s = throughput.base_step_s if intake.arm == "base" else throughput.head_step_s
    timing = counted_runs[0].timing if timed_plan is not None else None
    ledger_world_size = ledger.world_size if ledger is not None else None
    executed_dispatchers = [run.backends[DISPATCHER].executed for run in counted_runs if DISPATCHER in run.backends]
    distilled.baselines.append(
        Baseline(
            tier=tier,
            series=intake.series,
            measured=format_time(parse_time(header.created)),
            session=session_identity(header, last_run.workload, tier, last_run.arm.name),
            workload=last_run.workload,
            variant=last_run.variant,
            shape_version=int(entry_match[3]),
            node_class=node_class_of(last_run),
            commit=last_run.arm.commit,
            tree=last_run.arm.tree,
            world_size=timed_plan.world_size if timed_plan else (ledger_world_size or 1),
            steps=timed_plan.steps if timed_plan else None,
            cut=timed_plan.cut if timed_plan else None,
            clock=timing.clock if timing is not None else None,
            dispatcher=plan.dispatcher if plan else "",
            executed=next(iter(executed_dispatchers), None),
            ledger=record_digest(ledger) if ledger is not None else None,
            environment=environment,
            provenance=provenance_of(last_run, header, intake.who, intake.why, environment.container),
            # Only the first runs keep the loss of each step, because a check reads no others.
            runs=[
                _summarise_run(run, run_verdict, with_loss=number < SESSION_RUNS)
                for number, (run, run_verdict) in enumerate(paired_runs if timed_plan else ())
            ],
            against=intake.against if timed_plan else None,
            step_s=step_s,
            loaded_files=_list_loaded_files(runs),
        )
    )


def _check_equal_properties(runs: Sequence[Run], intake: Intake, context: str) -> None:
    """Raise BaselineError if the runs differ in node, class, variant, executed dispatcher or environment. ``context``
    stands before the problem in the message."""
    values_by_property: dict[str, set[str]] = {
        "node": {run.node.name if run.node else "" for run in runs},
        "node class": {node_class_of(run) for run in runs},
        "variant": {run.variant for run in runs},
        "executed dispatcher": {run.backends[DISPATCHER].executed for run in runs if DISPATCHER in run.backends},
    }
    for property_name, values in values_by_property.items():
        if len(values) > 1:
            problem = f"{context}: the {property_name} differs between runs: {', '.join(sorted(values))}"
            raise BaselineError(intake.origin, problem, "measure it again")
    environments = {run.environment and environment_of(run, intake.container).model_dump_json() for run in runs}
    if len(environments) != 1 or None in environments:
        problem = f"{context}: the environment differs between runs, or is missing in a run"
        raise BaselineError(intake.origin, problem, "measure it again")


def _list_loaded_files(runs: Sequence[Run]) -> list[str] | None:
    """Return the source files that the runs loaded from their checkout, sorted.

    Return None if they are unknown for a run, or if the record cannot hold them: too many, or a path that is too long.
    """
    files: set[str] = set()
    for run in runs:
        if run.code is None:
            return None
        files.update(run.code.files)
    is_storable = len(files) <= MAX_LOADED_FILES and all(len(path) <= LABEL_CHARACTERS for path in files)
    return sorted(files) if is_storable else None


def _check_header(header: SessionHeader, arm: Arm, origin: str, now: datetime) -> None:
    """Raise BaselineError if ``arm`` is not exactly what a commit contains, or if the session is from the future."""
    if set(arm.commit) <= _NULL_ID_DIGITS:
        raise BaselineError(origin, "is of uncommitted files", "commit them and check the commit")
    if arm.overrides:
        problem = f"{arm.name} ran with overrides ({', '.join(sorted(arm.overrides))}), which no commit has"
        raise BaselineError(origin, problem, "check without overrides")
    try:
        measured = parse_time(header.created)
    except InvalidTime as error:
        raise BaselineError(origin, f"created: {error}", "measure it again") from error
    if measured > now + FUTURE_TOLERANCE:
        problem = f"was measured at {format_time(measured)}, and it is {format_time(now)} here"
        raise BaselineError(origin, problem, "correct the wrong clock, then measure again")


def _find_faults(run: Run, arm: Arm) -> Iterator[str]:
    run_name = f"a {run.tier} run of {arm.name}"
    if run.outcome != "ok":
        yield f"{run_name} ended as {run.outcome!r}{f' ({clip(run.reason, 200)})' if run.reason else ''}"
    if (run.arm.commit, run.arm.tree, run.arm.overrides) != (arm.commit, arm.tree, arm.overrides):
        yield f"{run_name} was of commit {short_commit(run.arm.commit)} instead of {short_commit(arm.commit)}"
    if run.changed_by_build:
        names = ", ".join(run.changed_by_build[:5])
        yield f"{run_name} was of a dirty tree: the build changed tracked files: {names}"
    if run.code is None:
        yield f"{run_name} does not prove which code it ran"
    elif run.code.foreign:
        yield f"{run_name} imported {min(run.code.foreign)} from outside its worktree"
    liveness = run.ledger.liveness if run.ledger is not None else None
    if run.tier == "static" and run.ledger is not None and (liveness is None or not liveness.proven):
        yield f"{run_name} was counted by a counter that was not proven to work"
    backend = run.backends.get(DISPATCHER)
    if run.tier == "timed" and backend is not None and backend.executed != backend.requested:
        yield f"{run_name} executed dispatcher {backend.executed!r} but {backend.requested!r} was requested"
    if run.tier == "timed" and (run.position is None or run.timing is None or run.node is None):
        yield f"{run_name} lacks its node, its timing, or its position in the session"


def _summarise_run(run: Run, verdict: RunVerdict, *, with_loss: bool) -> RunSummary:
    assert run.position is not None
    assert run.timing is not None
    assert verdict.cut is not None
    assert verdict.median_s is not None
    assert verdict.mean_s is not None
    return RunSummary(
        block=run.position.block,
        slot=run.position.slot,
        attempt=run.attempt,
        log_median=math.log(verdict.median_s),
        log_mean=math.log(verdict.mean_s),
        steady_steps=len(run.timing.step_s) - verdict.cut,
        cut=verdict.cut,
        memory_peak_bytes=run.timing.memory_peak_bytes,
        loss=run.loss if with_loss else [],
        dropped_tokens=run.timing.dropped_tokens,
        wall_s=run.wall_s,
    )


def session_identity(header: SessionHeader, workload: str, tier: Tier, arm: str) -> str:
    """Return the identity of one workload, tier and arm of a session.

    It is a hash of the session's header and not of the runs. It stays the same while a resumed session adds runs, so
    the session is recognised.
    """
    return hashlib.sha256(f"{header.to_line()}{workload}\n{tier}\n{arm}".encode()).hexdigest()
