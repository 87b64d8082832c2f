"""Logs of NeMo 2: the lines of its progress printer (lightning/pytorch/callbacks/progress_printer.py).

    Training epoch 0, iteration 7/29 | lr: 1e-06 | global_batch_size: 512 | global_step: 7 | reduced_train_loss: 11.03 |
    train_step_timing in s: 2.01 | consumed_samples: 4096

The iteration begins again with each epoch, so ``global_step`` is the number of the step.
"""

import re
from dataclasses import replace

from regbot.workloads.logs.job import extract_run
from regbot.workloads.logs.lines import StepLine, StepLogFile
from regbot.workloads.logs.step_log import StepLog, printed_resolution

NAME = "nemo"
TITLE = "'Training epoch' lines of NeMo 2"

_STEP_LINE = StepLine(
    word="Training epoch",
    number=re.compile(r"\| global_step: (\d{1,12}) \|"),
    time=re.compile(r"\| train_step_timing in s: ([^|\s]+)"),
    loss=re.compile(r"\| reduced_train_loss: ([^|\s]+)"),
)


def recognises(text: str) -> bool:
    return _STEP_LINE.is_in(text)


def read(log: StepLogFile) -> StepLog:
    run = extract_run(log, NAME, _STEP_LINE.steps(log), "give a log that has 'train_step_timing in s'")
    return replace(run, resolution_s=printed_resolution(run.step_s))
