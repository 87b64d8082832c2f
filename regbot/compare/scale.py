"""Detection of mixed units: milliseconds among seconds would look like a huge regression."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from regbot.compare.run_files import StepFile
from regbot.stats.steady import MIN_CUT, SHORT_LOG_CUT_DIVISOR, SHORT_LOG_STEPS

UNIT_RATIO = 300.0
"""Two step times with this ratio or a larger one are taken to be in different units.

Units differ by a factor of 1000. Step times of one job differ less: in golden values of real MoE jobs, the slowest
steps take 15 times as long as the usual step.
"""

MIN_GAP_RATIO = UNIT_RATIO / 10
"""Smallest ratio between two neighbouring times, in sorted order, that separates two groups of times in one file. With
smaller ratios only, the times vary gradually and have one unit."""

MICROSECOND_RATIO = 30_000.0
"""Ratio from which the unit factor is taken to be a million and not a thousand."""


def mixed_units(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield the first sign that the times of a file, or of two files, have different units; nothing if there is no
    sign. The files must have no faults.
    """
    for file in files:
        first_kept = _count_compile_steps(file)
        times = sorted(file.step_s[first_kept:])
        shortest, longest = times[0], times[-1]
        if longest < UNIT_RATIO * shortest:
            continue
        # The widest gap separates the two groups. The smaller group is the unusual one.
        split = max(range(1, len(times)), key=lambda i: times[i] / times[i - 1])
        if times[split] < MIN_GAP_RATIO * times[split - 1]:
            continue
        minority, majority = sorted((times[:split], times[split:]), key=len)
        unusual_index = next(index for index in range(first_kept, len(file.step_s)) if file.step_s[index] in minority)
        yield (
            f"{file.name}: step {file.numbers[unusual_index]} took {file.step_s[unusual_index]:g} s, and others take "
            f"{median(majority):.4g} s: {_unit_question(longest / shortest)}. If the time is correct, the step "
            "hung: measure the run again"
        )
        return
    files_by_step_time = sorted(files, key=_usual_step_s)
    for faster, slower in pairwise(files_by_step_time):
        faster_s, slower_s = _usual_step_s(faster), _usual_step_s(slower)
        if slower_s >= UNIT_RATIO * faster_s:
            yield (
                f"{slower.name}: a usual step takes {slower_s:.4g} s, and one of {faster.name} "
                f"{faster_s:.4g} s: {_unit_question(slower_s / faster_s)}"
            )
            return


def _unit_question(factor: float) -> str:
    return f"are these {'milli' if factor < MICROSECOND_RATIO else 'micro'}seconds? All times are in seconds"


def _usual_step_s(file: StepFile) -> float:
    return median(file.kept_s)


def _count_compile_steps(file: StepFile) -> int:
    """Return the number of leading steps that may take minutes because they compile. Every comparison leaves them out.

    This is the smallest cut that ``stats.steady`` makes in a log of this length. The detected cut of the file may be
    larger, but is not used: if the unit changes within a file, the steps before the change can look like a warm-up.
    """
    if file.steady is None:  # the user gave the cut with --skip
        return file.cut
    steps = len(file.step_s)
    smallest_cut = MIN_CUT if steps >= SHORT_LOG_STEPS else math.ceil(steps / SHORT_LOG_CUT_DIVISOR)
    return min(smallest_cut, file.cut)
