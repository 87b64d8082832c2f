"""How often regbot's bisection is right and what it costs, beside git-bayesect and a bound for any search.

    python benchmarks/bisect.py [--cases 300] [--jobs 2] [--quick] [--without-peer]

All methods bisect the same simulated ranges and runs (``culprits.py``). A range has 16 to 1024 candidates and a
slowdown of 2, 3 or 5 standard deviations (sds) of a run. Every tenth range has no culprit. regbot is told only the
noise of a run. The exit code is 0 only if every promise holds.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from math import exp, fsum, log
from statistics import fmean
from typing import Any

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # each core has its own process, so more threads of numpy would only wait

import numpy as np
from bisect_peers import BAYESECT, Search, bayesect_version, bound, git_bayesect
from culprits import (
    CHECK_PAIRS,
    NO_CULPRIT_EVERY,
    SEED,
    UNDERSTATED,
    BisectResult,
    Case,
    bisect,
    with_check,
    with_understated_noise,
)
from promises import Promise, report_promises

from regbot.stats.calibration import rate_bounds

RANGES = (16, 64, 256, 1024)
RATIOS = (2.0, 3.0, 5.0)
CASES, QUICK = 300, 50
PEER_CASES = {16: 150, 64: 120, 256: 80, 1024: 40}
CHUNK = 5

LEAST_RIGHT = 0.95
LEAST_RIGHT_OF_NAMED = 0.9
"""Smallest share of right names among all names if the noise is understated."""
MOST_FALSE = 0.03
MOST_OF_PEER = 0.8
PEER_RATIO = 2.0
"""The promises about git-bayesect, and those after a check, are about this slowdown, in sds of a run."""
LEAST_SAVED = 1 / 3
"""Smallest share of the runs that a check in the same session saves."""

REGBOT, SAME_SESSION, TOLD_LESS = "regbot", "after a check", f"true noise x{UNDERSTATED:g}"

Cell = tuple[int, float]
"""Number of commits, and the slowdown in sds of a run."""

Results = Mapping[tuple[str, Cell], Sequence[Any]]
"""Results by method and cell, in the order of the cases."""

METHODS: dict[str, Callable[[Case], BisectResult | Search]] = {
    REGBOT: bisect,
    SAME_SESSION: with_check,
    TOLD_LESS: with_understated_noise,
    BAYESECT: git_bayesect,
}
CELLS: list[Cell] = [(commits, ratio) for ratio in RATIOS for commits in RANGES]
CHECKED_CELL: Cell = (64, PEER_RATIO)
"""Cell of the searches after a check, and of those with an understated noise."""


def count_cases(method: str, cell: Cell, cases: int) -> int:
    """Return how many cases of a cell a method bisects."""
    if method in (SAME_SESSION, TOLD_LESS):
        return cases if cell == CHECKED_CELL else 0
    return min(cases, PEER_CASES[cell[0]]) if method == BAYESECT else cases


def bisect_cases(method: str, cell: Cell, first: int, end: int) -> list[BisectResult | Search]:
    """Bisect the cases ``first`` to ``end - 1`` of a cell."""
    return [METHODS[method](Case(*cell, number)) for number in range(first, end)]


def run_all(cases: int, jobs: int, without: Sequence[str]) -> Results:
    """Run every method on every cell, in chunks on ``jobs`` processes. The results do not depend on ``jobs``."""
    work = [
        (method, cell, first, end)
        for cell in sorted(CELLS, reverse=True)  # the longest tasks first
        for method in METHODS
        if method not in without
        for first, end in pairwise(
            [*range(0, count_cases(method, cell, cases), CHUNK), count_cases(method, cell, cases)]
        )
    ]
    results: dict[tuple[str, Cell], list[BisectResult | Search]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        chunks = pool.map(bisect_cases, *zip(*work, strict=True))
        for (method, cell, _, _), chunk in zip(work, chunks, strict=True):
            results.setdefault((method, cell), []).extend(chunk)
    return results


# ---- counts


def culprit_of(cell: Cell, number: int) -> int | None:
    return Case(*cell, number).culprit


def count_right(results: Results, method: str, cell: Cell, field: str) -> tuple[int, int]:
    """Return the number of right results and of all results."""
    judged = [getattr(result, field) == culprit_of(cell, number) for number, result in enumerate(results[method, cell])]
    return sum(judged), len(judged)


def count_right_of_named(results: Results, method: str, cell: Cell) -> tuple[int, int]:
    """Return the number of cases whose answer is the right commit, and of all cases whose answer is a commit."""
    answers = [(result.answer, culprit_of(cell, number)) for number, result in enumerate(results[method, cell])]
    judged = [place == truth for place, truth in answers if place not in (None, -1)]
    return sum(judged), len(judged)


def count_false(results: Results, method: str, cell: Cell, field: str) -> tuple[int, int]:
    """Return the number of cases without a culprit in which one was named, and of all cases without a culprit.

    A search that reached the limit of its runs names no culprit.
    """
    cases = enumerate(results[method, cell])
    named = [getattr(result, field) for number, result in cases if culprit_of(cell, number) is None]
    return sum(place not in (None, -1) for place in named), len(named)


def pooled(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(count for count, _ in counts), sum(total for _, total in counts)


def search_runs(results: Results, method: str, cell: Cell, first: int | None = None) -> float:
    """Return the mean number of search runs of the cases with a culprit, among the ``first`` cases or among all."""
    cases = enumerate(results[method, cell][:first])
    with_culprit = [result for number, result in cases if culprit_of(cell, number) is not None]
    return fmean(result.search if isinstance(result, BisectResult) else result.runs for result in with_culprit)


def all_runs(results: Results, method: str, cell: Cell) -> float:
    """Return the mean number of runs of search and confirmation."""
    return fmean(result.search + result.confirm for result in results[method, cell])


def ratio_to_peer(results: Results, cell: Cell) -> float:
    """Return the search runs of regbot divided by those of git-bayesect, on the same cases."""
    return search_runs(results, REGBOT, cell, len(results[BAYESECT, cell])) / search_runs(results, BAYESECT, cell)


def geometric_mean(values: Sequence[float]) -> float:
    return exp(fsum(map(log, values)) / len(values))


# ---- promises


def promises(results: Results) -> list[Promise]:
    promises = []
    for field, what in (("named", "the search names the culprit, or none"), ("answer", "the answer is right")):
        by_cell = {cell: count_right(results, REGBOT, cell, field) for cell in CELLS}
        cell, worst = min(by_cell.items(), key=lambda item: rate(item[1]))
        text = f"regbot: {what}, in at least {LEAST_RIGHT:.0%} of the cases of every range"
        measured = f"{counted(pooled(list(by_cell.values())))}; worst {counted(worst)}, {words(cell)}"
        promises.append(Promise(text, measured, rate(worst) >= LEAST_RIGHT))
    whole = pooled([count_false(results, REGBOT, cell, "answer") for cell in CELLS])
    text = f"regbot: somebody is accused in at most {MOST_FALSE:.0%} of the cases without a culprit"
    promises.append(Promise(text, counted(whole), rate(whole) <= MOST_FALSE))
    text = f"regbot's search runs at {PEER_RATIO:g} sds over git-bayesect's, geometric mean, at most {MOST_OF_PEER:g}"
    cells = [cell for cell in CELLS if cell[1] == PEER_RATIO]
    if (BAYESECT, cells[0]) in results:
        ratio = geometric_mean([ratio_to_peer(results, cell) for cell in cells])
        promises.append(Promise(text, f"{ratio:.2f}", ratio <= MOST_OF_PEER))
    else:
        promises.append(Promise(text, "not checked, git-bayesect is not installed", False))
    after_check = f"after a check of {CHECK_PAIRS} pairs in the same session, {words(CHECKED_CELL)}"
    right = count_right(results, SAME_SESSION, CHECKED_CELL, "answer")
    text = f"{after_check}: the answer is right in at least {LEAST_RIGHT:.0%}"
    promises.append(Promise(text, counted(right), rate(right) >= LEAST_RIGHT))
    false = count_false(results, SAME_SESSION, CHECKED_CELL, "answer")
    text = f"{after_check}: somebody is accused in at most {MOST_FALSE:.0%} of the cases without a culprit"
    promises.append(Promise(text, counted(false), rate(false) <= MOST_FALSE))
    with_check, alone = (all_runs(results, method, CHECKED_CELL) for method in (SAME_SESSION, REGBOT))
    text = f"{after_check}: it saves at least {LEAST_SAVED:.0%} of the runs"
    measured = f"{with_check:.1f} runs instead of {alone:.1f}, {1 - with_check / alone:.0%} saved"
    promises.append(Promise(text, measured, 1 - with_check / alone >= LEAST_SAVED))
    right = count_right_of_named(results, TOLD_LESS, CHECKED_CELL)
    text = (
        f"true noise {UNDERSTATED:g} times the stated one, {words(CHECKED_CELL)}: right in at least"
        f" {LEAST_RIGHT_OF_NAMED:.0%} of what it names"
    )
    promises.append(Promise(text, counted(right), rate(right) >= LEAST_RIGHT_OF_NAMED))
    return promises


def rate(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def share(counts: tuple[int, int]) -> str:
    return f"{rate(counts):.3f}" if counts[1] else "-"


def counted(counts: tuple[int, int]) -> str:
    low, high = rate_bounds(*counts)
    return f"{counts[0]} of {counts[1]}, {rate(counts):.1%} [{low:.1%}, {high:.1%}]"


def words(cell: Cell) -> str:
    return f"{cell[0]} commits at {cell[1]:g} sds"


def report(results: Results) -> None:
    print("\nright: share of all cases; accused: of the cases without a culprit; runs: means of all cases;")
    print("cleared: culprits, by the gate; over bound and over the peer: search runs of the cases with a culprit")
    names = ["", "commits", "sds", "cases", "named right", "answer right", "accused", "search", "p90", "commits run"]
    names += ["confirm", "cleared", "over bound", "over peer"]
    print("".join(f"{name:>{max(len(name), 5) + 2}}" for name in names))
    for method, cell in [*((REGBOT, cell) for cell in CELLS), (SAME_SESSION, CHECKED_CELL), (TOLD_LESS, CHECKED_CELL)]:
        cell_results: Sequence[BisectResult] = results[method, cell]
        accused = count_false(results, method, cell, "answer")
        has_peer = method == REGBOT and (BAYESECT, cell) in results
        cells = (
            "",
            str(cell[0]),
            f"{cell[1]:g}",
            str(len(cell_results)),
            share(count_right(results, method, cell, "named")),
            share(count_right(results, method, cell, "answer")),
            f"{accused[0]} of {accused[1]}",
            f"{fmean(result.search for result in cell_results):.1f}",
            f"{np.percentile([result.search for result in cell_results], 90):.0f}",
            f"{fmean(result.builds for result in cell_results):.1f}",
            f"{fmean(result.confirm for result in cell_results):.1f}",
            str(sum(result.cleared for result in cell_results)),
            f"{search_runs(results, method, cell) / bound(*cell):.2f}",
            f"{ratio_to_peer(results, cell):.2f}" if has_peer else "-",
        )
        row = "".join(f"{text:>{max(len(name), 5) + 2}}" for name, text in zip(names, cells, strict=True))
        print(row + ("" if method == REGBOT else f"  {method}"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bisect.py", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, help=f"ranges for each size and slowdown, {CASES} by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases: little is proven")
    parser.add_argument("--without-peer", action="store_true", help="git-bayesect is not run, nothing promised of it")
    options = parser.parse_args(arguments)
    cases = options.cases or (QUICK if options.quick else CASES)
    if cases < NO_CULPRIT_EVERY:
        parser.error(f"--cases {cases}: give at least {NO_CULPRIT_EVERY}, because every tenth case has no culprit")
    peer = None if options.without_peer else bayesect_version()
    missing = "left out" if options.without_peer else "not installed (pip install -r requirements/benchmarks.txt)"
    print(f"{cases} cases a cell, seed {SEED}; {BAYESECT}: {peer or missing}")
    results = run_all(cases, options.jobs, () if peer else (BAYESECT,))
    report(results)
    print()
    promised = promises(results)
    if options.without_peer:
        promised = [promise for promise in promised if BAYESECT not in promise.text]
    return report_promises(promised)
