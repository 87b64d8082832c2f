"""``regbot demo``: check a pull request whose effect is known, and compare the verdict with it.

By default the demo only traces, on one mesh of every shape; ``timed`` adds the other mesh and timed runs.
"""

import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.check import CheckOptions, check
from regbot.conclusion import Checked
from regbot.config import FILE_NAME, Config, load_config
from regbot.demo.repository import DemoRepository, PullRequest, build_repository
from regbot.ledgers.catalogue import MAPPED_TWICE
from regbot.node import this_node
from regbot.paper import Readiness, readiness
from regbot.progress import Progress, Watcher
from regbot.records.verdict import WorkloadVerdict
from regbot.shapes import MeshName
from regbot.text import typed_path
from regbot.workloads import plan

MESH: MeshName = "ep"
"""Traced by default: an expert-parallel group over all ranks, where the planted fallback costs the most."""

BUDGET_MIN = 4.0
"""Minutes of timed runs: four pairs on two cores take about two."""

PAPER_TRACE_S, CPU_TRACE_S = 5.0, 25.0
"""Seconds of one full trace while another runs beside it, on a cloud machine with two cores and nothing else to do: on
a paper GPU, and as a CPU program."""

BUILD_S = 30.0
"""Seconds that the build of the paper GPU takes there."""


@dataclass(frozen=True)
class DemoOptions:
    """What to demonstrate, and where. ``config`` replaces the ``regbot.toml`` of the repository."""

    pull_request: PullRequest
    out: Path
    cache: Path
    timed: bool = False
    config: Path | None = None


@dataclass(frozen=True)
class DemoResult:
    """The check, and whether its verdict is that of the planted effect. ``seconds`` is the wall time of the demo."""

    checked: Checked
    as_planted: bool
    message: str
    seconds: float


def run_demo(options: DemoOptions, watch: Watcher = lambda _: None) -> DemoResult:
    """Build the repository in ``out/repository``, check its pull request, compare the verdict with what was planted."""
    start = time.monotonic()
    home = options.out / "repository"
    if home.exists():
        shutil.rmtree(home)
    repository = build_repository(home, options.pull_request)
    mesh = None if options.timed else MESH
    for line in announcement(options, repository, load_config(options.config or home / FILE_NAME), mesh):
        watch(Progress(0, 0, line, lasting=True))
    checked = check(
        CheckOptions(
            repo=home,
            cache=options.cache,
            out=options.out,
            base=repository.base,
            head=repository.head,
            config=options.config,
            timing=options.timed,
            even_if_identical=True,
            budget_min=BUDGET_MIN,
            join=False,  # every demo is measured for itself
            mesh=mesh,
            command="demo",
        ),
        watch,
    )
    as_planted = is_as_planted(options.pull_request, checked.verdict.workloads, options.timed)
    seconds = time.monotonic() - start
    return DemoResult(checked, as_planted, _conclusion(options, repository, checked, as_planted, seconds), seconds)


def announcement(
    options: DemoOptions, repository: DemoRepository, config: Config, mesh: MeshName | None
) -> tuple[str, str]:
    """Return what the demo is about to do, and what that costs."""
    tasks = plan(config, mesh=mesh)
    parallel = min(config.local.parallel, this_node().cores)
    state = readiness(sys.executable, options.cache)
    seconds = trace_seconds(len(tasks), parallel, state)
    what = f'judges the pull request "{repository.title}" to a small MoE repository'
    cost = (
        f"traces {2 * len(tasks)} programs, {parallel} at a time: about {seconds:.0f} s on "
        f"{parallel} free {'core' if parallel == 1 else 'cores'}{REMARKS[state]}"
    )
    timed = f"; then times base and head in turn, for up to {BUDGET_MIN:g} minutes" if options.timed else ""
    return what, f"{cost}{timed}"


REMARKS = {
    "built": "",
    "buildable": ", the build of the paper GPU included",
    "missing": "; a C++ compiler, such as g++, would make it a quarter",
}


def trace_seconds(tasks: int, parallel: int, state: Readiness) -> float:
    """Seconds that base and head of ``tasks`` take on ``parallel`` free cores, rounded up to a multiple of 5."""
    total = 2 * tasks * (CPU_TRACE_S if state == "missing" else PAPER_TRACE_S)
    return 5 * math.ceil((total / parallel + (BUILD_S if state == "buildable" else 0.0)) / 5)


PLANTED: dict[PullRequest, str] = {
    "fallback": "an all-to-all that silently became all-gather + reduce-scatter",
    "harmless": "a refactoring that changes nothing",
    "slow": "a step about half as long again, with unchanged collectives",
}


def is_as_planted(pull_request: PullRequest, entries: Sequence[WorkloadVerdict], timed: bool) -> bool:
    """Whether the verdict shows the planted effect. A check that measured nothing never does."""
    if not entries:
        return False
    if pull_request == "fallback":
        return all(_fell_back(entry) for entry in entries)
    unchanged = all(_same_collectives(entry) for entry in entries)
    if pull_request == "slow":
        return unchanged and timed and any(_slower(entry) for entry in entries)
    return unchanged and all(_same_program(entry) and not _slower(entry) for entry in entries)


def _conclusion(
    options: DemoOptions, repository: DemoRepository, checked: Checked, as_planted: bool, seconds: float
) -> str:
    comment, report = (typed_path(options.out / name) for name in ("comment.md", "report.html"))
    seen = "regbot saw it" if as_planted else f"regbot {_not_seen(checked.verdict.workloads)}"
    code = ", so the demo exits with 0 (`regbot check` would give the verdict's own code)" if as_planted else ""
    lines = [
        f"Planted: {PLANTED[options.pull_request]}.",
        f"After {seconds:.0f} s {seen}{code}.",
        f"The pull request: git -C {typed_path(repository.path)} diff {repository.base_branch}...{repository.branch}",
        f"The comment on it: {comment}. All details, for a browser: {report}.",
    ]
    return "\n".join(lines)


def _not_seen(entries: Sequence[WorkloadVerdict]) -> str:
    """A machine too noisy to decide is not a fault of regbot, and has words of its own."""
    timed = [entry.throughput for entry in entries if entry.throughput is not None]
    if any(section.decision == "undecided" for section in timed):
        return "could not decide it on this machine now (see the noise above); end other work and run it again"
    return "DID NOT SEE IT: please report this"


def _same_collectives(entry: WorkloadVerdict) -> bool:
    return entry.sharding is not None and entry.sharding.status == "PASS" and entry.validity.status == "PASS"


def _same_program(entry: WorkloadVerdict) -> bool:
    return entry.sharding is not None and entry.sharding.identical_program


def _slower(entry: WorkloadVerdict) -> bool:
    return entry.throughput is not None and entry.throughput.status == "FAIL" and entry.throughput.pairs >= 4


def _fell_back(entry: WorkloadVerdict) -> bool:
    sharding = entry.sharding
    return (
        sharding is not None
        and sharding.base["all_to_all"].payload > 0
        and sharding.head["all_to_all"].payload == 0
        and any(finding.pattern == MAPPED_TWICE and finding.status == "FAIL" for finding in sharding.findings)
    )
