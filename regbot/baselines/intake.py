"""What of a session is stored: the runs and traces of one arm. Refused unless every one of them is good.

A reference judges many pull requests, so it is held to more than a pair is: one bad run of the arm, one file that is
not the commit's, one run on another node, and nothing of the session is stored.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from regbot.baselines.names import STATIC_CLASS
from regbot.baselines.store import BaselineError, digest_of
from regbot.records.baseline import (
    ENTRY,
    NONE,
    AgainstAnchor,
    BadTime,
    Baseline,
    EnvironmentKey,
    Provenance,
    RunSummary,
    Series,
    moment,
    utc,
)
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run, Tier, Timing
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.stats.launch import cut_of, launch_summaries
from regbot.stats.screen import SCREEN_RUNS

FUTURE_TOLERANCE = timedelta(hours=1)
"""How far a session's clock may be ahead of this one's."""

DISPATCHER = "dispatcher"
_NO_COMMIT = frozenset("0")


@dataclass(frozen=True)
class Intake:
    """What was asked for. ``container`` is the digest of the image that the session ran in, None if unknown."""

    origin: str
    who: str
    why: str
    arm: Literal["base", "head"] = "base"
    workloads: Sequence[str] = ()
    series: Series = "rolling"
    container: str | None = None
    against: AgainstAnchor | None = None


@dataclass(frozen=True)
class Distilled:
    """What is to be stored: baselines, and by their hash the ledgers that they name."""

    baselines: list[Baseline]
    ledgers: dict[str, Ledger]


def distil(session: Session, asked: Intake, now: datetime) -> Distilled:
    """The baselines of one arm of a session, a trace and a timed session for each workload that has them.

    Raises BaselineError where a single run of the arm is not fit for a reference.
    """
    header = session.header
    arm = header.base if asked.arm == "base" else header.head
    _fit_arm(arm, asked.origin)
    measured = _measured(header, asked.origin, now)
    if unknown := sorted(set(asked.workloads) - set(header.workloads)):
        raise BaselineError(
            asked.origin, f"has no workload {unknown[0]!r}", f"name one of {', '.join(header.workloads)}"
        )
    found = Distilled([], {})
    for entry in header.workloads:
        if asked.workloads and entry not in asked.workloads:
            continue
        if any(plan.entry == entry and plan.injected_pct for plan in header.timed):
            raise BaselineError(asked.origin, f"{entry}: its steps were slowed down on purpose", "use no calibration")
        runs = [run for run in session.runs if run.workload == entry and run.arm.name == arm.name]
        runs = [run for run in runs if run.joined is None]  # what joined is of another session
        for run in runs:
            for fault in _faults(run, arm):
                raise BaselineError(asked.origin, f"{entry}: {fault}", "measure it again; nothing was stored")
        for tier in ("static", "timed"):
            of_tier = [run for run in runs if run.tier == tier]
            plan = next((plan for plan in header.timed if plan.entry == entry), None)
            if of_tier:
                _collect(found, of_tier, tier, plan, header, measured, asked)
    if not found.baselines:
        raise BaselineError(asked.origin, f"holds no run of {arm.name}", "check what 'regbot check' said of it")
    return found


def environment_of(run: Run, container: str | None = None) -> EnvironmentKey:
    """The environment of a run as far as its record tells. A trace and a run without GPUs have no driver to know."""
    without_gpu = run.tier == "static" or (run.node is not None and not run.node.gpus)
    absent = NONE if without_gpu else None
    software = run.environment
    framework = f"torch {software.torch}" if software is not None and software.torch else None
    if framework is None and run.ledger is not None and "jax" in run.ledger.software:
        framework = f"jax {run.ledger.software['jax']}"
    return EnvironmentKey(
        driver=absent or (run.node.driver if run.node is not None else None),
        toolkit=(software.toolkit if software is not None else None) or absent,
        nccl=(software.nccl if software is not None else None) or absent,
        framework=framework,
        python=software.python if software is not None else None,
        container=container or (run.node.container if run.node is not None else None),
        packages=software.packages if software is not None else None,
        variables=software.variables if software is not None else None,
    )


def class_of(run: Run) -> str:
    """The node class of a run; all traces are of one."""
    return STATIC_CLASS if run.tier == "static" or run.node is None else run.node.node_class


def run_summaries(timing: Timing) -> dict[str, float]:
    """Median and mean on the log scale after the run's own cut, as a pair takes them after a cut of both."""
    return launch_summaries((steps.step_s for steps in timing.ranks.values()), cut_of(timing))


def _collect(
    found: Distilled,
    runs: Sequence[Run],
    tier: Tier,
    plan: TimedPlan | None,
    header: SessionHeader,
    measured: datetime,
    asked: Intake,
) -> None:
    last = runs[-1]
    where = f"{last.workload}, {tier}"
    for word, values in (
        ("node", {run.node.name if run.node else "" for run in runs}),
        ("node class", {class_of(run) for run in runs}),
        ("variant", {run.variant for run in runs}),
        ("executed dispatcher", {run.backends[DISPATCHER].executed for run in runs if DISPATCHER in run.backends}),
    ):
        if len(values) > 1:
            words = ", ".join(sorted(values))
            raise BaselineError(asked.origin, f"{where}: the {word} differs between runs: {words}", "measure it again")
    keys = {environment_of(run, asked.container).model_dump_json() for run in runs if run.environment is not None}
    if len(keys) != 1 or any(run.environment is None for run in runs):
        raise BaselineError(
            asked.origin,
            f"{where}: the environment differs between runs, or a run does not tell it",
            "measure it again",
        )
    found_in = ENTRY.fullmatch(last.workload)
    if found_in is None:
        raise BaselineError(
            asked.origin, f"{last.workload!r} is no entry of a verdict", "use a session of regbot check"
        )
    kept = _of_last_attempts(runs) if tier == "timed" else [last]
    ledger = next((run.ledger for run in reversed(kept) if run.ledger is not None), None)
    if not kept or (tier == "static" and ledger is None) or (tier == "timed" and plan is None):
        raise BaselineError(
            asked.origin, f"{where}: there are warm launches only" if tier == "timed" else f"{where}: has no ledger",
            "let the check go on with --resume, then add it",
        )  # fmt: skip
    if ledger is not None:
        found.ledgers[digest_of(ledger)] = ledger
    timed = plan if tier == "timed" else None
    clock = kept[0].timing.clock if kept[0].timing is not None else None
    found.baselines.append(
        Baseline(
            tier=tier,
            series=asked.series,
            measured=utc(measured),
            session=session_identity(header, last.workload, tier, last.arm.name),
            workload=last.workload,
            variant=last.variant,
            shape_version=int(found_in[3]),
            node_class=class_of(last),
            commit=last.arm.commit,
            tree=last.arm.tree,
            world_size=timed.world_size if timed else (ledger.world_size if ledger else None) or 1,
            steps=timed.steps if timed else None,
            cut=timed.cut if timed else None,
            clock=clock if timed else None,
            dispatcher=plan.dispatcher if plan else "",
            executed=next((run.backends[DISPATCHER].executed for run in kept if DISPATCHER in run.backends), None),
            ledger=digest_of(ledger) if ledger is not None else None,
            environment=environment_of(last, asked.container),
            provenance=Provenance(
                who=asked.who,
                why=asked.why,
                node=last.node.name if last.node else None,
                container=environment_of(last, asked.container).container,
                platform=last.environment.platform if last.environment else None,
                revision=last.arm.revision,
                regbot=header.regbot,
            ),
            runs=[_summary(run, asked.origin, number < SCREEN_RUNS) for number, run in enumerate(kept)]
            if timed
            else [],
            against=asked.against if timed else None,
        )
    )


def _fit_arm(arm: Arm, origin: str) -> None:
    if set(arm.commit) <= _NO_COMMIT:
        raise BaselineError(origin, "is of files as they stand, which no commit holds", "commit them, and check that")
    if arm.overrides:
        keys = ", ".join(sorted(arm.overrides))
        raise BaselineError(
            origin, f"{arm.name} ran with overrides ({keys}): no commit has that configuration", "check without them"
        )


def _measured(header: SessionHeader, origin: str, now: datetime) -> datetime:
    try:
        at = moment(header.created)
    except BadTime as error:
        raise BaselineError(origin, f"created: {error}", "measure it again") from error
    if at > now + FUTURE_TOLERANCE:
        raise BaselineError(
            origin,
            f"was measured at {utc(at)}, and it is {utc(now)} here",
            "set the clock that is wrong, measure again",
        )
    return at


def _faults(run: Run, arm: Arm) -> Iterator[str]:
    """Why one run keeps its session from being stored."""
    name = f"a {run.tier} run of {arm.name}"
    if run.outcome != "ok":
        yield f"{name} ended as {run.outcome!r}{f' ({run.reason[:200]})' if run.reason else ''}"
    if (run.arm.commit, run.arm.tree, run.arm.overrides) != (arm.commit, arm.tree, arm.overrides):
        yield f"{name} was of commit {run.arm.commit[:12]}, and {arm.commit[:12]} was planned"
    if run.changed_by_build:
        names = ", ".join(run.changed_by_build[:5])
        yield f"{name} was of a dirty tree: the build changed tracked files: {names}"
    if run.code is None:
        yield f"{name} does not prove which code it ran"
    elif run.code.foreign:
        yield f"{name} imported {min(run.code.foreign)} from outside its worktree"
    if (
        run.tier == "static"
        and run.ledger is not None
        and (run.ledger.liveness is None or not run.ledger.liveness.proven)
    ):
        yield f"{name} was counted by a counter that was not proven alive"
    backend = run.backends.get(DISPATCHER)
    if run.tier == "timed" and backend is not None and backend.executed != backend.requested:
        yield f"{name} executed dispatcher {backend.executed!r} where {backend.requested!r} was asked for"
    if run.tier == "timed" and (run.position is None or run.timing is None or run.node is None):
        yield f"{name} does not say where it was timed, or when in its session"


def _of_last_attempts(runs: Sequence[Run]) -> list[Run]:
    """The runs that count: no warm launches, and of a repeated block its repeat."""
    attempts: dict[int, int] = {}
    for run in runs:
        if run.position is not None:
            attempts[run.position.block] = max(run.attempt, attempts.get(run.position.block, 1))
    return [run for run in runs if run.position and run.position.block and run.attempt == attempts[run.position.block]]


def _summary(run: Run, origin: str, with_loss: bool) -> RunSummary:
    if run.position is None or run.timing is None:
        raise AssertionError("a run without its place or times is refused before")
    cut = cut_of(run.timing)
    steady = len(run.timing.step_s) - cut
    if steady < 1:
        raise BaselineError(origin, f"{run.workload}: a run has no step after its warm-up", "measure more steps")
    found = run_summaries(run.timing)
    return RunSummary(
        block=run.position.block,
        slot=run.position.slot,
        attempt=run.attempt,
        log_median=found["median"],
        log_mean=found["mean"],
        steady_steps=steady,
        cut=cut,
        memory_peak_bytes=run.timing.memory_peak_bytes,
        loss=run.loss if with_loss else [],
        dropped_tokens=run.timing.dropped_tokens,
        wall_s=run.wall_s,
    )


def session_identity(header: SessionHeader, workload: str, tier: Tier, arm: str) -> str:
    """The same however far the session has gone, so that one that was resumed is known again."""
    return hashlib.sha256(f"{header.to_line()}{workload}\n{tier}\n{arm}".encode()).hexdigest()
