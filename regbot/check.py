"""The whole check, readable top to bottom: plan, check out, trace both arms, time both arms, judge, report.

Everything measured goes to ``session.jsonl`` as it ends. The verdict is then computed from that file alone, exactly as
``regbot judge`` would compute it anywhere else; and from that file alone a check that was ended can be resumed.
"""

import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from regbot import __version__
from regbot.checkout import changed_files, prune, resolve_arms, resolve_exactly, target_tip
from regbot.checkout.git import try_git
from regbot.conclusion import Checked, conclude
from regbot.config import FILE_NAME, Config, ConfigError, load_config, on_node, parse_config
from regbot.earlier import earlier_runs, kept_file
from regbot.earlier import keep as keep_session
from regbot.engines import Engine, open_engine
from regbot.judge import Expectation
from regbot.judge.identity import difference
from regbot.judge.pairs import is_screen
from regbot.judge.validity import examine
from regbot.nodes import Fitness, nodes_folder
from regbot.paper import Libraries
from regbot.progress import Progress, Watcher
from regbot.records.files import RecordError, append_line, mend, write_text
from regbot.records.ledger import Scalar
from regbot.records.run import Arm, Node, Run
from regbot.records.session import Session, SessionHeader, StoredTrace, TimedPlan, read_session
from regbot.records.settings import Gate
from regbot.records.settings import Throughput as ThroughputSettings
from regbot.session import expected_cost
from regbot.shapes import MeshName
from regbot.stored import store_at, stored_traces, with_references
from regbot.timing import Timing
from regbot.traces import Traces
from regbot.trees import Trees
from regbot.workloads import Limits, Task, needs_of, plan, plan_of, timed_tasks

HEADS_CONFIG = f"the base has no {FILE_NAME}; the head's was used"
UNCONFINED = "the code is not trusted, and ran without a sandbox, as --no-sandbox asked"
KEPT_WORKTREES = 16
"""Worktrees kept in the cache for later checks, least recently used dropped first."""

FULL_BYTES = 16 * 2**20
"""A run that fails with less than this free, where it or regbot writes, may have failed for want of room."""


@dataclass(frozen=True)
class CheckOptions:
    """What the user asked for. ``config`` overrides the ``regbot.toml`` of the base commit."""

    repo: Path
    cache: Path
    out: Path
    base: str | None = None
    head: str = "HEAD"
    base_overrides: dict[str, Scalar] = field(default_factory=dict)
    head_overrides: dict[str, Scalar] = field(default_factory=dict)
    workloads: Sequence[str] = ()
    expectations: Sequence[Expectation] = ()
    config: Path | None = None
    node_config: Path | None = None
    """Whose tables of the machine (sandbox, slurm, local) are used; None for those of ``config``."""
    engine: str = "local"
    untrusted: bool = False
    """Run the code in a sandbox, or not at all."""
    no_sandbox: bool = False
    """Run it without a sandbox, trusted or not."""
    timing: bool = True
    """Without it only the static half is done."""
    even_if_identical: bool = False
    """Time it also where nothing that could matter has changed."""
    budget_min: float | None = None
    """Minutes of timed runs; None for the configuration's."""
    resume: bool = False
    """Go on with the session in ``out`` where it is one of this very check."""
    gate: Gate | None = None
    """How step times are decided; None for the configuration's."""
    more: int = 0
    """Pairs to add to an earlier session on the same trees; 0 leaves it to what they show."""
    baselines: Path | None = None
    """A folder of stored references; None for the base commit's."""
    pairs: int | None = None
    """Pairs at most, of each workload; None for a whole session's."""
    exact: bool = False
    """Compare the very commits that were named, and not with the merge base."""
    join: bool = True
    """Keep what is timed, and let it join what was timed before on the same trees."""
    mesh: MeshName | None = None
    """Trace and time the shapes on this mesh only; None for all meshes of the configuration."""
    command: Literal["check", "demo"] = "check"
    """The command that runs the check, so that its comment can advise the right options."""


def check(options: CheckOptions, watch: Watcher = lambda _: None, engine: Engine | None = None) -> Checked:
    """Run both halves on both arms and judge them. Raises ConfigError, CheckoutError, EngineError, RecordError."""
    if options.exact:
        base, head, warnings = resolve_exactly(options.repo, options.base or options.head, options.head)
    else:
        base, head, warnings = resolve_arms(
            options.repo, options.base, options.head, options.base_overrides, options.head_overrides
        )
    config, config_warnings = find_config(options, base, head)
    if options.untrusted and options.node_config is None and HEADS_CONFIG in config_warnings:
        raise ConfigError(
            f"--untrusted: only the pull request has a {FILE_NAME}, and it does not say itself how it is confined; "
            "merge one first, or give --config FILE"
        )

    def say(text: str) -> None:
        watch(Progress(0, 0, text))

    opened = nullcontext(engine) if engine is not None else _engine(options, config, say)
    with opened as where:
        unconfined = [UNCONFINED] if where.sandbox is None and (options.untrusted or config.sandbox.untrusted) else []
        return _check_on(where, options, watch, config, base, head, [*warnings, *config_warnings, *unconfined])


def _engine(options: CheckOptions, config: Config, say: Callable[[str], None]) -> AbstractContextManager[Engine]:
    refused = _fitness(options).refused
    return open_engine(options.engine, config, options.cache, say, options.untrusted, options.no_sandbox, refused)


def _fitness(options: CheckOptions) -> Fitness:
    return Fitness(nodes_folder(options.cache), options.out / "runs")


def _check_on(
    engine: Engine,
    options: CheckOptions,
    watch: Watcher,
    config: Config,
    base: Arm,
    head: Arm,
    warnings: Sequence[str],
) -> Checked:
    tasks = plan(config, options.workloads, options.mesh)
    timed = timed_tasks(config, tasks, engine.gpus) if options.timing else []
    traced = [task for task in tasks if task.workload.adapter != "command"]
    commands = [task for task in timed if task.workload.adapter == "command"]
    if not tasks:
        raise ConfigError(f"no workload has the mesh {options.mesh}; name another mesh or none")
    if not traced and not commands:
        raise ConfigError("all workloads are commands, of which only step times can be measured; leave out --no-timing")
    workloads = [task.entry for task in (*traced, *commands)]
    left_out = [task.entry for task in plan(config) if task.entry not in workloads]
    for arm in (base, head):
        for task in tasks:
            task.at(arm.overrides)  # an override that cannot be is an error now, not after minutes of work
    settings = config.throughput.model_copy(update={"gate": options.gate} if options.gate else {})
    plans = [
        plan_of(task, config.session).model_copy(
            update={
                "even_if_identical": options.even_if_identical,
                "more_pairs": options.more,
                "max_pairs": options.pairs,
            }
        )
        for task in timed
    ]
    nodes = [engine.describe(needs_of(task)) for task in timed]
    confined = ("confined",) if engine.sandbox is not None else ()
    kinds = [(*engine.kind(needs_of(task)), *confined) for task in timed]
    plans, stored, notes = _look_up(options, config, settings, base, traced, plans, nodes)
    planned = SessionHeader(
        regbot=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base=base,
        head=head,
        workloads=workloads,
        untraced=[task.entry for task in commands],
        left_out=left_out,
        timing=options.timing,
        command=options.command,
        timed=plans,
        stored=stored,
        seed=secrets.randbelow(2**32),
        budget_min=(options.budget_min or config.session.budget_min) if timed else None,
        changed_files=changed_files(options.repo, base.commit, head.commit),
        expectations=[f"{rule}: {rule.reason}" for rule in options.expectations],
        throughput=settings,
        sharding=config.sharding,
        wire=config.wire,
        warnings=[*warnings, *notes],
    )
    with _owned(options.out), _room(options.out):
        session_file = options.out / "session.jsonl"
        session = _begin(session_file, planned, options, nodes)
        _measure(session, session_file, options, config, traced, timed, kinds, engine, watch)
        prune(options.cache, keep=KEPT_WORKTREES)
        return conclude(session_file, config, options.expectations, options.out)


def _measure(
    session: Session,
    session_file: Path,
    options: CheckOptions,
    config: Config,
    tasks: Sequence[Task],
    timed: Sequence[Task],
    kinds: Sequence[Sequence[str]],
    engine: Engine,
    watch: Watcher,
) -> None:
    """All runs that ``session`` does not hold yet."""
    header, runs = session.header, list(session.runs)
    saving: dict[str, Path] = {}

    def keep(run: Run) -> None:
        if run.outcome != "ok":
            _refuse_if_full(options)
        append_line(session_file, run)
        runs.append(run)
        if options.join and run.tier == "timed" and run.workload in saving:
            keep_session(saving[run.workload], header, [each for each in runs if each.workload == run.workload])

    trees = Trees(options.repo, options.cache, lambda text: watch(Progress(0, 0, text)), engine.sandbox)
    limits = Limits(
        max_output_bytes=int(config.local.max_output_mb * 2**20),
        max_record_bytes=int(config.local.max_record_mb * 2**20),
    )
    folder = options.out / "runs"
    jobs = [(arm, task) for task in tasks for arm in (header.base, header.head)]
    libraries = Libraries(options.cache, folder / "paper", lambda text: watch(Progress(0, 0, text)))
    if any(task.wants_paper_gpu and not task.workload.python for task in tasks):
        libraries.start(sys.executable)  # beside the checkouts
    with closing(libraries):
        Traces(trees, engine, folder, limits, config.local.parallel, keep, watch, libraries).run(
            jobs, [run for run in runs if run.tier == "static"]
        )
    timing = Timing(header, trees, engine, folder, limits, keep, watch, _fitness(options))
    waiting = [
        (each, task, kind)
        for each, task, kind in zip(header.timed, timed, kinds, strict=True)
        if _worth_timing(header, runs, each)
    ]
    left_s = (header.budget_min or 0.0) * 60
    for number, (each, task, kind) in enumerate(waiting):
        own = [run for run in runs if run.workload == each.entry]
        kept = kept_file(options.cache, header, each, [run for run in own if run.tier == "static"], kind)
        known = [run for run in own if run.tier == "timed"]
        if options.join and all(run.joined is not None for run in known):  # none, or a copy that was cut off
            for run in _usable(earlier_runs(kept), header)[len(known) :]:
                keep(run)
                known.append(run)
        saving[each.entry] = kept
        watch(Progress(0, 0, expected_cost(header, each, known), lasting=True))
        done = timing.run(each, task, known, left_s / (len(waiting) - number))
        left_s -= sum(run.wall_s for run in done if run.joined is None)


def _usable(earlier: Sequence[Run], header: SessionHeader) -> list[Run]:
    """Of earlier runs those that the gate asks for: stored sessions alone are held against no pairs."""
    return [run for run in earlier if header.throughput.gate != "stored" or is_screen(run)]


def _look_up(
    options: CheckOptions,
    config: Config,
    settings: ThroughputSettings,
    base: Arm,
    traced: Sequence[Task],
    plans: Sequence[TimedPlan],
    nodes: Sequence[Node | None],
) -> tuple[list[TimedPlan], list[StoredTrace], list[str]]:
    """What is stored of the workloads at the base commit: sessions for the plans, ledgers for the traces, notes."""
    entries = [(task.entry, task.variant.name) for task in traced]
    wanted = [*entries, *((each.entry, each.variant) for each in plans)]
    with store_at(options.repo, base.commit, config.baselines.folder, options.baselines, wanted) as store:
        stored, notes = stored_traces(store, entries, base)
        looked_up = [
            with_references(each, store, settings, node.node_class) if node else (each, [])
            for each, node in zip(plans, nodes, strict=True)
        ]
    return [plan for plan, _ in looked_up], stored, [*notes, *(note for _, each in looked_up for note in each)]


def _worth_timing(header: SessionHeader, runs: Sequence[Run], each: TimedPlan) -> bool:
    """Whether both arms can be traced, and something that could matter to their speed differs."""
    if each.entry in header.untraced:
        return True
    examined = examine(Session(header=header, runs=list(runs)), each.entry)
    if examined.base is None or examined.head is None:
        return False
    return each.even_if_identical or bool(difference(header, examined.base, examined.head))


@contextmanager
def _owned(out: Path) -> Iterator[None]:
    """``out`` for this check alone: two that write one session would make one neither could be judged by."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise ConfigError(f"{out}: another check is writing there; wait for it, or give another --out") from error


@contextmanager
def _room(out: Path) -> Iterator[None]:
    """Say what to do when a disk is full. Raises RecordError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RecordError(
            f"{error.filename or out}: {error.strerror}; every run that has ended is kept in {out / 'session.jsonl'}: "
            "make room, then go on with --resume"
        ) from error


def _refuse_if_full(options: CheckOptions) -> None:
    """A failure that a full disk may have caused is nobody's: it is not recorded. Raises OSError."""
    for folder in (options.out, options.cache, Path(tempfile.gettempdir())):
        if folder.exists() and shutil.disk_usage(folder).free < FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _begin(session_file: Path, planned: SessionHeader, options: CheckOptions, nodes: Sequence[Node | None]) -> Session:
    """A new session with nothing but its header, or the one to be resumed. Raises RecordError."""
    if options.resume and _holds_a_line(session_file):
        session = read_session(session_file)
        if difference_of_plan := _unlike(session.header, planned):
            raise RecordError(
                f"{session_file}: is a session of another check ({difference_of_plan} differs); leave out --resume to "
                "begin anew, or give another --out"
            )
        _refuse_another_node(session_file, session, nodes, options.engine)
        _remove_results(options.out)
        budget = {"budget_min": planned.budget_min}  # of this start: a larger one is how an undecided session goes on
        return Session(header=session.header.model_copy(update=budget), runs=session.runs)
    _remove_results(options.out)
    if session_file.exists():  # what it measured may have taken hours: it is kept, under another name
        session_file.replace(options.out / "session.previous.jsonl")
    shutil.rmtree(options.out / "runs", ignore_errors=True)
    write_text(options.out / ".gitignore", "*\n")
    append_line(session_file, planned)
    return Session(header=planned, runs=[])


def _refuse_another_node(session_file: Path, session: Session, nodes: Sequence[Node | None], engine: str) -> None:
    """A session goes on where it began; of a cluster, on nodes of the same class, which each block has to itself."""
    known = [node for node in nodes if node is not None]
    for run in session.runs:
        if run.node is None or run.joined is not None or not known or run.node in known:
            continue
        if engine == "local" or all(run.node.node_class != node.node_class for node in known):
            raise RecordError(
                f"{session_file}: was timed on {run.node.name} ({run.node.node_class}), and this is {known[0].name} "
                f"({known[0].node_class}); go on there, or leave out --resume to begin anew"
            )


def _holds_a_line(session_file: Path) -> bool:
    """Whether there is something to resume, once a torn last line is cut off."""
    if not session_file.exists():
        return False
    mend(session_file)
    return session_file.stat().st_size > 0


def _unlike(found: SessionHeader, planned: SessionHeader) -> str:
    """The first thing by which two headers are of different checks; a budget may be another one."""
    for name in type(planned).model_fields:
        if name not in MAY_DIFFER and getattr(_bare(found), name) != getattr(_bare(planned), name):
            return name.replace("_", " ")
    return ""


MAY_DIFFER = ("created", "seed", "budget_min", "warnings", "stored")
"""Of two starts of one check. What is stored may have grown; the session's own references go on to count."""


def _bare(header: SessionHeader) -> SessionHeader:
    plans = [plan.model_copy(update={"references": [], "no_reference": ""}) for plan in header.timed]
    return header.model_copy(update={"timed": plans})


def _remove_results(out: Path) -> None:
    """An old verdict beside a new session would be read as its own."""
    for name in ("verdict.json", "comment.md", "report.html"):
        (out / name).unlink(missing_ok=True)


def find_config(options: CheckOptions, base: Arm, head: Arm) -> tuple[Config, list[str]]:
    """The configuration, that of the node in it, and what is to be said of it. Raises ConfigError."""
    config, notes = _of_the_code(options, base, head)
    return on_node(config, options.node_config), notes


def _of_the_code(options: CheckOptions, base: Arm, head: Arm) -> tuple[Config, list[str]]:
    """The configuration of the base commit, so that a pull request cannot soften its own judge.

    Where the merge base has none, that of the branch it is merged into; the head's where that has none either, which is
    how regbot is introduced. Raises ConfigError.
    """
    if options.config is not None:
        return load_config(options.config), []
    texts = {arm.name: _file_at(options.repo, arm.commit) for arm in (base, head)}
    tip = None if texts["base"] is not None or options.exact else target_tip(options.repo, options.base)
    if tip is not None and tip not in (base.commit, head.commit) and (text := _file_at(options.repo, tip)) is not None:
        note = f"the merge base has no {FILE_NAME}; the one of {tip[:12]}, which it is merged into, was used"
        return parse_config(text, f"{FILE_NAME} at {tip[:12]}"), [note]
    if texts["base"] is not None:
        changed = texts["head"] != texts["base"]
        note = f"{FILE_NAME} differs between base and head; the base's was used, so that a change cannot judge itself"
        return parse_config(texts["base"], f"{FILE_NAME} at {base.commit[:12]}"), [note] if changed else []
    if texts["head"] is not None:
        return parse_config(texts["head"], f"{FILE_NAME} at {head.commit[:12]}"), [HEADS_CONFIG]
    raise ConfigError(
        f"neither {base.commit[:12]} nor {head.commit[:12]} has a {FILE_NAME}; commit one that names a workload "
        "(see docs/configuration.md), or give --config FILE"
    )


def _file_at(repo: Path, commit: str) -> str | None:
    answer = try_git(repo, "show", f"{commit}:{FILE_NAME}")
    return answer.out if answer.code == 0 else None
