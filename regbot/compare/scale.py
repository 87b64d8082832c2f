"""Detection of mixed units: milliseconds among seconds would look like a huge regression."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from regbot.compare.run_files import StepFile
from regbot.stats.steady import MIN_CUT, SHORT_LOG_CUT_DIVISOR, SHORT_LOG_STEPS

UNIT_RATIO = 300.0
"""Ratio between two step times that a single job does not reach.

Units differ by a factor of 1000. The slowest steps of a job take 15 times its usual step (golden values of real MoE
jobs).
"""

MICROSECOND_RATIO = 30_000.0
"""Ratio from which the unit factor is taken to be a million and not a thousand."""


def mixed_units(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield the first sign that the times of a file, or of two files, have different units. The files must have no
    faults.
    """
    for file in files:
        first_kept = _count_compile_steps(file)
        values = sorted(file.step_s[first_kept:])
        if values[-1] < UNIT_RATIO * values[0]:
            continue
        # The widest gap separates the two groups. The smaller group is the unusual one.
        split = max(range(1, len(values)), key=lambda i: values[i] / values[i - 1])
        if values[split] < UNIT_RATIO / 10 * values[split - 1]:
            continue
        minority, majority = sorted((values[:split], values[split:]), key=len)
        odd_index = next(index for index in range(first_kept, len(file.step_s)) if file.step_s[index] in minority)
        yield (
            f"{file.name}: step {file.numbers[odd_index]} took {file.step_s[odd_index]:g} s, and others take "
            f"{median(majority):.4g} s: {_unit_question(values[-1] / values[0])}. If the time is correct, the step "
            "hung: measure the run again"
        )
        return
    files_by_step_time = sorted(files, key=_usual_step_s)
    for smaller, larger in pairwise(files_by_step_time):
        if _usual_step_s(larger) >= UNIT_RATIO * _usual_step_s(smaller):
            yield (
                f"{larger.name}: a usual step takes {_usual_step_s(larger):.4g} s, and one of {smaller.name} "
                f"{_usual_step_s(smaller):.4g} s: {_unit_question(_usual_step_s(larger) / _usual_step_s(smaller))}"
            )
            return


def _unit_question(factor: float) -> str:
    return f"are these {'milli' if factor < MICROSECOND_RATIO else 'micro'}seconds? All times are in seconds"


def _usual_step_s(file: StepFile) -> float:
    return median(file.kept_s)


def _count_compile_steps(file: StepFile) -> int:
    """Return the number of leading steps that may take minutes because they compile. Every comparison leaves them out.

    The detected cut is only an upper limit: if the unit changes within a file, the steps before the change can look
    like a warm-up.
    """
    if file.steady is None:  # the user gave the cut with --skip
        return file.cut
    steps = len(file.step_s)
    return min(MIN_CUT if steps >= SHORT_LOG_STEPS else -(-steps // SHORT_LOG_CUT_DIVISOR), file.cut)
