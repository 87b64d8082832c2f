"""Logs of torchtitan: the line of ``components/metrics.py`` (read 2026-08-21, version 0.3.0).

    [rank0]:[titan] 2026-03-03 15:24:02,506 - root - INFO - step:  3  loss:  6.99885  grad_norm:  2.0142
    memory:  1.07GiB(1.13%)  tps: 350,428  tflops: 25.09  mfu: 2.54%

There is no step time in it. ``tps`` is tokens per second of one device since the last line, rounded to a whole number,
so a step takes

    seconds = tokens of one step on one rank (local batch x sequence x accumulation) / (tps x ranks that share a batch)

where the ranks that share a batch are those of tensor, context and pipeline parallelism. With ``tokens_per_step``, that
is the numerator over that count of ranks, the time follows. Better is the scalar ``time_metrics/end_to_end(s)``, which
TensorBoard exports as JSON.
"""

import math
import re
from collections.abc import Iterator

from regbot.logs.job import Row, one_run, rank_of
from regbot.logs.lines import LogFile
from regbot.logs.step_log import Step, StepLog, number_or_nan, seconds_or_none

NAME = "torchtitan"
TITLE = "step lines of torchtitan"

COARSE_TPS = 250
"""Below this, rounding to a whole token per second is 0.2% of a step or more."""

_BEGINS = re.compile(r"\bstep:\s+(\d{1,12})\s+loss:\s+(\S+)\s")
_TPS = re.compile(r"\btps: ([\d,]+)\s+(?:tflops: (\S+)\s+)?mfu: (?:[\d.]+%|N/A|nan%?)")

_MISSING = (
    "give the tokens of one step (tokens_per_step of a workload, --tokens-per-step of compare: local batch x sequence "
    "x gradient accumulation / (TP x CP x PP)), or TensorBoard's JSON export of time_metrics/end_to_end(s)"
)


def recognises(text: str) -> bool:
    """Whether ``text``, one line, is of this format."""
    return "grad_norm:" in text and bool(_BEGINS.search(text))


def read(log: LogFile) -> StepLog:
    """The run in ``log``. Raises LogError, also where its ``tokens_per_step`` is missing."""
    tokens_per_step, torn = log.tokens_per_step, list[int]()
    rows = _rows(log, torn)
    if tokens_per_step is None:
        first = next(rows, None)
        raise log.error(first.line if first else 0, "torchtitan prints tokens per second and no step time", _MISSING)
    if not (math.isfinite(tokens_per_step) and tokens_per_step > 0):
        raise log.error(0, f"{tokens_per_step:g} tokens per step are none", _MISSING)
    found = one_run(log, NAME, rows, _MISSING)
    said = [f"line {torn[0]} begins a step and is cut off; it was left out"] if torn else []
    said.append(f"step times are derived: {tokens_per_step:g} tokens per step and rank over the printed tps")
    slowest = tokens_per_step / max(found.step_s)
    if slowest < COARSE_TPS:
        said.append(f"tps is printed as a whole number; at {slowest:.0f} that is {50 / slowest:.2g}% of a step")
    return found.warned(*said)


def _rows(log: LogFile, torn: list[int]) -> Iterator[Row]:
    for line in log.lines():
        begins = _BEGINS.search(line.text) if "step:" in line.text else None
        if begins is None:
            continue
        speed = _TPS.search(line.text, begins.end())
        if speed is None:
            torn.append(line.number)
            continue
        tps, loss = number_or_nan(speed.group(1)), number_or_nan(begins.group(2))
        seconds = (log.tokens_per_step or 0) / tps if tps else math.nan
        tflops = number_or_nan(speed.group(2)) if speed.group(2) else None
        yield Row(
            line.number,
            rank_of(line.text),
            Step(int(begins.group(1)), seconds_or_none(seconds), loss, tflops, nan=int(math.isnan(loss))),
        )
