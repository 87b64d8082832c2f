"""Are all times in one unit? Milliseconds among seconds make the largest regression that there ever was."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from regbot.compare.read import StepFile
from regbot.stats.steady import FLOOR, SHORT, SHORT_SHARE

OTHER_UNIT = 300.0
"""Times so far apart are not of the same job. Between units lies a factor of 1000, and one job's slowest steps take 15
times its usual one (golden values of real MoE jobs)."""

MICROSECONDS = 30_000.0
"""From here on the factor is nearer to a million than to a thousand."""


def mixed_units(files: Sequence[StepFile]) -> Iterator[str]:
    """What speaks for two units: inside a file, or between files. Files have no faults."""
    for file in files:
        kept = _after_first_steps(file)
        values = sorted(file.step_s[kept:])
        if values[-1] < OTHER_UNIT * values[0]:
            continue
        # The widest gap parts the two groups; the smaller one is what is odd.
        below = max(range(1, len(values)), key=lambda i: values[i] / values[i - 1])
        if values[below] < OTHER_UNIT / 10 * values[below - 1]:
            continue
        few, many = sorted((values[:below], values[below:]), key=len)
        odd = next(at for at in range(kept, len(file.step_s)) if file.step_s[at] in few)
        yield (
            f"{file.name}: step {file.numbers[odd]} took {file.step_s[odd]:g} s, and others take {median(many):.4g} s: "
            f"{_ask(values[-1] / values[0])}. If it is true, the step hung or was not waited for: measure the run again"
        )
        return
    ordered = sorted(files, key=_usual)
    for less, more in pairwise(ordered):
        if _usual(more) >= OTHER_UNIT * _usual(less):
            yield (
                f"{more.name}: a usual step takes {_usual(more):.4g} s, and one of {less.name} {_usual(less):.4g} s: "
                f"{_ask(_usual(more) / _usual(less))}"
            )
            return


def _ask(factor: float) -> str:
    return f"are these {'milli' if factor < MICROSECONDS else 'micro'}seconds? All times are in seconds"


def _usual(file: StepFile) -> float:
    return median(file.kept_s)


def _after_first_steps(file: StepFile) -> int:
    """Steps at the beginning that may take minutes, because they compile: the least that is left out of any log.

    Not those that were: a cut that was found may have taken the one unit for the warm-up of the other.
    """
    if file.steady is None:
        return file.cut
    steps = len(file.step_s)
    return min(FLOOR if steps >= SHORT else -(-steps // SHORT_SHARE), file.cut)
