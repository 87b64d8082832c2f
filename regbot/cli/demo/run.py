"""``regbot demo``: check a pull request whose effect is known, and compare the verdict with this effect.

By default the demo only traces each shape, on one mesh. ``timed`` also traces the other mesh, and times base and head.
"""

import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.check.conclusion import CheckResult
from regbot.check.flow import CheckOptions, check
from regbot.cli.demo.repository import DemoRepository, PullRequest, build_repository
from regbot.engines.health.machine import this_node
from regbot.ledgers.catalogue import ALL_TO_ALL_REPLACED
from regbot.records.config import FILE_NAME, Config, load_config
from regbot.records.meshes import MeshName
from regbot.records.text.printable import typed_path
from regbot.records.text.progress import Progress, Watcher
from regbot.records.verdict import EXIT_CODES, WorkloadVerdict
from regbot.workloads.paper import Readiness, readiness
from regbot.workloads.task import plan

MESH: MeshName = "ep"
"""The mesh of the default demo: one expert-parallel group of all ranks. The planted fallback costs most on it."""

BUDGET_MIN = 4.0
"""Time budget of the timed runs in minutes. Four pairs take about two minutes on two cores."""

PAPER_TRACE_S, CPU_TRACE_S = 5.0, 25.0
"""Seconds that one full trace takes on a paper GPU, and as a CPU program. Both were measured with two traces at the
same time, on an otherwise idle cloud machine with two cores."""

BUILD_S = 30.0
"""Seconds that a build of the paper GPU takes on the same machine."""


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo."""

    pull_request: PullRequest
    """The pull request to judge."""
    out: Path
    """Folder for the repository and the report."""
    cache: Path
    """Cache folder of this machine."""
    timed: bool = False
    """Whether to trace both meshes of every shape, and to time base and head."""
    config: Path | None = None
    """Configuration file to use instead of the repository's ``regbot.toml``."""


@dataclass(frozen=True)
class DemoResult:
    """Result of the demo. ``as_planted`` says whether the verdict matches the known effect of the pull request.

    ``message`` has the last lines of the demo's output, and ``seconds`` is its wall time.
    """

    check_result: CheckResult
    as_planted: bool
    message: str
    seconds: float


def run_demo(options: DemoOptions, watch: Watcher = lambda _: None) -> DemoResult:
    """Build the repository in ``out/repository``, check its pull request, and compare the verdict with its effect."""
    start = time.monotonic()
    repository_folder = options.out / "repository"
    if repository_folder.exists():
        shutil.rmtree(repository_folder)
    repository = build_repository(repository_folder, options.pull_request)
    mesh = None if options.timed else MESH  # None: all meshes of the configuration
    config = load_config(options.config or repository_folder / FILE_NAME)
    for line in announcement(options, repository, config, mesh):
        watch(Progress(0, 0, line, lasting=True))
    result = check(
        CheckOptions(
            repo=repository_folder,
            cache=options.cache,
            out=options.out,
            base=repository.base,
            head=repository.head,
            config=options.config,
            timing=options.timed,
            even_if_identical=True,  # also time a pull request that runs the same program as base
            budget_min=BUDGET_MIN,
            join=False,  # do not reuse pairs that an earlier demo has timed
            mesh=mesh,
            command="demo",
        ),
        watch,
    )
    as_planted = is_as_planted(options.pull_request, result.verdict.workloads, options.timed)
    seconds = time.monotonic() - start
    message = _write_conclusion(options, repository, result, as_planted, seconds)
    return DemoResult(result, as_planted, message, seconds)


def announcement(
    options: DemoOptions, repository: DemoRepository, config: Config, mesh: MeshName | None
) -> tuple[str, str]:
    """Return one line that says what the demo does, and one line that says how long this takes.

    If ``mesh`` is None, all meshes of the configuration are traced."""
    tasks = plan(config, mesh=mesh)
    parallel = min(config.local.parallel, this_node().cores)
    paper_gpu_state = readiness(sys.executable, options.cache)
    seconds = trace_seconds(len(tasks), parallel, paper_gpu_state)
    purpose_line = f'The demo judges the pull request "{repository.title}" to a small MoE repository.'
    cost_line = (
        f"It traces {2 * len(tasks)} programs, {parallel} at a time, without a GPU: about {seconds:.0f} s on "
        f"{parallel} free {'core' if parallel == 1 else 'cores'}{PAPER_GPU_REMARKS[paper_gpu_state]}"
    )
    timing_text = f"; then it times base and head in turn, for up to {BUDGET_MIN:g} minutes" if options.timed else ""
    return purpose_line, f"{cost_line}{timing_text}"


PAPER_GPU_REMARKS = {
    "built": "",
    "buildable": ", which includes building the paper GPU once",
    "missing": "; with a C++ compiler such as g++, a quarter of that",
}


def trace_seconds(tasks: int, parallel: int, paper_gpu_state: Readiness) -> float:
    """Return the estimated seconds to trace base and head of ``tasks`` tasks, rounded up to a multiple of 5.

    ``parallel`` is the number of traces at the same time, each on a free core. ``paper_gpu_state`` says whether the
    paper GPU is built. If it is missing, CPU programs are traced.
    """
    one_trace_s = CPU_TRACE_S if paper_gpu_state == "missing" else PAPER_TRACE_S
    build_s = BUILD_S if paper_gpu_state == "buildable" else 0.0
    total_s = build_s + 2 * tasks * one_trace_s / parallel
    return 5 * math.ceil(total_s / 5)


PLANTED: dict[PullRequest, str] = {
    "fallback": "an all-to-all that silently became all-gather + reduce-scatter",
    "harmless": "a refactoring that changes nothing",
    "slow": "a step that takes about 50% longer, with unchanged collectives",
}


def is_as_planted(pull_request: PullRequest, entries: Sequence[WorkloadVerdict], timed: bool) -> bool:
    """Return whether the verdict shows the known effect of the pull request. Return False if nothing was measured.

    ``entries`` are the workloads of the verdict. ``timed`` says whether base and head were timed. Without times, the
    slow pull request cannot be seen."""
    if not entries:
        return False
    if pull_request == "fallback":
        return all(_has_fallback(entry) for entry in entries)
    has_same_collectives = all(_has_same_collectives(entry) for entry in entries)
    if pull_request == "slow":
        return has_same_collectives and timed and any(_is_slower(entry) for entry in entries)
    # The harmless pull request changes nothing.
    has_same_programs = all(_has_same_program(entry) for entry in entries)
    return has_same_collectives and has_same_programs and not any(_is_slower(entry) for entry in entries)


def _write_conclusion(
    options: DemoOptions, repository: DemoRepository, result: CheckResult, as_planted: bool, seconds: float
) -> str:
    """Return the last lines of the demo: what was planted, whether regbot saw it, and where to read more."""
    comment_path, report_path = (typed_path(options.out / name) for name in ("comment.md", "report.html"))
    outcome = "regbot saw it" if as_planted else f"regbot {_describe_miss(result.verdict.workloads)}"
    verdict = result.verdict.verdict
    check_exit_text = f"`regbot check` exits with {EXIT_CODES[verdict]} for {verdict}"
    exit_text = f", so the demo exits with 0 ({check_exit_text})" if as_planted else ""
    lines = [
        f"Planted: {PLANTED[options.pull_request]}.",
        f"After {seconds:.0f} s {outcome}{exit_text}.",
        f"The pull request: git -C {typed_path(repository.path)} diff {repository.base_branch}...{repository.branch}",
        f"The comment on it: {comment_path}. All details, for a browser: {report_path}.",
    ]
    return "\n".join(lines)


def _describe_miss(entries: Sequence[WorkloadVerdict]) -> str:
    """Return why the verdict does not show the known effect: the machine is too noisy, or regbot has a bug."""
    throughput_sections = [entry.throughput for entry in entries if entry.throughput is not None]
    if any(section.decision == "undecided" for section in throughput_sections):
        return "could not decide on this machine, because it is too noisy now; stop other work and run the demo again"
    return "DID NOT SEE IT: please report this"


def _has_same_collectives(entry: WorkloadVerdict) -> bool:
    return entry.sharding is not None and entry.sharding.status == "PASS" and entry.validity.status == "PASS"


def _has_same_program(entry: WorkloadVerdict) -> bool:
    return entry.sharding is not None and entry.sharding.identical_program


def _is_slower(entry: WorkloadVerdict) -> bool:
    """Return whether the throughput verdict is FAIL, and a look decided it. The first look is after 4 pairs."""
    throughput = entry.throughput
    return throughput is not None and throughput.status == "FAIL" and throughput.pairs >= 4


def _has_fallback(entry: WorkloadVerdict) -> bool:
    """Return whether base has all-to-all payload and head has none, and a finding with FAIL names this change."""
    sharding = entry.sharding
    return (
        sharding is not None
        and sharding.base["all_to_all"].payload > 0
        and sharding.head["all_to_all"].payload == 0
        and any(finding.pattern == ALL_TO_ALL_REPLACED and finding.status == "FAIL" for finding in sharding.findings)
    )
