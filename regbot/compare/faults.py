"""Faults that make a comparison of files impossible, and warnings about a comparison."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from regbot.compare import environment, steady_cut
from regbot.compare.completeness import csv_warnings
from regbot.compare.grouping import merge_warnings
from regbot.compare.run_files import StepFile
from regbot.compare.scale import mixed_units
from regbot.judge.backends import dispatcher_change, dispatcher_problems
from regbot.judge.validity import environment_warnings
from regbot.records.run import Run


def faults(base: Sequence[StepFile], head: Sequence[StepFile], paired: bool) -> Iterator[str]:
    """Yield why the files cannot be compared. If single files have faults, yield all of these. Otherwise yield the
    first fault of the comparison."""
    files = [*base, *head]
    file_faults = [fault for file in files for fault in file.faults]
    yield from file_faults
    if file_faults:
        return
    for file in files:
        if file.log is not None and file.log.too_coarse:
            yield f"{file.name}: its {file.log.too_coarse}"
            return
    for file, other_file in combinations(files, 2):
        # A simulator may write one constant time. Measured times vary from step to step, so two files that agree in
        # every step are copies.
        if file.step_s == other_file.step_s and len(set(file.step_s)) > 1:
            yield f"{file.name} and {other_file.name} have the same times in every step: one is a copy of the other"
            return
    for file in files[1:]:
        if _steps_per_value(file) != _steps_per_value(files[0]):
            yield (
                f"{file.name}: its values are {_describe_values(file)}, but those of {files[0].name} are "
                f"{_describe_values(files[0])}; a mean hides single steps, so log all runs in the same way, best every "
                "step"
            )
            return
    if unit_faults := [*mixed_units(files)]:
        yield from unit_faults
        return
    runs = [(file.name, file.run) for file in files if file.run is not None]
    for path, run in runs[1:]:
        if mismatch := _find_mismatch(runs[0][1], run):
            yield f"{path}: {mismatch} than in {runs[0][0]}; their times cannot be compared"
            return
    if paired:
        for base_file, head_file in zip(base, head, strict=True):
            if base_file.run and head_file.run and base_file.run.node != head_file.run.node:
                yield f"{base_file.name} and {head_file.name} ran on different nodes; a pair needs one node"
                return
            if max(base_file.cut, head_file.cut) >= min(len(base_file.step_s), len(head_file.step_s)):
                yield (
                    f"{base_file.name} and {head_file.name}: no common step remains after the longer warm-up "
                    f"of {max(base_file.cut, head_file.cut)} steps; give longer runs, or --skip N"
                )
                return
    for path, run in runs:
        if run.code is not None and run.code.foreign:
            package, folder = min(run.code.foreign.items())
            yield f"{path}: ran {package} from {folder}, outside of its checkout; it is not a run of that commit"
            return
    for base_file in base:
        for head_file in head:
            if base_file.run is None or head_file.run is None:
                continue
            if change := dispatcher_change(base_file.run, head_file.run):
                yield (
                    f"{base_file.name} and {head_file.name}: asked for dispatcher {change.requested!r}, base executed "
                    f"{change.base_executed!r} and head {change.head_executed!r}; the times say nothing about the code"
                )
                return
            if problems := [*dispatcher_problems(base_file.run, head_file.run)]:
                yield f"{base_file.name} and {head_file.name}: {problems[0]}"
                return


def _steps_per_value(file: StepFile) -> int | None:
    """Return the number of steps over which each value is a mean; None if the number is not known."""
    return file.log.steps_per_value if file.log is not None else 1


def _describe_values(file: StepFile) -> str:
    """Return ``of single steps`` or, for example, ``means of 10 steps``."""
    steps = _steps_per_value(file)
    return "of single steps" if steps == 1 else f"means of {steps or 'an unknown number of'} steps"


def _find_mismatch(first: Run, second: Run) -> str:
    """Return why the times of two records cannot be compared; '' if they can be."""
    assert first.timing is not None
    assert second.timing is not None
    classes = [run.node.node_class if run.node else None for run in (first, second)]
    for term, first_value, second_value in (
        ("workload", first.workload, second.workload),
        ("shape", first.shape, second.shape),
        ("variant", first.variant, second.variant),
        ("clock", first.timing.clock, second.timing.clock),
        ("number of ranks", str(len(first.timing.ranks)), str(len(second.timing.ranks))),
        ("class of the node", *classes),
    ):
        if first_value != second_value:
            return f"the {term} differs ({second_value or 'unknown'}, not {first_value or 'unknown'})"
    return ""


def warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """Yield the warnings of a comparison."""
    records = [file.run for file in (*base, *head) if file.run is not None]
    for run in records[1:]:
        if texts := [*environment_warnings(records[0], run)]:
            yield from texts
            break
    yield from _log_warnings([*base, *head])
    yield from csv_warnings([*base, *head])
    yield from steady_cut.warnings([file for file in (*base, *head) if not file.faults])
    yield from environment.warnings(base, head)


def _log_warnings(files: Sequence[StepFile]) -> Iterator[str]:
    """Yield the warnings of the logs, merged by their text, and a warning if the files have different formats."""
    yield from merge_warnings(
        (file.name, warning) for file in files if file.log is not None for warning in file.log.warnings
    )
    first_files: dict[str, StepFile] = {}
    for file in files:
        file_format = "record" if file.run else "csv"
        if file.log is not None:
            file_format = file.log.format
        first_files.setdefault(file_format, file)
    if len(first_files) > 1 and any(file.log is not None for file in files):
        (first_format, first_file), (other_format, other_file), *_ = first_files.items()
        yield (
            f"{first_file.name} has the format {first_format}, but {other_file.name} has {other_format}: they may time "
            "different parts of a step"
        )
