"""Detection of files that do not cover a whole run. An incomplete file may FAIL, but gets no PASS.

If the steps in the file are slow, the run is slow. If these steps are not slow, the run may still be slow: the slow
steps may be missing, the job may have stopped because of a fault, and a step that the optimizer skipped does less work.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from regbot.check.compare.run_files import StepFile
from regbot.records.text.words import count


def find_gaps(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of neighbouring step numbers whose distance is larger than the usual distance of the file."""
    usual = usual_distance(numbers)
    return [(number, next_number) for number, next_number in pairwise(numbers) if next_number - number > usual]


def usual_distance(numbers: Sequence[int]) -> int:
    """Return the most frequent distance of neighbouring step numbers; 1 for a single step.

    If two distances are equally frequent, return the smaller distance.
    """
    frequencies = Counter(next_number - number for number, next_number in pairwise(numbers))
    if not frequencies:
        return 1
    highest = max(frequencies.values())
    return min(distance for distance, frequency in frequencies.items() if frequency == highest)


def find_omissions(file: StepFile) -> Iterator[str]:
    """Yield signs that the file does not show a whole, normal run after the warm-up.

    The signs are: several jobs, a restart, missing steps, skipped steps, and a loss that is not finite. Every text
    continues the file name: ``lacks steps between 20 and 40``.
    """
    # ``file.log`` is None for a CSV file or a Run record.
    first_counted = file.numbers[file.cut]  # number of the first step after the warm-up
    if file.log is not None and file.log.jobs > 1:
        yield f"contains {file.log.jobs} jobs, of which only the last is compared; check why the others ended"
    elif file.steady is not None and file.steady.restart:  # the step of the restart; 0 if there is none
        yield "seems to contain a restarted process; check why the first one ended"
    untimed = [number for number in file.log.untimed if number > first_counted] if file.log is not None else []
    if untimed:
        yield f"has no time for {count(len(untimed), 'step')}, first for step {untimed[0]}"
    numbers = sorted({*file.numbers, *untimed}) if untimed else file.numbers  # a step without a time is no gap
    if gaps := [(before, after) for before, after in find_gaps(numbers) if before >= first_counted]:
        before, after = gaps[0]
        remainder = f", and in {len(gaps) - 1} more places" if len(gaps) > 1 else ""
        yield f"lacks steps between {before} and {after}{remainder}"
    steps = [step for step in file.log.steps if step.number >= first_counted] if file.log is not None else []
    # ``skipped`` and ``nan`` are numbers of steps, because a value of a log may be the mean of several steps.
    if skipped_steps := sum(step.skipped for step in steps):
        yield f"contains {skipped_steps} steps that the optimizer skipped"
    if nan_steps := sum(step.nan for step in steps):
        yield f"contains {nan_steps} steps with a loss that is not finite"
