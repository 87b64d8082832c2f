"""How often regbot's bisection is right and what it costs, beside git bisect, git-bayesect and a bound for any search.

    python benchmarks/bisect.py [--cases 300] [--jobs 2] [--quick] [--without-peer]

All methods bisect the same simulated ranges and runs (``culprits.py``). A range has 16 to 1024 candidates and a
slowdown of 1, 2, 3 or 5 standard deviations (sds) of a run. Every tenth range has no culprit. regbot is told only the
noise, and in two methods a noise that is too small. In one method some runs are outliers. git bisect and git-bayesect
(``bisect_peers.py``) know the level midway between good and bad, and always name a culprit.
``pip install -r requirements/benchmarks.txt`` installs git-bayesect.

*Named* is the result of the search. *Answer* is the result after the gate has compared the culprit with its parent.
*Search* runs are all runs that look for a culprit, even after the gate has cleared one. The runs of the gate are
counted separately, and so are the runs that look for a second culprit.

The exit code is 1 if a promise is not kept or could not be checked.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from math import exp, fsum, log
from statistics import fmean
from typing import Any

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # each core has its own process, so more threads of numpy would only wait

import numpy as np
from bisect_peers import (
    BAYESECT,
    Search,
    bayesect_version,
    bound,
    find_difference_from_git,
    git_bayesect,
    git_bisect_on,
)
from culprits import (
    CHECK_PAIRS,
    DURATION_CV,
    FAR_UNDERSTATED,
    NO_CULPRIT_EVERY,
    SEED,
    UNDERSTATED,
    BisectResult,
    Case,
    SlotResult,
    bisect,
    on_slots,
    with_check_elsewhere,
    with_check_here,
    with_outliers,
    with_understated_noise,
)
from promises import Promise, report_promises

from regbot.stats.calibration import rate_bounds

RANGES = (16, 64, 256, 1024)
RATIOS = (1.0, 2.0, 3.0, 5.0)
PROMISED = 2.0
"""The promises are about slowdowns of at least this many sds of a run."""

CASES, QUICK = 300, 50
REPORTED_SHARE = 5
"""Where nothing is promised, one in this many cases is bisected: at the smallest slowdown, and after a check."""

PEER_CASES = {16: 150, 64: 120, 256: 80, 1024: 40}
REPEATS = (1, 3, 5)
SLOTS = 4
SLOTS_SHARE = 3
CHUNK = 5

LEAST_RIGHT = 0.95
LEAST_RIGHT_CHAINED = 0.97
MOST_RUNS_CHAINED = 16
MOST_RUNS_COMMAND = 17
LEAST_RIGHT_OF_NAMED = 0.9
"""Smallest share of right names among all names if the noise is understated."""
MOST_FALSE = 0.03
MOST_OF_PEER = 0.8
LEAST_FASTER = 2.2
RIGHT_MARGIN = 0.02
"""The share of right results may be lower on several slots by this much. With this number of cases, that is chance."""

REGBOT, ELSEWHERE, SAME_SESSION = "regbot", "check elsewhere", "check here"
TOLD_LESS, TOLD_FAR_LESS, OUTLIERS = f"true noise x{UNDERSTATED:g}", f"true noise x{FAR_UNDERSTATED:g}", "outliers"
ONE_SLOT, ALIKE, NODES = "1 slot", f"{SLOTS} slots, one level", f"{SLOTS} slots, own levels"

Cell = tuple[int, float]
"""Number of commits, and the slowdown in sds of a run."""

Result = BisectResult | Search | SlotResult
Results = Mapping[tuple[str, Cell], Sequence[Any]]
"""Results by method and cell, in the order of the cases."""

METHODS: dict[str, Callable[[Case], Result]] = {
    REGBOT: bisect,
    ELSEWHERE: with_check_elsewhere,
    SAME_SESSION: with_check_here,
    TOLD_LESS: with_understated_noise,
    TOLD_FAR_LESS: partial(with_understated_noise, times=FAR_UNDERSTATED),
    OUTLIERS: with_outliers,
    **{f"git bisect x{repeats}": partial(git_bisect_on, repeats=repeats) for repeats in REPEATS},
    BAYESECT: git_bayesect,
    ONE_SLOT: partial(on_slots, slots=1, one_level=True),
    ALIKE: partial(on_slots, slots=SLOTS, one_level=True),
    NODES: partial(on_slots, slots=SLOTS, one_level=False),
}
CELLS: list[Cell] = [(commits, ratio) for ratio in RATIOS for commits in RANGES]
PROMISED_CELLS = [cell for cell in CELLS if cell[1] >= PROMISED]
CHAINED_CELL, COMMAND_CELL, TOLD_LESS_CELL = (64, 2.0), (64, 3.0), (64, 2.0)
"""Cells of the promises about searches after a check in the same session, searches without any earlier run, and
searches with an understated noise. They have all cases."""
SPECIAL_ROWS = (
    (SAME_SESSION, CHAINED_CELL),
    (REGBOT, COMMAND_CELL),
    (TOLD_LESS, TOLD_LESS_CELL),
    (TOLD_FAR_LESS, TOLD_LESS_CELL),
    (OUTLIERS, (64, 2.0)),
    (OUTLIERS, (64, 3.0)),
)
"""Methods and cells that have a report of their own."""
SLOT_CELLS: list[Cell] = [(64, 2.0), (64, 3.0), (256, 2.0), (256, 3.0)]


def count_cases(method: str, cell: Cell, cases: int) -> int:
    """Return how many cases of a cell a method bisects."""
    few = cases // REPORTED_SHARE if cell not in PROMISED_CELLS else cases
    if method in (ONE_SLOT, ALIKE, NODES):
        return cases // SLOTS_SHARE if cell in SLOT_CELLS else 0
    if (method, cell) == (SAME_SESSION, CHAINED_CELL):
        return cases
    if method in (TOLD_LESS, TOLD_FAR_LESS, OUTLIERS):
        return cases if (method, cell) in SPECIAL_ROWS else 0
    if method in (ELSEWHERE, SAME_SESSION):
        return cases // REPORTED_SHARE
    return min(few, PEER_CASES[cell[0]]) if method == BAYESECT else few


def bisect_cases(method: str, cell: Cell, first: int, end: int) -> list[Result]:
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
    results: dict[tuple[str, Cell], list[Result]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        chunks = pool.map(bisect_cases, *zip(*work, strict=True))
        for (method, cell, _, _), chunk in zip(work, chunks, strict=True):
            results.setdefault((method, cell), []).extend(chunk)
    return results


# ---- counts


def culprit_of(cell: Cell, number: int) -> int | None:
    return Case(*cell, number).culprit


def count_right(
    results: Results, method: str, cell: Cell, field: str = "named", with_culprit: bool = False
) -> tuple[int, int]:
    """Return the number of right results and of all results. ``with_culprit``: only of cases that have a culprit."""
    pairs = [(getattr(result, field), culprit_of(cell, number)) for number, result in enumerate(results[method, cell])]
    judged = [named == truth for named, truth in pairs if truth is not None or not with_culprit]
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


def ratio_to_peer(results: Results, cell: Cell) -> float:
    """Return the search runs of regbot divided by those of git-bayesect, on the same cases."""
    return search_runs(results, REGBOT, cell, len(results[BAYESECT, cell])) / search_runs(results, BAYESECT, cell)


def ratio_to_bound(results: Results, method: str, cell: Cell) -> float:
    return search_runs(results, method, cell) / bound(*cell)


def speedup(results: Results, method: str, cell: Cell) -> float:
    """Return the wall time on one slot divided by the wall time of ``method``."""
    one, several = (fmean(result.wall for result in results[name, cell]) for name in (ONE_SLOT, method))
    return one / several


def geometric_mean(values: Sequence[float]) -> float:
    return exp(fsum(map(log, values)) / len(values))


# ---- promises


def promises(results: Results) -> list[Promise]:
    promises = []
    for field, what in (("named", "the search names the culprit, or none"), ("answer", "the answer is right")):
        by_cell = {cell: count_right(results, REGBOT, cell, field) for cell in PROMISED_CELLS}
        cell, worst = min(by_cell.items(), key=lambda item: rate(item[1]))
        text = f"regbot: {what}, in at least {LEAST_RIGHT:.0%} of the cases of every range from {PROMISED:g} sds on"
        measured = f"{counted(pooled(list(by_cell.values())))}; worst {counted(worst)}, {words(cell)}"
        promises.append(Promise(text, measured, rate(worst) >= LEAST_RIGHT))
    by_cell = {cell: count_false(results, REGBOT, cell, "answer") for cell in PROMISED_CELLS}
    whole = pooled(list(by_cell.values()))
    text = f"regbot: somebody is accused in at most {MOST_FALSE:.0%} of the cases without a culprit"
    promises.append(Promise(text, counted(whole), rate(whole) <= MOST_FALSE))
    cell, worst = max(by_cell.items(), key=lambda item: rate(item[1]))
    text = f"regbot: in no range is that proven to be more than {MOST_FALSE:.0%}"
    promises.append(Promise(text, f"worst {counted(worst)}, {words(cell)}", rate_bounds(*worst)[0] <= MOST_FALSE))
    text = f"regbot's search runs at {PROMISED:g} sds over git-bayesect's, geometric mean, at most {MOST_OF_PEER:g}"
    cells = [cell for cell in CELLS if cell[1] == PROMISED]
    if (BAYESECT, cells[0]) in results:
        ratio = geometric_mean([ratio_to_peer(results, cell) for cell in cells])
        promises.append(Promise(text, f"{ratio:.2f}", ratio <= MOST_OF_PEER))
    else:
        promises.append(Promise(text, "not checked, git-bayesect is not installed", False))
    after_check = f"after a check of {CHECK_PAIRS} pairs in the same session, {words(CHAINED_CELL)}"
    right = count_right(results, SAME_SESSION, CHAINED_CELL, "answer")
    text = f"{after_check}: the answer is right in at least {LEAST_RIGHT_CHAINED:.0%}"
    promises.append(Promise(text, counted(right), rate(right) >= LEAST_RIGHT_CHAINED))
    runs = search_runs(results, SAME_SESSION, CHAINED_CELL)
    text = f"{after_check}: at most {MOST_RUNS_CHAINED} search runs"
    promises.append(Promise(text, f"{runs:.1f}", runs <= MOST_RUNS_CHAINED))
    false = count_false(results, SAME_SESSION, CHAINED_CELL, "answer")
    text = f"{after_check}: somebody is accused in at most {MOST_FALSE:.0%} of the cases without a culprit"
    promises.append(Promise(text, counted(false), rate(false) <= MOST_FALSE))
    runs = search_runs(results, REGBOT, COMMAND_CELL)
    text = f"without earlier runs, {words(COMMAND_CELL)}: at most {MOST_RUNS_COMMAND} search runs"
    promises.append(Promise(text, f"{runs:.1f}", runs <= MOST_RUNS_COMMAND))
    right = count_right_of_named(results, TOLD_LESS, TOLD_LESS_CELL)
    text = (
        f"true noise {UNDERSTATED:g} times the stated one, {words(TOLD_LESS_CELL)}: right in at least"
        f" {LEAST_RIGHT_OF_NAMED:.0%} of what it names"
    )
    promises.append(Promise(text, counted(right), rate(right) >= LEAST_RIGHT_OF_NAMED))
    for method in (ALIKE, NODES):
        ratio = geometric_mean([speedup(results, method, cell) for cell in SLOT_CELLS])
        one, several = (
            pooled([count_right(results, name, cell) for cell in SLOT_CELLS]) for name in (ONE_SLOT, method)
        )
        text = f"{method}: at least {LEAST_FASTER:g} times faster than 1, geometric mean, and as often right"
        kept = ratio >= LEAST_FASTER and rate(several) >= rate(one) - RIGHT_MARGIN
        promises.append(Promise(text, f"{ratio:.2f} times, right {share(several)}, on 1 slot {share(one)}", kept))
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


# ---- reports


def report_regbot(results: Results) -> None:
    print("\nregbot. right: share of all cases; accused: of the cases without a culprit, by the search and in the end;")
    print(
        "runs, and commits that were run, in the mean of all cases; cleared: culprits, by the gate; beside: false ones"
    )
    names = ["commits", "sds", "cases", "named right", "95% interval", "answer right", "accused", "in the end"]
    names += ["search", "p90", "commits run", "over bound", "gate", "remainder", "cleared", "beside"]
    print("".join(f"{name:>{len(name) + 2}}" for name in names))
    for cell in CELLS:
        cell_results: Sequence[BisectResult] = results[REGBOT, cell]
        named = count_right(results, REGBOT, cell)
        low, high = rate_bounds(*named)
        first, final = (count_false(results, REGBOT, cell, field) for field in ("named", "answer"))
        cells = (
            str(cell[0]),
            f"{cell[1]:g}",
            str(len(cell_results)),
            share(named),
            f"{low:.3f}..{high:.3f}",
            share(count_right(results, REGBOT, cell, "answer")),
            f"{first[0]} of {first[1]}",
            f"{final[0]} of {final[1]}",
            f"{fmean(result.search for result in cell_results):.1f}",
            f"{np.percentile([result.search for result in cell_results], 90):.0f}",
            f"{fmean(result.builds for result in cell_results):.1f}",
            f"{ratio_to_bound(results, REGBOT, cell):.2f}",
            f"{fmean(result.confirm for result in cell_results):.1f}",
            f"{fmean(result.remainder for result in cell_results):.1f}",
            str(sum(result.cleared for result in cell_results)),
            str(sum(result.beside for result in cell_results)),
        )
        print("".join(f"{text:>{len(name) + 2}}" for name, text in zip(names, cells, strict=True)))


def report_others(results: Results) -> None:
    ours, cells = (REGBOT, ELSEWHERE, SAME_SESSION), [cell for cell in CELLS if cell[1] == PROMISED]
    methods = [method for method in METHODS if all((method, cell) in results for cell in CELLS)]
    print("\nsearch runs in the mean (share right), of the cases with a culprit; regbot also after a check of")
    print(f"{CHECK_PAIRS} pairs in another session, and in this one; these three over the bound; regbot over the peer")
    print(f"{'commits':>7}{'sds':>5}" + "".join(f"{method:>17}" for method in methods) + f"{'bound':>8}   over it")
    for cell in CELLS:
        text = f"{cell[0]:>7}{cell[1]:>5g}"
        for method in methods:
            right = share(count_right(results, method, cell, with_culprit=True))
            part = f"{search_runs(results, method, cell):.1f} ({right})"
            text += f"{part:>17}"
        text += f"{bound(*cell):>8.1f}   " + " ".join(f"{ratio_to_bound(results, method, cell):.2f}" for method in ours)
        print(text + (f"   {ratio_to_peer(results, cell):.2f}" if BAYESECT in methods else ""))
    print("without a culprit the peers accuse somebody every time")
    for method in ours:
        ratio = geometric_mean([ratio_to_bound(results, method, cell) for cell in cells])
        named = pooled([count_right(results, method, cell) for cell in PROMISED_CELLS])
        false = pooled([count_false(results, method, cell, "named") for cell in PROMISED_CELLS])
        print(
            f"{method:>17}: {ratio:.2f} times the bound at {PROMISED:g} sds, geometric mean; from there on"
            f" {named[0]} of {named[1]} named right, {false[0]} of {false[1]} falsely accused"
        )


def report_special_rows(results: Results) -> None:
    print("\nanswers: right of all cases, right of those that name a commit, false of the cases without a culprit;")
    print("runs in the mean of the cases with a culprit")
    print(f"{'':>17}{'commits':>9}{'sds':>5}{'right':>12}{'of named':>12}{'false':>9}{'search':>8}{'gate':>6}")
    for method, cell in SPECIAL_ROWS:
        right = count_right(results, method, cell, "answer")
        named, false = count_right_of_named(results, method, cell), count_false(results, method, cell, "answer")
        with_culprit = [
            result for number, result in enumerate(results[method, cell]) if culprit_of(cell, number) is not None
        ]
        counts = "".join(f"{f'{count} of {total}':>12}" for count, total in (right, named))
        runs = f"{search_runs(results, method, cell):>8.1f}{fmean(result.confirm for result in with_culprit):>6.1f}"
        print(f"{method:>17}{cell[0]:>9}{cell[1]:>5g}{counts}{f'{false[0]} of {false[1]}':>9}{runs}")


def report_slots(results: Results) -> None:
    print(f"\nslots, search alone, without confirmation; a run takes 1 in the mean, cv {DURATION_CV:g}:")
    print("wall time until the last run has ended (share right) runs, how many times faster than on one slot")
    methods = (ONE_SLOT, ALIKE, NODES)
    print(f"{'commits':>7}{'sds':>5}" + "".join(f"{method:>30}" for method in methods))
    for cell in SLOT_CELLS:
        text = f"{cell[0]:>7}{cell[1]:>5g}"
        for method in methods:
            slot_results: Sequence[SlotResult] = results[method, cell]
            wall, runs = fmean(result.wall for result in slot_results), fmean(result.runs for result in slot_results)
            part = f"{wall:.1f} ({share(count_right(results, method, cell))}) {runs:.1f}"
            text += f"{part + ('' if method == ONE_SLOT else f'  {speedup(results, method, cell):.2f}x'):>30}"
        print(text)


def check_peers() -> None:
    """Check that the simulated git bisect does what git does, and that the bound has its known values.

    Raises AssertionError.
    """
    for commits in RANGES:
        culprits = sorted({1, 2, commits // 3, commits // 2 + 1, commits - 1, commits})
        if difference := find_difference_from_git(commits, culprits):
            raise AssertionError(difference)
    known = zip((bound(commits, 2.0) for commits in RANGES), (7.2, 11.1, 15.1, 19.0), strict=True)
    if any(abs(computed - expected) > 0.06 for computed, expected in known):
        raise AssertionError("the bound differs from its known values")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bisect.py", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, help=f"ranges for each size and slowdown, {CASES} by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases: two minutes, and little is proven")
    parser.add_argument("--without-peer", action="store_true", help="git-bayesect is not run, nothing promised of it")
    options = parser.parse_args(arguments)
    cases = options.cases or (QUICK if options.quick else CASES)
    if cases < NO_CULPRIT_EVERY:
        parser.error(f"--cases {cases}: give at least {NO_CULPRIT_EVERY}, because every tenth case has no culprit")
    check_peers()
    peer = None if options.without_peer else bayesect_version()
    missing = "left out" if options.without_peer else "not installed (pip install -r requirements/benchmarks.txt)"
    print(
        f"{cases} cases a cell, {cases // REPORTED_SHARE} at 1 sd and after a check, {cases // SLOTS_SHARE} on slots,"
        f" seed {SEED}; git bisect as simulated tests what git\ntests in repositories of"
        f" {', '.join(map(str, RANGES))} commits; {BAYESECT}: {peer or missing}"
    )
    results = run_all(cases, options.jobs, () if peer else (BAYESECT,))
    report_regbot(results)
    report_others(results)
    report_special_rows(results)
    report_slots(results)
    print()
    promised = promises(results)
    if options.without_peer:
        promised = [promise for promise in promised if BAYESECT not in promise.text]
    return report_promises(promised)
