"""What ``benchmarks/bisect.py`` holds regbot's search against: git bisect, git-bayesect, and the bound of any search.

Both peers are told what nobody knows, the level midway between good and bad: a run above it is a failure.
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
"""Of git-bayesect. It names its likeliest commit then."""

GIT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Search(NamedTuple):
    """What a peer named, a place from 1, and took."""

    named: int
    runs: int
    builds: int


# ---- git bisect


def tested(commits: int) -> int:
    """Of so many candidates in a line, from 1, the one that git bisect tests next: the middle, the earlier of two."""
    return 2 if commits == 3 else commits // 2  # of three it never looks at the first


def git_bisect(commits: int, fails: Callable[[int], bool]) -> tuple[int, list[int]]:
    """The culprit that git bisect names, and what it tests in turn. Good and bad themselves are never tested."""
    good, bad, steps = 0, commits, []
    while bad - good > 1:
        place = good + tested(bad - good)
        steps.append(place)
        if fails(place):
            bad = place
        else:
            good = place
    return bad, steps


def git_bisect_on(case: Case, repeats: int) -> Search:
    """git bisect run with a script that averages ``repeats`` runs of a commit."""
    noise = case.runs()

    def fails(place: int) -> bool:
        return float(noise.normal(case.level(place), SD, repeats).mean()) > case.ratio * SD / 2

    named, steps = git_bisect(case.commits, fails)
    return Search(named, repeats * len(steps), len(steps))


def real_git_bisect(folder: Path, commits: int, culprits: list[int]) -> Iterator[tuple[int, list[int]]]:
    """The same of ``git bisect run`` itself, in a repository with so many commits after its first.

    ``folder`` is an empty one to make it in. Raises CalledProcessError.
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
    """A line of commits for git fast-import; each has its place in a file."""
    for place in range(commits + 1):
        file, message = f"{place}\n", f"commit {place}"
        yield f"commit refs/heads/line\ncommitter A <a@example.org> {place} +0000\ndata {len(message)}\n{message}\n"
        yield f"M 100644 inline place\ndata {len(file)}\n{file}\n"


def same_as_git(commits: int, culprits: list[int]) -> str:
    """'' where ``git_bisect`` does what git does, else where they part."""
    with tempfile.TemporaryDirectory() as folder:
        for culprit, real in zip(culprits, real_git_bisect(Path(folder), commits, culprits), strict=True):
            ours = git_bisect(commits, partial(le, culprit))
            if ours != real:
                return f"{commits} commits, culprit {culprit}: git does {real}, and this file {ours}"
    return ""


# ---- git-bayesect


def bayesect_version() -> str | None:
    """None where it is not installed."""
    return version(BAYESECT) if find_spec("git_bayesect") is not None else None


def git_bayesect(case: Case) -> Search:
    """git-bayesect's selection, and its end at the posterior that regbot is asked for.

    Set up as by its command line: index 0 is the newest commit, good is the last, and may be named.
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
    """Bits that one run can tell: of a channel of two inputs ``ratio`` sds apart, with Gaussian noise."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)
    half = ratio / 2
    lost = np.log2(1 + np.exp(-2 * half * (half + nodes)))
    return 1 - float(weights @ lost) / sqrt(2 * pi)


def bound(commits: int, ratio: float) -> float:
    """Mean runs that no search can do with, right in ``POSTERIOR`` of the cases: Fano's inequality.

    For a search that knows both levels, and that there is a culprit.
    """
    error = 1 - POSTERIOR
    doubt = -(error * log(error) + POSTERIOR * log(POSTERIOR)) / log(2)
    return (POSTERIOR * log2(commits) - doubt) / capacity(ratio)
