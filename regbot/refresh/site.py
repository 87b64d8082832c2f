"""What a refresh is given, what all its workloads share, and what one of them came to."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from regbot.baselines import Store
from regbot.checkout.git import try_git
from regbot.conclusion import Checked
from regbot.config import FILE_NAME, Config, ConfigError
from regbot.engines import Engine, open_engine
from regbot.nodes import Fitness, nodes_folder
from regbot.progress import Progress, Watcher
from regbot.records.baseline import AgainstAnchor, Anchor
from regbot.records.refresh import RefreshedWorkload
from regbot.records.run import Arm
from regbot.workloads import Task, needs_of


@dataclass(frozen=True)
class Options:
    """What ``refresh`` was given. ``store`` is a folder to write to at once; None proposes a branch of ``repo``, or the
    file ``proposal``."""

    repo: Path
    cache: Path
    out: Path
    who: str
    why: str = "refresh"
    rev: str = "HEAD"
    workloads: Sequence[str] = ()
    config: Path | None = None
    store: Path | None = None
    proposal: Path | None = None
    branch: str | None = None
    pairs: int | None = None
    """Of a night; None for as many as the noise on record asks for."""
    budget_min: float | None = None
    accept_pct: float | None = None
    resume: bool = False
    engine: str = "local"


@dataclass(frozen=True)
class Site:
    """What all workloads of a refresh share."""

    options: Options
    config: Config
    settings: Path
    """The configuration as a file, for the checks."""
    head: Arm
    store: Store
    planned: Sequence[Task]
    monitors: int
    watch: Watcher
    engine: Engine


@dataclass(frozen=True)
class Measured:
    """One workload's night, and the session it came from."""

    task: Task
    entries: list[str]
    """Its own, and those of its other meshes, which were traced with it."""
    node_class: str
    """That it was to be timed on, and that the anchor is of."""
    anchor: Anchor | None
    checked: Checked
    night: RefreshedWorkload
    tonight: AgainstAnchor | None


def settings_of(options: Options, head: Arm) -> str:
    """The text of the configuration: the file given, else that of the commit. Raises ConfigError."""
    if options.config is not None:
        try:
            return options.config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{options.config}: cannot be read: {error}") from error
    answer = try_git(options.repo, "show", f"{head.commit}:{FILE_NAME}")
    if answer.code != 0:
        raise ConfigError(f"{options.rev} has no {FILE_NAME}; commit one, or give --config FILE")
    return answer.out


def engine_of(options: Options, config: Config, watch: Watcher) -> AbstractContextManager[Engine]:
    """The engine that all workloads of a refresh are measured on. Raises ConfigError."""
    refused = Fitness(nodes_folder(options.cache), options.out).refused
    return open_engine(options.engine, config, options.cache, lambda said: watch(Progress(0, 0, said)), refused=refused)


def class_of(engine: Engine, task: Task) -> str:
    """Of the nodes that ``task`` will be timed on. Where nothing else tells it, a seat is taken and given back."""
    needs = needs_of(task)
    if (node := engine.describe(needs)) is not None:
        return node.node_class
    with engine.seat(needs) as seat:
        return seat.node.node_class
