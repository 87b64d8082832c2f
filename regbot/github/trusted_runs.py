"""Build a trusted session from an artifact: keep the runs, and write a new header.

A job that runs a pull request's code wrote the header in the artifact, so the header must not decide anything.
docs/security.md says where each field comes from instead. If the runs in the artifact contradict these fields, the
artifact is unusable. A workload without runs becomes INVALID when the session is judged.
"""

from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from regbot.github.artifact import UnusableArtifact
from regbot.github.metadata import Subject
from regbot.judge.clocks import find_impossible_times
from regbot.records.config import Config, ConfigError
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan, UnconcernedWorkload
from regbot.records.text.clip import clip, short_commit
from regbot.report.markdown import UntrustedText
from regbot.workloads.checkout.arms import resolve_exactly
from regbot.workloads.checkout.changed_lines import describe_unread, list_changed_lines
from regbot.workloads.checkout.changes import digest_behaviour, list_changed_files
from regbot.workloads.task import PAPER_ADAPTERS, SMALL_NODES, Task, plan, plan_of, timed_tasks

MAX_GPUS = 2**20
MAX_WARNINGS = 100
_UNCOMPARED_FIELDS = {"references", "no_reference", "more_pairs", "max_pairs", "even_if_identical", "fresh_caches"}
"""Fields of a ``TimedPlan`` that are not compared with the configuration. Stored references are looked up again when
the session is judged. The other fields decide how many pairs are timed, and with which caches. They may differ between
sessions with the same configuration."""


def build_trusted_session(
    session: Session,
    config: Config,
    subject: Subject,
    base: str,
    trees: Path,
    unconcerned: Sequence[UnconcernedWorkload] = (),
) -> Session:
    """Return the runs of ``session`` with a trusted header. Raises UnusableArtifact,
    ConfigError, CheckoutError.

    The repository ``trees`` has both. The artifact needs no runs of these entries.
    """
    header = session.header
    _check_commits(header, base, subject.sha)
    task_by_entry = {task.entry: task for task in plan(config)}
    # A workload with the adapter "command" is only timed. All others are traced, too.
    command_entries = [entry for entry, task in task_by_entry.items() if task.workload.adapter == "command"]
    traced_entries = [entry for entry in task_by_entry if entry not in command_entries]
    is_measured = subject.tier == "measured"
    runs = [run for run in session.runs if is_measured or run.tier == "static"]  # a static result has only traces
    for run in runs:
        mismatch = next(_find_mismatches(run, task_by_entry), None)
        if mismatch is not None:
            raise UnusableArtifact(f"a run of {run.arm.name} is not of the planned workload: ", UntrustedText(mismatch))
    timed_plans: list[TimedPlan] = []
    if is_measured:
        unconcerned_entries = {workload.entry for workload in unconcerned}
        timed_plans = _check_timed_plans(header, config, list(task_by_entry.values()), runs, unconcerned_entries)
    elif not traced_entries:
        raise UnusableArtifact("all workloads are commands, of which only step times can be measured")
    entries = [*traced_entries, *command_entries] if is_measured else traced_entries
    base_arm, head_arm, _ = resolve_exactly(trees, base, subject.sha)
    behaviour = digest_behaviour(trees, base, subject.sha, config.inert)
    changed = list_changed_files(trees, base, subject.sha, config.inert)
    changed_lines = list_changed_lines(trees, base, subject.sha)
    trusted_header = SessionHeader(
        regbot=header.regbot,
        created=subject.run.started.isoformat(timespec="seconds"),
        base=base_arm,
        head=head_arm.model_copy(update={"behaviour": behaviour}),
        workloads=entries,
        untraced=[entry for entry in command_entries if entry in entries],
        left_out=[entry for entry in task_by_entry if entry not in entries],
        timing=is_measured,
        timed=timed_plans,  # their references, and ``stored``, are added later from the store of the base commit
        budget_min=config.session.budget_min if timed_plans else None,
        changed_files=changed.paths,
        changed_lines=changed_lines,
        inert_files=changed.inert,
        stand_ins=[workload.stand_ins for workload in config.workloads.values() if workload.stand_ins],
        unconcerned=[workload for workload in unconcerned if workload.entry in entries],
        throughput=config.throughput,
        sharding=config.sharding,
        program=config.program,
        wire=config.wire,
        warnings=[*describe_unread(changed_lines), *header.warnings[:MAX_WARNINGS]],
    )
    kept_runs = [run for run in runs if run.workload in entries]
    trusted_session = Session(header=trusted_header, runs=kept_runs)
    # The runs cannot have taken longer than their job, which took at most ``job_s`` seconds by GitHub's clock.
    if reasons := find_impossible_times(trusted_session, subject.job_s):
        raise UnusableArtifact("its times cannot be true: ", UntrustedText(reasons[0]))
    return trusted_session


def _check_commits(header: SessionHeader, base: str, head: str) -> None:
    """Check that the session compares the expected commits. Raises UnusableArtifact.

    ``base`` and ``head`` are the commits that the session must compare.
    """
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
    """Yield how a run differs from the planned workload that it names.

    ``tasks`` has the planned workloads, by entry. For a workload that is not planned, nothing is yielded:
    ``build_trusted_session`` removes the runs of such a workload.
    """
    task = tasks.get(run.workload)
    if task is None:
        return
    properties = [("shape", run.shape, task.shape.id), ("adapter", run.adapter, task.workload.adapter)]
    if run.tier == "static":
        properties.append(("variant", run.variant, task.variant.name))
        if run.ledger is not None:
            world_size = run.ledger.world_size
            # The plan decides the world size of these adapters. A recipe, a configuration of a training framework,
            # keeps its own world size.
            has_fixed_size = task.workload.adapter in ("smoke", "module")
            has_planned_size = world_size is not None and not task.workload.recipe
            if has_fixed_size or has_planned_size:
                properties.append(("world size", str(world_size), str(task.parallelism.world_size)))
    for name, actual, planned in properties:
        if actual != planned:
            yield f"{run.workload} has the {name} {clip(actual, 80)}, but {planned} is planned"


def _check_timed_plans(
    header: SessionHeader, config: Config, tasks: Sequence[Task], runs: Sequence[Run], unconcerned: Set[str]
) -> list[TimedPlan]:
    """Return the configured plans of the workloads that the session timed or should have timed. Raises UnusableArtifact
    if the plans in the header are not allowed.

    Each plan must match the configuration of the base commit for some number of GPUs, because the choice of the variant
    depends on the node. With ``slurm.gpus_per_node``, a run may use fewer GPUs than its node has. Only entries in
    ``unconcerned`` may be missing. ``tasks`` are the planned workloads, and ``runs`` show the GPUs of the node.
    """
    gpus_of_runs = [len(run.node.gpus) for run in runs if run.node is not None]
    node_gpus = max(gpus_of_runs, default=0)
    planned_on_node, planned_on_largest = _plan_timed(config, tasks, node_gpus), _plan_timed(config, tasks, MAX_GPUS)
    paper_tasks = [task for task in tasks if task.workload.adapter in PAPER_ADAPTERS]
    # Every item has the allowed plans on a node of some size, by entry. On a small node, workloads of the adapters
    # smoke and module (PAPER_ADAPTERS) may run with fewer ranks.
    allowed_plans = [_plan_timed(config, tasks, 0), planned_on_node, planned_on_largest]
    allowed_plans += [_plan_timed(config, paper_tasks, gpus) for gpus in SMALL_NODES if gpus <= node_gpus]
    plans = {timed_plan.entry: _strip_plan(timed_plan) for timed_plan in header.timed}
    missing_entries = sorted(planned_on_node.keys() - plans.keys() - unconcerned)
    if missing_entries:
        # '' adds nothing to the reason, which begins with a name.
        raise UnusableArtifact("", UntrustedText(missing_entries[0]), " should have been timed, but was not")
    for entry, timed_plan in plans.items():
        if all(allowed.get(entry) != timed_plan for allowed in allowed_plans):
            raise UnusableArtifact("", UntrustedText(entry), " was not timed as regbot.toml of the base prescribes")
    if not gpus_of_runs or not planned_on_node:  # no run shows what the node can time, so it has to time everything
        plans = {entry: plan for entry, plan in planned_on_largest.items() if entry not in unconcerned} | plans
    return list(plans.values())


def _plan_timed(config: Config, tasks: Sequence[Task], gpus: int) -> dict[str, TimedPlan]:
    """Return the plan of each timed workload on a node with ``gpus`` GPUs, by entry. The plans are stripped
    (``_strip_plan``). The result is empty if a configured variant needs more than ``gpus`` GPUs."""
    try:
        return {task.entry: _strip_plan(plan_of(task, config.session)) for task in timed_tasks(config, tasks, gpus)}
    except ConfigError:
        return {}


def _strip_plan(plan: TimedPlan) -> TimedPlan:
    return TimedPlan.model_validate(plan.model_dump(exclude=_UNCOMPARED_FIELDS))
