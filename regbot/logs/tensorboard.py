"""TensorBoard's JSON download of one scalar: ``[[wall time, step, value], ...]``.

torchtitan writes its step time there and nowhere else, as ``time_metrics/end_to_end(s)``: the mean since the last
entry. The file does not name its scalar. That the values are seconds per step shows in the wall times, which must pass
as fast as the values say; another scalar is refused.
"""

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from regbot.logs.job import Row, one_run
from regbot.logs.lines import LogFile
from regbot.logs.step_log import Step, StepLog, seconds_or_none

NAME = "tensorboard"
TITLE = "TensorBoard's JSON export of a step time"

AGREE = 1.5
"""The median of wall time passed over seconds claimed lies within this factor; saving and evaluation add to it."""

_FIX = "export the scalar time_metrics/end_to_end(s) as JSON"


def recognises(head: str) -> bool:
    """Whether ``head``, the beginning of a file, is of this format."""
    return head.lstrip().startswith("[") and head.lstrip()[1:].lstrip().startswith("[") and _is_json_row(head)


def _is_json_row(head: str) -> bool:
    try:
        first = json.loads(head.lstrip()[1:].lstrip().partition("]")[0] + "]")
    except (ValueError, RecursionError):
        return False
    return _row(first) is not None


def read(log: LogFile) -> StepLog:
    """The run in ``log``. Raises LogError."""
    try:
        document = json.loads(log.document())
    except (ValueError, RecursionError) as error:
        raise log.error(0, f"is not whole JSON: {error}", _FIX) from error
    entries = [_row(entry) for entry in document]
    ratios: list[float] = []
    for earlier, later in pairwise(entries):
        if earlier and later and later[1] > earlier[1] and later[2] > 0:
            ratios.append((later[0] - earlier[0]) / (later[1] - earlier[1]) / later[2])
    if not ratios or not 1 / AGREE <= median(ratios) <= AGREE:
        passed = f"{median(ratios):.3g} times" if ratios else "not to be told whether"
        raise log.error(0, f"is of another scalar: the wall time that passes is {passed} what the values say", _FIX)
    return one_run(log, NAME, _rows(log, entries), _FIX)


def _rows(log: LogFile, entries: list[tuple[float, int, float] | None]) -> Iterator[Row]:
    for number, entry in enumerate(entries, start=1):
        if entry is None:
            raise log.error(0, f"entry {number} is not [wall time, step, value]", _FIX)
        yield Row(number, "", Step(entry[1], seconds_or_none(entry[2])))


def _row(entry: Any) -> tuple[float, int, float] | None:
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in entry):
        return None
    wall, step, value = entry
    return (float(wall), int(step), float(value)) if math.isfinite(wall) and step == int(step) else None
