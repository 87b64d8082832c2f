"""Simulated step times of four kinds of node, for the benchmarks that need sessions whose truth is known.

    python benchmarks/nodes.py        the noise of a pair and of a stored run, as the model makes it

    log step time = node + session + run + slow run + drift over the session + effect of head      (one number per run)
                  + autocorrelated heavy-tailed noise + stragglers + periodic spike + thermal rise + warm-up (per step)

Everything is an array of logs of seconds around 0, so that an effect is added: one simulated session serves for all
effects. The random numbers come from the generator that is passed in; the same seed gives the same times.

The model was held against step times of real GPU jobs, within a job only: their tails are heavier than those here.
Run-to-run variance of GPUs is a plausible guess until it has been measured on a node (``regbot calibrate``).
"""

from dataclasses import dataclass
from math import log, log1p

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import t as student

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

BURN_IN = 30
"""Steps that the autocorrelated noise is run before a run begins, so that it begins in its stationary law."""


@dataclass(frozen=True)
class Node:
    """The noise of one kind of node. Standard deviations are of the log of step time; 0.01 is 1%."""

    name: str
    step_sd: float
    """Of a step around its run, stationary."""
    rho: float
    """Autocorrelation of neighbouring steps."""
    df: float
    """Degrees of freedom of the steps' t-distributed noise: small means heavy tails."""
    straggler_rate: float
    straggler_mean: float
    """A straggler takes 1 + x times as long, x exponential with this mean."""
    run_sd: float
    node_sd: float
    session_sd: float
    drift: float
    """Linear, from the first run of a session to the last; up or down with equal chance."""
    slow_rate: float = 0.0
    slow_by: float = 0.0
    """Runs that are slow from beginning to end: another clock, another placement."""


NODES = (
    Node("quiet", 0.003, 0.3, 6.0, 0.005, 0.05, 0.002, 0.004, 0.002, 0.001),
    Node("typical", 0.01, 0.4, 5.0, 0.01, 0.10, 0.005, 0.008, 0.004, 0.003),
    Node("bimodal", 0.01, 0.4, 5.0, 0.01, 0.10, 0.005, 0.008, 0.004, 0.003, slow_rate=0.12, slow_by=0.025),
    Node("noisy", 0.03, 0.6, 3.5, 0.02, 0.20, 0.015, 0.015, 0.008, 0.010),
)
QUIET, TYPICAL, BIMODAL, NOISY = NODES

# What every node has in common. The specification names these parts without numbers; these are choices made here.
SPIKE_EVERY, SPIKE = 20, 0.05
"""Every 20th step is 5% longer (logging, a data shard), at a phase that is the run's own."""
THERMAL = 0.005
THERMAL_STEPS = 20.0
"""Within a run steps become up to 0.5% slower as the device warms up, with this constant."""
WARM_UP = (0.25, 0.75)
WARM_UP_LEFT = 0.005
"""A warm-up begins 25 to 75% slower, uniformly by run, and decays exponentially. Its length is where the largest has
0.5% of a step time left. So defined, skipping a fixed 10, 20 or 50 of 200 steps errs as the specification says."""
FIRST_STEP = 20.0
"""The first step compiles: it takes another 1 to 20 times as long, uniformly by run."""


def abba(sessions: int, pairs: int, rng: np.random.Generator) -> Flags:
    """Which runs are head's, (sessions, 2 pairs) in launch order: ABBA or BAAB in each block of two pairs."""
    first = rng.random((sessions, pairs // 2, 1)) < 0.5
    head: Flags = (first ^ np.array([False, True, True, False])).reshape(sessions, 2 * pairs)
    return head


def levels(node: Node, sessions: int, runs: int, rng: np.random.Generator) -> Array:
    """What each run of each session adds to all its steps, (sessions, runs), each session on a node of its own."""
    shape = (sessions, runs)
    level = rng.normal(0, node.node_sd, (sessions, 1)) + rng.normal(0, node.session_sd, (sessions, 1))
    level = level + rng.normal(0, node.run_sd, shape)
    level += node.slow_by * (rng.random(shape) < node.slow_rate)
    level += np.linspace(0, node.drift, runs) * rng.choice([-1.0, 1.0], (sessions, 1))
    return level


def steps_of_runs(node: Node, shape: tuple[int, ...], steps: int, rng: np.random.Generator) -> Array:
    """Steps around the level of their run, (*shape, steps), after a warm-up."""
    scale = node.step_sd * (1 - node.rho**2) ** 0.5 / float(student.std(node.df))
    innovations = scale * rng.standard_t(node.df, (*shape, BURN_IN + steps))
    logs: Array = lfilter([1.0], [1.0, -node.rho], innovations)[..., BURN_IN:]
    logs += np.log1p((rng.random(logs.shape) < node.straggler_rate) * rng.exponential(node.straggler_mean, logs.shape))
    position, phase = np.arange(steps), rng.integers(0, SPIKE_EVERY, (*shape, 1))
    logs += log1p(SPIKE) * ((position + phase) % SPIKE_EVERY == 0)
    logs += THERMAL * (1 - np.exp(-position / THERMAL_STEPS))
    return logs


def warm_up(shape: tuple[int, ...], steps: int, length: int, rng: np.random.Generator) -> Array:
    """What a warm-up of ``length`` steps adds to the steps of a run, (*shape, steps)."""
    decay = length / log(WARM_UP[1] / WARM_UP_LEFT)
    added: Array = np.log1p(rng.uniform(*WARM_UP, (*shape, 1)) * np.exp(-np.arange(steps) / decay))
    added[..., 0] += np.log(rng.uniform(1.0, FIRST_STEP, shape))
    return added


def main() -> None:
    print(f"{'node':>8} {'sd of a pair, 20 / 50 / 100 steps':>36} {'sd of a stored run':>20}")
    sessions, pairs = 2000, 2
    for node in NODES:
        rng = np.random.default_rng(20260801)
        head = abba(sessions, pairs, rng)
        level = levels(node, sessions, 2 * pairs, rng)
        sds = []
        for steps in (20, 50, 100):
            medians = np.median(level[..., None] + steps_of_runs(node, head.shape, steps, rng), axis=-1)
            sds.append(float(np.diff(medians.reshape(sessions, pairs, 2), axis=-1).std()))
        stored = levels(node, sessions, 1, rng)[..., None] + steps_of_runs(node, (sessions, 1), 50, rng)
        of_run = float(np.median(stored, axis=-1).std())
        print(f"{node.name:>8} {' / '.join(f'{100 * sd:.2f}%' for sd in sds):>36} {100 * of_run:>19.2f}%")


if __name__ == "__main__":
    main()
