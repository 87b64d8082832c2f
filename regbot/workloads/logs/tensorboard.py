"""TensorBoard's JSON download of one scalar: ``[[wall time, step, value], ...]``.

torchtitan writes its step time only to TensorBoard, as ``time_metrics/end_to_end(s)``: the mean since the last entry.
The file does not contain the name of its scalar. Therefore the reader compares the values with the differences of the
wall times. If they do not agree, the file contains another scalar and is refused.
"""

import re
from itertools import pairwise
from statistics import median
from typing import Annotated

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from regbot.records.files import describe_validation_error
from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import WHOLE_FILE, StepLogFile
from regbot.workloads.logs.step_log import LogStep, StepLog

NAME = "tensorboard"
TITLE = "TensorBoard's JSON export of a step time"

MAX_CLOCK_FACTOR = 1.5
"""Maximum factor, in either direction, between the elapsed wall time and the values (median). Saving and evaluation
take wall time that is in no step.
"""

_ENTRIES = TypeAdapter(list[tuple[FiniteFloat, Annotated[int, Field(ge=0, lt=10**15)], float]])
_START = re.compile(r"\s*\[\s*\[\s*[-+.\deE]+\s*,")
_ADVICE = "export the scalar time_metrics/end_to_end(s) as JSON"


def recognises(head: str) -> bool:
    return _START.match(head) is not None


def read(log: StepLogFile) -> StepLog:
    try:
        entries = _ENTRIES.validate_json(log.document())
    except ValidationError as error:
        problem = f"is not a list of [wall time, step, value]: {describe_validation_error(error)}"
        raise log.error(WHOLE_FILE, problem, _ADVICE) from error
    ratios: list[float] = []  # of the wall time per step to the value
    for (earlier_wall_s, earlier_step, _), (wall_s, step, value) in pairwise(entries):
        if step > earlier_step and value > 0:
            ratios.append((wall_s - earlier_wall_s) / (step - earlier_step) / value)
    if not ratios or not 1 / MAX_CLOCK_FACTOR <= median(ratios) <= MAX_CLOCK_FACTOR:
        comparison = f"wall time is {median(ratios or [0]):.3g} times the values"
        raise log.error(WHOLE_FILE, f"has another scalar than step times: {comparison}", _ADVICE)
    steps = (LogStep(step, value, line=number) for number, (_, step, value) in enumerate(entries, start=1))
    return extract_run(log, NAME, steps, _ADVICE)
