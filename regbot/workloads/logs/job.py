"""Selects the steps of one run from the steps in a file: one job, one rank, each step once.

If the lines of several jobs or ranks can be separated, one run is selected and the result has a warning. Otherwise an
error is raised, because the step times of a mixture belong to no run.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from regbot.records.text.words import count
from regbot.workloads.logs.lines import WHOLE_FILE, StepLogFile
from regbot.workloads.logs.step_log import LogStep, StepLog, format_steps

MAX_STEPS = 500_000
"""Maximum number of steps of one file. This many steps use 200 MB of memory."""
SLOW_FACTOR = 1.2
"""A step that takes longer than this many times the median step is slow."""
MAX_BACKWARD_SHARE = 0.2
"""If step numbers decrease in a larger share of the lines, several ranks have written in turn. Otherwise a job was
restarted.
"""


def extract_run(
    log: StepLogFile, format_name: str, steps: Iterable[LogStep], advice: str, values_are_means: bool = True
) -> StepLog:
    """Return the steps of the last job in ``steps``, from one rank.

    ``steps_per_value`` of the result is the usual distance of step numbers. ``values_are_means`` is False if the values
    may be those of single steps, so that a distance above 1 gets no warning. Raises LogError.
    """
    all_steps: list[LogStep] = []
    for step in steps:
        is_time = step.seconds is not None and math.isfinite(step.seconds) and step.seconds > 0
        if step.loss is not None and not math.isfinite(step.loss):
            step = step._replace(loss=math.nan, nan=max(step.nan, 1))
        all_steps.append(step if is_time else step._replace(seconds=None))
        if len(all_steps) > MAX_STEPS:
            raise log.error(step.line, f"is the {MAX_STEPS + 1:,}th step", "give only the part of the log to compare")
    warnings = [f"line {line} is an incomplete step line and was left out" for line in log.incomplete_lines[:1]]
    steps_of_rank = _select_rank(all_steps, warnings)
    unique_steps = _drop_repeats(steps_of_rank, warnings)
    steps_of_job, job_count = _select_last_job(log, unique_steps, warnings)
    if not any(step.seconds is not None for step in steps_of_job):
        raise log.error(steps_of_job[0].line if steps_of_job else WHOLE_FILE, "has no step with a time", advice)
    interval = _find_log_interval(steps_of_job, values_are_means, warnings)
    explained = _explain_slow_steps(steps_of_job, log.other_work)
    run = StepLog(log.name, format_name, tuple(steps_of_job), interval, explained=explained, jobs=job_count)
    if run.untimed:
        warnings.append(f"the log has no time for {format_steps(run.untimed)}")
    if run.skipped:
        numbers = [step.number for step in run.steps if step.skipped]
        warnings.append(f"the optimizer skipped {run.skipped} steps, at {format_steps(numbers)}")
    if run.nan:
        numbers = [step.number for step in run.steps if step.nan]
        warnings.append(f"the loss is not finite in {run.nan} steps, at {format_steps(numbers)}")
    return replace(run, warnings=tuple(warnings))


def _explain_slow_steps(steps: list[LogStep], other_work: Mapping[int, str]) -> dict[int, str]:
    """Return what other work of the job made a step slow, by step number, for steps directly beside its lines."""
    typical_s = median(step.seconds for step in steps if step.seconds is not None)
    step_lines = [step.line for step in steps]
    explained = {}
    for line, work in other_work.items():
        following = bisect_left(step_lines, line)  # index of the first step at or after the line
        if line in step_lines[following : following + 1]:
            continue  # a step line that has such a word
        for step in steps[max(following - 1, 0) : following + 1]:
            if step.seconds is not None and step.seconds > SLOW_FACTOR * typical_s:
                explained[step.number] = work
    return explained


def _select_rank(steps: list[LogStep], warnings: list[str]) -> list[LogStep]:
    # Labels are texts of numbers, and sorted as numbers. '' (no label) comes last.
    rank_labels = sorted({step.rank for step in steps}, key=lambda rank: (rank == "", int(rank or 0)))
    if len(rank_labels) < 2 or len(rank_labels) == len(steps):  # labels that all differ are line numbers (grep -n)
        return steps
    names = ", ".join(rank or "no label" for rank in rank_labels[:8])
    lines = f"lines of {len(rank_labels)} ranks ({names})"
    warnings.append(f"the file has {lines}; those of rank {rank_labels[0]} are used")
    return [step for step in steps if step.rank == rank_labels[0]]


def _drop_repeats(steps: list[LogStep], warnings: list[str]) -> list[LogStep]:
    repeats = [step for before, step in pairwise(steps) if step.number == before.number]
    if not repeats:
        return steps
    warnings.append(
        f"{len(repeats)} lines repeat the step of the line before (step {repeats[0].number} in line "
        f"{repeats[0].line}): several ranks without labels, or a logger that prints twice. The first line is used"
    )
    return [*steps[:1], *(step for before, step in pairwise(steps) if step.number != before.number)]


def _select_last_job(log: StepLogFile, steps: list[LogStep], warnings: list[str]) -> tuple[list[LogStep], int]:
    """Return the steps of the last job, and the number of jobs.

    A job begins where the step number decreases. Raises LogError if that happens too often for restarts.
    """
    job_starts = [index for index in range(1, len(steps)) if steps[index].number < steps[index - 1].number]
    if not job_starts:
        return steps, 1
    first_restart, last_restart = steps[job_starts[0]], steps[job_starts[-1]]
    number_before = steps[job_starts[0] - 1].number
    place = f"step {first_restart.number} in line {first_restart.line} comes after step {number_before}"
    if len(job_starts) > max(1, MAX_BACKWARD_SHARE * len(steps)):
        problem = f"step numbers go back in {len(job_starts)} of {len(steps)} lines ({place})"
        advice = "give the log of one rank, or have the launcher label lines (srun --label)"
        raise log.error(first_restart.line, f"{problem}: several ranks write into this file without labels", advice)
    job_count = len(job_starts) + 1
    summary = f"the file has {job_count} jobs one after the other ({place})"
    warnings.append(f"{summary}; the last one, from line {last_restart.line} on, is used")
    return steps[job_starts[-1] :], job_count


def _find_log_interval(steps: list[LogStep], values_are_means: bool, warnings: list[str]) -> int:
    """Return the most frequent distance between step numbers. Add warnings about means and about missing steps.

    If several distances are equally frequent, the smallest is returned.
    """
    distances = Counter(after.number - step.number for step, after in pairwise(steps))
    if not distances:
        return 1
    interval = min(distances, key=lambda distance: (-distances[distance], distance))
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
    return interval
