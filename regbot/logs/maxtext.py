"""Logs of MaxText: ``completed step:`` lines, and the JSON lines of its ``metrics_file``.

Lines are printed by common/metric_logger.py (read 2026-08-22), fields joined by ", ", seconds to 1 ms:

    completed step: 2, seconds: 5.658, TFLOP/s/device: 135.158, Tokens/s/device: 8687.815, total_weights: 196608,
    loss: 11.689

``metrics_file`` has one object a step with ``perf/step_time_seconds``, ``learning/loss`` and ``step``, unrounded. Both
take the time on the host, which runs ahead of the device: the first steps can be those of the dispatch alone (0.319 s
among steps of 5.67 s), with the rest of their time counted to a neighbour. Such steps are named as suspect. Steps at
the borders of a profile have a line of their own, without seconds.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

from regbot.logs.job import Row, one_run, rank_of
from regbot.logs.lines import Line, LogFile
from regbot.logs.step_log import Step, StepLog, number_or_nan, seconds_or_none, shown

NAME = "maxtext"
TITLE = "'completed step' lines and metrics_file of MaxText"

TOO_SHORT = 0.25
"""A step below this part of the median step was not waited for: no step of one job is four times faster than others."""

_BEGINS = re.compile(r"\bcompleted step: (\d{1,12}), ")
_SECONDS = re.compile(r"\bseconds: ([^\s,]+(?:,\d{3}(?:\.\d+)?)*),")
_LOSS = re.compile(r"(?<![\w])loss: ([^\s,]+)")
_TFLOPS = re.compile(r"\bTFLOP/s/device: ([^\s,]+),")
_PROFILER = re.compile(r"\bcompleted profiler activation/deactivation step: (\d{1,12})\b")
_RAMPUP = "[Rampup Batch Size Phase]"
_METRIC = '"perf/step_time_seconds"'

_FIX = "give a log with 'completed step: N, seconds: S', or the metrics_file"


def recognises(text: str) -> bool:
    """Whether ``text``, one line, is of this format."""
    return bool("completed step" in text and _BEGINS.search(text)) or (
        _METRIC in text and text.lstrip().startswith("{")
    )


def read(log: LogFile) -> StepLog:
    """The run in ``log``. Raises LogError."""
    said: list[str] = []
    rampup: list[int] = []
    digits: set[int] = set()
    found = one_run(log, NAME, _rows(log, said, rampup, digits), _FIX)
    usual = median(found.step_s)
    suspect = tuple(step.number for step in found.timed if step.seconds and step.seconds < TOO_SHORT * usual)
    if suspect:
        said.append(
            f"less than a quarter of the median step ({usual:.4g} s) was counted to {shown(suspect)}: only dispatch "
            "was timed, and a neighbour has the rest. That is no step time"
        )
    if within := [number for number in rampup if number >= found.steps[0].number]:
        said.append(f"{shown(within)} in the ramp-up of the batch size: fewer tokens than later ones")
    # MaxText times every step by itself, whichever of them it prints
    resolution_s = 10.0 ** -max(digits) if digits else 0.0
    return replace(found, mean_of=1, suspect=suspect, resolution_s=resolution_s).warned(*said)


def _rows(log: LogFile, said: list[str], rampup: list[int], digits: set[int]) -> Iterator[Row]:
    for line in log.lines():
        if _METRIC in line.text:
            yield from _metrics(log, line, said)
        elif "completed " not in line.text:
            continue
        elif profiled := _PROFILER.search(line.text):
            yield Row(line.number, rank_of(line.text), Step(int(profiled.group(1)), None))
        elif begins := _BEGINS.search(line.text):
            rest = line.text[begins.start() :]
            time = _SECONDS.search(rest)
            if time is None or not line.whole:
                said.append(_torn(line))
                continue
            digits.add(min(len(time.group(1).partition(".")[2]), 12))
            if _RAMPUP in line.text:
                rampup.append(int(begins.group(1)))
            loss, tflops = _LOSS.search(rest), _TFLOPS.search(rest)
            yield Row(
                line.number,
                rank_of(line.text),
                _step(
                    int(begins.group(1)),
                    number_or_nan(time.group(1)),
                    number_or_nan(loss.group(1)) if loss else None,
                    number_or_nan(tflops.group(1)) if tflops else None,
                ),
            )


def _metrics(log: LogFile, line: Line, said: list[str]) -> Iterator[Row]:
    try:
        entry = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        if line.whole:
            raise log.error(line.number, f"is not JSON: {error}", "copy the metrics_file again") from error
        said.append(_torn(line))
        return
    if not isinstance(entry, dict) or "perf/step_time_seconds" not in entry:
        return
    number, seconds = _number(entry.get("step")), _number(entry["perf/step_time_seconds"])
    if number is None or seconds is None or not number.is_integer():
        raise log.error(line.number, "has no step number or no number of seconds", "give MaxText's own metrics_file")
    loss, tflops = _number(entry.get("learning/loss")), _number(entry.get("perf/per_device_tflops_per_sec"))
    yield Row(line.number, "", _step(int(number), seconds, loss, tflops))


def _step(number: int, seconds: float, loss: float | None, tflops: float | None) -> Step:
    unusable = loss is not None and not math.isfinite(loss)
    return Step(number, seconds_or_none(seconds), math.nan if unusable else loss, tflops, nan=int(unusable))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _torn(line: Line) -> str:
    return f"line {line.number} begins a step and is cut off; it was left out"
