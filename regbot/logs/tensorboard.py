"""TensorBoard's JSON download of one scalar: ``[[wall time, step, value], ...]``.

torchtitan writes its step time only to TensorBoard, as ``time_metrics/end_to_end(s)``: the mean since the last entry.
The file does not contain the name of its scalar. Therefore the reader compares the values with the differences of the
wall times. If they do not agree, the file contains another scalar and is refused.
"""

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from regbot.logs.job import StepRow, extract_run
from regbot.logs.lines import StepLogFile
from regbot.logs.step_log import LogStep, StepLog, seconds_or_none

NAME = "tensorboard"
TITLE = "TensorBoard's JSON export of a step time"

MAX_CLOCK_FACTOR = 1.5
"""Maximum factor, in either direction, between the elapsed wall time and the values (median). Saving and evaluation
take wall time that is in no step.
"""

_ADVICE = "export the scalar time_metrics/end_to_end(s) as JSON"


def recognises(head: str) -> bool:
    """Return whether ``head``, the beginning of a file, has this format."""
    return head.lstrip().startswith("[") and head.lstrip()[1:].lstrip().startswith("[") and _is_json_row(head)


def _is_json_row(head: str) -> bool:
    try:
        first = json.loads(head.lstrip()[1:].lstrip().partition("]")[0] + "]")
    except (ValueError, RecursionError):
        return False
    return _parse_entry(first) is not None


def read(log: StepLogFile) -> StepLog:
    """Return the run in ``log``. Raises LogError."""
    try:
        document = json.loads(log.document())
    except (ValueError, RecursionError) as error:
        raise log.error(0, f"is not complete JSON: {error}", _ADVICE) from error
    entries = [_parse_entry(entry) for entry in document]
    ratios: list[float] = []
    for earlier, later in pairwise(entries):
        if earlier and later and later[1] > earlier[1] and later[2] > 0:
            ratios.append((later[0] - earlier[0]) / (later[1] - earlier[1]) / later[2])
    if not ratios or not 1 / MAX_CLOCK_FACTOR <= median(ratios) <= MAX_CLOCK_FACTOR:
        comparison = (
            f"wall time is {median(ratios):.3g} times the values" if ratios else "no wall times to compare with"
        )
        raise log.error(0, f"has another scalar than step times: {comparison}", _ADVICE)
    return extract_run(log, NAME, _rows(log, entries), _ADVICE)


def _rows(log: StepLogFile, entries: list[tuple[float, int, float] | None]) -> Iterator[StepRow]:
    for number, entry in enumerate(entries, start=1):
        if entry is None:
            raise log.error(0, f"entry {number} is not [wall time, step, value]", _ADVICE)
        yield StepRow(number, "", LogStep(entry[1], seconds_or_none(entry[2])))


def _parse_entry(entry: Any) -> tuple[float, int, float] | None:
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in entry):
        return None
    wall, step, value = entry
    return (float(wall), int(step), float(value)) if math.isfinite(wall) and step == int(step) else None
