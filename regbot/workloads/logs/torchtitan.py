"""Logs of torchtitan: the line of ``components/metrics.py`` (read 2026-08-21, version 0.3.0).

    [rank0]:[titan] 2026-03-03 15:24:02,506 - root - INFO - step:  3  loss:  6.99885  grad_norm:  2.0142
    memory:  1.07GiB(1.13%)  tps: 350,428  tflops: 25.09  mfu: 2.54%

The line has no step time. ``tps`` is tokens per second of one device since the last line, rounded to a whole number. A
group of ranks (tensor, context and pipeline parallelism) shares one batch, so the seconds of a step are

    tokens of the batch (local batch x sequence x accumulation) / (tps x ranks that share the batch)

``tokens_per_step`` is the tokens of the batch divided by the ranks that share the batch. The scalar
``time_metrics/end_to_end(s)``, which TensorBoard exports as JSON, is more precise.
"""

import math
import re

from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import WHOLE_FILE, StepLine, StepLogFile
from regbot.workloads.logs.step_log import StepLog

NAME = "torchtitan"
TITLE = "step lines of torchtitan"

MIN_TPS = 250
"""With a smaller tps (tokens per second), rounding to a whole number changes the step time by 0.2% or more."""

_TPS = re.compile(r"\btps: ([\d,]+)\s+(?:tflops: \S+\s+)?mfu: (?:[\d.]+%|N/A|nan%?)")
_STEP_LINE = StepLine(
    word="step:",
    number=re.compile(r"(?<!validate )\bstep:\s+(\d{1,12})\s+loss:\s+\S+\s"),
    time=_TPS,
    loss=re.compile(r"\bloss:\s+(\S+)\s"),
    last=_TPS,
)

_ADVICE = (
    "give the tokens of one step (tokens_per_step of a workload, --tokens-per-step of compare: local batch x sequence "
    "x gradient accumulation / (TP x CP x PP)), or TensorBoard's JSON export of time_metrics/end_to_end(s)"
)


def recognises(text: str) -> bool:
    return _STEP_LINE.is_in(text)


def read(log: StepLogFile) -> StepLog:
    """Return the run in ``log``. Raises LogError, also if ``tokens_per_step`` of ``log`` is missing."""
    tokens_per_step = log.tokens_per_step
    if tokens_per_step is None:
        raise log.error(WHOLE_FILE, "torchtitan prints tokens per second but no step time", _ADVICE)
    if not (math.isfinite(tokens_per_step) and tokens_per_step > 0):
        raise log.error(WHOLE_FILE, f"tokens per step are {tokens_per_step:g}, but must be positive", _ADVICE)
    steps = _STEP_LINE.steps(log, lambda tps: tokens_per_step / tps if tps else math.nan)
    run = extract_run(log, NAME, steps, _ADVICE)
    warnings = [f"step times are derived: {tokens_per_step:g} tokens per step and rank, divided by the printed tps"]
    slowest_tps = tokens_per_step / max(run.step_s)
    if slowest_tps < MIN_TPS:
        rounding_pct = 50 / slowest_tps  # rounding changes tps by up to 0.5
        warnings.append(f"tps is printed as a whole number; at {slowest_tps:.0f} that is {rounding_pct:.2g}% of a step")
    return run.with_warnings(*warnings)
