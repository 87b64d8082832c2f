"""How well the steady state of a run is found: simulated runs whose warm-up is known, cut by regbot and by others.

    python benchmarks/steady.py [--runs 2000] [--jobs 2]

Runs come from the generative model of ``nodes.py``. A run has 200 steps; its warm-up ends after 12, 30 or 60 of them.
What is to be found is the median of the log step time from there on, of the same run without its warm-up. Two faults
are planted, each in runs with a warm-up of 20 steps: a shift of 4% at a step between 60 and 80% of the run, and a
rise of 5% from the first step to the last. A run with a fault has no steady state; all others have one.

Beside regbot stand the rules that others use. Each sees the same runs, without the first step, which compiles. The
promise is the row "asked": that of the specification, 3 points (flags) and 0.1 percentage points (error) wider. Exit
code 1 where it is not kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import log

import numpy as np
from nodes import NOISY, QUIET, TYPICAL, Array, Node, steps_of_runs, warm_up
from ruptures import KernelCPD  # type: ignore[import-untyped]

from regbot.stats.steady import steady_state, without_outliers

SEED = 20260802
RUNS = 2000
STEPS = 200
WARM_UPS = (12, 30, 60)
FAULTY_WARM_UP = 20
LATE, LATE_BETWEEN = log(1.04), (0.6, 0.8)
TREND = log(1.05)

OWN_STEPS = (50, 30, 15)
"""Lengths of run for the second table: regbot's own smoke runs, and logs that are short for it."""


@dataclass(frozen=True)
class Cut:
    """What a method says of one run: steps to leave out, and whether it believes the rest."""

    at: int
    steady: bool


Method = Callable[[Array], Cut]
"""Step times in seconds of one run, its first step included -> its cut."""


def regbot(step_s: Array) -> Cut:
    found = steady_state(step_s)
    return Cut(found.cut, found.steady)


def fixed(steps: int) -> Method:
    """What most scripts do."""
    return lambda _: Cut(steps, True)


def mser5(step_s: Array) -> Cut:
    """MSER-5 (White 1997): batch means of five, the cut that minimises the squared standard error of what is left.

    The search ends at the middle. A minimum there says that the run is too short (Hoad 2010); it is the flag.
    """
    rest = np.log(step_s[1:])
    batches = rest[: len(rest) // 5 * 5].reshape(-1, 5).mean(axis=1)
    most = len(batches) // 2
    errors = [float(batches[cut:].var() / (len(batches) - cut)) for cut in range(most + 1)]
    best = int(np.argmin(errors))
    return Cut(1 + 5 * best, best < most)


def pelt(tolerance: float, step_s: Array) -> Cut:
    """PELT that takes steps as independent, and the last segment (Barrett 2017); with a tolerance, all segments at the
    end whose means differ from it by less (Traini 2022). Outliers removed as for regbot, which helps it. Penalty
    3 log(n) s^2, s from the differences of neighbours."""
    rest = without_outliers(np.log(step_s[1:]))
    steps = np.diff(rest)
    variance = (1.4826 * float(np.median(np.abs(steps - np.median(steps))))) ** 2 / 2
    ends = KernelCPD(kernel="linear", min_size=5).fit(rest[:, None]).predict(pen=3 * log(len(rest)) * variance)
    starts = [0, *ends[:-1]]
    means = [rest[start:end].mean() for start, end in zip(starts, ends, strict=True)]
    last = len(means) - 1
    while last > 0 and abs(means[last - 1] - means[-1]) <= tolerance:
        last -= 1
    cut = 1 + starts[last]
    return Cut(cut, cut <= len(step_s) // 2)


METHODS: Mapping[str, Method] = {
    "fixed skip 10": fixed(10),
    "fixed skip 20": fixed(20),
    "fixed skip 50": fixed(50),
    "MSER-5": mser5,
    "PELT, last segment": partial(pelt, 0.0),
    "PELT, 1% tolerance": partial(pelt, log(1.01)),
    "regbot": regbot,
}


@dataclass(frozen=True)
class Case:
    """One cell of the table: runs of one node, of which the warm-up's length and the fault are known."""

    node: Node
    warm_up: int
    fault: str = ""
    steps: int = STEPS

    def runs(self, number: int, seed: np.random.SeedSequence) -> tuple[Array, Array]:
        """Step times in seconds, (number, steps), and of each run the median of its log step time when steady."""
        rng = np.random.default_rng(seed)
        steady = steps_of_runs(self.node, (number,), self.steps, rng)
        logs = steady + warm_up((number,), self.steps, self.warm_up, rng)
        position = np.arange(self.steps) / self.steps
        if self.fault == "late":
            logs += LATE * (position >= rng.uniform(*LATE_BETWEEN, (number, 1)))
        if self.fault == "trend":
            logs += TREND * position
        return np.exp(logs), np.median(steady[:, self.warm_up :], axis=1)


CASES: Mapping[str, Case] = {
    **{f"{node.name} {length}": Case(node, length) for node in (TYPICAL, NOISY) for length in WARM_UPS},
    **{
        f"{fault} {node.name}": Case(node, FAULTY_WARM_UP, fault)
        for fault in ("late", "trend")
        for node in (QUIET, TYPICAL, NOISY)
    },
}

OWN_CASES: Mapping[str, Case] = {
    f"{steps} {fault or 'none'} {node.name}": Case(node, 3 + steps // 10, fault, steps)
    for steps in OWN_STEPS
    for fault in ("", "late", "trend")
    for node in (QUIET, TYPICAL, NOISY)
}


@dataclass(frozen=True)
class Cell:
    """What one method did on one case."""

    error: float
    """95th percentile of the absolute error of the median, log scale, over all runs, those flagged too."""
    flagged: float
    """Share of runs without a steady state, by the method."""


def measure(case: Case, runs: int, seed: np.random.SeedSequence, names: Sequence[str]) -> dict[str, Cell]:
    """Every method of ``names`` on the same runs."""
    times, truth = case.runs(runs, seed)
    found = {}
    for name in names:
        cuts = [METHODS[name](run) for run in times]
        medians = [np.median(np.log(run[cut.at :])) for run, cut in zip(times, cuts, strict=True)]
        flagged = float(np.mean([not cut.steady for cut in cuts]))
        found[name] = Cell(float(np.quantile(np.abs(np.array(medians) - truth), 0.95)), flagged)
    return found


def table(cases: Mapping[str, Case], runs: int, jobs: int, names: Sequence[str]) -> dict[str, dict[str, Cell]]:
    """Case -> method -> cell. The answer does not depend on ``jobs``."""
    seeds = np.random.SeedSequence(SEED).spawn(len(cases))
    with ProcessPoolExecutor(jobs) as pool:
        work = [pool.submit(measure, case, runs, seed, names) for case, seed in zip(cases.values(), seeds, strict=True)]
        return {name: each.result() for name, each in zip(cases, work, strict=True)}


@dataclass(frozen=True)
class Row:
    """A row of the specification's table: errors in percent by warm-up, flags by node."""

    errors: Mapping[str, Sequence[float]]
    false_flags: Mapping[str, float]
    late: Sequence[float]
    trend: Sequence[float]


SPECIFIED = Row(
    errors={"typical": (0.08, 0.07, 0.15), "noisy": (0.37, 0.32, 0.48)},
    false_flags={"typical": 0.05, "noisy": 0.13},
    late=(1.0, 1.0, 0.93),
    trend=(0.59, 1.0, 0.84),
)
"""stats.md section 3, "ship". Of its false flags (.03-.05, .09-.13 over the warm-ups) the larger."""
ERROR_MARGIN, FLAG_MARGIN = 0.1, 0.03


def promises(cells: Mapping[str, Mapping[str, Cell]]) -> Iterator[tuple[str, float, float, bool]]:
    """What is asked of regbot, cell by cell: its name, the limit, what was found, and whether that keeps it."""
    for node, errors in SPECIFIED.errors.items():
        for length, error in zip(WARM_UPS, errors, strict=True):
            cell = cells[f"{node} {length}"]["regbot"]
            found, limit = 100 * cell.error, error + ERROR_MARGIN
            yield f"{node}, warm-up {length}: error at most {limit:.2f}%", limit, found, found <= limit
            limit = SPECIFIED.false_flags[node] + FLAG_MARGIN
            text = f"{node}, warm-up {length}: falsely flagged at most {limit:.2f}"
            yield text, limit, cell.flagged, cell.flagged <= limit
    for fault, rates in (("late", SPECIFIED.late), ("trend", SPECIFIED.trend)):
        for node, rate in zip(("quiet", "typical", "noisy"), rates, strict=True):
            found, limit = cells[f"{fault} {node}"]["regbot"].flagged, rate - FLAG_MARGIN
            yield f"{node}, {fault}: flagged at least {limit:.2f}", limit, found, found >= limit


def report(cells: Mapping[str, Mapping[str, Cell]]) -> None:
    """The table of the specification, in its order of columns."""
    print(
        f"{'':18} | {'p95 error %, typical':^20} | {'p95 error %, noisy':^20} | {'falsely flagged, t/n':^25} |", end=""
    )
    print(f" {'4% shift, q/t/n':^14} | {'5% trend, q/t/n':^14}")
    print(f"{'warm-up of':18} | " + " | ".join(["    12     30     60 "] * 2) + f" | {'':25} | {'':14} |")
    for name in METHODS:
        errors, flags = {}, {}
        for node in ("typical", "noisy"):
            of_node = [cells[f"{node} {length}"][name] for length in WARM_UPS]
            errors[node] = " ".join(f"{100 * cell.error:6.2f}" for cell in of_node)
            flags[node] = f"{min(c.flagged for c in of_node):.3f}-{max(c.flagged for c in of_node):.3f}"
        faults = [
            "/".join(f"{cells[f'{fault} {node}'][name].flagged:.2f}" for node in ("quiet", "typical", "noisy"))
            for fault in ("late", "trend")
        ]
        both = f"{flags['typical']} {flags['noisy']}"
        print(f"{name:18} | {errors['typical']} | {errors['noisy']} | {both:25} | {faults[0]:14} | {faults[1]:14}")
    asked = SPECIFIED
    errors = {node: " ".join(f"{value + ERROR_MARGIN:6.2f}" for value in row) for node, row in asked.errors.items()}
    most = " ".join(f"up to {value + FLAG_MARGIN:5.2f}" for value in asked.false_flags.values())
    least = ["/".join(f"{value - FLAG_MARGIN:.2f}" for value in rates) for rates in (asked.late, asked.trend)]
    print(f"{'asked':18} | {errors['typical']} | {errors['noisy']} | {most:25} | {least[0]:14} | {least[1]:14}")


def report_own(cells: Mapping[str, Mapping[str, Cell]]) -> None:
    """What shorter runs can show: the same faults, flags only."""
    print(f"{'regbot, runs of':18} | {'falsely flagged, q/t/n':22} | {'4% shift, q/t/n':16} | {'5% trend, q/t/n':16}")
    for steps in OWN_STEPS:
        rates = [
            "/".join(
                f"{cells[f'{steps} {fault} {node}']['regbot'].flagged:.2f}" for node in ("quiet", "typical", "noisy")
            )
            for fault in ("none", "late", "trend")
        ]
        print(f"{f'{steps} steps':18} | {rates[0]:22} | {rates[1]:16} | {rates[2]:16}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="simulated per cell")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    spread = 196 * (0.05 * 0.95 / options.runs) ** 0.5
    print(
        f"{options.runs} runs of {STEPS} steps per cell, seed {SEED}; a rate of 5% is known to +-{spread:.1f} points\n"
    )
    cells = table(CASES, options.runs, options.jobs, [*METHODS])
    report(cells)
    print()
    report_own(table(OWN_CASES, options.runs, options.jobs, ["regbot"]))
    print()
    kept = True
    for text, _, found, holds in promises(cells):
        kept &= holds
        print(f"{'holds' if holds else 'FAILS'}  {text}: {found:.3f}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
