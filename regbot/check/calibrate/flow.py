"""``regbot calibrate``: measure how the gate decides when both arms are the same commit.

In a placebo session nothing differs between the arms. In an injected session, every step of head is slowed down.
"""

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from regbot import __version__
from regbot.baselines import Store
from regbot.baselines.intake import environment_of, node_class_of, provenance_of
from regbot.baselines.query import terms_of
from regbot.baselines.reference import summarise_calibrations
from regbot.check.sessions.blocks import BLOCK_PAIRS, block_count
from regbot.check.sessions.pooled_pairs import session_digest
from regbot.check.sessions.run_log import RunLog
from regbot.check.sessions.timed import Checkouts, SessionRunner
from regbot.check.sessions.worktrees import Worktrees
from regbot.check.single_run import SingleRunOptions, config_of, timed_task
from regbot.check.static_trace import WORKING_TREE
from regbot.engines import Engine, open_engine
from regbot.engines.node_check import HISTORY_FILE
from regbot.errors import UserError
from regbot.judge import judge
from regbot.judge.interim import decide_so_far
from regbot.judge.pairs import pair_up
from regbot.records.baseline import ENTRY_PATTERN, format_time, parse_time
from regbot.records.calibration import Calibration, CalibrationSession
from regbot.records.calibration_summary import CalibrationSummary
from regbot.records.config import Config, ConfigError
from regbot.records.run import Arm
from regbot.records.session import Session, SessionHeader, TimedPlan, read_session
from regbot.records.settings import ThroughputThresholds
from regbot.records.text.progress import Progress, Watcher
from regbot.records.text.words import count
from regbot.stats.arm_luck import ALLOCATION_PAIRS, MIN_ALLOCATIONS
from regbot.stats.paired import LOOKS
from regbot.workloads.checkout.arms import resolve_arm
from regbot.workloads.checkout.worktrees import Worktree
from regbot.workloads.guest import Scratch
from regbot.workloads.task import Task, plan_of

PLACEBO_PAIRS, INJECTED_PAIRS = 20, 5
"""Default number of placebo pairs, and of pairs with an injected slowdown."""


@dataclass(frozen=True)
class CalibrationOptions:
    run: SingleRunOptions
    """What is measured, and where. ``run.rev`` None measures the files in the working tree."""
    out: Path
    """Folder for the sessions."""
    who: str
    """Who stores the calibration."""
    pairs: int = PLACEBO_PAIRS
    injected_pct: float = 0.0
    """Slowdown of head in the injected sessions, in percent; 0 for no such session."""
    injected_pairs: int = INJECTED_PAIRS
    resume: bool = False
    """Whether to continue the interrupted calibration in ``out``."""


@dataclass(frozen=True)
class CalibrationResult:
    """The stored calibration, and what is now known about the node."""

    calibration: Calibration
    path: Path
    """File of the stored calibration."""
    summary: CalibrationSummary | None
    """Summary of all stored calibrations on the same terms; None if they have too few placebo pairs."""


def calibrate(
    options: CalibrationOptions,
    store: Store,
    folder: Path,
    cache: Path,
    watch: Watcher = lambda _: None,
) -> CalibrationResult:
    """Run the sessions in the repository ``folder``, store the result, and summarise what is stored on the same terms.

    Raises ConfigError, ShapeError, CheckoutError, EngineError, UserError.
    """
    config, rev = config_of(folder), options.run.rev
    with open_engine(options.run.engine, config, cache) as engine:
        task = timed_task(options.run, folder, engine.gpus)
        # Each look begins with empty compiler caches, so that the sessions show the luck of an arm.
        plan = plan_of(task, config.session).model_copy(update={"fresh_caches": True, "measures_luck": True})
        if ENTRY_PATTERN.fullmatch(plan.entry) is None:
            raise ConfigError(f"{plan.entry} cannot be stored: a label has letters, digits, '_', '.' and '-'")
        arm, trees = WORKING_TREE, cast(Checkouts, _WorkingTree(folder))
        if rev is not None:
            arm, trees = resolve_arm(folder, rev), Worktrees(folder, cache, lambda _: None, engine.sandbox)
        sessions = _SessionSeries(options, task, arm, trees, engine, watch, cache / HISTORY_FILE).run(plan)
    calibration = build_calibration(sessions, options.who)
    path = store.add_calibration(calibration)

    def terms(item: Calibration) -> tuple[object, ...]:
        return item.node_class, item.environment, terms_of(item)

    stored = map(store.calibration, store.calibrations(path.parent.parent))  # they lie in a folder of the node class
    summary = summarise_calibrations([other for other in stored if terms(other) == terms(calibration)])
    return CalibrationResult(calibration, store.root / path, summary)


def build_calibration(sessions: Sequence[Session], who: str) -> Calibration:
    """Build the calibration from sessions that compare one commit with itself, with equal workload and settings."""
    timed_runs = [run for session in sessions for run in session.runs if run.timing is not None]
    last_run = timed_runs[-1]
    assert last_run.timing is not None
    header = sessions[0].header
    (plan,) = header.timed
    # Group 3 of the pattern is the version of the shape.
    entry_match = ENTRY_PATTERN.fullmatch(plan.entry)
    assert entry_match is not None
    header_lines = "".join(session.header.to_line() for session in sessions)
    return Calibration(
        measured=format_time(parse_time(header.created)),
        session=hashlib.sha256(header_lines.encode()).hexdigest(),
        workload=plan.entry,
        variant=plan.variant,
        shape_version=int(entry_match[3]),
        node_class=node_class_of(last_run),
        world_size=plan.world_size,
        steps=plan.steps,
        cut=plan.cut,
        clock=last_run.timing.clock,
        dispatcher=plan.dispatcher,
        environment=environment_of(last_run),
        provenance=provenance_of(last_run, header, who, "calibration"),
        sessions=[_judge_session(session) for session in sessions],
    )


def _judge_session(session: Session) -> CalibrationSession:
    """Judge a session without its injected slowdown, and check whether the last look's intervals contain it."""
    (plan,) = session.header.timed
    verdict = judge(session, Config(throughput=session.header.throughput))
    throughput = verdict.workloads[0].throughput  # a calibration has one workload
    decision = throughput.decision if throughput is not None else None
    interim = decide_so_far(session.runs, session.header, plan)
    # Pairs with the same number used the same compiler caches.
    positions = [pair.head.position for pair in interim.pair_set.valid]
    draws = [position.draw for position in positions if position is not None and position.draw is not None]
    true_log_ratio = math.log1p(plan.injected_pct / 100)
    covers = [interval.low <= true_log_ratio <= interval.high for interval in interim.intervals]
    covered = all(covers) if covers else None  # without a look, there are no intervals
    return CalibrationSession(
        session=session_digest(session.header),
        injected_pct=plan.injected_pct,
        decision=decision or "undecided",
        pairs=interim.pairs,
        covered=covered,
        log_ratios=interim.pair_set.log_ratios(),
        draws=draws if plan.fresh_caches else None,  # only fresh caches make a new draw
    )


@dataclass
class _SessionSeries:
    """The sessions of one calibration, run one after another. Each is written to its own file."""

    options: CalibrationOptions
    task: Task
    arm: Arm
    trees: Checkouts
    engine: Engine
    watch: Watcher
    node_history: Path
    number: int = 0
    """Number of the present session, from 1. Its file is named after it."""

    def run(self, plan: TimedPlan) -> list[Session]:
        """Run placebo sessions, then injected ones, until both kinds have their numbers of valid pairs, in whole
        blocks. A session ends at the first look that decides."""
        options = self.options
        sessions: list[Session] = []
        # One lock for all sessions: the first session's log locks the folder that has the logs of all of them.
        with _make_run_log(options, number=1).lock():
            if not options.resume and any(options.out.glob("session-*.jsonl")):
                raise ConfigError(
                    f"{options.out}: contains the sessions of a calibration",
                    "continue it with --resume, or give another --out",
                )
            # Without a slowdown to inject, there are no injected sessions.
            injected_pairs = options.injected_pairs if options.injected_pct else 0
            for injected_pct, pairs in ((0.0, options.pairs), (options.injected_pct, injected_pairs)):
                while pairs > 0:
                    max_pairs = min(block_count(pairs) * BLOCK_PAIRS, LOOKS[-1])
                    update = {"injected_pct": injected_pct, "max_pairs": max_pairs}
                    sessions.append(self._run_session(plan.model_copy(update=update)))
                    pairs -= len(pair_up(sessions[-1].runs).valid)
        return sessions

    def _run_session(self, plan: TimedPlan) -> Session:
        """Run the next session, or continue it with ``options.resume``. Raises UserError if it has no valid pair."""
        self.number += 1
        log, header = _make_run_log(self.options, self.number), self._make_header(plan)
        session = log.resume(header) if self.options.resume else None
        if session is None:
            log.create(header)
            session = Session(header=header, runs=[])

        def announce(progress: Progress) -> None:
            self.watch(Progress(progress.done, progress.total, f"session {self.number}: {progress.text}"))

        header, scratch = session.header, Scratch(self.options.out / "runs" / log.path.stem)
        runner = SessionRunner(header, self.trees, self.engine, scratch, log.append, announce, self.node_history)
        runs = runner.run(header.timed[0], self.task, session.runs, math.inf)  # only the number of pairs limits it
        measured_session = Session(header=header, runs=runs)
        if not pair_up(runs).valid:
            verdict = judge(measured_session, Config()).workloads[0]  # a calibration has one workload
            reasons = verdict.validity.reasons or (verdict.throughput.reasons if verdict.throughput else [])
            raise UserError(f"{log.path}: {'; '.join(reasons)[:2000]}", "fix that, then continue with --resume")
        return measured_session

    def _make_header(self, plan: TimedPlan) -> SessionHeader:
        """Return the header of a new session. Both arms are the same commit, and nothing is traced."""
        return SessionHeader(
            regbot=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            base=self.arm.model_copy(update={"name": "base"}),
            head=self.arm.model_copy(update={"name": "head"}),
            workloads=[plan.entry],
            untraced=[plan.entry],  # so the verdict needs no trace
            timed=[plan],
            seed=secrets.randbelow(2**32),
            throughput=ThroughputThresholds(gate="pairs"),
        )


@dataclass(frozen=True)
class _WorkingTree:
    """Supplies the working tree in ``folder`` as the checkout of both arms. It is used as it is: nothing is built."""

    folder: Path

    def worktree(self, _arm: Arm, _task: Task) -> Worktree:
        # Without a key, because the working tree is not in the cache of worktrees.
        return Worktree(self.folder, built=False, key="", changed=(), environment={})


def _make_run_log(options: CalibrationOptions, number: int) -> RunLog[Session]:
    return RunLog(
        path=options.out / f"session-{number:02}.jsonl",
        activity="calibration",
        read=read_session,
        # In pydantic, True excludes a whole field from the comparison.
        may_differ=dict.fromkeys(("regbot", "created", "seed", "throughput"), True),
    )


def page(result: CalibrationResult) -> str:
    lines = [f"{result.calibration.workload}  {result.calibration.variant}  on {result.calibration.node_class}"]
    for session in result.calibration.sessions:
        session_kind = f"+{session.injected_pct:g}% injected" if session.injected_pct else "placebo"
        coverage_text = "no interval"  # the session has too few pairs for a decision
        if session.covered is not None:
            coverage_text = f"interval {'contains' if session.covered else 'misses'} the true value"
        pair_count = len(session.log_ratios["median"])
        lines.append(
            f"  {session_kind:<16} {pair_count:>3} pairs  {session.decision.replace('_', ' '):<10} {coverage_text}"
        )
    if result.summary is not None:
        lines += ["", *summary_lines(result.summary)]
    return "\n".join([*lines, f"stored {result.path}"])


def summary_lines(summary: CalibrationSummary) -> list[str]:
    # Two rates over sessions: those that were called changed although nothing had changed, and those whose intervals
    # contain the true value. ``low`` and ``high`` are the bounds of the 95% interval of a rate.
    flags, covering, luck = summary.false_flags, summary.covered, summary.arm_luck
    sd_bounds = f"(95%: {summary.sd_low_pct:.2g}% to {summary.sd_high_pct:.2g}%)"
    lines = [
        f"noise of a pair    {summary.sd_pct:.2g}% {sd_bounds}, {summary.pairs} placebo pairs",
        f"false alarms       {flags.count} of {flags.total} placebo sessions (at most {flags.high:.0%})",
        f"intervals held      {covering.count} of {covering.total} (at least {covering.low:.0%})",
    ]
    if (rate := summary.detected) is not None:
        label = f"+{summary.injected_pct:g}% found"
        lines.append(f"{label:<19}{rate.count} of {rate.total} sessions (at least {rate.low:.0%})")
    # The luck of an arm is the part of its speed that is drawn with its compiler caches.
    luck_text = "not known: measuring it takes at least four sets of fresh compiler caches"
    if luck is not None:
        luck_bounds = f"(95%: {luck.low_pct:.2g}% to {luck.high_pct:.2g}%)"
        allocations = f"{luck.allocations} of {MIN_ALLOCATIONS} days or nodes with {ALLOCATION_PAIRS} pairs"
        luck_text = f"{luck.sd_pct:.2g}% {luck_bounds}, {count(luck.draws, 'draw')}; {allocations}"
    lines.append(f"luck of an arm     {luck_text}")
    correlations = {"neighbouring pairs": summary.lag_correlation, "pairs of a block": summary.block_correlation}
    for label, found in correlations.items():
        if found is not None:
            value = f"{found.value:.2f} (95%: {found.low:.2f} to {found.high:.2f})"
            lines.append(f"{label:<19}correlated by {value}")
    if summary.contradicted:
        lines.append(f"the gate has no vote here: {summary.contradicted}")
    return lines
