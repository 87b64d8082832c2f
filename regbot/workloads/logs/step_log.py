"""Content of a step log: the steps of one run, independent of the format.

The training code wrote the seconds, so they are only claims. This module does not know the run's wall-clock time, which
steps are warm-up, or whether the logged code is the commit under test.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import median
from typing import Any, NamedTuple

from regbot.errors import UserError
from regbot.records.text.words import listed, plural


class LogError(UserError):
    """A step log cannot be used. The message says where and what is wrong; the advice says what to do."""

    def __init__(self, location: str, problem: str, advice: str) -> None:
        super().__init__(f"{location}: {problem}", advice)


class LogStep(NamedTuple):
    """A step. A reader may give seconds that are no step time and a loss that is not finite; ``extract_run`` then puts
    None and NaN in their place."""

    number: int
    seconds: float | None
    """Seconds of the step; None if the log has the step without its time."""
    loss: float | None = None
    """Loss; None if the log has no loss, NaN if the loss is not finite."""
    skipped: int = 0
    """Number of steps that the optimizer skipped. It can exceed 1 if the values are means over several steps."""
    nan: int = 0
    """Number of steps whose loss is not finite. Like ``skipped``, it can exceed 1."""
    line: int = 0
    """Number of the line. For a JSON document it is 0 (golden values), or the number of the entry (TensorBoard)."""
    rank: str = ""
    """Label of the rank that wrote the line; '' without a label."""


MAX_RESOLUTION_SHARE = 0.01
"""Maximum resolution of printed step times, as a share of a step. It equals the indifference limit of the throughput
verdict (stats/paired).
"""


@dataclass(frozen=True)
class StepLog:
    """One run. The numbers of ``steps`` increase, and at least one step has seconds."""

    origin: str
    format: str
    steps: tuple[LogStep, ...]
    steps_per_value: int | None = 1
    """Each value is the mean over this number of steps (the log interval); None if the log does not say."""
    suspect: tuple[int, ...] = ()
    """Numbers of steps whose seconds are no step times, for example because only the dispatch was timed."""
    explained: Mapping[int, str] = field(default_factory=dict)
    """What made a step slow, by the number of the step: other work of the job that a line beside the step names."""
    warnings: tuple[str, ...] = ()
    resolution_s: float = 0.0
    """Resolution of the printed step times in seconds; 0 if they are not rounded."""
    jobs: int = 1
    """Number of jobs in the file, one after the other. ``steps`` has only the steps of the last job."""

    @property
    def too_coarse(self) -> str:
        """Why rounded step times are too coarse for a verdict; '' if they are not too coarse."""
        share = self.resolution_s / median(self.step_s)
        if share <= MAX_RESOLUTION_SHARE:
            return ""
        coarse = "too coarse to detect a slowdown of 2%; make steps longer, or log more digits"
        return f"step times are printed to {self.resolution_s:g} s, {100 * share:.2g}% of a step: {coarse}"

    @property
    def timed(self) -> tuple[LogStep, ...]:
        return tuple(step for step in self.steps if step.seconds is not None)

    @property
    def step_s(self) -> tuple[float, ...]:
        """Seconds per step, warm-up included, one value for each step of ``timed``. All values are above 0
        and finite.
        """
        return tuple(step.seconds for step in self.steps if step.seconds is not None)

    @property
    def untimed(self) -> tuple[int, ...]:
        return tuple(step.number for step in self.steps if step.seconds is None)

    @property
    def skipped(self) -> int:
        return sum(step.skipped for step in self.steps)

    @property
    def nan(self) -> int:
        return sum(step.nan for step in self.steps)

    def with_warnings(self, *warnings: str) -> "StepLog":
        """Return a copy with ``warnings`` before the existing warnings."""
        return replace(self, warnings=(*warnings, *self.warnings))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. An integer of 16 digits or more becomes a float, because larger ones cannot be calculated with.

    Raises ValueError.
    """
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 16 else float(digits))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def printed_resolution(step_s: Sequence[float]) -> float:
    """Return the resolution of printed step times, in seconds. Trailing zeros may be left out, so the time with the
    most digits shows it."""
    return 10.0 ** min(int(Decimal(str(seconds)).as_tuple().exponent) for seconds in step_s)


def format_steps(numbers: Sequence[int], limit: int = 5) -> str:
    """Format step numbers: ``step 3``, ``steps 3, 7``, ``steps 1, 2, 3, 4, 5 and 7 more``."""
    return f"{plural('step', len(numbers))} {listed(numbers, limit)}"
