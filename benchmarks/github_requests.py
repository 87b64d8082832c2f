"""Requests that one post sends to GitHub: many pull requests of one head, many artifacts, many comments.

    python benchmarks/github_requests.py [--pulls 1,5,20,100]

The posts run against the fake GitHub of the tests, which counts the requests. Nothing is retried. A post judges the run
of one pull request. All other pull requests have the same head and a verdict of their own, which the post has to take
into account. A job's token may send 1,000 requests an hour in a repository.

The benchmark compares each figure with a promise. The exit code is 1 if a promise is not kept.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from promises import Promise, report_promises

from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from regbot.github import checks
from regbot.github.metadata import PostRequest
from regbot.github.post import post
from regbot.github.types import NewCheck
from support.forge_cases import FALLBACK, Bench, build_text

MAX_REQUESTS = 40
ARTIFACTS, COMMENTS = 5_000, 2_400
"""GitHub refuses comments on a pull request that has 2,500 of them."""
STRANGERS = 100
"""Number of different accounts without a role that type a command."""


def open_pulls(bench: Bench, count: int) -> int:
    """Open ``count`` pull requests from one branch into as many base branches, and return the first. Every other one
    has a check run with a failing verdict."""
    first = bench.pull()
    main = str(bench.repo.git.branch("main"))
    for number in range(2, count + 1):
        bench.repo.git.set_ref(f"refs/heads/base-{number}", main)
        other = bench.repo.open_pull(head="topic", base=f"base-{number}", author="ann")
        text = build_text(other, bench.head(first), run=number, status="FAIL", text="### ❌ FAIL: another verdict\n")
        title, external_id = "self-reported FAIL", checks.format_external_id(other, bench.head(first))
        bench.forge.create_check(
            NewCheck("regbot", text.stamp.head, external_id, "completed", "failure", title, text.body())
        )
    return first


def comment(bench: Bench, number: int, count: int) -> None:
    """Write comments to a pull request. The first and the last are of somebody who may declare a change; some of the
    others are commands of strangers."""
    for index in range(count):
        is_command = index % (count // STRANGERS) == 0
        text = "/regbot expect all-to-all replaced by gather and sum@dp@*: meant" if is_command else "a comment"
        author = "bob" if index in (0, count - 1) else f"stranger-{index}"
        bench.repo.comment(number, author, text)


def count_requests(bench: Bench, number: int, run: FakeRun) -> int:
    """Post a run and what else the head lacks, and return the number of requests to the API."""
    bench.hub.requests.clear()
    post(bench.forge, PostRequest(str(number), run.id), bench.checkout)
    return sum(path.startswith("/repos/") for _, path, _ in bench.hub.requests)


def measure(case: str, pulls: int = 1, artifacts: int = 0, comments: int = 0) -> list[Promise]:
    """Return the requests of a self-reported and of a measured result in one repository, and of a repeated post.

    The measurement is INVALID. That costs most requests, because the earlier run is judged again.
    """
    with tempfile.TemporaryDirectory() as folder, FakeGitHub(Path(folder)) as hub:
        bench = Bench.make(hub, Path(folder))
        number = open_pulls(bench, pulls)
        session = bench.session(bench.head(number), theirs=FALLBACK)
        static = bench.static(number, session, title=f"regbot-static {number}")
        bench.repo.comment(number, "github-actions[bot]", build_text(number, "0" * 40).body())
        if comments:
            comment(bench, number, comments)
        measured = bench.measured(number, session)
        for run in (static, measured):
            for index in range(artifacts):
                run.artifact(f"log-{index}", b"")
        counts = {"self-reported": count_requests(bench, number, static)}
        bench.approve(number)
        for kind in ("measured", "the same again"):
            counts[kind] = count_requests(bench, number, measured)
    print(f"{case:62}" + "".join(f"{count:>16,}" for count in counts.values()), flush=True)
    return [Promise(f"{case}, {kind}", f"{count:,}", count <= MAX_REQUESTS) for kind, count in counts.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulls", default="1,5,20,100", help="numbers of pull requests with one head")
    pull_counts = [int(count) for count in parser.parse_args().pulls.split(",")]
    print(f"{'requests of one post':62}{'self-reported':>16}{'measured':>16}{'the same again':>16}")
    promises: list[Promise] = []
    for count in pull_counts:
        promises += measure(f"{count} pull requests of one head", pulls=count)
    promises += measure(f"{ARTIFACTS:,} other artifacts", artifacts=ARTIFACTS)
    promises += measure(f"{COMMENTS:,} comments, {STRANGERS} of them commands of strangers", comments=COMMENTS)
    everything = measure("all of these at once", max(pull_counts), ARTIFACTS, COMMENTS)
    return report_promises(
        [
            Promise(f"at most {MAX_REQUESTS} requests: {promise.text}", promise.measured, promise.kept)
            for promise in [*promises, *everything]
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
