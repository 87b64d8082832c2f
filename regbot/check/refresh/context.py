"""Options of a refresh, and the measurement of one workload in one night."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.check.conclusion import CheckResult
from regbot.records.baseline import Anchor, AnchorComparison
from regbot.records.refresh import WorkloadRefresh
from regbot.workloads.task import Task


@dataclass(frozen=True)
class RefreshOptions:
    """Options of a refresh. ``store`` and ``proposal_file`` decide where the new references go."""

    repo: Path
    cache: Path
    out: Path
    who: str
    why: str = "refresh"
    rev: str = "HEAD"
    workloads: Sequence[str] = ()
    config: Path | None = None
    """Configuration file. None for the ``regbot.toml`` of ``rev``."""
    store: Path | None = None
    """Folder of baselines to read and to change. None to read the folder of ``rev`` and to propose the changes."""
    proposal_file: Path | None = None
    """File to write the proposal to. None to create a branch with the proposal in ``repo``."""
    branch: str | None = None
    """Name of the branch to create. None for a name with the date."""
    pairs: int | None = None
    """Number of pairs per night. None for the number that the recorded noise requires."""
    budget_min: float | None = None
    """Largest number of minutes for the measurement of a workload. None for no limit."""
    accept_pct: float | None = None
    """Slowdown against the anchor, in percent, that ``who`` accepts. None if no slowdown is accepted."""
    resume: bool = False
    """Whether to continue an interrupted refresh in ``out``."""
    engine: str = "local"
    no_sandbox: bool = False
    """Whether to run the code without a sandbox."""


@dataclass(frozen=True)
class MeasuredNight:
    """Measurement of one workload in one night: its session, and the decision on this session."""

    task: Task
    entries: list[str]
    """The entry of ``task``, and the entries of its workload on other meshes, which were traced in the same
    session."""
    node_class: str
    anchor: Anchor | None
    """The anchor before this night; None if the store has no anchor."""
    checked: CheckResult
    night: WorkloadRefresh
    tonight: AnchorComparison | None
    """The anchor's commit, and the log-ratios of main's step times over the anchor's; None without a valid pair."""
