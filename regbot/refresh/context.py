"""Data classes of a refresh: its options, the inputs that all workloads share, and the measurement of one
workload."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from regbot.baselines import Store
from regbot.check.conclusion import CheckResult
from regbot.config import Config, LoadedConfig
from regbot.engines import Engine, open_engine
from regbot.nodes import Fitness, nodes_folder
from regbot.records.baseline import Anchor, AnchorComparison
from regbot.records.refresh import WorkloadRefresh
from regbot.records.run import Arm
from regbot.text.progress import Progress, Watcher
from regbot.workloads import Task, needs_of


@dataclass(frozen=True)
class RefreshOptions:
    """Options of a refresh.

    If ``store`` is set, the refresh writes to that folder. Otherwise it creates a branch in ``repo``, or writes the
    file ``proposal_file``.
    """

    repo: Path
    cache: Path
    out: Path
    who: str
    why: str = "refresh"
    rev: str = "HEAD"
    workloads: Sequence[str] = ()
    config: Path | None = None
    store: Path | None = None
    proposal_file: Path | None = None
    branch: str | None = None
    pairs: int | None = None
    """Number of pairs per night. None for the number that the recorded noise requires."""
    budget_min: float | None = None
    accept_pct: float | None = None
    resume: bool = False
    engine: str = "local"
    no_sandbox: bool = False
    """Whether to run the code without a sandbox."""


@dataclass(frozen=True)
class RefreshSetup:
    """Inputs that all workloads of a refresh share."""

    options: RefreshOptions
    loaded: LoadedConfig
    head: Arm
    store: Store
    planned: Sequence[Task]
    monitors: int
    watch: Watcher
    engine: Engine


@dataclass(frozen=True)
class MeasuredNight:
    """Measurement of one workload in one night: its session, and the decision on it."""

    task: Task
    entries: list[str]
    """The entry of the workload, and the entries of its other meshes, which were traced in the same session."""
    node_class: str
    """The planned node class. The anchor belongs to the same node class."""
    anchor: Anchor | None
    checked: CheckResult
    night: WorkloadRefresh
    tonight: AnchorComparison | None


def open_refresh_engine(options: RefreshOptions, config: Config, watch: Watcher) -> AbstractContextManager[Engine]:
    """Open the engine that measures all workloads. It runs the code in a sandbox unless ``options.no_sandbox`` is set.

    Raises ConfigError, also if the code needs a sandbox and no sandbox works on this machine.
    """
    excluded_hosts = Fitness(nodes_folder(options.cache), options.out).quarantined_hosts
    return open_engine(
        options.engine,
        config,
        options.cache,
        lambda text: watch(Progress(0, 0, text)),
        untrusted=True,
        no_sandbox=options.no_sandbox,
        excluded_hosts=excluded_hosts,
        rotate=True,
    )


def find_node_class(engine: Engine, task: Task) -> str:
    """Return the class of the nodes that will time ``task``. If the engine does not know the class, reserve a seat and
    read the class of its node."""
    needs = needs_of(task)
    if (node := engine.describe(needs)) is not None:
        return node.node_class
    with engine.seat(needs) as seat:
        return seat.node.node_class
