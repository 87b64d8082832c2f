"""``regbot calibrate``: what the gate says of a commit against itself, and of one that is slower by a known share.

Every session goes through what a pull request's session goes through: the same launches, pairs, looks and judge, which
are told nothing of what the arms are. What comes of it is stored by workload, node class and environment, and a check
there cites it.
"""

import hashlib
import math
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from regbot import __version__
from regbot.baselines import Store, class_of, environment_of
from regbot.baselines.index import TERMS
from regbot.baselines.reference import calibrated
from regbot.checkout import Worktree, resolve_arm
from regbot.config import Config, ConfigError
from regbot.earlier import identity
from regbot.engines import Engine, open_engine
from regbot.judge import judge
from regbot.judge.pairs import pair_up
from regbot.judge.standing import primary_tests, standing_of, thresholds
from regbot.nodes import Fitness, nodes_folder
from regbot.progress import Progress, Watcher
from regbot.records.baseline import ENTRY, Provenance, moment, utc
from regbot.records.calibrated import Calibrated
from regbot.records.calibration import Calibration, PlaceboSession
from regbot.records.files import RecordError, append_line, mend, write_text
from regbot.records.run import Arm, Run
from regbot.records.session import Session, SessionHeader, TimedPlan, read_session
from regbot.records.settings import Throughput
from regbot.single import Single, config_of, timed_task
from regbot.stats.paired import LOOKS
from regbot.timing import Timing
from regbot.tracing import HERE
from regbot.trees import Trees
from regbot.workloads import Limits, Task, plan_of

PLACEBO_PAIRS, INJECTED_PAIRS = 20, 5
BLOCK_PAIRS = 2


class CalibrationError(RecordError):
    """A session could not be measured. The message says why, and where what was measured is."""


@dataclass(frozen=True)
class Asked:
    """What ``calibrate`` was given. Without ``rev`` the files are taken as they stand."""

    workload: str
    out: Path
    who: str
    rev: str | None = None
    variant: str | None = None
    pairs: int = PLACEBO_PAIRS
    injected_pct: float = 0.0
    injected_pairs: int = INJECTED_PAIRS
    resume: bool = False
    engine: str = "local"


@dataclass(frozen=True)
class Calibrating:
    """What was stored, where, and what it shows together with what had been stored before on the same terms."""

    calibration: Calibration
    path: Path
    shows: Calibrated | None


def calibrate(
    asked: Asked, store: Store, folder: Path, cache: Path, watch: Watcher = lambda _: None, engine: Engine | None = None
) -> Calibrating:
    """Run the sessions and store what they show. Pairs are run in whole blocks of two, so an odd number is one more.

    Every run is in ``asked.out`` as it ends; what was ended goes on with ``resume``. Raises ConfigError, ShapeError,
    CheckoutError, EngineError, CalibrationError.
    """
    config = config_of(folder)
    with nullcontext(engine) if engine is not None else _engine(asked, config, cache) as where:
        return _calibrate_on(where, asked, store, folder, cache, config, watch)


def _engine(asked: Asked, config: Config, cache: Path) -> AbstractContextManager[Engine]:
    return open_engine(asked.engine, config, cache, refused=Fitness(nodes_folder(cache), asked.out).refused)


def _calibrate_on(
    engine: Engine, asked: Asked, store: Store, folder: Path, cache: Path, config: Config, watch: Watcher
) -> Calibrating:
    task = timed_task(Single(asked.workload, asked.rev, asked.variant), folder, engine.gpus)
    plan = plan_of(task, config.session)
    if ENTRY.fullmatch(plan.entry) is None:
        raise ConfigError(f"{plan.entry} cannot be stored: a label has letters, digits, '_', '.' and '-'")
    arm = resolve_arm(folder, asked.rev) if asked.rev is not None else HERE
    _begin(asked)
    runner = _Runner(asked, task, plan, arm, folder, cache, watch, engine)
    sessions = runner.sessions(asked.pairs, 0.0)
    if asked.injected_pct:
        sessions += runner.sessions(asked.injected_pairs, asked.injected_pct)
    calibration = calibration_of(sessions, asked.who)
    path = store.add_calibration(calibration)
    stored = [store.calibration(each) for each in store.calibrations(path.parent.parent)]
    same = [each for each in stored if _terms(each) == _terms(calibration)]
    return Calibrating(calibration, store.root / path, calibrated(same, thresholds(sessions[0].header)))


def calibration_of(sessions: Sequence[Session], who: str) -> Calibration:
    """What is stored of sessions of one commit against itself. Raises CalibrationError where one shows nothing."""
    last = [run for session in sessions for run in session.runs if run.timing is not None][-1]
    header, (plan,) = sessions[0].header, sessions[0].header.timed
    assert last.timing is not None
    found = ENTRY.fullmatch(plan.entry)
    assert found is not None
    return Calibration(
        measured=utc(moment(header.created)),
        session=hashlib.sha256("".join(each.header.to_line() for each in sessions).encode()).hexdigest(),
        workload=plan.entry,
        variant=plan.variant,
        shape_version=int(found[3]),
        node_class=class_of(last),
        world_size=plan.world_size,
        steps=plan.steps,
        cut=plan.cut,
        clock=last.timing.clock,
        dispatcher=plan.dispatcher,
        primary_tests=primary_tests(header),
        environment=environment_of(last),
        provenance=Provenance(
            who=who,
            why="calibration",
            node=last.node.name if last.node else None,
            container=None,
            platform=last.environment.platform if last.environment else None,
            revision=last.arm.revision,
            regbot=header.regbot,
        ),
        sessions=[_judged(session) for session in sessions],
    )


def _judged(session: Session) -> PlaceboSession:
    """A session as the judge sees it, and whether it was right, which only this function knows."""
    (plan,) = session.header.timed
    truth = math.log1p(plan.injected_pct / 100)
    section = judge(session, Config(throughput=session.header.throughput)).workloads[0].throughput
    stands = standing_of(session.runs, session.header)
    tests = [interval for _, interval in stands.tests.values()]
    return PlaceboSession(
        session=identity(session.header),
        injected_pct=plan.injected_pct,
        decision=(section.decision if section is not None else None) or "undecided",
        pairs=stands.pairs,
        covered=all(each.low <= truth <= each.high for each in tests) if tests else None,
        log_ratios=stands.paired.log_ratios(),
    )


class _Runner:
    """Runs the sessions of one calibration, one after the other, each into a file of its own."""

    def __init__(
        self,
        asked: Asked,
        task: Task,
        plan: TimedPlan,
        arm: Arm,
        folder: Path,
        cache: Path,
        watch: Watcher,
        engine: Engine,
    ) -> None:
        self._asked, self._task, self._plan, self._arm, self._cache = asked, task, plan, arm, cache
        self._folder, self._watch, self._engine = folder, watch, engine
        self._number = 0

    def sessions(self, pairs: int, injected_pct: float) -> list[Session]:
        """Sessions until they have ``pairs`` pairs between them, each as long as the gate wants it."""
        found: list[Session] = []
        done = 0
        while done < pairs:
            left = -(-(pairs - done) // BLOCK_PAIRS) * BLOCK_PAIRS
            most = min(left, LOOKS[-1])
            session = self._session(self._plan.model_copy(update={"injected_pct": injected_pct, "max_pairs": most}))
            found.append(session)
            done += len(pair_up(session.runs).valid)
        return found

    def _session(self, plan: TimedPlan) -> Session:
        self._number += 1
        file = self._asked.out / f"session-{self._number:02}.jsonl"
        session = _open(file, self._header(plan), self._asked.resume)
        runs = list(session.runs)

        def keep(run: Run) -> None:
            append_line(file, run)
            runs.append(run)

        def say(progress: Progress) -> None:
            self._watch(Progress(progress.done, progress.total, f"session {self._number}: {progress.text}"))

        trees = (
            _Here(self._folder)
            if self._asked.rev is None
            else Trees(self._folder, self._cache, lambda _: None, self._engine.sandbox)
        )
        scratch = self._asked.out / "runs" / file.stem
        fitness = Fitness(nodes_folder(self._cache), scratch)
        timing = Timing(session.header, trees, self._engine, scratch, Limits(), keep, say, fitness)
        timing.run(session.header.timed[0], self._task, session.runs, math.inf)
        measured = Session(header=session.header, runs=runs)
        if not pair_up(runs).valid:
            verdict = judge(measured, Config()).workloads[0]
            why = verdict.validity.reasons or (verdict.throughput.reasons if verdict.throughput else [])
            raise CalibrationError(f"{file}: {'; '.join(why)[:2000]}; mend that, then go on with --resume")
        return measured

    def _header(self, plan: TimedPlan) -> SessionHeader:
        return SessionHeader(
            regbot=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            base=_named(self._arm, "base"),
            head=_named(self._arm, "head"),
            workloads=[plan.entry],
            untraced=[plan.entry],
            timed=[plan],
            seed=secrets.randbelow(2**32),
            throughput=Throughput(gate="pairs"),
        )


class _Here:
    """The files as they stand, as the checkout of both arms."""

    def __init__(self, folder: Path) -> None:
        self._tree = Worktree(folder, HERE.commit, HERE.tree, {}, False, "", (), {})

    def of(self, arm: Arm, task: Task) -> Worktree:
        """The same for any arm and workload."""
        del arm, task
        return self._tree


def _begin(asked: Asked) -> None:
    """Refuse a folder that holds another calibration. Raises ConfigError."""
    asked.out.mkdir(parents=True, exist_ok=True)
    if not asked.resume and any(asked.out.glob("session-*.jsonl")):
        raise ConfigError(
            f"{asked.out}: holds the sessions of a calibration; go on with it (--resume), or give another --out"
        )
    write_text(asked.out / ".gitignore", "*\n")


def _open(file: Path, planned: SessionHeader, resume: bool) -> Session:
    """The session in ``file`` where it is to be gone on with, else a new one. Raises CalibrationError."""
    if resume and file.exists():
        mend(file)
    if not resume or not file.exists() or not file.stat().st_size:
        file.unlink(missing_ok=True)
        append_line(file, planned)
        return Session(header=planned, runs=[])
    found = read_session(file)
    ours, theirs = planned.timed[0], found.header.timed[0]
    if (found.header.base, ours) != (planned.base, theirs):
        raise CalibrationError(f"{file}: is of another calibration; give another --out, or leave out --resume")
    return found


def _named(arm: Arm, name: Literal["base", "head"]) -> Arm:
    return arm.model_copy(update={"name": name})


def _terms(calibration: Calibration) -> tuple[object, ...]:
    return tuple(getattr(calibration, name) for name in TERMS)


def page(found: Calibrating) -> str:
    """What was run, what it shows, and what that allows to say."""
    lines = [f"{found.calibration.workload}  {found.calibration.variant}  on {found.calibration.node_class}"]
    for session in found.calibration.sessions:
        kind = f"+{session.injected_pct:g}% injected" if session.injected_pct else "placebo"
        held = {True: "held the truth", False: "missed the truth", None: "no look"}[session.covered]
        pairs = len(session.log_ratios["median"])
        lines.append(f"  {kind:<16} {pairs:>3} pairs  {session.decision.replace('_', ' '):<10} interval {held}")
    if found.shows is not None:
        lines += ["", *shown(found.shows)]
    return "\n".join([*lines, f"stored {found.path}"])


def shown(found: Calibrated) -> list[str]:
    """What all calibrations on the same terms show, a line each."""
    flags, covered = found.false_flags, found.covered
    bounds = f"(95%: {found.sd_low_pct:.2g}% to {found.sd_high_pct:.2g}%)"
    lines = [
        f"noise of a pair    {found.sd_pct:.2g}% {bounds}, {found.pairs} placebo pairs",
        f"false alarms       {flags.count} of {flags.total} placebo sessions (at most {flags.high:.0%})",
        f"intervals held     {covered.count} of {covered.total} (at least {covered.low:.0%})",
    ]
    if found.found is not None:
        rate = found.found
        lines.append(
            f"{f'+{found.injected_pct:g}% found':<19}{rate.count} of {rate.total} sessions (at least {rate.low:.0%})"
        )
    if found.resampled_false is not None:
        share = f"{found.resampled_false:.1%} of sessions drawn from them flagged"
        lines.append(f"resampled pairs    {share} (early, and optimistic)")
    if found.contradicted:
        lines.append(f"the gate has no vote here: {found.contradicted}")
    return lines
