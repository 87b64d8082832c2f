"""Logs of MaxText: ``completed step:`` lines, and the JSON lines of its ``metrics_file``.

common/metric_logger.py prints the lines (read 2026-08-22). Fields are joined by ", ", seconds are rounded to 1 ms:

    completed step: 2, seconds: 5.658, TFLOP/s/device: 135.158, Tokens/s/device: 8687.815, total_weights: 196608,
    loss: 11.689

``metrics_file`` has one object per step with ``perf/step_time_seconds``, ``learning/loss`` and ``step``, unrounded. In
both forms the time is taken on the host, which runs ahead of the device. In the first steps, the time can be the time
of the dispatch alone (0.319 s among steps of 5.67 s). A neighbouring step then contains the rest of the time. Steps
with only a dispatch time are marked as suspect. At the start and end of a profile, the line of a step has another form,
without seconds.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import LogLine, StepLine, StepLogFile, json_number
from regbot.workloads.logs.step_log import LogStep, StepLog, format_steps, parse_json, printed_resolution

NAME = "maxtext"
TITLE = "'completed step' lines and metrics_file of MaxText"

MIN_STEP_SHARE = 0.25
"""If a step takes less than this share of the median step, only its dispatch was timed, because no real step is four
times faster than the median.
"""

_STEP_LINE = StepLine(
    word="completed ",
    number=re.compile(r"\bcompleted step: (\d{1,12}), "),
    time=re.compile(r"\bseconds: ([^\s,]+(?:,\d{3}(?:\.\d+)?)*),"),
    loss=re.compile(r"(?<![\w])loss: ([^\s,]+)"),
)
_PROFILER = re.compile(r"\bcompleted profiler activation/deactivation step: (\d{1,12})\b")
_TIME_KEY = "perf/step_time_seconds"
_QUOTED_TIME_KEY = f'"{_TIME_KEY}"'


def recognises(text: str) -> bool:
    return _STEP_LINE.is_in(text) or (_QUOTED_TIME_KEY in text and text.lstrip().startswith("{"))


def read(log: StepLogFile) -> StepLog:
    run = extract_run(log, NAME, _steps(log), "give a log with 'completed step: N, seconds: S', or the metrics_file")
    median_s = median(run.step_s)
    suspect = tuple(step.number for step in run.timed if step.seconds and step.seconds < MIN_STEP_SHARE * median_s)
    warnings = []
    if suspect:
        warnings.append(
            f"{format_steps(suspect)} took less than a quarter of the median step ({median_s:.4g} s): only the "
            "launch of the step by the host was timed. A step beside it contains the rest, so this is no step time"
        )
    resolution_s = printed_resolution(run.step_s)
    # MaxText times every step separately, even if it prints only some steps.
    return replace(run, steps_per_value=1, suspect=suspect, resolution_s=resolution_s).with_warnings(*warnings)


def _steps(log: StepLogFile) -> Iterator[LogStep]:
    for line in log.lines():
        if _QUOTED_TIME_KEY in line.text:
            yield from _read_metrics(log, line)
        elif profiler_match := _PROFILER.search(line.text):
            yield LogStep(int(profiler_match[1]), seconds=None, line=line.number, rank=line.rank)
        elif step := _STEP_LINE.read(log, line):
            yield step


def _read_metrics(log: StepLogFile, line: LogLine) -> Iterator[LogStep]:
    try:
        entry = parse_json(line.text)
    except ValueError as error:
        if line.whole:  # the end of the file has not cut it off, so the file is damaged
            raise log.error(line.number, f"is not JSON: {error}", "copy the metrics_file again") from error
        log.incomplete_lines.append(line.number)
        return
    if not isinstance(entry, dict) or _TIME_KEY not in entry:
        return
    number, seconds = json_number(entry.get("step")), json_number(entry[_TIME_KEY])
    if number is None or seconds is None or not number.is_integer():
        raise log.error(line.number, "has no step number or no step time", "give MaxText's own metrics_file")
    yield LogStep(int(number), seconds, json_number(entry.get("learning/loss")), line=line.number)
