"""Shared by the tests of stragglers and others."""

from collections.abc import Sequence

import numpy as np

from regbot.records.run import Allocation, Run
from support.timed_builder import slot, timed_run, timing

STEPS, CUT = 40, 2

OWN_S, WIRE_S = 0.1, 0.02


def steps(factors: Sequence[float], noise: float = 0.05, seed: int = 1) -> tuple[list[list[float]], list[list[float]]]:
    """Ranks that do ``factors`` times the same work and then wait for the last: step and wait seconds, [rank][step]."""
    draw = np.random.default_rng(seed)
    own = OWN_S * np.asarray(factors)[:, None] * np.exp(draw.normal(0, noise, (len(factors), STEPS)))
    step = own.max(axis=0) + WIRE_S
    return np.broadcast_to(step, own.shape).tolist(), (step - own).tolist()


def run_of(
    block: int, place: int, arm: str, factors: Sequence[float], hosts: Sequence[str] = (), **more: object
) -> Run:
    """A timed run of ranks that do ``factors`` times the same work; warm-up steps in front."""
    step_s, wait_s = steps(factors, seed=100 * block + place)
    warm = [0.5] * CUT
    usual = timing([*warm, *step_s[0]])
    ranks = {
        str(rank): usual.ranks["0"].model_copy(
            update={"step_s": [*warm, *own], "cpu_s": [*warm, *own], "wait_s": [*warm, *waits]}
        )
        for rank, (own, waits) in enumerate(zip(step_s, wait_s, strict=True))
    }
    allocation = Allocation(engine="slurm", hosts=list(hosts)) if hosts else None
    return timed_run(
        slot(block, place, arm), 0.1, timing=usual.model_copy(update={"ranks": ranks}), allocation=allocation
    )


def session(base: Sequence[float], head: Sequence[float], hosts: Sequence[str] = ()) -> list[Run]:
    """Two blocks and the warm launches, in which everything is late."""
    warm = [run_of(0, n, arm, [9.0] + [1.0] * (len(base) - 1), hosts) for n, arm in enumerate(("base", "head"))]
    arms = ("base", "head", "head", "base")
    blocks = [
        run_of(block, place, arm, base if arm == "base" else head, hosts)
        for block in (1, 2)
        for place, arm in enumerate(arms)
    ]
    return [*warm, *blocks]
