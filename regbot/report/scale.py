"""A linear scale from values to pixels, with ticks at round numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

MAX_MAGNITUDE = 1e12
"""Values are limited to this size, so that a scale cannot overflow. No step time or loss is that large."""


@dataclass(frozen=True)
class Scale:
    """A linear map from values between ``low`` and ``high`` to pixels between ``start`` and ``end``. Values outside of
    ``low`` to ``high`` are drawn at the edge. A vertical scale has ``start`` at the bottom, so ``start`` > ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        clamped = min(max(value, self.low), self.high)
        position = (clamped - self.low) / (self.high - self.low)  # from 0 at ``low`` to 1 at ``high``
        return round(self.start + position * (self.end - self.start), 2)

    def holds(self, value: float) -> bool:
        """Return whether the value lies within the scale."""
        return self.low <= value <= self.high

    def ticks(self, target_count: int = 5) -> list[float]:
        """Return about ``target_count`` round numbers inside the scale. Their distance is 1, 2, 2.5 or 5 times a power
        of ten."""
        min_step = (self.high - self.low) / max(target_count, 1)
        power = 10.0 ** math.floor(math.log10(min_step))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= min_step * 0.999)
        # The tolerance includes a tick at the edge in spite of rounding errors.
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def scale_around(
    values: Iterable[float], start: float, end: float, min_span: float = 0.0, margin: float = 0.07
) -> Scale:
    """Return a scale that contains all finite ``values``, and that spans at least ``min_span``.

    ``start`` and ``end`` are the pixels of the ends. ``margin`` is the free part at each end, as a share of the span.
    Without values, the scale is around 0 to 1.
    """
    finite = [min(max(value, -MAX_MAGNITUDE), MAX_MAGNITUDE) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    span = max(high - low, min_span, abs(high) * 1e-6, 1e-12)  # never 0, even if all values are equal
    middle = (low + high) / 2
    half = span * (0.5 + margin)
    return Scale(middle - half, middle + half, start, end)
