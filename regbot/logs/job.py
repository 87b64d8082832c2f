"""From the step lines of a file to the steps of one run: one job, one rank, each step once.

Log files collect more than one run: a job that was started again appends, several ranks write into one file, a logger
with two handlers prints everything twice. What can be told apart is, with a warning; what cannot is an error, because a
mixture of runs has a step time that nothing took.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from regbot.logs.lines import LogFile
from regbot.logs.step_log import Step, StepLog, shown

MAX_STEPS = 500_000
"""Most steps that are kept of one file: 200 MB of memory."""
BACK_AND_FORTH = 0.2
"""Where step numbers go back in more lines than this share of them, no job was started again: ranks interleave."""

_LABEL = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,6})\]:?|\[\d+,(\d{1,6})\]<std\w+>:|(?:rank ?)?(\d{1,6}):\s)")
"""``[rank0]:`` and ``[default0]:`` of torchrun, ``[1,0]<stdout>:`` of mpirun, ``0:`` of srun --label."""


class Row(NamedTuple):
    """A step and where it stands."""

    line: int
    rank: str
    step: Step


def rank_of(text: str) -> str:
    """The rank that labels a line, '' where none does."""
    found = _LABEL.match(text)
    return next(rank for rank in found.groups() if rank is not None) if found else ""


def one_run(log: LogFile, format_name: str, rows: Iterable[Row], fix: str) -> StepLog:
    """The steps of the last job in ``rows``, of one rank. ``mean_of`` is the distance of step numbers: frameworks
    print means since the last line. Raises LogError; ``fix`` says what to do where no step has a time."""
    kept: list[Row] = []
    for row in rows:
        kept.append(row)
        if len(kept) > MAX_STEPS:
            raise log.error(row.line, f"is the {MAX_STEPS + 1:,}th step", "give the part of the log to be compared")
    kept, rank, said = _one_rank(kept)
    kept, more = _once_each(kept)
    kept, jobs, ended = _last_job(log, kept)
    said += [*more, *ended]
    steps = tuple(row.step for row in kept)
    if not any(step.seconds is not None for step in steps):
        raise log.error(kept[0].line if kept else 0, "holds no step with a time", fix)
    interval, more = _interval(steps)
    return StepLog(log.name, format_name, steps, interval, rank, (), (*said, *more, *_faults(steps)), jobs=jobs)


def _one_rank(rows: list[Row]) -> tuple[list[Row], str, list[str]]:
    ranks = sorted({row.rank for row in rows}, key=lambda rank: (rank == "", int(rank or 0)))
    if len(ranks) == len(rows) > 1:  # numbered lines (grep -n): no two lines with one label
        return rows, "", []
    if len(ranks) < 2:
        return rows, ranks[0] if ranks else "", []
    names = ", ".join(rank or "no label" for rank in ranks[:8])
    said = f"the lines of {len(ranks)} ranks stand in this file ({names}); rank {ranks[0]}'s are used"
    return [row for row in rows if row.rank == ranks[0]], ranks[0], [said]


def _once_each(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Of lines in a row that tell of the same step the first."""
    kept = [row for i, row in enumerate(rows) if i == 0 or row.step.number != rows[i - 1].step.number]
    if len(kept) == len(rows):
        return rows, []
    twice = next(row for i, row in enumerate(rows) if i and row.step.number == rows[i - 1].step.number)
    said = (
        f"{len(rows) - len(kept)} lines tell of a step that the line before told of (step {twice.step.number} in line "
        f"{twice.line}): several ranks without labels, or a logger that prints twice. The first line of each is used"
    )
    return kept, [said]


def _last_job(log: LogFile, rows: list[Row]) -> tuple[list[Row], int, list[str]]:
    back = [i for i in range(1, len(rows)) if rows[i].step.number < rows[i - 1].step.number]
    if not back:
        return rows, 1, []
    first = rows[back[0]]
    where = f"step {first.step.number} in line {first.line} comes after step {rows[back[0] - 1].step.number}"
    if len(back) > max(1, BACK_AND_FORTH * len(rows)):
        raise log.error(
            first.line,
            f"step numbers go back in {len(back)} of {len(rows)} lines ({where}): several ranks write into this file "
            "and do not label their lines",
            "give the log of one rank, or have the launcher label lines (srun --label)",
        )
    last = rows[back[-1]]
    jobs = f"{len(back) + 1} jobs stand one after the other in this file ({where})"
    return rows[back[-1] :], len(back) + 1, [f"{jobs}; the last one, from line {last.line} on, is used"]


def _interval(steps: tuple[Step, ...]) -> tuple[int, list[str]]:
    """The usual distance between step numbers, and what is wrong where others occur."""
    distances = Counter(later.number - step.number for step, later in pairwise(steps))
    if not distances:
        return 1, []
    usual = min(distances.items(), key=lambda each: (-each[1], each[0]))[0]
    said = []
    if usual > 1:
        said.append(
            f"each value is the mean of {usual} steps (the log interval): a slow step hides in it, and there are "
            f"{usual} times fewer values. Log every step"
        )
    gaps = [f"{step.number} to {later.number}" for step, later in pairwise(steps) if later.number - step.number > usual]
    if gaps:
        said.append(f"steps are missing: after {gaps[0]} at first, {len(gaps)} gap{'s' * (len(gaps) > 1)} in all")
    return usual, said


def _faults(steps: tuple[Step, ...]) -> list[str]:
    said = []
    if untimed := tuple(step.number for step in steps if step.seconds is None):
        said.append(f"the log has no time of {shown(untimed)}")
    if skipped := tuple(step.number for step in steps if step.skipped):
        said.append(f"the optimizer skipped {sum(step.skipped for step in steps)} steps, at {shown(skipped)}")
    if nan := tuple(step.number for step in steps if step.nan):
        said.append(f"the loss is not finite in {sum(step.nan for step in steps)} steps, at {shown(nan)}")
    return said
