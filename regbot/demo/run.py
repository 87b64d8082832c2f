"""``regbot demo``: a check of a pull request whose effect is known, so that the answer can be held against it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from regbot.check import Checked, CheckOptions, check
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
    )
    checked = check(options, watch)
    entries = checked.verdict.workloads
    if pull_request == "fallback":
        seen = checked.verdict.verdict == "FAIL" and all(_fell_back(entry) for entry in entries)
        planted = "an all-to-all that silently became all-gather + reduce-scatter"
    else:
        seen = all(entry.sharding is not None and entry.sharding.status == "PASS" for entry in entries)
        planted = (
            "a refactoring that changes nothing"
            if pull_request == "harmless"
            else "a slower step with unchanged collectives, of which this half sees only the collectives"
        )
    lines = [
        f"Planted: {planted}. regbot {'saw it' if seen else 'DID NOT SEE IT: please report this'}.",
        f"The pull request: git -C {home} diff main...{repository.branch}",
    ]
    return DemoResult(checked, seen, "\n".join(lines))


def _fell_back(entry: WorkloadVerdict) -> bool:
    sharding = entry.sharding
    return (
        sharding is not None
        and sharding.base["all_to_all"].payload > 0
        and sharding.head["all_to_all"].payload == 0
        and any(finding.pattern == MAPPED_TWICE and finding.status == "FAIL" for finding in sharding.findings)
    )
