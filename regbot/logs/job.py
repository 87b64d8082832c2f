"""Selects the steps of one run from the step lines of a file: one job, one rank, each step once.

A log file can mix several runs: a restarted job appends its lines, several ranks write into one file, and a logger with
two handlers prints every line twice. If the lines can be separated, one run is selected and the result has a warning.
Otherwise an error is raised, because the step times of a mixture belong to no run.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from regbot.logs.lines import StepLogFile
from regbot.logs.step_log import LogStep, StepLog, format_steps
from regbot.text.words import count

MAX_STEPS = 500_000
"""Maximum number of steps of one file. This many steps use 200 MB of memory."""
MAX_BACKWARD_SHARE = 0.2
"""If step numbers decrease in a larger share of the lines, several ranks have written in turn. Otherwise a job was
restarted.
"""

_LABEL = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,6})\]:?|\[\d+,(\d{1,6})\]<std\w+>:|(?:rank ?)?(\d{1,6}):\s)")
"""Labels of ranks: ``[rank0]:`` and ``[default0]:`` of torchrun, ``[1,0]<stdout>:`` of mpirun, ``0:`` of
srun --label.
"""


class StepRow(NamedTuple):
    """A step with the number of its line and the label of its rank."""

    line: int
    rank: str
    step: LogStep


def rank_label(text: str) -> str:
    """Return the rank label of a line; '' if the line has none."""
    match = _LABEL.match(text)
    return next(rank for rank in match.groups() if rank is not None) if match else ""


def extract_run(
    log: StepLogFile, format_name: str, rows: Iterable[StepRow], advice: str, values_are_means: bool = True
) -> StepLog:
    """Return the steps of the last job in ``rows``, from one rank.

    ``steps_per_value`` of the result is the usual distance of step numbers, because frameworks print the mean over the
    steps since the last line. If ``values_are_means`` is False, this is not certain, and a distance above 1 gets no
    warning. Raises LogError. If no step has a time, ``advice`` is the advice of the error.
    """
    rows_of_run: list[StepRow] = []
    for row in rows:
        rows_of_run.append(row)
        if len(rows_of_run) > MAX_STEPS:
            raise log.error(row.line, f"is the {MAX_STEPS + 1:,}th step", "give only the part of the log to compare")
    rows_of_run, rank, warnings = _select_rank(rows_of_run)
    rows_of_run, new_warnings = _drop_repeats(rows_of_run)
    rows_of_run, jobs, job_warnings = _select_last_job(log, rows_of_run)
    warnings += [*new_warnings, *job_warnings]
    steps = tuple(row.step for row in rows_of_run)
    if not any(step.seconds is not None for step in steps):
        raise log.error(rows_of_run[0].line if rows_of_run else 0, "has no step with a time", advice)
    interval, new_warnings = _find_log_interval(steps, values_are_means)
    return StepLog(
        log.name, format_name, steps, interval, rank, (), (*warnings, *new_warnings, *_fault_warnings(steps)), jobs=jobs
    )


def _select_rank(rows: list[StepRow]) -> tuple[list[StepRow], str, list[str]]:
    ranks = sorted({row.rank for row in rows}, key=lambda rank: (rank == "", int(rank or 0)))
    if len(ranks) == len(rows) > 1:  # no two labels are equal, so they are line numbers (grep -n)
        return rows, "", []
    if len(ranks) < 2:
        return rows, ranks[0] if ranks else "", []
    names = ", ".join(rank or "no label" for rank in ranks[:8])
    warning = f"the file has lines of {len(ranks)} ranks ({names}); those of rank {ranks[0]} are used"
    return [row for row in rows if row.rank == ranks[0]], ranks[0], [warning]


def _drop_repeats(rows: list[StepRow]) -> tuple[list[StepRow], list[str]]:
    """Keep only the first of consecutive lines about the same step."""
    unique = [row for i, row in enumerate(rows) if i == 0 or row.step.number != rows[i - 1].step.number]
    if len(unique) == len(rows):
        return rows, []
    repeated = next(row for i, row in enumerate(rows) if i and row.step.number == rows[i - 1].step.number)
    warning = (
        f"{len(rows) - len(unique)} lines repeat the step of the line before (step {repeated.step.number} in line "
        f"{repeated.line}): several ranks without labels, or a logger that prints twice. The first line is used"
    )
    return unique, [warning]


def _select_last_job(log: StepLogFile, rows: list[StepRow]) -> tuple[list[StepRow], int, list[str]]:
    restarts = [i for i in range(1, len(rows)) if rows[i].step.number < rows[i - 1].step.number]
    if not restarts:
        return rows, 1, []
    first = rows[restarts[0]]
    place = f"step {first.step.number} in line {first.line} comes after step {rows[restarts[0] - 1].step.number}"
    if len(restarts) > max(1, MAX_BACKWARD_SHARE * len(rows)):
        raise log.error(
            first.line,
            f"step numbers go back in {len(restarts)} of {len(rows)} lines ({place}): several ranks write into this "
            "file without labels",
            "give the log of one rank, or have the launcher label lines (srun --label)",
        )
    last = rows[restarts[-1]]
    summary = f"the file has {len(restarts) + 1} jobs one after the other ({place})"
    return rows[restarts[-1] :], len(restarts) + 1, [f"{summary}; the last one, from line {last.line} on, is used"]


def _find_log_interval(steps: tuple[LogStep, ...], values_are_means: bool) -> tuple[int, list[str]]:
    """Return the most frequent distance between step numbers, and warnings about means and about missing steps."""
    distances = Counter(after.number - step.number for step, after in pairwise(steps))
    if not distances:
        return 1, []
    interval = min(distances.items(), key=lambda distance_count: (-distance_count[1], distance_count[0]))[0]
    warnings = []
    if interval > 1 and values_are_means:
        warnings.append(
            f"each value is the mean of {interval} steps (the log interval). This hides slow steps and leaves "
            f"{interval} times fewer values; log every step"
        )
    gaps = [
        f"{step.number} to {after.number}" for step, after in pairwise(steps) if after.number - step.number > interval
    ]
    if gaps:
        warnings.append(f"steps are missing: {count(len(gaps), 'gap')}, the first from {gaps[0]}")
    return interval, warnings


def _fault_warnings(steps: tuple[LogStep, ...]) -> list[str]:
    warnings = []
    if untimed := tuple(step.number for step in steps if step.seconds is None):
        warnings.append(f"the log has no time for {format_steps(untimed)}")
    if skipped := tuple(step.number for step in steps if step.skipped):
        warnings.append(
            f"the optimizer skipped {sum(step.skipped for step in steps)} steps, at {format_steps(skipped)}"
        )
    if nan := tuple(step.number for step in steps if step.nan):
        warnings.append(f"the loss is not finite in {sum(step.nan for step in steps)} steps, at {format_steps(nan)}")
    return warnings
