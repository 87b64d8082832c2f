"""Golden values: metrics of a run that the tests of Megatron-LM and Megatron Bridge store and compare with later runs.

Megatron-LM (tests/functional_tests/test_cases, 2026-08-22): metric -> ``{"start_step", "end_step", "step_interval",
"values": {"1": ..., "5": ...}}``, with seconds under ``iteration-time``. A value is "nan" if TensorBoard has none, else
the mean over a log interval, whose length the file does not show unless it has every step. In older files ``values``
is a list.

Bridge (scripts/performance/utils/evaluate.py): step -> ``{"lm loss", "elapsed time per iteration (ms)",
"GPU utilization"}``, from 0. The documents of both projects may be wrapped in ``baseline`` and ``current``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from regbot.records.text.clip import clip
from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import WHOLE_FILE, StepLogFile, json_number
from regbot.workloads.logs.step_log import LogStep, StepLog, parse_json

NAME = "golden"
TITLE = "golden values (JSON) of Megatron-LM and Megatron Bridge"

MEGATRON_TIME, BRIDGE_TIME = "iteration-time", "elapsed time per iteration (ms)"
LOSS = "lm loss"
WRAPPERS = ("current", "baseline")

_ADVICE = "give a golden-values file that has iteration times"


def recognises(head: str) -> bool:
    return head.lstrip("\ufeff \t\r\n").startswith("{") and any(
        f'"{word}"' in head for word in ("start_step", MEGATRON_TIME, BRIDGE_TIME)
    )


def read(log: StepLogFile) -> StepLog:
    try:
        values = parse_json(log.document().decode("utf-8-sig"))
    except ValueError as error:
        raise log.error(WHOLE_FILE, f"is not complete JSON: {error}", "copy the file again") from error
    warnings = []
    wrappers = [name for name in WRAPPERS if isinstance(values, dict) and isinstance(values.get(name), dict)]
    if wrappers:
        note = f"; the file also has {wrappers[1]!r}, another run" if len(wrappers) > 1 else ""
        values, warnings = values[wrappers[0]], [f"the values of {wrappers[0]!r} are used{note}"]
    if not isinstance(values, dict):
        raise log.error(WHOLE_FILE, "is not a JSON object of golden values", _ADVICE)
    if MEGATRON_TIME in values:
        return _read_megatron(log, values).with_warnings(*warnings)
    entries = {key: entry for key, entry in values.items() if isinstance(entry, dict)}  # ``alloc`` is no step
    milliseconds, losses = (
        {_step_number(log, key): entry.get(name) for key, entry in entries.items()} for name in (BRIDGE_TIME, LOSS)
    )
    steps = _steps(milliseconds, losses, factor=0.001)
    return extract_run(log, NAME, steps, _ADVICE).with_warnings(*warnings)


def _read_megatron(log: StepLogFile, metrics: Mapping[str, Any]) -> StepLog:
    """Return the run. ``steps_per_value`` of it is 1 if the file has every step, else None."""
    losses = _read_series(log, metrics, LOSS) if LOSS in metrics else {}
    steps = _steps(_read_series(log, metrics, MEGATRON_TIME), losses)
    # Here a distance above 1 between steps does not prove that the values are means.
    run = extract_run(log, NAME, steps, _ADVICE, values_are_means=False)
    interval = run.steps_per_value  # the usual distance of step numbers; 1 for a single step
    if interval and interval > 1:
        doubt = f"it does not show whether a value is of one step or the mean of {interval}"
        run = replace(run, warnings=(*run.warnings, f"the file has only every {interval}th step; {doubt}"))
    return replace(run, steps_per_value=1 if interval == 1 and len(run.steps) > 1 else None)


def _read_series(log: StepLogFile, metrics: Mapping[str, Any], name: str) -> dict[int, Any]:
    metric = metrics[name]
    values = metric.get("values") if isinstance(metric, dict) else None
    if isinstance(values, list):
        start, interval = metric.get("start_step"), metric.get("step_interval")
        if isinstance(start, int) and isinstance(interval, int):
            return {start + index * interval: value for index, value in enumerate(values)}
    if not isinstance(values, dict):
        raise log.error(WHOLE_FILE, f"{name!r} has no 'values' by step", _ADVICE)
    return {_step_number(log, key): value for key, value in values.items()}


def _steps(times: Mapping[int, Any], losses: Mapping[int, Any], factor: float = 1.0) -> Iterator[LogStep]:
    for number, time in sorted(times.items()):
        seconds, loss = json_number(time), json_number(losses.get(number))
        if loss is not None and math.isnan(loss) and (seconds is None or math.isnan(seconds)):
            loss = None  # the file has no values for this step
        yield LogStep(number, None if seconds is None else factor * seconds, loss)


def _step_number(log: StepLogFile, key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 12:
        raise log.error(WHOLE_FILE, f"{clip(key, 40)!r} is not a step number", _ADVICE)
    return int(key)
