"""Simulated step times of four kinds of node, for benchmarks that need sessions with a known true effect.

    python benchmarks/nodes.py        prints the noise of a pair and of a stored run in the model

    log step time = node + session + run + slow run + drift over the session + effect of head      (one number per run)
                  + autocorrelated heavy-tailed noise + stragglers + periodic spike + thermal rise + warm-up (per step)

All values are logs of seconds around 0. An effect is therefore added, and one simulated session serves for all effects.
The random numbers come from a generator that the caller passes, so the same seed gives the same times.

Within one job, the model was compared with step times of real GPU jobs. The tails of the real times are heavier. The
variance between runs on GPUs is a guess until it has been measured on a node (``regbot calibrate``).
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
"""Number of discarded first steps of the autocorrelated noise, so that a run begins with the stationary
distribution."""


@dataclass(frozen=True)
class Node:
    """The noise of one kind of node. Standard deviations are of the log of step time; 0.01 is 1%."""

    name: str
    step_sd: float
    """Stationary standard deviation of a step around the level of its run."""
    rho: float
    """Autocorrelation of neighbouring steps."""
    df: float
    """Degrees of freedom of the steps' t-distributed noise: small means heavy tails."""
    straggler_rate: float
    straggler_mean: float
    """A straggler step takes 1 + x times as long. x is exponential with this mean."""
    run_sd: float
    node_sd: float
    session_sd: float
    drift: float
    """Linear change from the first run of a session to the last, up or down with equal probability."""
    slow_rate: float = 0.0
    slow_by: float = 0.0
    """A share ``slow_rate`` of the runs is slower by ``slow_by`` in all steps, as with another clock or placement."""


NODES = (
    Node("quiet", 0.003, 0.3, 6.0, 0.005, 0.05, 0.002, 0.004, 0.002, 0.001),
    Node("typical", 0.01, 0.4, 5.0, 0.01, 0.10, 0.005, 0.008, 0.004, 0.003),
    Node("bimodal", 0.01, 0.4, 5.0, 0.01, 0.10, 0.005, 0.008, 0.004, 0.003, slow_rate=0.12, slow_by=0.025),
    Node("noisy", 0.03, 0.6, 3.5, 0.02, 0.20, 0.015, 0.015, 0.008, 0.010),
)
QUIET, TYPICAL, BIMODAL, NOISY = NODES

# Parts of the model that are the same for all nodes. Their numbers are assumptions.
SPIKE_EVERY, SPIKE = 20, 0.05
"""Every 20th step is 5% longer (logging, a data shard). Each run has its own phase."""
THERMAL = 0.005
THERMAL_STEPS = 20.0
"""Within a run, steps become up to 0.5% slower as the device warms up, with this time constant in steps."""
WARM_UP = (0.25, 0.75)
WARM_UP_LEFT = 0.005
"""The first step of a warm-up is 25 to 75% slower, uniformly by run. The slowdown decays exponentially. The warm-up
ends where the largest slowdown has decayed to 0.5% of a step time."""
FIRST_STEP = 20.0
"""The first step compiles, so it takes another 1 to 20 times as long, uniformly by run."""


def abba(sessions: int, pairs: int, rng: np.random.Generator) -> Flags:
    """Return flags for the runs of head, (sessions, 2 pairs) in launch order. Each block of two pairs is ABBA or
    BAAB."""
    first = rng.random((sessions, pairs // 2, 1)) < 0.5
    head: Flags = (first ^ np.array([False, True, True, False])).reshape(sessions, 2 * pairs)
    return head


def levels(node: Node, sessions: int, runs: int, rng: np.random.Generator) -> Array:
    """Return the level of each run, (sessions, runs). It is added to all steps of the run. Each session has its own
    node."""
    shape = (sessions, runs)
    level = rng.normal(0, node.node_sd, (sessions, 1)) + rng.normal(0, node.session_sd, (sessions, 1))
    level = level + rng.normal(0, node.run_sd, shape)
    level += node.slow_by * (rng.random(shape) < node.slow_rate)
    level += np.linspace(0, node.drift, runs) * rng.choice([-1.0, 1.0], (sessions, 1))
    return level


def steps_of_runs(node: Node, shape: tuple[int, ...], steps: int, rng: np.random.Generator) -> Array:
    """Return steps around the level of their run, (*shape, steps), without a warm-up."""
    scale = node.step_sd * (1 - node.rho**2) ** 0.5 / float(student.std(node.df))
    innovations = scale * rng.standard_t(node.df, (*shape, BURN_IN + steps))
    logs: Array = lfilter([1.0], [1.0, -node.rho], innovations)[..., BURN_IN:]
    logs += np.log1p((rng.random(logs.shape) < node.straggler_rate) * rng.exponential(node.straggler_mean, logs.shape))
    position, phase = np.arange(steps), rng.integers(0, SPIKE_EVERY, (*shape, 1))
    logs += log1p(SPIKE) * ((position + phase) % SPIKE_EVERY == 0)
    logs += THERMAL * (1 - np.exp(-position / THERMAL_STEPS))
    return logs


def warm_up(shape: tuple[int, ...], steps: int, length: int, rng: np.random.Generator) -> Array:
    """Return what a warm-up of ``length`` steps adds to the steps of a run, (*shape, steps)."""
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
