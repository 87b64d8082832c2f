"""Choice of the steps to compare: those of the steady state, and the same steps in both arms.

Warm-up of run and node cancels only if all files leave out the same part. A file that never settles is kept, because
dropping single runs would bias the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from regbot.check.compare.run_files import StepFile
from regbot.stats.steady import unsettled_warnings
from regbot.stats.unpaired import MIN_RUNS

FEW_STEPS = 20
"""With fewer steady steps than this, single stalls dominate the mean of a run."""

Files = Sequence[StepFile]


def align_steps(base: Files, head: Files, paired: bool) -> tuple[list[StepFile], list[StepFile]]:
    """Return the files with common cuts: the larger one of each pair, or the largest of all unpaired files.

    Unpaired files keep their own cuts if the user gave them, or if the largest cut leaves too few steps of a file.
    """
    if paired:
        cuts = [max(base_file.cut, head_file.cut) for base_file, head_file in zip(base, head, strict=True)]
        base_files, head_files = (
            [replace(file, cut=cut) for file, cut in zip(arm, cuts, strict=True)] for arm in (base, head)
        )
        return base_files, head_files
    cut = max(file.cut for file in (*base, *head))
    user_gave_cuts = all(file.steady is None for file in (*base, *head))
    # The common cut must not take counted steps from a file and leave it fewer than ``FEW_STEPS``.
    is_too_long = any(file.cut < cut and len(file.step_s) - cut < FEW_STEPS for file in (*base, *head))
    if user_gave_cuts or is_too_long:
        return [*base], [*head]
    return [replace(file, cut=cut) for file in base], [replace(file, cut=cut) for file in head]


def describe_left_out(files: Files) -> str:
    cuts = {file.cut for file in files}
    # A value of a log may be the mean of several steps. The cut then counts values.
    unit = "steps" if all(file.log is None or file.log.steps_per_value == 1 for file in files) else "logged values"
    is_detected = any(file.steady for file in files)  # ``steady`` is None only with --skip
    cause = "warm-up" if is_detected else "as given by --skip"
    if not max(cuts):
        return f"all {unit} count, {'because no warm-up was detected' if is_detected else cause}"
    cut_text = f"{min(cuts)}" if len(cuts) == 1 else f"{min(cuts)} to {max(cuts)}"
    return f"the first {cut_text} {unit} of each file do not count ({cause})"


def find_unsteady(base: Files, head: Files) -> list[str]:
    """Return why the arms have no comparable step time; [] if they have one, or if fewer than four files per arm show
    too little.
    """
    if min(len(base), len(head)) < MIN_RUNS:
        return []
    # A run on a CPU is never unsteady, because other work makes its step times wander.
    return [*unsettled_warnings(*([None if file.is_on_cpu else file.steady for file in arm] for arm in (base, head)))]


def file_warnings(files: Files) -> Iterator[tuple[str, str]]:
    """Yield the name of a file and a warning: first files without a steady state, then warnings of steady files."""
    steady_states = [(file.name, file.steady) for file in files if file.steady is not None]
    yield from ((name, f"no steady state: {state.reason}") for name, state in steady_states if not state.steady)
    yield from ((name, warning) for name, state in steady_states if state.steady for warning in state.warnings)


def length_warnings(files: Files) -> Iterator[str]:
    fewest = min((len(file.kept_s) for file in files), default=FEW_STEPS)
    if fewest < FEW_STEPS:
        yield f"a run has {fewest} steady steps; below {FEW_STEPS} single stalls dominate its mean"
    lengths = {len(file.step_s) + (len(file.log.explained) if file.log is not None else 0) for file in files}
    if len(lengths) > 1:
        yield f"runs have {min(lengths)} to {max(lengths)} steps; give each the same number"
