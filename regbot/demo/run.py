"""``regbot demo``: a check of a pull request whose effect is known, so that the answer can be held against it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from regbot.check import CheckOptions, check
from regbot.conclusion import Checked
from regbot.demo.repository import PullRequest, build_repository
from regbot.ledgers.catalogue import MAPPED_TWICE
from regbot.progress import Watcher
from regbot.records.verdict import WorkloadVerdict

BUDGET_MIN = 4.0
"""Minutes of timed runs: four pairs on two cores take about two."""


@dataclass(frozen=True)
class DemoResult:
    """What regbot said, and whether that is what was planted."""

    checked: Checked
    as_planted: bool
    message: str


def run_demo(pull_request: PullRequest, out: Path, cache: Path, watch: Watcher = lambda _: None) -> DemoResult:
    """Build the repository in ``out/repository``, check its pull request, compare the verdict with what was planted."""
    home = out / "repository"
    if home.exists():
        shutil.rmtree(home)
    repository = build_repository(home, pull_request)
    options = CheckOptions(
        repo=home,
        cache=cache,
        out=out,
        base=repository.base,
        head=repository.head,
        even_if_identical=True,
        budget_min=BUDGET_MIN,
        join=False,  # every demo is measured for itself
    )
    checked = check(options, watch)
    entries = checked.verdict.workloads
    if pull_request == "fallback":
        seen = checked.verdict.verdict == "FAIL" and all(_fell_back(entry) for entry in entries)
        planted = "an all-to-all that silently became all-gather + reduce-scatter"
    elif pull_request == "slow":
        seen = all(_same_collectives(entry) for entry in entries) and any(_slower(entry) for entry in entries)
        planted = "a step about half as long again, with unchanged collectives"
    else:
        seen = all(_same_collectives(entry) and not _slower(entry) for entry in entries)
        planted = "a refactoring that changes nothing"
    lines = [
        f"Planted: {planted}. regbot {'saw it' if seen else _not_seen(entries)}.",
        f"The pull request: git -C {home} diff main...{repository.branch}",
    ]
    return DemoResult(checked, seen, "\n".join(lines))


def _not_seen(entries: list[WorkloadVerdict]) -> str:
    """A machine too noisy to decide is not a fault of regbot, and is told apart from one."""
    timed = [entry.throughput for entry in entries if entry.throughput is not None]
    if any(section.decision == "undecided" for section in timed):
        return "could not decide it on this machine now (see the noise above); end other work and run it again"
    return "DID NOT SEE IT: please report this"


def _same_collectives(entry: WorkloadVerdict) -> bool:
    return entry.sharding is not None and entry.sharding.status == "PASS" and entry.validity.status == "PASS"


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
