"""Detection of files that do not cover a whole run. An incomplete file gets no PASS.

If the steps in the file are slow, the run is slow. If they are not slow, the run may still be slow: the slow steps may
be missing, the job may have stopped because of a fault, and a step that the optimizer skipped does less work.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from regbot.compare.grouping import merge_warnings
from regbot.compare.run_files import StepFile
from regbot.text.words import count


def find_gaps(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of neighbouring step numbers that are further apart than usual."""
    distance = usual_distance(numbers)
    return [(number, next_number) for number, next_number in pairwise(numbers) if next_number - number > distance]


def usual_distance(numbers: Sequence[int]) -> int:
    """Return the most frequent distance of neighbouring step numbers. If two distances are equally frequent, return the
    smaller.
    """
    distances = Counter(next_number - number for number, next_number in pairwise(numbers))
    return min(distances.items(), key=lambda item: (-item[1], item[0]))[0] if distances else 1


def find_omissions(file: StepFile) -> Iterator[str]:
    """Yield what the steps that count lack. The texts continue the file name: ``lacks steps between 20 and 40``."""
    first = file.numbers[file.cut]
    if file.log is not None and file.log.jobs > 1:
        yield f"contains {file.log.jobs} jobs, of which only the last is compared; check why the others ended"
    elif file.steady is not None and file.steady.restart:
        yield "seems to contain a restarted process; check why the first one ended"
    untimed = [number for number in file.log.untimed if number > first] if file.log is not None else []
    if untimed:
        yield f"has no time for {count(len(untimed), 'step')}, first for step {untimed[0]}"
    numbers = sorted({*file.numbers, *untimed}) if untimed else file.numbers
    if late_gaps := [gap for gap in find_gaps(numbers) if gap[0] >= first]:
        yield f"lacks steps between {late_gaps[0][0]} and {late_gaps[0][1]}" + (
            f", and in {len(late_gaps) - 1} more places" if len(late_gaps) > 1 else ""
        )
    steps = [step for step in file.log.steps if step.number >= first] if file.log is not None else []
    if skipped_steps := sum(step.skipped for step in steps):
        yield f"contains {skipped_steps} steps that the optimizer skipped"
    if nan_steps := sum(step.nan for step in steps):
        yield f"contains {nan_steps} steps with a loss that is not finite"


def csv_warnings(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield warnings about gaps in the step numbers of CSV files. For logs, the log readers warn about gaps."""
    csv_files = [file for file in files if file.log is None and file.run is None and not file.faults]
    yield from merge_warnings(
        (file.name, warning) for file in csv_files for warning in _step_number_warnings(file.numbers)
    )


def _step_number_warnings(numbers: Sequence[int]) -> Iterator[str]:
    if gaps := find_gaps(numbers):
        yield f"steps are missing: {count(len(gaps), 'gap')}, the first from {gaps[0][0]} to {gaps[0][1]}"
    if (distance := usual_distance(numbers)) > 1:
        yield (
            f"only every {distance}th step is in the file; the file does not say whether its time is of one "
            f"step or the mean of {distance}"
        )
