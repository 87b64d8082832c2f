"""Selects the steps of one run from the step lines of a file: one job, one rank, each step once.

If the lines of several jobs or ranks can be separated, one run is selected and the result has a warning. Otherwise an
error is raised, because the step times of a mixture belong to no run.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from regbot.records.text.words import count
from regbot.workloads.logs.lines import WHOLE_FILE, StepLogFile
from regbot.workloads.logs.step_log import LogStep, StepLog, format_steps

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
    line: int
    """Number of the line. For a JSON document it is ``WHOLE_FILE`` (golden values), or the number of the entry
    (TensorBoard)."""
    rank: str
    step: LogStep


def rank_label(text: str) -> str:
    """Return the rank label of a line, such as '3' for '[rank3]:'; '' if the line has none."""
    match = _LABEL.match(text)
    return next(rank for rank in match.groups() if rank is not None) if match else ""


def extract_run(
    log: StepLogFile, format_name: str, rows: Iterable[StepRow], advice: str, values_are_means: bool = True
) -> StepLog:
    """Return the steps of the last job in ``rows``, from one rank.

    ``steps_per_value`` of the result is the usual distance of step numbers. ``values_are_means`` is False if the values
    may be those of single steps, so that a distance above 1 gets no warning. Raises LogError.
    """
    all_rows: list[StepRow] = []
    for row in rows:
        all_rows.append(row)
        if len(all_rows) > MAX_STEPS:
            raise log.error(row.line, f"is the {MAX_STEPS + 1:,}th step", "give only the part of the log to compare")
    rows_of_rank, rank, rank_warnings = _select_rank(all_rows)
    unique_rows, repeat_warnings = _drop_repeats(rows_of_rank)
    rows_of_job, job_count, job_warnings = _select_last_job(log, unique_rows)
    steps = tuple(row.step for row in rows_of_job)
    if not any(step.seconds is not None for step in steps):
        raise log.error(rows_of_job[0].line if rows_of_job else WHOLE_FILE, "has no step with a time", advice)
    interval, interval_warnings = _find_log_interval(steps, values_are_means)
    selection_warnings = (*rank_warnings, *repeat_warnings, *job_warnings)
    return StepLog(
        origin=log.name,
        format=format_name,
        steps=steps,
        steps_per_value=interval,
        rank=rank,
        warnings=(*selection_warnings, *interval_warnings, *_fault_warnings(steps)),
        jobs=job_count,
    )


def _select_rank(rows: list[StepRow]) -> tuple[list[StepRow], str, list[str]]:
    # Labels are texts of numbers, and sorted as numbers. '' (no label) comes last.
    rank_labels = sorted({row.rank for row in rows}, key=lambda rank: (rank == "", int(rank or 0)))
    if len(rank_labels) == len(rows) > 1:  # no two labels are equal, so they are line numbers (grep -n)
        return rows, "", []
    if len(rank_labels) < 2:
        return rows, rank_labels[0] if rank_labels else "", []
    names = ", ".join(rank or "no label" for rank in rank_labels[:8])
    warning = f"the file has lines of {len(rank_labels)} ranks ({names}); those of rank {rank_labels[0]} are used"
    return [row for row in rows if row.rank == rank_labels[0]], rank_labels[0], [warning]


def _drop_repeats(rows: list[StepRow]) -> tuple[list[StepRow], list[str]]:
    repeats = [row for before, row in pairwise(rows) if row.step.number == before.step.number]
    if not repeats:
        return rows, []
    unique = [*rows[:1], *(row for before, row in pairwise(rows) if row.step.number != before.step.number)]
    first_repeat = repeats[0]
    warning = (
        f"{len(repeats)} lines repeat the step of the line before (step {first_repeat.step.number} in line "
        f"{first_repeat.line}): several ranks without labels, or a logger that prints twice. The first line is used"
    )
    return unique, [warning]


def _select_last_job(log: StepLogFile, rows: list[StepRow]) -> tuple[list[StepRow], int, list[str]]:
    """Return the lines of the last job, the number of jobs, and warnings.

    A job begins where the step number decreases. Raises LogError if that happens too often for restarts.
    """
    job_starts = [index for index in range(1, len(rows)) if rows[index].step.number < rows[index - 1].step.number]
    if not job_starts:
        return rows, 1, []  # one job
    first_restart, last_restart = rows[job_starts[0]], rows[job_starts[-1]]
    number_before = rows[job_starts[0] - 1].step.number
    place = f"step {first_restart.step.number} in line {first_restart.line} comes after step {number_before}"
    if len(job_starts) > max(1, MAX_BACKWARD_SHARE * len(rows)):
        raise log.error(
            first_restart.line,
            f"step numbers go back in {len(job_starts)} of {len(rows)} lines ({place}): several ranks write into this "
            "file without labels",
            "give the log of one rank, or have the launcher label lines (srun --label)",
        )
    job_count = len(job_starts) + 1
    summary = f"the file has {job_count} jobs one after the other ({place})"
    warning = f"{summary}; the last one, from line {last_restart.line} on, is used"
    return rows[job_starts[-1] :], job_count, [warning]


def _find_log_interval(steps: tuple[LogStep, ...], values_are_means: bool) -> tuple[int, list[str]]:
    """Return the most frequent distance between step numbers, and warnings about means and about missing steps.

    If several distances are equally frequent, the smallest is returned.
    """
    distances = Counter(after.number - step.number for step, after in pairwise(steps))
    if not distances:
        return 1, []
    interval = min(distances, key=lambda distance: (-distances[distance], distance))
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
    if untimed_steps := tuple(step.number for step in steps if step.seconds is None):
        warnings.append(f"the log has no time for {format_steps(untimed_steps)}")
    if skipped_steps := tuple(step.number for step in steps if step.skipped):
        warnings.append(
            f"the optimizer skipped {sum(step.skipped for step in steps)} steps, at {format_steps(skipped_steps)}"
        )
    if nan_steps := tuple(step.number for step in steps if step.nan):
        warnings.append(
            f"the loss is not finite in {sum(step.nan for step in steps)} steps, at {format_steps(nan_steps)}"
        )
    return warnings
