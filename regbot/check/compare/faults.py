"""Faults that make a comparison of files impossible, and warnings about a comparison."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice, pairwise
from statistics import fmean, median

from regbot.check.compare import steady_cut
from regbot.check.compare.run_files import StepFile
from regbot.judge.backends import unmet_dispatcher_request
from regbot.judge.validity import environment_warnings
from regbot.records.run import Run
from regbot.records.text.words import count, listed
from regbot.workloads.logs.step_log import format_steps

UNIT_RATIO = 300.0
"""Two step times with this ratio or a larger one are taken to be in different units.

Units differ by a factor of 1000. Step times of one job differ less: in golden values of real MoE jobs, the slowest
steps take 15 times as long as the usual step.
"""

MAX_MORE_OTHER_WORK = 0.01
"""Head may spend this much more of its time than base beside evaluations and the like; the limit for FAIL."""

_NUMBER = re.compile(r"\d[\d.]*")


def faults(base: Sequence[StepFile], head: Sequence[StepFile], paired: bool) -> Iterator[str]:
    """Yield why the files cannot be compared: all faults of single files, or else the first of the comparison."""
    file_faults = [fault for file in (*base, *head) for fault in file.faults]
    yield from file_faults or islice(_comparison_faults(base, head, paired), 1)


def _comparison_faults(base: Sequence[StepFile], head: Sequence[StepFile], paired: bool) -> Iterator[str]:
    files = [*base, *head]
    for file in files:
        if file.log is not None and file.log.too_coarse:  # a sentence: the times are rounded too much
            yield f"{file.name}: its {file.log.too_coarse}"
    for file, other_file in combinations(files, 2):  # a simulator may write the same time in every step
        if file.step_s == other_file.step_s and len(set(file.step_s)) > 1:
            yield f"{file.name} and {other_file.name} have the same times in every step: one is a copy of the other"
    expected = _describe_values(files[0])
    for file in files[1:]:
        if (values := _describe_values(file)) != expected:
            yield (
                f"{file.name}: its values are {values}, but those of {files[0].name} are {expected}; "
                "a mean hides single steps, so log all runs in the same way, best every step"
            )
    steps = [
        (seconds, file.name, number)
        for file in files
        for seconds, number in zip(file.kept_s, file.numbers[file.cut :], strict=True)
    ]
    (shortest, name, number), (longest, longest_name, longest_number) = min(steps), max(steps)
    if longest >= UNIT_RATIO * shortest:
        yield (
            f"{longest_name}: step {longest_number} takes {longest:.4g} s, and step {number} of {name} {shortest:.4g} "
            "s: are these milliseconds? All times are in seconds. If the time is correct, the step hung: measure the "
            "run again"
        )
    runs = [(file.name, file.run) for file in files if file.run is not None]
    for name, run in runs:
        first_name, first_run = runs[0]
        if mismatch := _find_mismatch(first_run, run):
            yield f"{name}: {mismatch} than in {first_name}; their times cannot be compared"
        if run.code is not None and run.code.foreign:  # packages that were imported from outside of the checkout
            package, folder = min(run.code.foreign.items())
            yield f"{name}: ran {package} from {folder}, outside of its checkout; it is not a run of that commit"
        yield from (f"{name}: {problem}" for problem in unmet_dispatcher_request(run))
    if paired:
        yield from _find_pair_faults(base, head)


def _find_pair_faults(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    for base_file, head_file in zip(base, head, strict=True):
        if base_file.run and head_file.run and base_file.run.node != head_file.run.node:
            yield f"{base_file.name} and {head_file.name} ran on different nodes; a pair needs one node"
        cut = max(base_file.cut, head_file.cut)  # number of leading steps that both files of the pair leave out
        if cut >= min(len(base_file.step_s), len(head_file.step_s)):
            yield (
                f"{base_file.name} and {head_file.name}: no common step remains after the longer warm-up "
                f"of {cut} steps; give longer runs, or --skip N"
            )


def _describe_values(file: StepFile) -> str:
    steps = file.log.steps_per_value if file.log is not None else 1  # None if the number is not known
    return "of single steps" if steps == 1 else f"means of {steps or 'an unknown number of'} steps"


def _find_mismatch(first: Run, second: Run) -> str:
    first_values, second_values = map(_list_properties, (first, second))
    for name, value in second_values.items():
        if value != first_values[name]:
            return f"the {name} differs ({value or 'unknown'}, not {first_values[name] or 'unknown'})"
    return ""


def _list_properties(run: Run) -> dict[str, str | None]:
    assert run.timing is not None  # a record without step times was rejected when it was read
    properties: dict[str, str | None] = {"workload": run.workload, "shape": run.shape, "variant": run.variant}
    properties |= {"clock": run.timing.clock, "number of ranks": str(len(run.timing.ranks))}
    return {**properties, "class of the node": run.node.node_class if run.node else None}


def warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    runs = [file.run for file in (*base, *head) if file.run is not None]
    yield from next(filter(None, ([*environment_warnings(runs[0], run)] for run in runs[1:])), [])
    files = [file for file in (*base, *head) if not file.faults]
    log_warnings = [(file.name, text) for file in files if file.log is not None for text in file.log.warnings]
    yield from _describe_other_work(base, head)
    yield from _merge_warnings([*log_warnings, *steady_cut.file_warnings(files)])
    yield from steady_cut.length_warnings(files)


def _describe_other_work(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield a warning on slow steps that other work of the job explains, and that are left out."""
    for name, files, other_name, other_files in (("base", base, "head", head), ("head", head, "base", base)):
        stalled = [file.log for file in files if file.log is not None and file.log.explained]
        if not stalled:
            continue
        first, works = stalled[0], sorted({work for log in stalled for work in log.explained.values()})
        is_alone = not any(file.log is not None and file.log.explained for file in other_files)
        yield (
            f"{len(stalled)} of {len(files)} {name} runs stall beside {listed(works, 3)} (in {first.origin}: "
            f"{format_steps(sorted(first.explained))}){f', and {other_name} never does' if is_alone else ''}. These "
            "steps are left out: the verdict is on the others"
        )


def find_other_work(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield a sign that other work of the job, which is left out, takes more of head's time than of base's."""
    base_share, head_share = (fmean(_share_of_other_work(file) for file in files) for files in (base, head))
    if head_share - base_share > MAX_MORE_OTHER_WORK:
        yield f"head spends {head_share:.1%} of its time in slow steps beside other work, and base {base_share:.1%}"


def _share_of_other_work(file: StepFile) -> float:
    """Return the share of the counted time by which the steps beside other work are longer than a typical step."""
    if file.log is None or not file.log.explained:
        return 0.0
    first, typical_s = file.numbers[file.cut], median(file.kept_s)
    slow_s = [step.seconds for step in file.log.timed if step.number in file.log.explained and step.number >= first]
    excess_s = sum(seconds - typical_s for seconds in slow_s if seconds is not None)
    return excess_s / (excess_s + sum(file.kept_s) + typical_s * len(slow_s))


def _merge_warnings(warnings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Warnings that differ only in their numbers become one sentence."""
    groups: dict[str, list[tuple[str, str]]] = {}  # warning without its numbers -> file names and warnings
    for name, warning in warnings:
        groups.setdefault(_NUMBER.sub("", warning), []).append((name, warning))
    for (first_name, first_warning), *others in groups.values():
        more = f" and {len(others)} more" if others else ""
        yield f"{first_name}{more}: {first_warning}"


def find_omissions(file: StepFile) -> Iterator[str]:
    """Yield signs that the file does not show a whole, normal run after the warm-up. Such a file may FAIL, but gets no
    PASS, because slow steps may be missing. Every text continues the file name.
    """
    first_counted = file.numbers[file.cut]  # number of the first step after the warm-up
    if file.log is not None and file.log.jobs > 1:
        yield f"contains {file.log.jobs} jobs, of which only the last is compared; check why the others ended"
    elif file.steady is not None and file.steady.restart:  # the step of the restart; 0 if there is none
        yield "seems to contain a restarted process; check why the first one ended"
    untimed = [number for number in file.log.untimed if number > first_counted] if file.log is not None else []
    if untimed:
        yield f"has no time for {count(len(untimed), 'step')}, first for step {untimed[0]}"
    # A step without a time is no gap, and neither is one that other work explains.
    numbers = sorted({*file.numbers, *untimed, *(file.log.explained if file.log is not None else ())})
    if gaps := [gap for gap in _find_gaps(numbers) if gap[0] >= first_counted]:
        before, after = gaps[0]
        remainder = f", and in {len(gaps) - 1} more places" if len(gaps) > 1 else ""
        yield f"lacks steps between {before} and {after}{remainder}"
    steps = [step for step in file.log.steps if step.number >= first_counted] if file.log is not None else []
    # ``skipped`` and ``nan`` are numbers of steps, because a value of a log may be the mean of several steps.
    if skipped_steps := sum(step.skipped for step in steps):
        yield f"contains {skipped_steps} steps that the optimizer skipped"
    if nan_steps := sum(step.nan for step in steps):
        yield f"contains {nan_steps} steps with a loss that is not finite"


def _find_gaps(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of neighbouring step numbers whose distance is larger than the usual distance of the file: the
    most frequent one, or the smallest of several."""
    distances = Counter(later - earlier for earlier, later in pairwise(numbers))
    usual = min(distances, key=lambda distance: (-distances[distance], distance), default=1)
    return [(earlier, later) for earlier, later in pairwise(numbers) if later - earlier > usual]
