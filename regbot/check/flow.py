"""A whole check, in the order in which it runs: plan, check out, trace both arms, time both arms, judge, report.

Each run is appended to ``session.jsonl`` when it ends. The verdict is computed only from that file, so ``regbot judge``
can compute it again on any machine. An interrupted check is resumed from that file too.
"""

import errno
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from regbot import __version__
from regbot.baselines.arm_luck import is_luck_small
from regbot.check.concern import ChangedTrees, ConcernResult, find_unconcerned, has_paths, list_evidence
from regbot.check.conclusion import CheckResult, conclude
from regbot.check.configuration import confine, find_config
from regbot.check.references import store_at, stored_traces, with_references
from regbot.check.sessions.pooled_pairs import load_pooled_runs, pool_file, save_pool
from regbot.check.sessions.run_log import RunLog
from regbot.check.sessions.schedule import expected_cost
from regbot.check.sessions.timed import SessionRunner
from regbot.check.sessions.traces import TraceRunner
from regbot.check.sessions.worktrees import Worktrees
from regbot.engines import Engine, open_engine
from regbot.engines.node_check import HISTORY_FILE
from regbot.engines.removal import discard_folder
from regbot.judge import Expectation
from regbot.judge.identity import first_difference
from regbot.judge.validity import examine_traced_runs
from regbot.records.config import FILE_NAME, Config, ConfigError, LoadedConfig
from regbot.records.files import RecordError
from regbot.records.ledger import Scalar
from regbot.records.meshes import MeshName
from regbot.records.run import Arm, Node, Run
from regbot.records.session import Session, SessionHeader, StoredTrace, TimedPlan, read_session
from regbot.records.settings import Gate, ThroughputThresholds
from regbot.records.text.progress import Progress, Watcher
from regbot.workloads import Limits, Scratch, Task, needs_of, plan, plan_of, timed_tasks
from regbot.workloads.checkout import (
    digest_behaviour,
    find_readable_repository,
    list_changed_files,
    prune,
    repository_cache,
    resolve_arms,
    resolve_exactly,
)

NO_SANDBOX_WARNING = "the code is untrusted and ran without a sandbox, because --no-sandbox was given"
KEPT_WORKTREES = 16
"""Number of worktrees of a repository to keep in the cache. The least recently used ones are removed first."""

FULL_DISK_BYTES, FULL_DISK_FILES = 16 * 2**20, 256
"""If a disk has less free space or fewer free files than this, the full disk may be the reason for a failed run."""


@dataclass(frozen=True)
class CheckOptions:
    """Options of a check."""

    repo: Path
    """Work tree or git directory of the user's repository."""
    cache: Path
    """Cache folder of this machine."""
    out: Path
    """Folder for the session file and the report."""
    base: str | None = None
    """Revision to compare with; None to guess the target branch."""
    head: str = "HEAD"
    """Revision to judge."""
    base_overrides: dict[str, Scalar] = field(default_factory=dict)
    """Configuration keys that are set for base only."""
    head_overrides: dict[str, Scalar] = field(default_factory=dict)
    """Configuration keys that are set for head only."""
    workloads: Sequence[str] = ()
    """Names of the workloads to check; () for all."""
    expectations: Sequence[Expectation] = ()
    """Changes that are declared as intended."""
    config: Path | LoadedConfig | None = None
    """Configuration that replaces the ``regbot.toml`` of the base commit; None to use that of the base commit."""
    node_config: Path | None = None
    """File with the machine tables ``[sandbox]``, ``[slurm]`` and ``[local]``; None to take them from ``config``."""
    engine: str = "local"
    """Name of the engine that runs the workloads: local or slurm."""
    untrusted: bool = False
    """Whether the code must run in a sandbox. The check fails if this machine has none."""
    no_sandbox: bool = False
    """Whether to run the code without a sandbox, even if ``untrusted`` is set. The verdict then has a warning."""
    timing: bool = True
    """Whether to time the steps. If False, the check only compares the collectives."""
    even_if_identical: bool = False
    """Whether to time a workload even if both arms are proven identical or no relevant file has changed."""
    budget_min: float | None = None
    """Time budget of the timed runs in minutes; None for the configured budget."""
    resume: bool = False
    """Whether to continue the session in ``out``. It must belong to a check with the same options."""
    gate: Gate | None = None
    """Method that decides about step times; None for the configured method."""
    more_pairs: int = 0
    """Number of pairs to add to an earlier session of the same code; 0 lets the looks decide the number."""
    baselines: Path | None = None
    """Folder of stored references; None for the references in the base commit."""
    max_pairs: int | None = None
    """Limit on the number of pairs of each workload; None for a full session."""
    exact: bool = False
    """Whether to compare with ``base`` itself instead of the merge base."""
    join: bool = True
    """Whether to store the timed pairs, and to reuse earlier pairs of the same code."""
    mesh: MeshName | None = None
    """Mesh on which to trace and time the shapes; None for all meshes of the configuration."""
    command: Literal["check", "demo"] = "check"
    """The command that runs the check. The comment recommends only options that this command has."""


def check(options: CheckOptions, watch: Watcher = lambda _: None, engine: Engine | None = None) -> CheckResult:
    """Trace and time both arms, and judge them. Raises ConfigError, CheckoutError, EngineError, RecordError."""
    if options.exact:
        # Without --base, the head commit is compared with itself.
        base, head, warnings = resolve_exactly(options.repo, options.base or options.head, options.head)
    else:
        base, head, warnings = resolve_arms(
            options.repo, options.base, options.head, options.base_overrides, options.head_overrides
        )
    # From a partial clone, first only the configuration is copied. The configuration names the folder of the stored
    # references, which is copied below.
    readable = _find_readable(options, base, head, [FILE_NAME])
    loaded = find_config(
        options.repo,
        base.commit,
        head.commit,
        target=options.base,
        exact=options.exact,
        file=options.config,
        readable=readable,
    )
    advice = "merge one first, or give --config FILE"
    loaded = confine(loaded, options.node_config, options.untrusted, head="the pull request", advice=advice)
    config = loaded.config
    if options.baselines is None:
        readable = _find_readable(options, base, head, [config.baselines.folder])

    def say(text: str) -> None:
        watch(Progress(done=0, total=0, text=text))  # a message without a count of runs

    engine_context = nullcontext(engine) if engine is not None else _open_engine(options, config, say)
    with engine_context as engine_in_use:
        is_untrusted = options.untrusted or config.sandbox.untrusted
        sandbox_warnings = [NO_SANDBOX_WARNING] if is_untrusted and engine_in_use.sandbox is None else []
        return _check_arms(
            _CheckContext(options, config, engine_in_use, watch, readable),
            base,
            head,
            [*warnings, *loaded.messages(), *sandbox_warnings],
        )


def _open_engine(options: CheckOptions, config: Config, say: Callable[[str], None]) -> AbstractContextManager[Engine]:
    """Open the engine that the options name. ``say`` shows its messages."""
    return open_engine(
        options.engine,
        config,
        options.cache,
        say,
        untrusted=options.untrusted,
        no_sandbox=options.no_sandbox,
    )


def _find_readable(options: CheckOptions, base: Arm, head: Arm, paths: Sequence[str]) -> Path:
    """Return the repository from which trees and files of both commits are read, among them the files at ``paths``."""
    cache = repository_cache(options.cache, options.repo)
    return find_readable_repository(options.repo, cache, [base.commit, head.commit], paths)


@dataclass(frozen=True)
class _CheckContext:
    """Options, configuration, engine and progress display of one check."""

    options: CheckOptions
    config: Config
    engine: Engine
    watch: Watcher
    readable: Path
    """The repository from which trees and files of both commits are read."""


def _check_arms(context: _CheckContext, base: Arm, head: Arm, warnings: Sequence[str]) -> CheckResult:
    """Plan the session of both arms, write its header, measure both arms, and judge the session file.

    Workloads with the adapter ``command`` are only timed. All others are traced, and also timed if this engine's nodes
    can run one of their variants. With ``--no-timing``, nothing is timed.

    ``warnings`` are those from before the plan, for example about the configuration.
    """
    options, config, engine = context.options, context.config, context.engine
    tasks = plan(config, options.workloads, options.mesh)
    tasks_to_time = timed_tasks(config, tasks, engine.gpus) if options.timing else []
    tasks_to_trace = [task for task in tasks if task.workload.adapter != "command"]
    only_timed_tasks = [task for task in tasks_to_time if task.workload.adapter == "command"]
    planned_tasks = [*tasks_to_trace, *only_timed_tasks]
    if not tasks:
        raise ConfigError(f"no workload has the mesh {options.mesh}", "name another mesh or none")
    if not planned_tasks:
        raise ConfigError("all workloads have adapter = 'command', which can only be timed", "leave out --no-timing")
    entries = [task.entry for task in planned_tasks]
    # Entries of the configuration that the options of this check exclude.
    entries_left_out = [task.entry for task in plan(config) if task.entry not in entries]
    # A bad override raises its error here, not after minutes of work.
    for arm in (base, head):
        for task in tasks:
            task.at(arm.overrides)
    unconcerned, path_warnings = _find_unconcerned(context, base, head, planned_tasks)
    skipped_entries = {workload.entry for workload in unconcerned}
    tasks_to_time = [task for task in tasks_to_time if task.entry not in skipped_entries]
    tasks_to_trace = [task for task in tasks_to_trace if task.entry not in skipped_entries]
    throughput_settings = config.throughput.model_copy(update={"gate": options.gate} if options.gate else {})
    plans = [
        plan_of(task, config.session).model_copy(
            update={
                "even_if_identical": options.even_if_identical,
                "more_pairs": options.more_pairs,
                "max_pairs": options.max_pairs,
            }
        )
        for task in tasks_to_time
    ]
    # None for a node that the engine does not know yet.
    nodes = [engine.describe(needs_of(task)) for task in tasks_to_time]
    confinement = ("confined",) if engine.sandbox is not None else ()
    # Pairs of earlier sessions are reused only if they come from nodes of the same kind and were confined in the same
    # way.
    node_kinds = [(*engine.kind(needs_of(task)), *confinement) for task in tasks_to_time]
    plans, stored_base_traces, reference_warnings = _load_references(
        context, throughput_settings, base, tasks_to_trace, plans, nodes
    )
    behaviour = digest_behaviour(context.readable, base.commit, head.commit, config.inert)
    head = head.model_copy(update={"behaviour": behaviour})
    changed = list_changed_files(context.readable, base.commit, head.commit, config.inert)
    header = SessionHeader(
        regbot=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base=base,
        head=head,
        workloads=entries,
        untraced=[task.entry for task in only_timed_tasks],
        left_out=entries_left_out,
        timing=options.timing,
        command=options.command,
        timed=plans,
        stored=stored_base_traces,
        seed=secrets.randbelow(2**32),  # decides the order of base and head in the blocks
        budget_min=(options.budget_min or config.session.budget_min) if tasks_to_time else None,
        changed_files=changed.paths,
        inert_files=changed.inert,
        expectations=[f"{change}: {change.reason}" for change in options.expectations],
        unconcerned=unconcerned,
        throughput=throughput_settings,
        sharding=config.sharding,
        wire=config.wire,
        warnings=[*warnings, *path_warnings, *reference_warnings],
    )
    log = _make_run_log(options.out)
    with log.lock(), log.writing():
        session = _open_session(log, header, options, nodes)
        _measure(context, session, log, tasks_to_trace, tasks_to_time, node_kinds)
        result = conclude(log.path, config, options.expectations, options.out)
    # After the verdict, because nothing that the code under test left in the cache may prevent a verdict.
    prune(repository_cache(options.cache, options.repo), KEPT_WORKTREES, context.watch)
    return result


def _find_unconcerned(context: _CheckContext, base: Arm, head: Arm, tasks: Sequence[Task]) -> ConcernResult:
    """Return the entries that the change does not concern. They are neither traced nor timed.

    The result is empty if no workload has the setting ``paths``, or if the user requested a measurement. A user does so
    by naming workloads, by overrides, or by requesting to time identical programs.
    """
    options, config = context.options, context.config
    is_requested = options.workloads or options.even_if_identical or base.overrides or head.overrides
    if is_requested or not has_paths(tasks):
        return ConcernResult([], [])
    evidence = list_evidence(config, tasks, options.timing)
    needed_sessions = [(entry, kind.variant) for entry, kinds in evidence.items() for kind in kinds]
    folder = config.baselines.folder
    change = ChangedTrees(context.readable, base.commit, head.commit, folder, config.inert)
    with store_at(context.readable, base.commit, folder, options.baselines, needed_sessions) as store:
        return find_unconcerned(change, tasks, evidence, store)


def _measure(
    context: _CheckContext,
    session: Session,
    log: RunLog[Session],
    tasks_to_trace: Sequence[Task],
    tasks_to_time: Sequence[Task],
    node_kinds: Sequence[Sequence[str]],
) -> None:
    """Trace and time everything that ``session`` has no run for yet.

    ``node_kinds`` describes the node of each task in ``tasks_to_time``. Only sessions on nodes of the same kind share
    pairs.
    """
    options, config, engine, watch = context.options, context.config, context.engine, context.watch
    header, runs = session.header, list(session.runs)
    pool_files: dict[str, Path] = {}  # by entry: the file that shares its runs with other sessions of the same code

    def store_run(run: Run) -> None:
        """Append a run to the session file. With ``join``, also store a timed run for later sessions of the same
        code."""
        if run.outcome != "ok":  # a full disk may be the reason
            _raise_if_disk_full(options)
        log.append(run)
        runs.append(run)
        if options.join and run.tier == "timed" and run.workload in pool_files:
            save_pool(pool_files[run.workload], header, [other for other in runs if other.workload == run.workload])

    trees = Worktrees(options.repo, options.cache, lambda text: watch(Progress(0, 0, text)), engine.sandbox)
    # Limits on what regbot reads of one run.
    limits = Limits(
        max_output_bytes=int(config.local.max_output_mb * 2**20),
        max_record_bytes=int(config.local.max_record_mb * 2**20),
    )
    scratch = Scratch(options.out / "runs", limits)
    # Every traced workload is traced once for each arm.
    jobs = [(arm, task) for task in tasks_to_trace for arm in (header.base, header.head)]
    # The libraries of the paper GPU, on which the traces run. They are built into the cache folder.
    libraries = trees.open_libraries(scratch.folder / "paper")
    if any(task.wants_paper_gpu and not task.workload.python for task in tasks_to_trace):
        # The library for regbot's own interpreter is built while the arms are checked out.
        libraries.start(sys.executable)
    with closing(libraries):
        TraceRunner(trees, engine, scratch, store_run, watch, libraries, parallel=config.local.parallel).run(
            jobs, [run for run in runs if run.tier == "static"]
        )
    node_history = options.cache / HISTORY_FILE
    session_runner = SessionRunner(header, trees, engine, scratch, store_run, watch, node_history=node_history)
    plans_to_time = [
        (timed_plan, task, node_kind)
        for timed_plan, task, node_kind in zip(header.timed, tasks_to_time, node_kinds, strict=True)
        if _needs_timing(header, runs, timed_plan)
    ]
    remaining_s = (header.budget_min or 0.0) * 60
    for index, (timed_plan, task, node_kind) in enumerate(plans_to_time):
        workload_runs = [run for run in runs if run.workload == timed_plan.entry]
        static_runs = [run for run in workload_runs if run.tier == "static"]
        runs_file = pool_file(trees.repository_cache, header, timed_plan, static_runs, node_kind)
        timed_runs = [run for run in workload_runs if run.tier == "timed"]
        # If this session has timed nothing itself yet, copy the runs of earlier sessions into it. An interrupted check
        # may have copied the first of them already.
        if options.join and all(run.is_from_earlier_session for run in timed_runs):
            for run in load_pooled_runs(runs_file)[len(timed_runs) :]:
                store_run(run)
                timed_runs.append(run)
        pool_files[timed_plan.entry] = runs_file
        cost_text = expected_cost(header, timed_plan, timed_runs)
        watch(Progress(done=0, total=0, text=cost_text, lasting=True))  # the message stays on the terminal
        budget_s = remaining_s / (len(plans_to_time) - index)  # an equal share for each workload that is left
        session_runs = session_runner.run(timed_plan, task, timed_runs, budget_s)
        remaining_s -= sum(run.wall_s for run in session_runs if not run.is_from_earlier_session)


def _load_references(
    context: _CheckContext,
    settings: ThroughputThresholds,
    base: Arm,
    traced_tasks: Sequence[Task],
    plans: Sequence[TimedPlan],
    nodes: Sequence[Node | None],
) -> tuple[list[TimedPlan], list[StoredTrace], list[str]]:
    """Return the plans with their stored references, the stored traces, and warnings about both.

    References and traces come from the base commit, or from the folder ``options.baselines``. ``nodes`` has the node of
    each plan. A plan whose node is None (not known yet) gets no references, because they belong to a node class.
    """
    traced_variants = [(task.entry, task.variant.name) for task in traced_tasks]
    timed_variants = [(timed_plan.entry, timed_plan.variant) for timed_plan in plans]
    options, folder = context.options, context.config.baselines.folder
    needed_sessions = [*traced_variants, *timed_variants]
    updated_plans: list[TimedPlan] = []
    with store_at(context.readable, base.commit, folder, options.baselines, needed_sessions) as store:
        traces, warnings = stored_traces(store, traced_variants, base)
        for plan_without_references, node in zip(plans, nodes, strict=True):
            timed_plan = plan_without_references
            plan_warnings: list[str] = []
            if node is not None:
                timed_plan, plan_warnings = with_references(timed_plan, store, settings, node.node_class)
            # Part of the speed of an arm, its luck, is drawn with the compiler caches. Small luck allows to keep them.
            fresh_caches = not is_luck_small(timed_plan.references)
            updated_plans.append(timed_plan.model_copy(update={"fresh_caches": fresh_caches}))
            warnings += plan_warnings
    return updated_plans, traces, warnings


def _needs_timing(header: SessionHeader, runs: Sequence[Run], timed_plan: TimedPlan) -> bool:
    """Return whether a workload must be timed.

    A workload that is never traced (adapter ``command``) is always timed. So is a workload with compiled code, because
    only a timed run can profile that code. Any other workload needs a valid trace of both arms. It is timed if the arms
    differ in something that affects speed, or if ``even_if_identical`` is set.
    """
    if timed_plan.entry in header.untraced:
        return True
    examined = examine_traced_runs(Session(header=header, runs=list(runs)), timed_plan.entry)
    if examined.needs_profile:  # the workload has compiled code
        return True
    if examined.base is None or examined.head is None:
        return False  # an arm has no valid trace
    difference = first_difference(header, examined.base, examined.head)  # '' if the arms are identical
    return timed_plan.even_if_identical or bool(difference)


def _raise_if_disk_full(options: CheckOptions) -> None:
    """Raise OSError if a disk is full.

    A run that failed because of a full disk says nothing about the code and must not be stored.
    """
    for folder in (options.out, options.cache, Path(tempfile.gettempdir())):
        if not folder.exists():
            continue
        state = os.statvfs(folder)
        has_few_files = state.f_files > 0 and state.f_favail < FULL_DISK_FILES  # f_files is 0 if they have no limit
        if has_few_files or state.f_bavail * state.f_frsize < FULL_DISK_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _make_run_log(out: Path) -> RunLog[Session]:
    """Return the log of the check in the folder ``out``: its session file."""
    return RunLog(
        out / "session.jsonl",
        activity="check",
        read=read_session,
        may_differ=MAY_DIFFER_ON_RESUME,
        results=("verdict.json", "comment.md", "report.html"),  # the report, which is written again at the end
        log_name="a session ",  # words before "of another check" in an error message
    )


MAY_DIFFER_ON_RESUME = {
    **dict.fromkeys(("created", "seed", "budget_min", "warnings", "stored"), True),
    "timed": {"__all__": {"references", "no_reference", "fresh_caches"}},
}
"""Fields of the session's header that may differ when a check is resumed. The store may have new references by
then, but the resumed session keeps the references that it began with.

The form is pydantic's ``exclude``: True excludes a whole field, and ``__all__`` stands for all items of a list."""


def _open_session(
    log: RunLog[Session], planned: SessionHeader, options: CheckOptions, nodes: Sequence[Node | None]
) -> Session:
    """Return the session to resume, or a new session without runs. Raises RecordError if it cannot be resumed."""
    if options.resume and (session := log.resume(planned)) is not None:
        _refuse_another_node(log.path, session, nodes, options.engine)
        log.remove_results()
        # Use the new budget, because a larger one may decide a session that was undecided.
        budget = {"budget_min": planned.budget_min}
        return Session(header=session.header.model_copy(update=budget), runs=session.runs)
    log.create(planned)
    discard_folder(options.out / "runs")
    return Session(header=planned, runs=[])


def _refuse_another_node(session_file: Path, session: Session, nodes: Sequence[Node | None], engine: str) -> None:
    """Raise RecordError if a resumed session would continue on another node.

    ``nodes`` are the nodes of this check; None for a node that is not known yet. On a cluster, only the node class must
    match. Runs that were copied from earlier sessions may come from other nodes.

    ``engine`` is the name of the engine: local or slurm.
    """
    known_nodes = [node for node in nodes if node is not None]
    if not known_nodes:
        return
    known_classes = {node.node_class for node in known_nodes}
    for run in session.runs:
        if run.node is None or run.is_from_earlier_session:
            continue
        may_continue_here = run.node in known_nodes if engine == "local" else run.node.node_class in known_classes
        if not may_continue_here:
            raise RecordError(
                f"{session_file}: was timed on {run.node.name} ({run.node.node_class}), but this node is "
                f"{known_nodes[0].name} ({known_nodes[0].node_class})",
                "resume it there, or leave out --resume to start a new session",
            )
