"""What can be held against files of step times before they are compared: faults that forbid it, and warnings."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from regbot.compare import cut, environment
from regbot.compare.read import StepFile
from regbot.compare.said import once
from regbot.compare.scale import mixed_units
from regbot.compare.whole import csv_warnings
from regbot.judge.backends import dispatcher_change, dispatcher_problems
from regbot.judge.validity import environment_warnings
from regbot.records.run import Run


def faults(base: Sequence[StepFile], head: Sequence[StepFile], paired: bool) -> Iterator[str]:
    """Why the files cannot be compared."""
    files = [*base, *head]
    broken = [fault for file in files for fault in file.faults]
    yield from broken
    if broken:
        return
    for file in files:
        if file.log is not None and file.log.too_coarse:
            yield f"{file.name}: its {file.log.too_coarse}"
            return
    for one, other in combinations(files, 2):
        # Times without any noise may agree (a simulator's); noise that agrees in every step is a copy's.
        if one.step_s == other.step_s and len(set(one.step_s)) > 1:
            yield f"{one.name} and {other.name} hold the same times in every step: one is a copy, and no run of its own"
            return
    for file in files[1:]:
        if _mean_of(file) != _mean_of(files[0]):
            yield (
                f"{file.name}: its values are {_means(file)}, those of {files[0].name} are {_means(files[0])}; a mean "
                "hides single steps, so log all runs alike, best every step"
            )
            return
    if told := [*mixed_units(files)]:
        yield from told
        return
    runs = [(file.name, file.run) for file in files if file.run is not None]
    for path, run in runs[1:]:
        if why := _unlike(runs[0][1], run):
            yield f"{path}: {why} than in {runs[0][0]}; their times cannot be compared"
            return
    if paired:
        for ours, theirs in zip(base, head, strict=True):
            if ours.run and theirs.run and ours.run.node != theirs.run.node:
                yield f"{ours.name} and {theirs.name} ran on different nodes; a pair stands on one"
                return
            if max(ours.cut, theirs.cut) >= min(len(ours.step_s), len(theirs.step_s)):
                yield (
                    f"{ours.name} and {theirs.name}: no step is left in both after the longer warm-up of "
                    f"{max(ours.cut, theirs.cut)} steps; give longer runs, or --skip N"
                )
                return
    for path, run in runs:
        if run.code is not None and run.code.foreign:
            package, place = min(run.code.foreign.items())
            yield f"{path}: ran {package} from {place}, outside of its checkout; it is not a run of that commit"
            return
    for ours in base:
        for theirs in head:
            if ours.run is None or theirs.run is None:
                continue
            if off := dispatcher_change(ours.run, theirs.run):
                yield (
                    f"{ours.name} and {theirs.name}: asked for dispatcher {off.requested!r}, one executed "
                    f"{off.base_executed!r} and the other {off.head_executed!r}; their times say nothing of the code"
                )
                return
            if problems := [*dispatcher_problems(ours.run, theirs.run)]:
                yield f"{ours.name} and {theirs.name}: {problems[0]}"
                return


def _mean_of(file: StepFile) -> int | None:
    """Steps that each value is the mean of; None where that is not known."""
    return file.log.mean_of if file.log is not None else 1


def _means(file: StepFile) -> str:
    steps = _mean_of(file)
    return "of single steps" if steps == 1 else f"means of {steps or 'an unknown number of'} steps"


def _unlike(one: Run, other: Run) -> str:
    """What makes times of two records incomparable, '' where nothing does."""
    assert one.timing is not None
    assert other.timing is not None
    classes = [run.node.node_class if run.node else None for run in (one, other)]
    for word, ours, theirs in (
        ("workload", one.workload, other.workload),
        ("shape", one.shape, other.shape),
        ("variant", one.variant, other.variant),
        ("clock", one.timing.clock, other.timing.clock),
        ("number of ranks", str(len(one.timing.ranks)), str(len(other.timing.ranks))),
        ("class of the node", *classes),
    ):
        if ours != theirs:
            return f"the {word} is another one ({theirs or 'unknown'}, not {ours or 'unknown'})"
    return ""


def warnings(base: Sequence[StepFile], head: Sequence[StepFile]) -> Iterator[str]:
    """What to keep in mind beside the answer."""
    records = [file.run for file in (*base, *head) if file.run is not None]
    for run in records[1:]:
        if told := [*environment_warnings(records[0], run)]:
            yield from told
            break
    yield from _logs_say([*base, *head])
    yield from csv_warnings([*base, *head])
    yield from cut.warnings([file for file in (*base, *head) if not file.faults])
    yield from environment.warnings(base, head)


def _logs_say(files: Sequence[StepFile]) -> Iterator[str]:
    """What the logs themselves warn of, told once where several say the same; and that they are of several formats."""
    yield from once((file.name, warning) for file in files if file.log is not None for warning in file.log.warnings)
    kinds: dict[str, StepFile] = {}
    for file in files:
        kinds.setdefault(file.log.format if file.log is not None else "record" if file.run else "csv", file)
    if len(kinds) > 1 and any(file.log is not None for file in files):
        (one, ours), (other, theirs), *_ = kinds.items()
        yield f"{ours.name} is of the format {one}, {theirs.name} of {other}: they may not time the same part of a step"
