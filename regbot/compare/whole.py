"""Does a file tell of a whole run? Of one that it does not, no PASS is made.

A slowdown shows in what is there. That there is none does not: the slow steps may be those that are missing, the job
that stopped may have stopped for a reason, and a step that the optimizer skipped is not the work that was asked for.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from regbot.compare.read import StepFile
from regbot.compare.said import once

RESTARTED = "the process started again"
"""How a warning of the steady state begins where it saw a restart that the log does not name."""


def gaps(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring step numbers that are further apart than usual ones."""
    distance = usual_distance(numbers)
    return [(one, next_one) for one, next_one in pairwise(numbers) if next_one - one > distance]


def usual_distance(numbers: Sequence[int]) -> int:
    """The most frequent distance of step numbers, the smaller of two that are."""
    distances = Counter(next_one - one for one, next_one in pairwise(numbers))
    return min(distances.items(), key=lambda each: (-each[1], each[0]))[0] if distances else 1


def lacks(file: StepFile) -> Iterator[str]:
    """What the file does not tell of the run, or what the run did not do, in the steps that count."""
    first = file.numbers[file.cut]
    if file.log is not None and file.log.jobs > 1:
        yield f"holds {file.log.jobs} jobs, of which only the last is compared; why did the others end?"
    elif file.steady is not None and any(warning.startswith(RESTARTED) for warning in file.steady.warnings):
        yield "seems to hold a process that was started again; why did the one before end?"
    untimed = [number for number in file.log.untimed if number > first] if file.log is not None else []
    if untimed:
        yield f"has no time of {len(untimed)} steps, step {untimed[0]} at first"
    known = sorted({*file.numbers, *untimed}) if untimed else file.numbers
    if found := [gap for gap in gaps(known) if gap[0] >= first]:
        yield f"lacks steps between {found[0][0]} and {found[0][1]}" + (
            f", and in {len(found) - 1} more places" if len(found) > 1 else ""
        )
    steps = [step for step in file.log.steps if step.number >= first] if file.log is not None else []
    if skipped := sum(step.skipped for step in steps):
        yield f"tells of {skipped} steps that the optimizer skipped"
    if nan := sum(step.nan for step in steps):
        yield f"tells of {nan} steps with a loss that is not finite"


def csv_warnings(files: Sequence[StepFile]) -> Iterator[str]:
    """Gaps in the step numbers of CSV files; the readers of logs warn by themselves."""
    own = [file for file in files if file.log is None and file.run is None and not file.faults]
    yield from once((file.name, warning) for file in own for warning in _in_numbers(file.numbers))


def _in_numbers(numbers: Sequence[int]) -> Iterator[str]:
    if found := gaps(numbers):
        yield f"steps are missing: after {found[0][0]} to {found[0][1]} at first, {len(found)} in all"
    if (distance := usual_distance(numbers)) > 1:
        yield (
            f"only every {distance}th step is in the file; whether its time is of one step or the mean of {distance} "
            "is not"
        )
