"""The peers of ``benchmarks/bisect.py``: git bisect, git-bayesect, and a lower bound on the runs of any search.

Both tools get a number that nobody knows in practice: the level midway between good and bad. A run above this level is
a failure.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from math import log, log2, pi, sqrt
from operator import le
from pathlib import Path
from typing import NamedTuple

import numpy as np
from culprits import POSTERIOR, SD, Case

BAYESECT = "git-bayesect"
MOST_RUNS = 400
"""Limit on the runs of git-bayesect. At this limit it names its most probable commit."""

GIT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Search(NamedTuple):
    """Result and cost of a peer's search. ``named`` is the position of the named commit, from 1."""

    named: int
    runs: int
    builds: int


# ---- git bisect


def next_tested(commits: int) -> int:
    """Return which of ``commits`` candidates git bisect tests next, from 1: the middle one, or the earlier of two."""
    return 2 if commits == 3 else commits // 2  # git bisect never tests the first of three candidates


def git_bisect(commits: int, fails: Callable[[int], bool]) -> tuple[int, list[int]]:
    """Return the culprit that git bisect names, and the positions that it tests. It never tests good or bad itself."""
    good, bad, steps = 0, commits, []
    while bad - good > 1:
        place = good + next_tested(bad - good)
        steps.append(place)
        if fails(place):
            bad = place
        else:
            good = place
    return bad, steps


def git_bisect_on(case: Case, repeats: int) -> Search:
    """Simulate ``git bisect run`` with a script that averages ``repeats`` runs of each commit."""
    noise = case.runs()

    def fails(place: int) -> bool:
        return float(noise.normal(case.level(place), SD, repeats).mean()) > case.ratio * SD / 2

    named, steps = git_bisect(case.commits, fails)
    return Search(named, repeats * len(steps), len(steps))


def real_git_bisect(folder: Path, commits: int, culprits: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield the result of the real ``git bisect run`` for each culprit, in the form of ``git_bisect``.

    A repository with ``commits`` commits after the first one is created in the empty ``folder``. Raises
    CalledProcessError.
    """

    def git(*arguments: str, text: str | None = None) -> str:
        command = ("git", *arguments)
        done = subprocess.run(command, cwd=folder, env=GIT, input=text, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "--quiet")
    git("fast-import", "--quiet", text="".join(_history(commits)))
    git("checkout", "--quiet", "line")
    ids = git("rev-list", "--reverse", "line").split()
    for culprit in culprits:
        git("bisect", "start", ids[-1], ids[0])
        git("bisect", "run", "sh", "-c", f"cat place >>.git/tested; test $(cat place) -lt {culprit}")
        named = ids.index(git("rev-parse", "refs/bisect/bad").strip())
        steps = [int(line) for line in (folder / ".git" / "tested").read_text().split()]
        git("bisect", "reset")
        (folder / ".git" / "tested").unlink()
        yield named, steps


def _history(commits: int) -> Iterator[str]:
    """Yield a linear history for git fast-import. The file ``place`` has the position of each commit."""
    for place in range(commits + 1):
        file, message = f"{place}\n", f"commit {place}"
        yield f"commit refs/heads/line\ncommitter A <a@example.org> {place} +0000\ndata {len(message)}\n{message}\n"
        yield f"M 100644 inline place\ndata {len(file)}\n{file}\n"


def find_difference_from_git(commits: int, culprits: list[int]) -> str:
    """Return how ``git_bisect`` differs from the real git bisect; '' if both give the same results."""
    with tempfile.TemporaryDirectory() as folder:
        for culprit, real in zip(culprits, real_git_bisect(Path(folder), commits, culprits), strict=True):
            ours = git_bisect(commits, partial(le, culprit))
            if ours != real:
                return f"{commits} commits, culprit {culprit}: git does {real}, and this file {ours}"
    return ""


# ---- git-bayesect


def bayesect_version() -> str | None:
    """Return the version of git-bayesect; None if it is not installed."""
    return version(BAYESECT) if find_spec("git_bayesect") is not None else None


def git_bayesect(case: Case) -> Search:
    """Search with git-bayesect until one commit has the posterior that regbot must reach too.

    The search is set up as by the command line of git-bayesect. Index 0 is the newest commit. The last index is good,
    and git-bayesect may name it.
    """
    from git_bayesect import Bisector

    noise = case.runs()
    bisector = Bisector(np.ones(case.commits + 1))
    built = set()
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(MOST_RUNS):
            index = bisector.select()
            place = case.commits - index
            built.add(place)
            bisector.record(index, bool(noise.normal(case.level(place), SD) > case.ratio * SD / 2))
            if bisector.distribution.max() >= POSTERIOR:
                break
    named = case.commits - int(np.argmax(bisector.distribution))
    return Search(named, bisector.num_total_observations, len(built))


# ---- the bound


def capacity(ratio: float) -> float:
    """Return the largest information of one run in bits: the capacity of a channel with Gaussian noise and two inputs.

    The inputs are ``ratio`` standard deviations of the noise apart.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)
    half = ratio / 2
    lost = np.log2(1 + np.exp(-2 * half * (half + nodes)))
    return 1 - float(weights @ lost) / sqrt(2 * pi)


def bound(commits: int, ratio: float) -> float:
    """Return a lower bound on the mean runs of any search that is right in ``POSTERIOR`` of the cases.

    The bound is Fano's inequality, for a search that knows both levels and knows that there is a culprit.
    """
    error = 1 - POSTERIOR
    doubt = -(error * log(error) + POSTERIOR * log(POSTERIOR)) / log(2)
    return (POSTERIOR * log2(commits) - doubt) / capacity(ratio)
