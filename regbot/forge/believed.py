"""What of an artifact is believed: its runs, as far as they answer what the base's ``regbot.toml`` asks.

Its header was written where a pull request's code ran, or beside it. So it decides nothing: thresholds, workloads,
plans, declared changes and stored references are those of the base, and the commits are those that GitHub names. What
contradicts them makes the artifact unusable; a workload without runs is INVALID by the judge's own rules.
"""

from collections.abc import Iterator, Sequence

from regbot.config import Config, ConfigError
from regbot.forge.left import Unusable
from regbot.forge.metadata import Subject
from regbot.judge.clocks import impossible
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.report.markdown import Said
from regbot.workloads import Task, plan, plan_of, timed_tasks

MANY_GPUS = 2**20
"""As many as any variant wants."""
MAX_WARNINGS = 100
_OWN_PLAN = {"references", "no_reference", "more_pairs", "max_pairs", "even_if_identical"}
"""What differs between sessions of one plan: stored references are looked up again, the rest only says how much is
timed."""


def believed(session: Session, config: Config, subject: Subject, base: str) -> Session:
    """``session`` with the header that the base's configuration gives it. Raises Unusable, ConfigError."""
    header = session.header
    _compares(header, base, subject.sha)
    tasks = {task.entry: task for task in plan(config)}
    commands = [name for name, task in tasks.items() if task.workload.adapter == "command"]
    traced = [name for name in tasks if name not in commands]
    runs = [run for run in session.runs if subject.tier == "measured" or run.tier == "static"]
    for run in runs:
        if wrong := next(_another_question(run, tasks), None):
            raise Unusable(f"a run of {run.arm.name} answers another question: ", Said(wrong))
    timed: list[TimedPlan] = []
    if subject.tier == "measured":
        timed = _timed(header, config, list(tasks.values()), runs)
    elif not traced:
        raise Unusable("all workloads are commands, of which only step times can be measured")
    asked = [*traced, *commands] if subject.tier == "measured" else traced
    update = {
        "workloads": asked,
        "untraced": [name for name in commands if name in asked],
        "timed": timed,
        "stored": [],
        "expectations": [],
        "throughput": config.throughput,
        "sharding": config.sharding,
        "wire": config.wire,
        "warnings": header.warnings[:MAX_WARNINGS],
    }
    own = [run for run in runs if run.workload in asked]
    found = Session(header=header.model_copy(update=update), runs=own)
    if reasons := impossible(found, subject.job_s):
        raise Unusable("its times cannot be true: ", Said(reasons[0]))
    return found


def _compares(header: SessionHeader, base: str, head: str) -> None:
    """Whether it is of the two commits that it has to be of."""
    if (header.base.name, header.head.name) != ("base", "head"):
        raise Unusable("its arms are not base and head")
    for arm, commit in ((header.base, base), (header.head, head)):
        if arm.commit != commit:
            raise Unusable(f"it is of another {arm.name}: {arm.commit[:12]}, and {commit[:12]} is to be judged")
        if arm.overrides:
            raise Unusable(f"{arm.name} was run with overrides, which are no part of a commit")


def _another_question(run: Run, tasks: dict[str, Task]) -> Iterator[str]:
    """How a run is of something else than the workload that it names. One of no planned workload is left out later."""
    task = tasks.get(run.workload)
    if task is None:
        return
    told = [("shape", run.shape, task.shape.id), ("adapter", run.adapter, task.workload.adapter)]
    if run.tier == "static":
        told.append(("variant", run.variant, task.variant.name))
        size = run.ledger.world_size if run.ledger is not None else None
        ours = task.workload.adapter in ("smoke", "module")  # a framework's own recipe may be of another size
        if run.ledger is not None and (ours or (size is not None and not task.workload.recipe)):
            told.append(("world size", str(size), str(task.parallelism.world_size)))
    for word, was, planned in told:
        if was != planned:
            yield f"{run.workload} has the {word} {was[:80]}, and {planned} is planned"


def _timed(header: SessionHeader, config: Config, tasks: Sequence[Task], runs: Sequence[Run]) -> list[TimedPlan]:
    """The plans of what was timed. Which variant is timed depends on the node, and nothing else does."""
    gpus = max((len(run.node.gpus) for run in runs if run.node is not None), default=0)
    known = {count: _plans(config, tasks, count) for count in (0, gpus, MANY_GPUS)}
    plans = {each.entry: each for each in header.timed}
    if missing := sorted(known[gpus].keys() - plans.keys()):
        raise Unusable("", Said(missing[0]), " was to be timed, and was not")
    for entry, each in plans.items():
        if all(found.get(entry) != _bare(each) for found in known.values()):
            raise Unusable("", Said(entry), " was timed in another way than regbot.toml of the base asks")
    return list(plans.values())


def _plans(config: Config, tasks: Sequence[Task], gpus: int) -> dict[str, TimedPlan]:
    try:
        return {task.entry: _bare(plan_of(task, config.session)) for task in timed_tasks(config, tasks, gpus)}
    except ConfigError:  # it names a variant that so few GPUs cannot run
        return {}


def _bare(plan: TimedPlan) -> TimedPlan:
    """Without what differs between sessions of one plan."""
    return TimedPlan.model_validate(plan.model_dump(exclude=_OWN_PLAN))
