"""A linear scale from values to pixels, with ticks at numbers that people count in."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

FARTHEST = 1e12
"""No step takes as long and no loss is as large; a scale beyond it would overflow."""


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` to ``start`` and ``high`` to ``end``; what lies outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start), 2)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, about: int = 5) -> list[float]:
        """``about`` round numbers inside the scale."""
        raw = (self.high - self.low) / max(about, 1)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def around(values: Iterable[float], start: float, end: float, least: float = 0.0, margin: float = 0.07) -> Scale:
    """A scale that holds all ``values`` with a margin, and spans ``least`` at least."""
    known = [min(max(value, -FARTHEST), FARTHEST) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    span = max(high - low, least, abs(high) * 1e-6, 1e-12)
    middle = (low + high) / 2
    half = span * (0.5 + margin)
    return Scale(middle - half, middle + half, start, end)
