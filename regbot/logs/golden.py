"""Golden values: what the tests of Megatron-LM and Megatron Bridge store of a run and compare the next one with.

Megatron-LM (tests/functional_tests/test_cases, 2026-08-22): metric -> ``{"start_step", "end_step", "step_interval",
"values": {"1": ..., "5": ...}}``, seconds under ``iteration-time``, from 1, the string "nan" where TensorBoard had no
value: usually in step 1, and at the end of a job that was cut short. Only every ``step_interval``-th step is kept. A
value is the mean of a log interval, and there is one for each: where steps follow each other it is of one step; where
they do not, the interval is not in the file. Older files list the values.

Bridge (scripts/performance/utils/evaluate.py): step -> ``{"lm loss", "elapsed time per iteration (ms)", "GPU
utilization"}``, from 0, with ``alloc`` and ``max_alloc`` beside the steps. Either may be wrapped in ``baseline`` and
``current``.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from regbot.logs.job import Row, one_run
from regbot.logs.lines import LogFile
from regbot.logs.step_log import Step, StepLog, number_or_nan, seconds_or_none

NAME = "golden"
TITLE = "golden values (JSON) of Megatron-LM and Megatron Bridge"

MEGATRON_TIME, BRIDGE_TIME, LOSS, BRIDGE_TFLOPS = (
    "iteration-time",
    "elapsed time per iteration (ms)",
    "lm loss",
    "GPU utilization",
)
WRAPPERS = ("current", "baseline")

_FIX = "give a golden-values file that has iteration times"


def recognises(head: str) -> bool:
    """Whether ``head``, the beginning of a file, is of this format."""
    return head.lstrip("\ufeff \t\r\n").startswith("{") and any(
        f'"{word}"' in head for word in ("start_step", MEGATRON_TIME, BRIDGE_TIME)
    )


def read(log: LogFile) -> StepLog:
    """The run in ``log``. Raises LogError."""
    try:
        document = json.loads(log.document().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise log.error(0, f"is not whole JSON: {error}", "copy the file again") from error
    values, said = _unwrapped(document)
    if not isinstance(values, dict):
        raise log.error(0, "is no JSON object of golden values", _FIX)
    if MEGATRON_TIME in values:
        found = one_run(log, NAME, _megatron(log, values), _FIX)
        every_step = found.mean_of == 1 and len(found.steps) > 1
        return replace(found, mean_of=1 if every_step else None, warnings=(*said, *_told(found)))
    if any(isinstance(value, dict) and "values" in value for value in values.values()):
        raise log.error(0, f"holds {', '.join(map(repr, values))[:200]} and no {MEGATRON_TIME!r}", _FIX)
    found = one_run(log, NAME, _bridge(log, values), _FIX)
    return found.warned(*said)


def _unwrapped(document: Any) -> tuple[Any, list[str]]:
    there = [name for name in WRAPPERS if isinstance(document, dict) and isinstance(document.get(name), dict)]
    if not there:
        return document, []
    also = f"; {there[1]!r} stands in it too, which would be another run" if len(there) > 1 else ""
    return document[there[0]], [f"the values of {there[0]!r} are used{also}"]


def _told(found: StepLog) -> Iterator[str]:
    """The warnings, with what a distance of steps means here."""
    distance = found.mean_of or 1
    for warning in found.warnings:
        if not warning.startswith("each value is the mean"):
            yield warning
    if distance > 1:
        yield (
            f"only every {distance}th step is in the file; whether its value is of one step or the mean of "
            f"{distance} is not"
        )


def _megatron(log: LogFile, metrics: Mapping[str, Any]) -> Iterator[Row]:
    times = _series(log, metrics, MEGATRON_TIME)
    losses = _series(log, metrics, LOSS) if LOSS in metrics else {}
    yield from _rows({step: (value, losses.get(step), None) for step, value in times.items()})


def _series(log: LogFile, metrics: Mapping[str, Any], name: str) -> dict[int, Any]:
    metric = metrics[name]
    values = metric.get("values") if isinstance(metric, dict) else None
    if isinstance(values, list):
        start, interval = metric.get("start_step"), metric.get("step_interval")
        if isinstance(start, int) and isinstance(interval, int):
            return {start + i * interval: value for i, value in enumerate(values)}
    if not isinstance(values, dict):
        raise log.error(0, f"{name!r} has no 'values' by step", _FIX)
    return {_number(log, key): value for key, value in values.items()}


def _bridge(log: LogFile, document: Mapping[str, Any]) -> Iterator[Row]:
    found: dict[int, tuple[Any, Any, Any]] = {}
    for key, entry in document.items():
        if isinstance(entry, dict):
            milliseconds = _value(entry.get(BRIDGE_TIME))
            seconds = None if milliseconds is None else milliseconds / 1000
            found[_number(log, key)] = (seconds, entry.get(LOSS), entry.get(BRIDGE_TFLOPS))
    yield from _rows(found)


def _rows(found: Mapping[int, tuple[Any, Any, Any]]) -> Iterator[Row]:
    for number in sorted(found):
        seconds, loss, tflops = (_value(value) for value in found[number])
        if seconds is None or math.isnan(seconds):  # no value of the step was stored
            loss = None if loss is not None and math.isnan(loss) else loss
        nan = loss is not None and math.isnan(loss)
        yield Row(0, "", Step(number, None if seconds is None else seconds_or_none(seconds), loss, tflops, 0, int(nan)))


def _value(value: Any) -> float | None:
    """A number, or the string "nan"; None where there is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return number_or_nan(value)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _number(log: LogFile, key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 12:
        raise log.error(0, f"{key[:40]!r} is not the number of a step", _FIX)
    return int(key)
