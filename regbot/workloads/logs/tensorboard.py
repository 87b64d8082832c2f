"""TensorBoard's JSON download of one scalar: ``[[wall time, step, value], ...]``.

torchtitan writes its step time only to TensorBoard, as ``time_metrics/end_to_end(s)``: the mean since the last entry.
The file does not contain the name of its scalar. Therefore the reader compares the values with the differences of the
wall times. If they do not agree, the file contains another scalar and is refused.
"""

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import WHOLE_FILE, StepLogFile
from regbot.workloads.logs.step_log import LogStep, StepLog, make_step, parse_json

NAME = "tensorboard"
TITLE = "TensorBoard's JSON export of a step time"

MAX_CLOCK_FACTOR = 1.5
"""Maximum factor, in either direction, between the elapsed wall time and the values (median). Saving and evaluation
take wall time that is in no step.
"""

MAX_STEP = 1e15

_FIRST_ENTRY = re.compile(r"\s*\[\s*(\[[^\]]*)")
_ADVICE = "export the scalar time_metrics/end_to_end(s) as JSON"


class _ScalarEntry(NamedTuple):
    wall_s: float
    step: int
    value: float


def recognises(head: str) -> bool:
    match = _FIRST_ENTRY.match(head)
    if match is None:
        return False
    try:
        entry = parse_json(match[1] + "]")
    except ValueError:
        return False
    return _parse_entry(entry) is not None


def read(log: StepLogFile) -> StepLog:
    try:
        document = parse_json(log.document())
    except ValueError as error:
        raise log.error(WHOLE_FILE, f"is not complete JSON: {error}", _ADVICE) from error
    if not isinstance(document, list):
        raise log.error(WHOLE_FILE, "is not a list of scalars", _ADVICE)
    entries = [_parse_entry(entry) for entry in document]
    ratios: list[float] = []  # of the wall time per step to the value
    for earlier, later in pairwise(entries):
        if earlier and later and later.step > earlier.step and later.value > 0:
            wall_s_per_step = (later.wall_s - earlier.wall_s) / (later.step - earlier.step)
            ratios.append(wall_s_per_step / later.value)
    if not ratios or not 1 / MAX_CLOCK_FACTOR <= median(ratios) <= MAX_CLOCK_FACTOR:
        comparison = (
            f"wall time is {median(ratios):.3g} times the values" if ratios else "no wall times to compare with"
        )
        raise log.error(WHOLE_FILE, f"has another scalar than step times: {comparison}", _ADVICE)
    return extract_run(log, NAME, _steps(log, entries), _ADVICE)


def _steps(log: StepLogFile, entries: list[_ScalarEntry | None]) -> Iterator[LogStep]:
    """Yield the steps. The number of an entry stands in place of a line number. Raises LogError."""
    for number, entry in enumerate(entries, start=1):
        if entry is None:
            raise log.error(WHOLE_FILE, f"entry {number} is not [wall time, step, value]", _ADVICE)
        yield make_step(entry.step, entry.value, place=(number, ""))


def _parse_entry(entry: Any) -> _ScalarEntry | None:
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in entry):
        return None
    wall_s, step, value = entry
    is_valid = math.isfinite(wall_s) and abs(step) < MAX_STEP and step == int(step)
    return _ScalarEntry(float(wall_s), int(step), float(value)) if is_valid else None
