"""How often the losses of base and head are called different, by ``regbot.judge.training``.

A part of ``error_rates.py``. Equal losses are chaotic: every launch adds an offset of its own to its losses, far above
rounding. *Two kernels*: each draw of compiler caches of an arm has one of two kernels, whose losses differ.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from nodes import Array, Flags
from paired_sessions import STEADY, upper_bound
from promises import Promise

from regbot.judge.pairs import Pair, PairKey
from regbot.judge.training import MIN_DRAWS, compare_training
from regbot.records.run import Position, Run
from regbot.stats.arm_luck import DRAW_PAIRS

SEED = 20261128
LAUNCHES = (4, 8, 12)
LOSSES = 5.0 - 0.01 * np.arange(STEADY)
CHAOS, QUIET_SD, DIFFERENCE, KERNELS = 0.03, 0.0015, 0.012, 0.1
MAX_FALSE, MAX_FALSE_KERNELS, LEAST_FOUND = 0.035, 0.05, 0.95


def share_proven(base: Array, head: Array, draw_pairs: int = 0) -> Flags:
    """Return which sessions prove that head trains differently. ``base`` and ``head`` are the offsets of the losses,
    (sessions, pairs)."""
    sessions = zip(base.tolist(), head.tolist(), strict=True)
    return np.array([bool(compare_training(_pairs(*offsets, draw_pairs)).proven) for offsets in sessions])


def _pairs(base: Sequence[float], head: Sequence[float], draw_pairs: int) -> list[Pair]:
    pairs = []
    for number, offsets in enumerate(zip(base, head, strict=True)):
        draw = 1 + number // draw_pairs if draw_pairs else None
        position = Position.model_construct(draw=draw)
        runs = [
            Run.model_construct(loss=(LOSSES + offset).tolist(), timing=None, ledger=None, position=position)
            for offset in offsets
        ]
        pairs.append(Pair(PairKey(number // 2 + 1, 1, number % 2), *runs, 0, {}, {}))
    return pairs


def training(sessions: int) -> Iterator[Promise]:
    """Print the table of losses, and yield its promises."""
    rng = np.random.default_rng(SEED)
    print("\ntraining: share of sessions that prove a difference of the losses\n")
    print("| losses | pairs | share |\n|---|---|---|")
    for pairs in LAUNCHES:
        flags = share_proven(*rng.normal(0, CHAOS, (2, sessions, pairs)))
        yield _promise(f"equal, chaotic by {CHAOS}", pairs, flags, MAX_FALSE)
    kernels = KERNELS * rng.integers(0, 2, (2, sessions, MIN_DRAWS)).repeat(DRAW_PAIRS, axis=2)
    flags = share_proven(*kernels, DRAW_PAIRS)
    yield _promise(f"two kernels, {MIN_DRAWS} draws", kernels.shape[2], flags, MAX_FALSE_KERNELS)
    for pairs in LAUNCHES:
        base, head = rng.normal(0, QUIET_SD, (2, sessions, pairs))
        found = share_proven(base, head + DIFFERENCE).mean()
        print(f"| {DIFFERENCE} above base's, scatter {QUIET_SD} | {pairs} | {found:.4f} |")
        text = f"training: a constant {DIFFERENCE} found at {pairs} pairs, at least {LEAST_FOUND:.0%}"
        yield Promise(text, f"{found:.1%}", bool(found >= LEAST_FOUND))


def _promise(losses: str, pairs: int, flags: Flags, limit: float) -> Promise:
    print(f"| {losses} | {pairs} | {flags.mean():.4f} |")
    high = upper_bound(flags)
    text = f"training: {losses}, called different at {pairs} pairs, upper 95% bound, at most {limit:.1%}"
    return Promise(text, f"{flags.mean():.2%}, {high:.2%}", high <= limit)
