"""Faults that make a comparison of files impossible, and warnings about a comparison."""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, product

from regbot.compare import environment, steady_cut
from regbot.compare.completeness import csv_warnings
from regbot.compare.grouping import merge_warnings
from regbot.compare.run_files import StepFile
from regbot.compare.scale import mixed_units
from regbot.judge.backends import dispatcher_change, dispatcher_problems
from regbot.judge.validity import environment_warnings
from regbot.records.run import Run


def faults(base: Sequence[StepFile], head: Sequence[StepFile], paired: bool) -> Iterator[str]:
    """Yield why the files cannot be compared. If single files have faults, yield all faults of single files. Otherwise
    yield the first fault of the comparison, if any. ``paired`` says whether the i-th files of both arms are a pair."""
    files = [*base, *head]
    file_faults = [fault for file in files for fault in file.faults]
    yield from file_faults or islice(_comparison_faults(base, head, paired), 1)


def _comparison_faults(base: Sequence[StepFile], head: Sequence[StepFile], paired: bool) -> Iterator[str]:
    """Yield all faults that appear only in the comparison of files."""
    files = [*base, *head]
    for file in files:
        if file.log is not None and file.log.too_coarse:  # a sentence: the times are rounded too much
            yield f"{file.name}: its {file.log.too_coarse}"
    yield from _find_copies(files)
    yield from _find_different_averaging(files)
    yield from mixed_units(files)
    runs = [(file.name, file.run) for file in files if file.run is not None]
    for name, run in runs[1:]:
        first_name, first_run = runs[0]
        if mismatch := _find_mismatch(first_run, run):
            yield f"{name}: {mismatch} than in {first_name}; their times cannot be compared"
    if paired:
        yield from _find_pair_faults(base, head)
    for name, run in runs:
        if run.code is not None and run.code.foreign:  # packages that were imported from outside of the checkout
            package, folder = min(run.code.foreign.items())
            yield f"{name}: ran {package} from {folder}, outside of its checkout; it is not a run of that commit"
    yield from _find_dispatcher_faults(base, head)


def _find_copies(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield a fault for every two files with the same times in every step.

    Measured times vary from step to step, so two files that agree in every step are copies. Files with one constant
    time are excepted, because a simulator may write such files.
    """
    for file, other_file in combinations(files, 2):
        if file.step_s == other_file.step_s and len(set(file.step_s)) > 1:
            yield f"{file.name} and {other_file.name} have the same times in every step: one is a copy of the other"


def _find_different_averaging(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield a fault for each file whose values are means over another number of steps than those of the first file."""
    for file in files[1:]:
        if _steps_per_value(file) != _steps_per_value(files[0]):
            yield (
                f"{file.name}: its values are {_describe_values(file)}, but those of {files[0].name} are "
                f"{_describe_values(files[0])}; a mean hides single steps, so log all runs in the same way, best every "
                "step"
            )


def _find_pair_faults(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield a fault for each pair that ran on two nodes, or whose files have no step after the longer warm-up."""
    for base_file, head_file in zip(base, head, strict=True):
        if base_file.run and head_file.run and base_file.run.node != head_file.run.node:
            yield f"{base_file.name} and {head_file.name} ran on different nodes; a pair needs one node"
        cut = max(base_file.cut, head_file.cut)  # number of leading steps that both files of the pair leave out
        if cut >= min(len(base_file.step_s), len(head_file.step_s)):
            yield (
                f"{base_file.name} and {head_file.name}: no common step remains after the longer warm-up "
                f"of {cut} steps; give longer runs, or --skip N"
            )


def _find_dispatcher_faults(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield a fault for each combination of a base file and a head file in which an arm did not execute the requested
    dispatcher. A *change* is such a case with one request for both arms that exactly one arm executed."""
    for base_file, head_file in product(base, head):
        if base_file.run is None or head_file.run is None:
            continue
        if change := dispatcher_change(base_file.run, head_file.run):
            yield (
                f"{base_file.name} and {head_file.name}: asked for dispatcher {change.requested!r}, base executed "
                f"{change.base_executed!r} and head {change.head_executed!r}; the times say nothing about the code"
            )
        for problem in dispatcher_problems(base_file.run, head_file.run):
            yield f"{base_file.name} and {head_file.name}: {problem}"


def _steps_per_value(file: StepFile) -> int | None:
    """Return the number of steps over which each value of the file is a mean; None if the number is not known."""
    return file.log.steps_per_value if file.log is not None else 1


def _describe_values(file: StepFile) -> str:
    """Return ``of single steps`` or, for example, ``means of 10 steps``."""
    steps = _steps_per_value(file)
    return "of single steps" if steps == 1 else f"means of {steps or 'an unknown number of'} steps"


def _find_mismatch(first: Run, second: Run) -> str:
    """Return why the times of two records cannot be compared; '' if they can be compared."""
    # A record without step times was rejected when it was read.
    assert first.timing is not None
    assert second.timing is not None
    first_class, second_class = (run.node.node_class if run.node else None for run in (first, second))
    for property_name, first_value, second_value in (
        ("workload", first.workload, second.workload),
        ("shape", first.shape, second.shape),
        ("variant", first.variant, second.variant),
        ("clock", first.timing.clock, second.timing.clock),
        ("number of ranks", str(len(first.timing.ranks)), str(len(second.timing.ranks))),
        ("class of the node", first_class, second_class),
    ):
        if first_value != second_value:
            return f"the {property_name} differs ({second_value or 'unknown'}, not {first_value or 'unknown'})"
    return ""


def warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield the warnings of a comparison: about environments, logs, gaps in CSV files, and steady states.

    Only one Run record leads to environment warnings: the first one whose environment differs from that of record 1.
    """
    runs = [file.run for file in (*base, *head) if file.run is not None]
    for run in runs[1:]:
        if differences := [*environment_warnings(runs[0], run)]:
            yield from differences
            break
    yield from _log_warnings([*base, *head])
    yield from csv_warnings([*base, *head])
    # A file with faults may have no steps.
    yield from steady_cut.warnings([file for file in (*base, *head) if not file.faults])
    yield from environment.warnings(base, head)


def _log_warnings(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield the warnings of the logs, merged by their text. Yield one more warning if a log is compared with a file of
    another format."""
    yield from merge_warnings(
        (file.name, warning) for file in files if file.log is not None for warning in file.log.warnings
    )
    first_file_by_format: dict[str, StepFile] = {}
    for file in files:
        file_format = "record" if file.run else "csv"
        if file.log is not None:
            file_format = file.log.format
        first_file_by_format.setdefault(file_format, file)
    if len(first_file_by_format) > 1 and any(file.log is not None for file in files):
        (first_format, first_file), (other_format, other_file), *_ = first_file_by_format.items()
        yield (
            f"{first_file.name} has the format {first_format}, but {other_file.name} has {other_format}: they may time "
            "different parts of a step"
        )
