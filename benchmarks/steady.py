"""How well regbot and other rules detect the steady state of a run, in simulated runs with a known warm-up.

    python benchmarks/steady.py [--runs 2000] [--jobs 2]

The runs come from the generative model of ``nodes.py``. A run has 200 steps, and its warm-up has 12, 30 or 60 of them.
The true value is the median log step time after the warm-up, of the same run simulated without a warm-up. Two faults
are planted in runs with a warm-up of 20 steps: a shift of 4% at a step between 60 and 80% of the run, and a rise of 5%
from the first step to the last. A run with a fault has no steady state. All other runs have one.

The other rules judge the same runs, without the first step, which compiles. The row "asked" has the limits that regbot
must keep: the specified values, wider by 3 points for the rates of flags and by 0.1 percentage points for the errors.
The exit code is 1 if a limit is not kept.
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

from regbot.stats.steady import hampel_filter, steady_state

SEED = 20260802
RUNS = 2000
STEPS = 200
WARM_UPS = (12, 30, 60)
FAULTY_WARM_UP = 20
LATE, LATE_BETWEEN = log(1.04), (0.6, 0.8)
TREND = log(1.05)

OWN_STEPS = (50, 30, 15)
"""Numbers of steps for the second table: those of regbot's own smoke runs, and those of short logs."""


@dataclass(frozen=True)
class Cut:
    """Result of a method for one run."""

    at: int
    """Number of first steps to leave out."""
    steady: bool
    """Whether the method considers the other steps steady."""


Method = Callable[[Array], Cut]
"""A function from the step times of one run in seconds, including the first step, to its cut."""


def regbot(step_s: Array) -> Cut:
    result = steady_state(step_s)
    return Cut(result.cut, result.steady)


def fixed(steps: int) -> Method:
    """Return a method that skips a fixed number of steps, as most scripts do."""
    return lambda _: Cut(steps, True)


def mser5(step_s: Array) -> Cut:
    """MSER-5 (White 1997): the cut that minimises the squared standard error of the remaining batch means of five
    steps.

    The search ends in the middle of the run. If the minimum is there, the run is too short (Hoad 2010), and it is
    flagged."""
    rest = np.log(step_s[1:])
    batches = rest[: len(rest) // 5 * 5].reshape(-1, 5).mean(axis=1)
    most = len(batches) // 2
    errors = [float(batches[cut:].var() / (len(batches) - cut)) for cut in range(most + 1)]
    best = int(np.argmin(errors))
    return Cut(1 + 5 * best, best < most)


def pelt(tolerance: float, step_s: Array) -> Cut:
    """PELT for independent steps. The steady part is the last segment (Barrett 2017).

    With a tolerance, preceding segments with nearly the same mean belong to the steady part too (Traini 2022). Outliers
    are removed as for regbot, which improves the result. The penalty is 3 log(n) s^2, where s is estimated from the
    differences of neighbouring steps.
    """
    rest = hampel_filter(hampel_filter(np.log(step_s[1:])))
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
    """One cell of the table: runs of one node with a known length of the warm-up and a known fault."""

    node: Node
    warm_up: int
    fault: str = ""
    steps: int = STEPS

    def runs(self, number: int, seed: np.random.SeedSequence) -> tuple[Array, Array]:
        """Return step times in seconds, (number, steps), and the true median log step time of each run."""
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
    """Result of one method on one case."""

    error: float
    """95th percentile of the absolute error of the median on the log scale, over all runs, flagged or not."""
    flagged: float
    """Share of runs for which the method reports no steady state."""


def measure(case: Case, runs: int, seed: np.random.SeedSequence, names: Sequence[str]) -> dict[str, Cell]:
    """Apply all methods of ``names`` to the same runs."""
    times, truth = case.runs(runs, seed)
    cells = {}
    for name in names:
        cuts = [METHODS[name](run) for run in times]
        medians = [np.median(np.log(run[cut.at :])) for run, cut in zip(times, cuts, strict=True)]
        flagged = float(np.mean([not cut.steady for cut in cuts]))
        cells[name] = Cell(float(np.quantile(np.abs(np.array(medians) - truth), 0.95)), flagged)
    return cells


def table(cases: Mapping[str, Case], runs: int, jobs: int, names: Sequence[str]) -> dict[str, dict[str, Cell]]:
    """Return the cells by case and method. The results do not depend on ``jobs``."""
    seeds = np.random.SeedSequence(SEED).spawn(len(cases))
    with ProcessPoolExecutor(jobs) as pool:
        work = [pool.submit(measure, case, runs, seed, names) for case, seed in zip(cases.values(), seeds, strict=True)]
        return {name: job.result() for name, job in zip(cases, work, strict=True)}


@dataclass(frozen=True)
class Row:
    """Specified values: errors in percent by node and warm-up, and rates of flags by node (quiet, typical, noisy)."""

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
"""Where the specified rate of false flags depends on the warm-up, this is the largest rate."""
ERROR_MARGIN, FLAG_MARGIN = 0.1, 0.03


def promises(cells: Mapping[str, Mapping[str, Cell]]) -> Iterator[tuple[str, float, float, bool]]:
    """Yield for each cell a text, the limit, the measured value of regbot, and whether the value keeps the limit."""
    for node, errors in SPECIFIED.errors.items():
        for length, error in zip(WARM_UPS, errors, strict=True):
            cell = cells[f"{node} {length}"]["regbot"]
            measured, limit = 100 * cell.error, error + ERROR_MARGIN
            yield f"{node}, warm-up {length}: error at most {limit:.2f}%", limit, measured, measured <= limit
            limit = SPECIFIED.false_flags[node] + FLAG_MARGIN
            text = f"{node}, warm-up {length}: falsely flagged at most {limit:.2f}"
            yield text, limit, cell.flagged, cell.flagged <= limit
    for fault, rates in (("late", SPECIFIED.late), ("trend", SPECIFIED.trend)):
        for node, rate in zip(("quiet", "typical", "noisy"), rates, strict=True):
            measured, limit = cells[f"{fault} {node}"]["regbot"].flagged, rate - FLAG_MARGIN
            yield f"{node}, {fault}: flagged at least {limit:.2f}", limit, measured, measured >= limit


def report(cells: Mapping[str, Mapping[str, Cell]]) -> None:
    """Print the table of all methods."""
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
    """Print the rates of flags for shorter runs with the same faults."""
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
    for text, _, measured, holds in promises(cells):
        kept &= holds
        print(f"{'holds' if holds else 'FAILS'}  {text}: {measured:.3f}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
