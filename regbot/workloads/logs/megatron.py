"""Logs of Megatron-LM and Megatron Bridge. If a log has no iteration lines, Bridge's ``Step Time`` lines are read.

The last rank prints an iteration line every ``log_interval`` iterations, by ``training_log`` in Megatron-LM's
training.py and in Bridge's training/utils/train_utils.py (both read 2026-08-22):

     [time] iteration        7/     100 | ... | elapsed time per iteration (ms): 5444.9 | throughput per GPU
     (TFLOP/s/GPU): 239.8 | ... | lm loss: 1.825991E+00 | ... | number of skipped iterations:   0 | number of nan ...

The time is the mean since the last line, rounded to 0.1 ms. Rank 0 of Bridge prints ``Step Time : 25.13s GPU
utilization: 240.0MODEL_TFLOP/s/GPU``, without a step number and rounded to 10 ms. In iteration lines, every field ends
with a ``|``. A field without a ``|`` is incomplete. If the last line of a file lacks the last field, the line is
incomplete too.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import StepLine, StepLogFile, number_or_nan
from regbot.workloads.logs.step_log import LogStep, StepLog

NAME = "megatron"
TITLE = "iteration lines of Megatron-LM and Megatron Bridge"

RESOLUTION_S = {"iteration": 1e-4, "Step Time": 1e-2}
MAX_RESOLUTION_SHARE = 0.002
"""If the resolution is a larger share of a step, the log gets a warning, because rounding can hide a regression."""

_NAN = re.compile(r"\| number of nan iterations:\s*(\d{1,9})\s*\|")
_ITERATION = StepLine(
    word="iteration",
    number=re.compile(r"\biteration\s+(\d{1,12})/\s*\d+ \|"),
    time=re.compile(r"\| elapsed time per iteration \(ms\):\s*([^|\s]+)\s*\|"),
    loss=re.compile(r"\| lm loss:\s*([^|\s]+)\s*\|"),
    skipped=re.compile(r"\| number of skipped iterations:\s*(\d{1,9})\s*\|"),
    nan=_NAN,
    last=_NAN,
)
_STEP_TIME = re.compile(r"\bStep Time : ([\d.,]+)s GPU utilization: [^\sA-Z]+MODEL_TFLOP")


def recognises(text: str) -> bool:
    return _ITERATION.is_in(text) or ("Step Time" in text and _STEP_TIME.search(text) is not None)


def read(log: StepLogFile) -> StepLog:
    iteration_steps = _ITERATION.steps(log, lambda milliseconds: milliseconds / 1000)
    first = next(iteration_steps, None)
    kind = "iteration" if first is not None else "Step Time"  # of lines that are read, as a key of ``RESOLUTION_S``
    steps = chain([first], iteration_steps) if first is not None else _step_time_steps(log)
    run = extract_run(log, NAME, steps, "give the log of the last rank, which prints 'elapsed time per iteration (ms)'")
    warnings = ["'Step Time' lines have no step number; they are numbered from 1"] if kind == "Step Time" else []
    resolution_s, shortest_s = RESOLUTION_S[kind], min(run.step_s)
    if resolution_s > MAX_RESOLUTION_SHARE * shortest_s:
        percent = 100 * resolution_s / shortest_s
        warnings.append(f"'{kind}' lines are printed to {resolution_s:g} s, {percent:.2g}% of a step")
    return replace(run, resolution_s=resolution_s).with_warnings(*warnings)


def _step_time_steps(log: StepLogFile) -> Iterator[LogStep]:
    number = 0
    for line in log.lines():
        if match := _STEP_TIME.search(line.text):
            number += 1
            yield LogStep(number, number_or_nan(match[1]), line=line.number, rank=line.rank)
