"""How often regbot's bisection is right and what it takes, beside git bisect, git-bayesect and the bound of any search.

    python benchmarks/bisect.py [--cases 300] [--jobs 2] [--quick] [--without-peer]

The same simulated ranges and runs (``culprits.py``) are bisected by all: 16 to 1024 candidates, a slowdown of 1, 2, 3
and 5 sds of a run, no culprit in every tenth case. regbot is told the noise and nothing else; git bisect and
git-bayesect (``bisect_peers.py``) are told the level midway between good and bad, and have no answer for a range
without a culprit. ``pip install -r requirements/benchmarks.txt`` has git-bayesect.

*Named* is what the search says, *answer* what is left once the gate has compared the culprit with its parent. *Search*
runs are those that look for the culprit, until the end, whatever the gate has cleared meanwhile. The gate's runs stand
apart, and so do those that ask whether a second culprit is left.

Exit code 1 where a promise is not kept, or could not be checked.
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

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process a core: threads of numpy would only wait

import numpy as np
from bisect_peers import BAYESECT, Search, bayesect_version, bound, git_bayesect, git_bisect_on, same_as_git
from culprits import (
    CHECK_PAIRS,
    DURATION_CV,
    EVERY,
    SEED,
    Case,
    Found,
    Timed,
    bisect,
    on_slots,
    with_check_elsewhere,
    with_check_here,
)
from promises import Promise, told

from regbot.stats import rate_bounds

RANGES = (16, 64, 256, 1024)
RATIOS = (1.0, 2.0, 3.0, 5.0)
PROMISED = 2.0
"""Of slowdowns from here on, in sds of a run, something is promised."""

CASES, QUICK = 300, 50
REPORTED_SHARE = 5
"""One in so many cases is bisected where nothing is promised: at the smallest slowdown, and after a check."""

PEER_CASES = {16: 150, 64: 120, 256: 80, 1024: 40}
REPEATS = (1, 3, 5)
SLOTS = 4
SLOTS_SHARE = 3
CHUNK = 5

LEAST_RIGHT = 0.95
MOST_FALSE = 0.03
MOST_OF_PEER = 0.8
LEAST_FASTER = 2.2
LESS_RIGHT = 0.02
"""By which success on several slots may be lower: of so many cases, that is chance."""

REGBOT, ELSEWHERE, SAME_SESSION = "regbot", "check elsewhere", "check here"
ONE_SLOT, ALIKE, NODES = "1 slot", f"{SLOTS} slots, one level", f"{SLOTS} slots, own levels"

Cell = tuple[int, float]
"""Commits, and the slowdown in sds."""

Result = Found | Search | Timed
Results = Mapping[tuple[str, Cell], Sequence[Any]]
"""By method and cell, in the order of the cases."""

METHODS: dict[str, Callable[[Case], Result]] = {
    REGBOT: bisect,
    ELSEWHERE: with_check_elsewhere,
    SAME_SESSION: with_check_here,
    **{f"git bisect x{repeats}": partial(git_bisect_on, repeats=repeats) for repeats in REPEATS},
    BAYESECT: git_bayesect,
    ONE_SLOT: partial(on_slots, slots=1, one_level=True),
    ALIKE: partial(on_slots, slots=SLOTS, one_level=True),
    NODES: partial(on_slots, slots=SLOTS, one_level=False),
}
CELLS: list[Cell] = [(commits, ratio) for ratio in RATIOS for commits in RANGES]
PROMISED_CELLS = [cell for cell in CELLS if cell[1] >= PROMISED]
SLOT_CELLS: list[Cell] = [(64, 2.0), (64, 3.0), (256, 2.0), (256, 3.0)]


def amount(method: str, cell: Cell, cases: int) -> int:
    """Cases of a method in a cell."""
    few = cases // REPORTED_SHARE if cell not in PROMISED_CELLS else cases
    if method in (ONE_SLOT, ALIKE, NODES):
        return cases // SLOTS_SHARE if cell in SLOT_CELLS else 0
    if method in (ELSEWHERE, SAME_SESSION):
        return cases // REPORTED_SHARE
    return min(few, PEER_CASES[cell[0]]) if method == BAYESECT else few


def some(method: str, cell: Cell, first: int, end: int) -> list[Result]:
    return [METHODS[method](Case(*cell, number)) for number in range(first, end)]


def run_all(cases: int, jobs: int, without: Sequence[str]) -> Results:
    """Every method on every cell, in chunks on ``jobs`` processes. The answer does not depend on ``jobs``."""
    work = [
        (method, cell, first, end)
        for cell in sorted(CELLS, reverse=True)  # those that take long first
        for method in METHODS
        if method not in without
        for first, end in pairwise([*range(0, amount(method, cell, cases), CHUNK), amount(method, cell, cases)])
    ]
    results: dict[tuple[str, Cell], list[Result]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(some, *zip(*work, strict=True))
        for (method, cell, _, _), each in zip(work, found, strict=True):
            results.setdefault((method, cell), []).extend(each)
    return results


# ---- counted


def culprit_of(cell: Cell, number: int) -> int | None:
    return Case(*cell, number).culprit


def right(
    results: Results, method: str, cell: Cell, field: str = "named", with_culprit: bool = False
) -> tuple[int, int]:
    """How many are right of how many; ``with_culprit``: of the cases that have one."""
    said = [(getattr(each, field), culprit_of(cell, number)) for number, each in enumerate(results[method, cell])]
    judged = [found == truth for found, truth in said if truth is not None or not with_culprit]
    return sum(judged), len(judged)


def accused(results: Results, method: str, cell: Cell, field: str) -> tuple[int, int]:
    """How many of the cases without a culprit had one named. A search whose runs gave out names none."""
    found = enumerate(results[method, cell])
    said = [getattr(each, field) for number, each in found if culprit_of(cell, number) is None]
    return sum(each not in (None, -1) for each in said), len(said)


def pooled(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(count for count, _ in counts), sum(of for _, of in counts)


def search_runs(results: Results, method: str, cell: Cell, first: int | None = None) -> float:
    """In the mean of the cases that have a culprit, the ``first`` ones or all."""
    found = enumerate(results[method, cell][:first])
    made = [each for number, each in found if culprit_of(cell, number) is not None]
    return fmean(each.search if isinstance(each, Found) else each.runs for each in made)


def of_peer(results: Results, cell: Cell) -> float:
    """regbot's search runs over git-bayesect's, on the same cases."""
    return search_runs(results, REGBOT, cell, len(results[BAYESECT, cell])) / search_runs(results, BAYESECT, cell)


def over_bound(results: Results, method: str, cell: Cell) -> float:
    return search_runs(results, method, cell) / bound(*cell)


def faster(results: Results, method: str, cell: Cell) -> float:
    """Wall time on one slot over that of ``method``."""
    one, several = (fmean(each.wall for each in results[name, cell]) for name in (ONE_SLOT, method))
    return one / several


def geometric(values: Sequence[float]) -> float:
    return exp(fsum(map(log, values)) / len(values))


# ---- promised


def promises(results: Results) -> list[Promise]:
    made = []
    for field, what in (("named", "the search names the culprit, or none"), ("answer", "the answer is right")):
        by_cell = {cell: right(results, REGBOT, cell, field) for cell in PROMISED_CELLS}
        cell, worst = min(by_cell.items(), key=lambda item: rate(item[1]))
        text = f"regbot: {what}, in at least {LEAST_RIGHT:.0%} of the cases of every range from {PROMISED:g} sds on"
        found = f"{counted(pooled(list(by_cell.values())))}; worst {counted(worst)}, {words(cell)}"
        made.append(Promise(text, found, rate(worst) >= LEAST_RIGHT))
    by_cell = {cell: accused(results, REGBOT, cell, "answer") for cell in PROMISED_CELLS}
    whole = pooled(list(by_cell.values()))
    text = f"regbot: somebody is accused in at most {MOST_FALSE:.0%} of the cases without a culprit"
    made.append(Promise(text, counted(whole), rate(whole) <= MOST_FALSE))
    cell, worst = max(by_cell.items(), key=lambda item: rate(item[1]))
    text = f"regbot: in no range is that proven to be more than {MOST_FALSE:.0%}"
    made.append(Promise(text, f"worst {counted(worst)}, {words(cell)}", rate_bounds(*worst)[0] <= MOST_FALSE))
    text = f"regbot's search runs at {PROMISED:g} sds over git-bayesect's, geometric mean, at most {MOST_OF_PEER:g}"
    cells = [cell for cell in CELLS if cell[1] == PROMISED]
    if (BAYESECT, cells[0]) in results:
        ratio = geometric([of_peer(results, cell) for cell in cells])
        made.append(Promise(text, f"{ratio:.2f}", ratio <= MOST_OF_PEER))
    else:
        made.append(Promise(text, "not checked, git-bayesect is not installed", False))
    for method in (ALIKE, NODES):
        ratio = geometric([faster(results, method, cell) for cell in SLOT_CELLS])
        one, several = (pooled([right(results, name, cell) for cell in SLOT_CELLS]) for name in (ONE_SLOT, method))
        text = f"{method}: at least {LEAST_FASTER:g} times faster than 1, geometric mean, and as often right"
        kept = ratio >= LEAST_FASTER and rate(several) >= rate(one) - LESS_RIGHT
        made.append(Promise(text, f"{ratio:.2f} times, right {share(several)}, on 1 slot {share(one)}", kept))
    return made


def rate(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def share(counts: tuple[int, int]) -> str:
    return f"{rate(counts):.3f}" if counts[1] else "-"


def counted(counts: tuple[int, int]) -> str:
    low, high = rate_bounds(*counts)
    return f"{counts[0]} of {counts[1]}, {rate(counts):.1%} [{low:.1%}, {high:.1%}]"


def words(cell: Cell) -> str:
    return f"{cell[0]} commits at {cell[1]:g} sds"


# ---- printed


def report_regbot(results: Results) -> None:
    print("\nregbot. right: share of all cases; accused: of the cases without a culprit, by the search and in the end;")
    print(
        "runs, and commits that were run, in the mean of all cases; cleared: culprits, by the gate; beside: false ones"
    )
    names = ["commits", "sds", "cases", "named right", "95% interval", "answer right", "accused", "in the end"]
    names += ["search", "p90", "commits run", "over bound", "gate", "remainder", "cleared", "beside"]
    print("".join(f"{name:>{len(name) + 2}}" for name in names))
    for cell in CELLS:
        found: Sequence[Found] = results[REGBOT, cell]
        named = right(results, REGBOT, cell)
        low, high = rate_bounds(*named)
        first, final = (accused(results, REGBOT, cell, field) for field in ("named", "answer"))
        cells = (
            str(cell[0]),
            f"{cell[1]:g}",
            str(len(found)),
            share(named),
            f"{low:.3f}..{high:.3f}",
            share(right(results, REGBOT, cell, "answer")),
            f"{first[0]} of {first[1]}",
            f"{final[0]} of {final[1]}",
            f"{fmean(each.search for each in found):.1f}",
            f"{np.percentile([each.search for each in found], 90):.0f}",
            f"{fmean(each.builds for each in found):.1f}",
            f"{over_bound(results, REGBOT, cell):.2f}",
            f"{fmean(each.confirm for each in found):.1f}",
            f"{fmean(each.remainder for each in found):.1f}",
            str(sum(each.cleared for each in found)),
            str(sum(each.beside for each in found)),
        )
        print("".join(f"{text:>{len(name) + 2}}" for name, text in zip(names, cells, strict=True)))


def report_others(results: Results) -> None:
    ours, cells = (REGBOT, ELSEWHERE, SAME_SESSION), [cell for cell in CELLS if cell[1] == PROMISED]
    shown = [method for method in METHODS if (method, CELLS[0]) in results]
    print("\nsearch runs in the mean (share right), of the cases with a culprit; regbot also after a check of")
    print(f"{CHECK_PAIRS} pairs in another session, and in this one; these three over the bound; regbot over the peer")
    print(f"{'commits':>7}{'sds':>5}" + "".join(f"{method:>17}" for method in shown) + f"{'bound':>8}   over it")
    for cell in CELLS:
        text = f"{cell[0]:>7}{cell[1]:>5g}"
        for method in shown:
            part = (
                f"{search_runs(results, method, cell):.1f} ({share(right(results, method, cell, with_culprit=True))})"
            )
            text += f"{part:>17}"
        text += f"{bound(*cell):>8.1f}   " + " ".join(f"{over_bound(results, method, cell):.2f}" for method in ours)
        print(text + (f"   {of_peer(results, cell):.2f}" if BAYESECT in shown else ""))
    print("without a culprit the peers accuse somebody every time")
    for method in ours:
        ratio = geometric([over_bound(results, method, cell) for cell in cells])
        whole = pooled([right(results, method, cell) for cell in PROMISED_CELLS])
        false = pooled([accused(results, method, cell, "named") for cell in PROMISED_CELLS])
        print(
            f"{method:>17}: {ratio:.2f} times the bound at {PROMISED:g} sds, geometric mean; from there on"
            f" {whole[0]} of {whole[1]} named right, {false[0]} of {false[1]} falsely accused"
        )


def report_slots(results: Results) -> None:
    print(f"\nslots, search alone, without confirmation; a run takes 1 in the mean, cv {DURATION_CV:g}:")
    print("wall time until the last run has ended (share right) runs, how many times faster than on one slot")
    methods = (ONE_SLOT, ALIKE, NODES)
    print(f"{'commits':>7}{'sds':>5}" + "".join(f"{method:>30}" for method in methods))
    for cell in SLOT_CELLS:
        text = f"{cell[0]:>7}{cell[1]:>5g}"
        for method in methods:
            timed: Sequence[Timed] = results[method, cell]
            wall, runs = fmean(each.wall for each in timed), fmean(each.runs for each in timed)
            part = f"{wall:.1f} ({share(right(results, method, cell))}) {runs:.1f}"
            text += f"{part + ('' if method == ONE_SLOT else f'  {faster(results, method, cell):.2f}x'):>30}"
        print(text)


def check_peers() -> None:
    """git bisect's rule as it is simulated is git's own, the bound is the known one, or there is nothing to print."""
    for commits in RANGES:
        culprits = sorted({1, 2, commits // 3, commits // 2 + 1, commits - 1, commits})
        if differs := same_as_git(commits, culprits):
            raise AssertionError(differs)
    known = zip((bound(commits, 2.0) for commits in RANGES), (7.2, 11.1, 15.1, 19.0), strict=True)
    if any(abs(found - before) > 0.06 for found, before in known):
        raise AssertionError("the bound is not what it was found to be before")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bisect.py", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, help=f"ranges for each size and slowdown, {CASES} by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases: two minutes, and little is proven")
    parser.add_argument("--without-peer", action="store_true", help="git-bayesect is not run, nothing promised of it")
    options = parser.parse_args(arguments)
    cases = options.cases or (QUICK if options.quick else CASES)
    if cases < EVERY:
        parser.error(f"--cases {cases}: {EVERY} at least, one of them has no culprit")
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
    report_slots(results)
    print()
    made = promises(results)
    if options.without_peer:
        made = [promise for promise in made if BAYESECT not in promise.text]
    return told(made)
