"""Logs of Megatron-LM and Megatron Bridge: iteration lines, or Bridge's ``Step Time`` lines where there are no others.

The last rank prints, every ``log_interval`` iterations, ``training_log`` in Megatron-LM's training.py and in Bridge's
training/utils/train_utils.py (both read 2026-08-22):

     [time] iteration        7/     100 | ... | elapsed time per iteration (ms): 5444.9 | throughput per GPU
     (TFLOP/s/GPU): 239.8 | ... | lm loss: 1.825991E+00 | ... | number of skipped iterations:   0 | number of nan ...

The time is the mean since the last line, to 0.1 ms. Rank 0 of Bridge prints ``Step Time : 25.13s GPU utilization:
240.0MODEL_TFLOP/s/GPU``, without a number and to 10 ms. Every field ends at a ``|``: one that does not was cut off, and
so was a line at the end of a file without the last field.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from regbot.logs.job import Row, one_run, rank_of
from regbot.logs.lines import LogFile
from regbot.logs.step_log import Step, StepLog, number_or_nan, seconds_or_none

NAME = "megatron"
TITLE = "iteration lines of Megatron-LM and Megatron Bridge"

RESOLUTION = {"iteration": 1e-4, "Step Time": 1e-2}
"""Seconds to which a kind of line is printed."""
COARSE = 0.002
"""A resolution of more than this part of a step hides what a verdict is about."""

_BEGINS = re.compile(r"\biteration\s+(\d{1,12})/\s*\d+ \|")
_MILLISECONDS = re.compile(r"\| elapsed time per iteration \(ms\):\s*([^|\s]+)\s*\|")
_LOSS = re.compile(r"\| lm loss:\s*([^|\s]+)\s*\|")
_TFLOPS = re.compile(r"\| throughput per GPU \(TFLOP/s/GPU\):\s*([^|\s]+)\s*\|")
_SKIPPED = re.compile(r"\| number of skipped iterations:\s*(\d{1,9})\s*\|")
_NAN = re.compile(r"\| number of nan iterations:\s*(\d{1,9})\s*\|")
_STEP_TIME = re.compile(r"\bStep Time : ([\d.,]+)s GPU utilization: ([^\sA-Z]+)MODEL_TFLOP")

_FIX = "give the log of the last rank, which prints 'elapsed time per iteration (ms)'"


def recognises(text: str) -> bool:
    """Whether ``text``, one line, is of this format."""
    return bool(("iteration" in text and _BEGINS.search(text)) or ("Step Time" in text and _STEP_TIME.search(text)))


def read(log: LogFile) -> StepLog:
    """The run in ``log``. Raises LogError."""
    torn: list[int] = []
    rows = _iterations(log, torn)
    first = next(rows, None)
    kind = "iteration" if first is not None else "Step Time"
    found = one_run(log, NAME, chain([first], rows) if first is not None else _step_times(log), _FIX)
    warnings = [f"line {torn[0]} begins a step and is cut off; it was left out"] if torn else []
    if kind == "Step Time":
        warnings.append("'Step Time' lines carry no step number; they are counted from 1")
    if RESOLUTION[kind] > COARSE * min(found.step_s):
        part = 100 * RESOLUTION[kind] / min(found.step_s)
        warnings.append(f"'{kind}' lines are printed to {RESOLUTION[kind]:g} s, {part:.2g}% of a step")
    return replace(found, resolution_s=RESOLUTION[kind]).warned(*warnings)


def _iterations(log: LogFile, torn: list[int]) -> Iterator[Row]:
    for line in log.lines():
        begins = _BEGINS.search(line.text) if "iteration" in line.text else None
        if begins is None:
            continue
        rest = line.text[begins.start() :]
        time = _MILLISECONDS.search(rest)
        if time is None or not (line.whole or _NAN.search(rest)):
            torn.append(line.number)
            continue
        loss, tflops = _LOSS.search(rest), _TFLOPS.search(rest)
        value = number_or_nan(loss.group(1)) if loss else None
        nan = _count(_NAN, rest)
        yield Row(
            line.number,
            rank_of(line.text),
            Step(
                number=int(begins.group(1)),
                seconds=seconds_or_none(number_or_nan(time.group(1)) / 1000),
                loss=value,
                tflops=number_or_nan(tflops.group(1)) if tflops else None,
                skipped=_count(_SKIPPED, rest),
                nan=max(nan, int(value is not None and math.isnan(value))),
            ),
        )


def _step_times(log: LogFile) -> Iterator[Row]:
    number = 0
    for line in log.lines():
        if found := _STEP_TIME.search(line.text):
            number += 1
            seconds = seconds_or_none(number_or_nan(found.group(1)))
            yield Row(line.number, rank_of(line.text), Step(number, seconds, tflops=number_or_nan(found.group(2))))


def _count(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found.group(1)) if found else 0
