"""Golden values: metrics of a run that the tests of Megatron-LM and Megatron Bridge store and compare with later runs.

Megatron-LM (tests/functional_tests/test_cases, 2026-08-22): the document is metric -> ``{"start_step", "end_step",
"step_interval", "values": {"1": ..., "5": ...}}``, with seconds under ``iteration-time``. Steps begin at 1. A value is
the string "nan" if TensorBoard has no value: usually in step 1, and at the end of an interrupted job. The file has only
every ``step_interval``-th step. A value is the mean over a log interval. If the file has every step, the log interval
is one step; otherwise the file does not show its length. In older files ``values`` is a list.

Bridge (scripts/performance/utils/evaluate.py): the document is step -> ``{"lm loss", "elapsed time per iteration (ms)",
"GPU utilization"}``, with steps from 0, and ``alloc`` and ``max_alloc`` beside the steps. The documents of both
projects may be wrapped in ``baseline`` and ``current``.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from regbot.logs.job import StepRow, extract_run
from regbot.logs.lines import StepLogFile
from regbot.logs.step_log import LogStep, StepLog, number_or_nan, seconds_or_none
from regbot.text.clip import clip

NAME = "golden"
TITLE = "golden values (JSON) of Megatron-LM and Megatron Bridge"

MEGATRON_TIME, BRIDGE_TIME, LOSS, BRIDGE_TFLOPS = (
    "iteration-time",
    "elapsed time per iteration (ms)",
    "lm loss",
    "GPU utilization",
)
WRAPPERS = ("current", "baseline")

_ADVICE = "give a golden-values file that has iteration times"


def recognises(head: str) -> bool:
    """Return whether ``head``, the beginning of a file, has this format."""
    return head.lstrip("\ufeff \t\r\n").startswith("{") and any(
        f'"{word}"' in head for word in ("start_step", MEGATRON_TIME, BRIDGE_TIME)
    )


def read(log: StepLogFile) -> StepLog:
    """Return the run in ``log``. Raises LogError."""
    try:
        document = json.loads(log.document().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise log.error(0, f"is not complete JSON: {error}", "copy the file again") from error
    values, warnings = _unwrap(document)
    if not isinstance(values, dict):
        raise log.error(0, "is not a JSON object of golden values", _ADVICE)
    if MEGATRON_TIME in values:
        run = extract_run(log, NAME, _megatron_rows(log, values), _ADVICE, values_are_means=False)
        if run.steps_per_value and run.steps_per_value > 1:
            unknown = f"it does not show whether a value is of one step or the mean of {run.steps_per_value}"
            warning = f"the file has only every {run.steps_per_value}th step; {unknown}"
            run = replace(run, warnings=(*run.warnings, warning))
        every_step = run.steps_per_value == 1 and len(run.steps) > 1
        return replace(run, steps_per_value=1 if every_step else None, warnings=(*warnings, *run.warnings))
    if any(isinstance(value, dict) and "values" in value for value in values.values()):
        raise log.error(0, f"has {clip(', '.join(map(repr, values)), 200)} but no {MEGATRON_TIME!r}", _ADVICE)
    run = extract_run(log, NAME, _bridge_rows(log, values), _ADVICE)
    return run.with_warnings(*warnings)


def _unwrap(document: Any) -> tuple[Any, list[str]]:
    wrappers = [name for name in WRAPPERS if isinstance(document, dict) and isinstance(document.get(name), dict)]
    if not wrappers:
        return document, []
    note = f"; the file also has {wrappers[1]!r}, another run" if len(wrappers) > 1 else ""
    return document[wrappers[0]], [f"the values of {wrappers[0]!r} are used{note}"]


def _megatron_rows(log: StepLogFile, metrics: Mapping[str, Any]) -> Iterator[StepRow]:
    times = _read_series(log, metrics, MEGATRON_TIME)
    losses = _read_series(log, metrics, LOSS) if LOSS in metrics else {}
    yield from _rows({step: (value, losses.get(step), None) for step, value in times.items()})


def _read_series(log: StepLogFile, metrics: Mapping[str, Any], name: str) -> dict[int, Any]:
    metric = metrics[name]
    values = metric.get("values") if isinstance(metric, dict) else None
    if isinstance(values, list):
        start, interval = metric.get("start_step"), metric.get("step_interval")
        if isinstance(start, int) and isinstance(interval, int):
            return {start + i * interval: value for i, value in enumerate(values)}
    if not isinstance(values, dict):
        raise log.error(0, f"{name!r} has no 'values' by step", _ADVICE)
    return {_step_number(log, key): value for key, value in values.items()}


def _bridge_rows(log: StepLogFile, document: Mapping[str, Any]) -> Iterator[StepRow]:
    values_by_step: dict[int, tuple[Any, Any, Any]] = {}
    for key, entry in document.items():
        if isinstance(entry, dict):
            milliseconds = _read_value(entry.get(BRIDGE_TIME))
            seconds = None if milliseconds is None else milliseconds / 1000
            values_by_step[_step_number(log, key)] = (seconds, entry.get(LOSS), entry.get(BRIDGE_TFLOPS))
    yield from _rows(values_by_step)


def _rows(values_by_step: Mapping[int, tuple[Any, Any, Any]]) -> Iterator[StepRow]:
    for number in sorted(values_by_step):
        seconds, loss, tflops = (_read_value(value) for value in values_by_step[number])
        if seconds is None or math.isnan(seconds):  # the file has no value for this step
            loss = None if loss is not None and math.isnan(loss) else loss
        is_nan = loss is not None and math.isnan(loss)
        yield StepRow(
            0, "", LogStep(number, None if seconds is None else seconds_or_none(seconds), loss, tflops, 0, int(is_nan))
        )


def _read_value(value: Any) -> float | None:
    """Return ``value`` as a number: None for null and booleans, NaN for "nan" and everything else that is no number."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return number_or_nan(value)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _step_number(log: StepLogFile, key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 12:
        raise log.error(0, f"{clip(key, 40)!r} is not a step number", _ADVICE)
    return int(key)
