"""Build a trusted session from an artifact: keep the runs, and replace the header.

A job that runs a pull request's code wrote the header in the artifact, so the header must not decide anything.
Thresholds, workloads, plans and stored references come from the base commit. The commits come from GitHub. If the runs
in the artifact contradict these, the artifact is unusable. A workload without runs becomes INVALID when the session is
judged.
"""

from collections.abc import Iterator, Sequence, Set

from regbot.config import Config, ConfigError
from regbot.github.metadata import Subject
from regbot.github.run_artifact import UnusableArtifact
from regbot.judge.clocks import find_impossible_times
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan, UnconcernedWorkload
from regbot.report.markdown import UntrustedText
from regbot.text.clip import clip, short_commit
from regbot.workloads import PAPER_ADAPTERS, SMALL_NODES, Task, plan, plan_of, timed_tasks

MAX_GPUS = 2**20
"""A number of GPUs that is larger than any variant needs."""
MAX_WARNINGS = 100
"""Largest number of warnings that are taken from the artifact's header."""
_UNCOMPARED_FIELDS = {"references", "no_reference", "more_pairs", "max_pairs", "even_if_identical", "fresh_caches"}
"""Fields of a ``TimedPlan`` that are not compared with the configuration. Stored references are looked up again when
the session is judged. The other fields decide how many pairs are timed, and with which caches. They may differ between
sessions with the same configuration."""


def build_trusted_session(
    session: Session, config: Config, subject: Subject, base: str, unconcerned: Sequence[UnconcernedWorkload] = ()
) -> Session:
    """Return ``session`` with the header that the configuration of the base commit prescribes. Raises UnusableArtifact,
    ConfigError.

    ``subject``: the measured commit. ``base``: its base commit. ``unconcerned``: the entries that the change does not
    concern, from ``regbot.check.concern``. The artifact needs no runs of these entries.
    """
    header = session.header
    _check_commits(header, base, subject.sha)
    tasks = {task.entry: task for task in plan(config)}
    commands = [name for name, task in tasks.items() if task.workload.adapter == "command"]
    traced = [name for name in tasks if name not in commands]
    runs = [run for run in session.runs if subject.tier == "measured" or run.tier == "static"]
    for run in runs:
        if mismatch := next(_find_mismatches(run, tasks), None):
            raise UnusableArtifact(f"a run of {run.arm.name} is not of the planned workload: ", UntrustedText(mismatch))
    timed: list[TimedPlan] = []
    if subject.tier == "measured":
        timed = _check_timed_plans(
            header, config, list(tasks.values()), runs, {workload.entry for workload in unconcerned}
        )
    elif not traced:
        raise UnusableArtifact("all workloads are commands, of which only step times can be measured")
    entries = [*traced, *commands] if subject.tier == "measured" else traced
    update = {
        "workloads": entries,
        "untraced": [name for name in commands if name in entries],
        "timed": timed,
        "stored": [],
        "expectations": [],
        "unconcerned": [workload for workload in unconcerned if workload.entry in entries],
        "throughput": config.throughput,
        "sharding": config.sharding,
        "wire": config.wire,
        "warnings": header.warnings[:MAX_WARNINGS],
    }
    kept_runs = [run for run in runs if run.workload in entries]
    trusted = Session(header=header.model_copy(update=update), runs=kept_runs)
    if reasons := find_impossible_times(trusted, subject.job_s):
        raise UnusableArtifact("its times cannot be true: ", UntrustedText(reasons[0]))
    return trusted


def _check_commits(header: SessionHeader, base: str, head: str) -> None:
    """Check that the session compares the expected commits. Raises UnusableArtifact."""
    if (header.base.name, header.head.name) != ("base", "head"):
        raise UnusableArtifact("its arms are not base and head")
    for arm, commit in ((header.base, base), (header.head, head)):
        if arm.commit != commit:
            raise UnusableArtifact(
                f"its {arm.name} is {short_commit(arm.commit)}, but {short_commit(commit)} has to be judged"
            )
        if arm.overrides:
            raise UnusableArtifact(f"{arm.name} ran with overrides, which are not part of a commit")


def _find_mismatches(run: Run, tasks: dict[str, Task]) -> Iterator[str]:
    """Yield how a run differs from the planned workload that it names. For a workload that is not planned, nothing is
    yielded: ``build_trusted_session`` removes its runs."""
    task = tasks.get(run.workload)
    if task is None:
        return
    properties = [("shape", run.shape, task.shape.id), ("adapter", run.adapter, task.workload.adapter)]
    if run.tier == "static":
        properties.append(("variant", run.variant, task.variant.name))
        size = run.ledger.world_size if run.ledger is not None else None
        # The plan decides the world size of these adapters. A recipe may have another world size.
        has_fixed_size = task.workload.adapter in ("smoke", "module")
        if run.ledger is not None and (has_fixed_size or (size is not None and not task.workload.recipe)):
            properties.append(("world size", str(size), str(task.parallelism.world_size)))
    for name, actual, planned in properties:
        if actual != planned:
            yield f"{run.workload} has the {name} {clip(actual, 80)}, but {planned} is planned"


def _check_timed_plans(
    header: SessionHeader, config: Config, tasks: Sequence[Task], runs: Sequence[Run], unconcerned: Set[str]
) -> list[TimedPlan]:
    """Return the plans of the timed workloads in the header. Raises UnusableArtifact if they are not allowed.

    Each plan must match the configuration of the base commit for some number of GPUs, because the choice of the variant
    depends on the node. With ``slurm.gpus_per_node``, a run may use fewer GPUs than its node has. Only entries in
    ``unconcerned`` may be missing.
    """
    node_gpus = max((len(run.node.gpus) for run in runs if run.node is not None), default=0)
    planned = {gpus: _plan_timed(config, tasks, gpus) for gpus in (0, node_gpus, MAX_GPUS)}
    paper_tasks = [task for task in tasks if task.workload.adapter in PAPER_ADAPTERS]
    planned_on_small_nodes = [_plan_timed(config, paper_tasks, gpus) for gpus in SMALL_NODES if gpus <= node_gpus]
    allowed_plans = [*planned.values(), *planned_on_small_nodes]
    plans = {timed_plan.entry: timed_plan for timed_plan in header.timed}
    if missing_entries := sorted(planned[node_gpus].keys() - plans.keys() - unconcerned):
        raise UnusableArtifact("", UntrustedText(missing_entries[0]), " should have been timed, but was not")
    for entry, timed_plan in plans.items():
        if all(allowed.get(entry) != _strip_plan(timed_plan) for allowed in allowed_plans):
            raise UnusableArtifact("", UntrustedText(entry), " was not timed as regbot.toml of the base prescribes")
    return list(plans.values())


def _plan_timed(config: Config, tasks: Sequence[Task], gpus: int) -> dict[str, TimedPlan]:
    """Return the plan of each timed workload on a node with ``gpus`` GPUs, by entry."""
    try:
        return {task.entry: _strip_plan(plan_of(task, config.session)) for task in timed_tasks(config, tasks, gpus)}
    except ConfigError:  # the configuration names a variant that needs more GPUs
        return {}


def _strip_plan(plan: TimedPlan) -> TimedPlan:
    """Return the plan with ``_UNCOMPARED_FIELDS`` at their defaults."""
    return TimedPlan.model_validate(plan.model_dump(exclude=_UNCOMPARED_FIELDS))
