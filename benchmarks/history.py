"""How often the history shows a false and a true change of level, beside PELT with its usual penalties.

python benchmarks/history.py
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from ruptures import KernelCPD  # type: ignore[import-untyped]

from regbot.stats.history import MIN_SEGMENT, change_points

SEED = 20260901


def pelt(levels: Any, penalty: float) -> list[int]:
    """Return the change points by PELT, as in its manual. Outliers are not removed, so they can look like changes."""
    noise = 1.4826 * float(np.median(np.abs(np.diff(levels)))) / math.sqrt(2)
    search = KernelCPD(kernel="linear", min_size=MIN_SEGMENT).fit(levels[:, None])
    return [int(end) for end in search.predict(pen=penalty * math.log(len(levels)) * noise**2)[:-1]]


METHODS: dict[str, Callable[[Any], list[int]]] = {
    "regbot": change_points,
    "PELT, penalty 3": lambda levels: pelt(levels, 3.0),
    "PELT, penalty 6": lambda levels: pelt(levels, 6.0),
}
CHANGES = ((0.01, None), (0.02, None), (0.02, 5), (0.02, 10), (0.05, 4))
"""Changes of level on the log scale, and their age in sessions; None for a change in the middle."""


def rates(series: int = 1000) -> None:
    """Print how often changes are detected, in simulated levels that scatter by 0.4% or 1% and have 2% outliers.

    ``rho`` is the correlation of neighbouring levels.
    """

    def flat(rng: np.random.Generator, count: int, sd: float, rho: float) -> Any:
        noise = rng.normal(0, sd * math.sqrt(1 - rho**2), count)
        noise[0] = rng.normal(0, sd)
        for at in range(1, count):
            noise[at] += rho * noise[at - 1]
        return noise + (rng.random(count) < 0.02) * rng.exponential(0.05, count)

    print("flat: changes seen in a series without one; others: share of changes seen, to within 5 sessions")
    print(f"{'method':<17}{'sessions':>9}{'scatter':>9}{'rho':>5}{'flat':>8}", end="")
    print("".join(f"{f'{100 * step:.0f}%, {old or chr(189)} old':>12}" for step, old in CHANGES))
    cases = [(count, sd, rho) for count in (10, 30, 200, 1000) for sd, rho in ((0.004, 0.0), (0.01, 0.0), (0.01, 0.3))]
    for name, method in METHODS.items():
        for count, sd, rho in cases:
            if name != "regbot" and count != 200:
                continue
            rng = np.random.default_rng(SEED)
            seen = sum(len(method(flat(rng, count, sd, rho))) for _ in range(series))
            cells = [f"{name:<17}{count:>9}{100 * sd:>8.1f}%{rho:>5.1f}{seen / series:>8.3f}"]
            for step, old in CHANGES:
                begin = count - (old or count // 2)
                if begin < MIN_SEGMENT + 1:
                    cells.append(f"{'-':>12}")
                    continue
                shift = step * (np.arange(count) >= begin)
                moved = [method(flat(rng, count, sd, rho) + shift) for _ in range(series // 2)]
                cells.append(
                    f"{sum(any(abs(at - begin) <= 5 for at in changes) for changes in moved) / len(moved):>12.2f}"
                )
            print("".join(cells), flush=True)


if __name__ == "__main__":
    rates()
