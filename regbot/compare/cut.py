"""Which steps of the files are compared: those of the steady state, and the same ones in both arms.

A cut of its own would give each file another stretch of the warm-up's tail and of the thermal rise, which cancel only
where all have them. So the longest warm-up of a pair is left out of both its runs, and of files that are no pairs the
longest of all. A file that never settles stays: leaving single runs out would choose the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from regbot.compare.read import StepFile
from regbot.compare.said import once
from regbot.stats.steady import unsettled
from regbot.stats.unpaired import LEAST_RUNS

FEW_STEPS = 20
"""Steady steps below which a run's mean hangs on single stalls."""

Files = Sequence[StepFile]


def same_steps(base: Files, head: Files, paired: bool) -> tuple[list[StepFile], list[StepFile]]:
    """The files with the cuts that they are compared by. Where ``paired``, some step is left in both of each pair.

    Files that are no pairs keep cuts of their own where one cut for all would leave one of them with too little: fewer
    than 20 steps, or than its own cut leaves, if that is less.
    """
    if paired:
        cuts = [max(ours.cut, theirs.cut) for ours, theirs in zip(base, head, strict=True)]
        ours, theirs = ([replace(file, cut=cut) for file, cut in zip(arm, cuts, strict=True)] for arm in (base, head))
        return ours, theirs
    cut = max(file.cut for file in (*base, *head))
    given = all(file.steady is None for file in (*base, *head))
    if given or any(len(file.step_s) - cut < min(FEW_STEPS, len(file.kept_s)) for file in (*base, *head)):
        return [*base], [*head]
    return [replace(file, cut=cut) for file in base], [replace(file, cut=cut) for file in head]


def left_out(files: Files) -> str:
    """Which steps do not count, in words."""
    cuts = {file.cut for file in files}
    what = "steps" if all(file.log is None or file.log.mean_of == 1 for file in files) else "logged values"
    why = "they come before the steady state" if any(file.steady for file in files) else "as asked"
    if not max(cuts):
        return f"all {what} count, {why}"
    many = f"{min(cuts)}" if len(cuts) == 1 else f"{min(cuts)} to {max(cuts)}"
    return f"the first {many} {what} of a file do not count: {why}"


def warm_up(files: Files) -> float | None:
    """Median over files of the steps until the last change of level; None where it was not measured."""
    known = [file.steady.warmup_steps for file in files if file.steady and file.steady.warmup_steps is not None]
    return float(median(known)) if known else None


def unsteady(base: Files, head: Files) -> list[str]:
    """Why the arms have no step time that can be compared, [] where nothing says so.

    With fewer than four files of an arm the share of them says nothing yet; there it is a warning. So it is of runs on
    a CPU, where other work makes steps wander.
    """
    if min(len(base), len(head)) < LEAST_RUNS:
        return []
    return [*unsettled([not _doubtful(file) for file in base], [not _doubtful(file) for file in head])]


def _doubtful(file: StepFile) -> bool:
    on_cpu = file.run is not None and file.run.node is not None and not file.run.node.gpus
    return file.steady is not None and not file.steady.steady and not on_cpu


def warnings(files: Files) -> Iterator[str]:
    """Which files have no steady state and why, and what the kept steps of the others show."""
    searched = [(file.name, file.steady) for file in files if file.steady is not None]
    yield from once((name, f"no steady state: {found.reason}") for name, found in searched if not found.steady)
    yield from once((name, warning) for name, found in searched if found.steady for warning in found.warnings)
    kept = min((len(file.kept_s) for file in files), default=FEW_STEPS)
    if kept < FEW_STEPS:
        yield f"a run has {kept} steady steps; below {FEW_STEPS} its mean hangs on single stalls"
    steps = {len(file.step_s) for file in files}
    if len(steps) > 1:
        yield f"runs have from {min(steps)} to {max(steps)} steps; give each the same number"
