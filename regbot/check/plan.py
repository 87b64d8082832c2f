"""Plan of a check: both arms, the configuration that judges them, what is traced and timed, and the references.

Nothing runs here. Wrong options and a wrong configuration raise their error before any work is done.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from regbot import __version__
from regbot.baselines import Store
from regbot.baselines.arm_luck import is_luck_small
from regbot.check.concern import ChangedTrees, ConcernResult, find_unconcerned, list_evidence
from regbot.check.configuration import confine, find_config
from regbot.check.references import store_at, stored_traces, with_references
from regbot.engines import Engine
from regbot.judge import Expectation
from regbot.records.config import Config, ConfigError, LoadedConfig
from regbot.records.ledger import Scalar
from regbot.records.meshes import MeshName
from regbot.records.run import Arm, Node
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.settings import Gate
from regbot.workloads.checkout.arms import resolve_arms, resolve_exactly
from regbot.workloads.checkout.changed_lines import describe_unread, list_changed_lines
from regbot.workloads.checkout.changes import digest_behaviour, list_changed_files
from regbot.workloads.checkout.git import find_web_address, refuse_missing_files
from regbot.workloads.launch import needs_of
from regbot.workloads.task import Task, plan, plan_of, timed_tasks

NO_SANDBOX_WARNING = "the code is untrusted and ran without a sandbox, because --no-sandbox was given"


@dataclass(frozen=True)
class CheckOptions:
    repo: Path
    """Work tree or git directory of the user's repository."""
    cache: Path
    out: Path
    """Folder for the session file and the report."""
    base: str | None = None
    """Revision to compare with; None to guess the target branch."""
    head: str = "HEAD"
    base_overrides: dict[str, Scalar] = field(default_factory=dict)
    head_overrides: dict[str, Scalar] = field(default_factory=dict)
    workloads: Sequence[str] = ()
    """Names of the workloads to check; () for all."""
    expectations: Sequence[Expectation] = ()
    config: Path | LoadedConfig | None = None
    """Configuration that replaces the ``regbot.toml`` of the base commit; None to use that of the base commit."""
    node_config: Path | None = None
    """File with the machine tables ``[sandbox]``, ``[slurm]`` and ``[local]``; None to take them from ``config``."""
    engine: str = "local"
    untrusted: bool = False
    """Whether the code must run in a sandbox. The check fails if this machine has none."""
    no_sandbox: bool = False
    """Whether to run the code without a sandbox, even if ``untrusted`` is set. The verdict then has a warning."""
    timing: bool = True
    """Whether to time the steps. If False, the check only compares the collectives."""
    even_if_identical: bool = False
    """Whether to time a workload even if both arms are proven identical or no relevant file has changed."""
    budget_min: float | None = None
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


@dataclass(frozen=True)
class Change:
    """What a check compares, and the configuration of the base commit that judges it."""

    base: Arm
    head: Arm
    config: Config
    repo: Path
    warnings: Sequence[str]

    @property
    def commits(self) -> tuple[str, str]:
        return self.base.commit, self.head.commit


@dataclass(frozen=True)
class TimedTask:
    """A task to time, as this engine runs it."""

    task: Task
    plan: TimedPlan
    node: Node | None
    """The node where it runs; None if the engine does not know it yet."""
    node_kind: Sequence[str]
    """Identifies the kind of the node and its confinement. Only sessions of one kind share pairs."""


@dataclass(frozen=True)
class CheckPlan:
    """Everything that a check is going to measure, before the first run."""

    header: SessionHeader
    traced: Sequence[Task]
    timed: Sequence[TimedTask]
    """In the order of the header's ``timed``."""


def find_change(options: CheckOptions) -> Change:
    """Resolve both arms, and find the configuration that judges them. Raises CheckoutError, ConfigError."""
    if options.exact:
        # Without --base, the head commit is compared with itself.
        base, head, warnings = resolve_exactly(options.repo, options.base or options.head, options.head)
    else:
        base, head, warnings = resolve_arms(
            options.repo, options.base, options.head, options.base_overrides, options.head_overrides
        )
    commits = (base.commit, head.commit)
    refuse_missing_files(options.repo, *commits)
    loaded = find_config(options.repo, *commits, target=options.base, exact=options.exact, file=options.config)
    advice = "merge one first, or give --config FILE"
    loaded = confine(loaded, options.node_config, options.untrusted, head="the pull request", advice=advice)
    behaviour = digest_behaviour(options.repo, *commits, loaded.config.inert)
    head = head.model_copy(update={"behaviour": behaviour})
    return Change(base, head, loaded.config, options.repo, [*warnings, *loaded.messages()])


def make_plan(options: CheckOptions, change: Change, engine: Engine) -> CheckPlan:
    """Plan what is traced and timed on ``engine``, and load the stored references of the base commit.

    Workloads with the adapter ``command`` are only timed. Entries that the change does not concern are left out. Raises
    ConfigError, CheckoutError.
    """
    config, base, head = change.config, change.base, change.head
    tasks = plan(config, options.workloads, options.mesh)
    tasks_to_time = timed_tasks(config, tasks, engine.gpus) if options.timing else []
    tasks_to_trace = [task for task in tasks if task.workload.adapter != "command"]
    untraced = [task for task in tasks_to_time if task.workload.adapter == "command"]
    planned = [*tasks_to_trace, *untraced]
    if not tasks:
        raise ConfigError(f"no workload has the mesh {options.mesh}", "name another mesh or none")
    if not planned:
        raise ConfigError("all workloads have adapter = 'command', which can only be timed", "leave out --no-timing")
    for arm in (base, head):  # a bad override raises its error here, not after minutes of work
        for task in tasks:
            task.at(arm.overrides)
    entries = [task.entry for task in planned]
    settings = config.throughput.model_copy(update={"gate": options.gate} if options.gate else {})
    # Unconcerned entries are measured all the same if the user asked for a measurement.
    is_requested = options.workloads or options.even_if_identical or base.overrides or head.overrides
    may_skip = any(task.workload.paths for task in planned) and not is_requested
    evidence = list_evidence(config, planned, options.timing) if may_skip else []
    needed = [(kind.entry, kind.variant) for kind in evidence]
    needed += [(task.entry, task.variant.name) for task in (*tasks_to_trace, *tasks_to_time)]
    with store_at(change.repo, base.commit, config.baselines.folder, options.baselines, needed) as store:
        skipped = ConcernResult([], [])
        if evidence:
            trees = ChangedTrees(change.repo, *change.commits, config.baselines.folder, config.inert)
            skipped = find_unconcerned(trees, planned, evidence, store)
        skipped_entries = {workload.entry for workload in skipped.unconcerned}
        traced = [task for task in tasks_to_trace if task.entry not in skipped_entries]
        traces, warnings = stored_traces(store, [(task.entry, task.variant.name) for task in traced], base)
        timed = [
            _plan_timed_task(options, config, engine, task, store, warnings)
            for task in tasks_to_time
            if task.entry not in skipped_entries
        ]
    is_unconfined = (options.untrusted or config.sandbox.untrusted) and engine.sandbox is None
    changed = list_changed_files(change.repo, *change.commits, config.inert)
    changed_lines = list_changed_lines(change.repo, *change.commits)
    warnings = [*skipped.warnings, *warnings, *describe_unread(changed_lines)]
    header = SessionHeader(
        regbot=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base=base,
        head=head,
        workloads=entries,
        untraced=[task.entry for task in untraced],
        left_out=[task.entry for task in plan(config) if task.entry not in entries],
        timing=options.timing,
        command=options.command,
        timed=[timed_task.plan for timed_task in timed],
        stored=traces,
        seed=secrets.randbelow(2**32),  # decides the order of base and head in the blocks
        budget_min=(options.budget_min or config.session.budget_min) if timed else None,
        changed_files=changed.paths,
        repository=find_web_address(change.repo),
        changed_lines=changed_lines,
        inert_files=changed.inert,
        stand_ins=[workload.stand_ins for workload in config.workloads.values() if workload.stand_ins],
        expectations=[f"{expectation}: {expectation.reason}" for expectation in options.expectations],
        unconcerned=skipped.unconcerned,
        throughput=settings,
        sharding=config.sharding,
        program=config.program,
        wire=config.wire,
        warnings=[*change.warnings, *([NO_SANDBOX_WARNING] if is_unconfined else []), *warnings],
    )
    return CheckPlan(header, traced, timed)


def _plan_timed_task(
    options: CheckOptions, config: Config, engine: Engine, task: Task, store: Store, warnings: list[str]
) -> TimedTask:
    """Plan how ``task`` is timed. Warnings about its stored references are added to ``warnings``."""
    needs = needs_of(task)
    node = engine.describe(needs)
    confinement = ("confined",) if engine.sandbox is not None else ()
    timed_plan = plan_of(task, config.session)
    if node is not None:  # references belong to a node class
        timed_plan, reference_warnings = with_references(timed_plan, store, node.node_class)
        warnings += reference_warnings
    update = {
        "even_if_identical": options.even_if_identical,
        "more_pairs": options.more_pairs,
        "max_pairs": options.max_pairs,
        # Part of the speed of an arm, its luck, is drawn with the compiler caches. Small luck allows to keep them, but
        # not from night to night (``max_pairs``), because the anchor's would stay the same.
        "fresh_caches": options.max_pairs is not None or not is_luck_small(timed_plan.references),
    }
    return TimedTask(task, timed_plan.model_copy(update=update), node, (*engine.kind(needs), *confinement))
