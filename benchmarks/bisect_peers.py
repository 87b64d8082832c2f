"""The peers of ``benchmarks/bisect.py``: git-bayesect, and a lower bound on the runs of any search."""

from importlib.metadata import version
from importlib.util import find_spec
from math import log, log2, pi, sqrt
from typing import NamedTuple

import numpy as np
from culprits import SD, Case

from regbot.bisect.noisy import POSTERIOR

BAYESECT = "git-bayesect"
MOST_RUNS = 400
"""Limit on the runs of git-bayesect. At this limit it names its most probable commit."""


class Search(NamedTuple):
    """Result and cost of a peer's search. ``named`` is the position of the named commit, from 1."""

    named: int
    runs: int
    builds: int


def bayesect_version() -> str | None:
    """Return the version of git-bayesect; None if it is not installed."""
    return version(BAYESECT) if find_spec("git_bayesect") is not None else None


def git_bayesect(case: Case) -> Search:
    """Search with git-bayesect until one commit has the posterior that regbot must reach too.

    The search is set up as by the command line of git-bayesect. It gets a number that nobody knows in practice: the
    level midway between good and bad. A run above this level is a failure. Index 0 is the newest commit. The last index
    is good, and git-bayesect may name it.
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
