"""What a step log says of one run, whatever wrote it.

Seconds are those that the training code printed. They are claims: nothing here knows the wall clock of the run, which
steps are warm-up, or whether the code that printed them is the code that was asked about.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple


class LogError(Exception):
    """A step log cannot be used. The message says where, what is wrong, and what to do."""

    def __init__(self, where: str, what: str, fix: str) -> None:
        super().__init__(f"{where}: {what}; {fix}")


class Step(NamedTuple):
    """What one line, or one entry, of a log says."""

    number: int
    """As the log counts: from 0 (MaxText, Bridge's golden values) or from 1."""
    seconds: float | None
    """None where the log tells of the step and not of its time."""
    loss: float | None = None
    """None where the log does not tell it, NaN where it tells of one that is not finite."""
    tflops: float | None = None
    """TFLOP/s per device, by the framework's own count of FLOPs."""
    skipped: int = 0
    """Steps, of those that this value stands for, in which the optimizer changed nothing."""
    nan: int = 0
    """Steps, of those, with a loss that was not finite."""


TOO_COARSE = 0.01
"""Part of a step: the smallest slowdown that the throughput verdict is to tell from none (stats/paired)."""


@dataclass(frozen=True)
class StepLog:
    """One run. ``steps`` rise in number, and at least one of them has seconds."""

    origin: str
    """The file, for messages."""
    format: str
    steps: tuple[Step, ...]
    mean_of: int | None = 1
    """How many steps each value is the mean of (the log interval); None where the log does not say."""
    rank: str = ""
    """Label of the rank whose lines were read, '' where lines carry none."""
    suspect: tuple[int, ...] = ()
    """Numbers of steps whose seconds are no step times, such as a step of which only the dispatch was timed."""
    warnings: tuple[str, ...] = ()
    resolution_s: float = 0.0
    """Seconds to which step times are printed; 0 where every digit is there."""
    jobs: int = 1
    """Jobs that stand one after the other in the file; the steps are the last one's."""

    @property
    def too_coarse(self) -> str:
        """Why its step times cannot decide anything, '' where they can: rounding hides what a verdict is about."""
        part = self.resolution_s / median(self.step_s)
        if part <= TOO_COARSE:
            return ""
        return (
            f"step times are printed to {self.resolution_s:g} s, {100 * part:.2g}% of a step: too coarse to tell a "
            "slowdown of 2%; make steps longer, or log more digits"
        )

    @property
    def timed(self) -> tuple[Step, ...]:
        """The steps that have seconds."""
        return tuple(step for step in self.steps if step.seconds is not None)

    @property
    def step_s(self) -> tuple[float, ...]:
        """Seconds per step, warm-up included, one value for each of ``timed``; all above 0 and finite."""
        return tuple(step.seconds for step in self.steps if step.seconds is not None)

    @property
    def untimed(self) -> tuple[int, ...]:
        """Numbers of the steps that the log tells of without their time."""
        return tuple(step.number for step in self.steps if step.seconds is None)

    @property
    def skipped(self) -> int:
        return sum(step.skipped for step in self.steps)

    @property
    def nan(self) -> int:
        return sum(step.nan for step in self.steps)

    def leading(self, steps: int) -> int:
        """How many values of ``step_s`` have to do with the first ``steps`` steps of what the log holds.

        By number, so that a log of every fifth step loses two values to ten steps and not ten. A mean that began within
        them counts.
        """
        end = self.steps[0].number + steps
        return sum(step.number < end for step in self.timed)

    def warned(self, *warnings: str) -> "StepLog":
        """The same with more warnings, which come first."""
        return replace(self, warnings=(*warnings, *self.warnings))


def seconds_or_none(value: float) -> float | None:
    """``value`` where a step can take that long."""
    return value if math.isfinite(value) and value > 0 else None


def number_or_nan(text: str) -> float:
    """A number as frameworks print it (thousands commas, NAN, INF); NaN for whatever is not finite."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def shown(numbers: Sequence[int], limit: int = 5) -> str:
    """``step 3``, ``steps 3, 7``, ``steps 1, 2, 3, 4, 5 and 7 more``."""
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"step{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:limit]))}{more}"
