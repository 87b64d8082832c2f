"""Reader of step times: one file is one run (CSV, a Run record, or a log of ``regbot.workloads.logs``).

A file of the wrong form is a user error and raises RecordError. A well-formed file with a failed measurement (a step of
NaN seconds, a crashed run) is returned with its faults. The comparison is then INVALID.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.run import Run
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable
from regbot.stats.launch import summarise_timing
from regbot.stats.steady import MIN_CUT, SteadyState, steady_state
from regbot.stats.summary import summarise
from regbot.workloads.logs import DOCUMENT_FORMATS, LogError, LogFormat, StepLog, StepLogFile, recognise_format
from regbot.workloads.logs import FORMATS as LOG_FORMATS

MIN_STEPS, RECOMMENDED_STEPS = 8, 50
"""Numbers of steps in a file: the minimum that can show a steady state, and the recommended number. Both include the
warm-up."""

CSV_HEADER = "step,step_s"

MAX_FAULTS = 3
"""Maximum number of bad values of one file that are listed."""

QUOTE_CHARACTERS = 80
"""Largest length of a quotation from a file in a message."""

FORMATS = (
    f"what is read: CSV with the header '{CSV_HEADER}', one line per step; Run records (regbot/run@1); "
    f"{'; '.join(log_format.TITLE for log_format in LOG_FORMATS)}"
)

Step = tuple[str, int, float]
"""Where a step is in its file, its number, and its seconds."""

_REGBOT_RECORD = re.compile(r'"schema"\s*:\s*"regbot/')
"""Beginning of the schema of a record, such as ``"schema": "regbot/run@1"``."""


@dataclass(frozen=True)
class StepFile:
    """One run, as read from its file. A run with ``faults`` may have no steps."""

    path: Path
    step_s: tuple[float, ...]
    """Seconds of every step, including the warm-up."""
    cut: int
    """Number of leading values of ``step_s`` that do not count."""
    numbers: tuple[int, ...]
    """Step number of each value of ``step_s``, as the file gives it."""
    faults: tuple[str, ...] = ()
    """Reasons why the run cannot be compared. Each reason says where the fault is and what to do."""
    run: Run | None = None
    """The Run record; None if the file is not a Run record."""
    log: StepLog | None = None
    """The log; None if the file is not a log."""
    steady: SteadyState | None = None
    """The steady state; None if the user gave the cut with --skip."""

    @property
    def name(self) -> str:
        return printable(str(self.path))

    @property
    def kept_s(self) -> tuple[float, ...]:
        """Seconds of the steps that count."""
        return self.step_s[self.cut :]

    @property
    def is_on_cpu(self) -> bool:
        return self.run is not None and self.run.node is not None and not self.run.node.gpus

    def summaries(self) -> dict[str, float]:
        """Median and mean of the steps that count, on the log scale."""
        if self.run is not None and self.run.timing is not None:
            return summarise_timing(self.run.timing, self.cut)
        return summarise(self.kept_s)


def read_steps(path: Path, skip: int | None = None, tokens_per_step: float | None = None) -> StepFile:
    """Read the run in ``path``. Leave out its first ``skip`` steps, or by default the steps before its steady state.

    ``tokens_per_step`` is the number of tokens of one step on one rank, for logs of torchtitan. Raises RecordError if
    the file cannot be read as a run, or if no step remains.
    """
    try:
        file = _read_file(path, skip, tokens_per_step)
    except (RecordError, LogError) as error:
        raise RecordError(printable(str(error))) from error
    if file.faults:
        return file
    steps = len(file.step_s)
    if skip is None and steps < 2:
        raise RecordError(
            f"{file.name}: has {steps} step, but the first step of a process is never typical",
            f"give at least {MIN_STEPS} steps; {RECOMMENDED_STEPS} are better",
        )
    if skip is None:
        steady = steady_state(file.step_s)
        file = replace(file, steady=steady, cut=max(file.cut, steady.cut))
    if steps <= file.cut:
        advice = "leave out fewer with --skip N" if skip is None else "leave out fewer"
        recommended = file.cut + RECOMMENDED_STEPS - MIN_CUT  # RECOMMENDED_STEPS already includes MIN_CUT steps
        raise RecordError(
            f"{file.name}: has {steps} steps, and the first {file.cut} are left out, so no step remains",
            f"give at least {file.cut + 1} steps ({recommended} are better), or {advice}",
        )
    return replace(file, faults=_suspect_faults(file, file.log)) if file.log is not None else file


def _read_file(path: Path, skip: int | None, tokens_per_step: float | None) -> StepFile:
    log = StepLogFile(path, tokens_per_step)
    if log_format := _detect_log_format(log):
        return _file_from_log(path, log_format.read(log), skip)
    try:
        data = read_capped(path.resolve() if path.is_symlink() else path)
    except RecordError as error:
        raise RecordError(str(error), f"one file is one run; {FORMATS}") from error
    if not data.strip():
        raise RecordError(f"{path}: is empty", FORMATS)
    is_json = data.lstrip().startswith(b"{")
    return _file_from_record(path, data, skip) if is_json else _file_from_csv(path, data, skip)


def _detect_log_format(log: StepLogFile) -> LogFormat | None:
    """CSV and records are recognised first, because the text of a record may contain lines of a log."""
    beginning = log.head()
    first_line = beginning.partition("\n")[0].rstrip()
    if _is_header(first_line):
        return None
    if beginning.lstrip().startswith("{"):
        if _REGBOT_RECORD.search(beginning):
            return None
        if not first_line.endswith("}"):  # one object over many lines, not one object per line
            return next((log_format for log_format in DOCUMENT_FORMATS if log_format.recognises(beginning)), None)
    return recognise_format(log)


def _file_from_log(path: Path, log: StepLog, skip: int | None) -> StepFile:
    # Slow steps that other work of the job explains are no step times. Every step of ``timed`` has seconds; NaN is only
    # for the type checker. A value may stand for several steps, so ``skip`` counts step numbers.
    steps = [
        (log.origin, step.number, step.seconds or math.nan) for step in log.timed if step.number not in log.explained
    ]
    cut = sum(number < log.steps[0].number + (skip or 0) for _, number, _ in steps)
    return replace(_file_from_steps(path, steps, cut), log=log)


def _suspect_faults(file: StepFile, log: StepLog) -> tuple[str, ...]:
    """Return a fault for each counted step whose time ended before its work on the device was done."""
    suspect = {*log.suspect}  # step numbers
    faults = [
        f"{file.name}: step {number} ({seconds:g} s) was not waited for: only its dispatch was timed, "
        "and a neighbour contains the rest; measure the run again, or leave out more steps with --skip N"
        for number, seconds in zip(file.numbers[file.cut :], file.kept_s, strict=True)
        if number in suspect
    ]
    return _limit_faults(faults)


def _file_from_csv(path: Path, data: bytes, skip: int | None) -> StepFile:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is not text (byte {error.start})", FORMATS) from error
    lines = text.split("\n")
    if not _is_header(lines[0]):
        raise RecordError(f"{path}:1: the first line is {_quote(lines[0])}", FORMATS)
    steps = [_parse_row(f"{path}:{number}", line) for number, line in enumerate(lines[1:], start=2) if line.strip()]
    for (_, earlier, _), (location, later, _) in pairwise(steps):
        if later <= earlier:
            raise RecordError(
                f"{location}: step {later} comes after step {earlier}",
                "step numbers must rise. One file is one run: split the file where a new run begins",
            )
    if not steps:
        raise RecordError(f"{path}: has a header and no step", FORMATS)
    return _file_from_steps(path, steps, skip or 0)


def _is_header(line: str) -> bool:
    return [field.strip() for field in line.split(",")] == CSV_HEADER.split(",")


def _parse_row(location: str, line: str) -> Step:
    """Raises RecordError with ``location``, which is file:line."""
    try:
        step, seconds = line.split(",")
        return location, int(step), float(seconds)
    except ValueError as error:
        raise RecordError(
            f"{location}: is {_quote(line)}",
            "a line has the step's number and its seconds, with a decimal point and no other separator",
        ) from error


def _file_from_record(path: Path, data: bytes, skip: int | None) -> StepFile:
    first_line = data.lstrip().split(b"\n", 1)[0]
    if b'"regbot/session@1"' in first_line:
        raise RecordError(f"{path}: is a session of several runs", f"judge it with 'regbot judge {path}'")
    document = parse_json(data, str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != "regbot/run@1":
        raise RecordError(f"{path}: is JSON with the schema {_quote(str(schema))}", FORMATS)
    run = parse_record(data, Run, str(path))
    if run.outcome != "ok":
        fault = f"{path}: the run ended as {run.outcome}: {run.reason or 'no reason was recorded'}; measure it again"
        return StepFile(path, step_s=(), cut=0, numbers=(), faults=(fault,), run=run)
    if run.timing is None:
        raise RecordError(f"{path}: is a {run.tier} run without step times", "give a timed one")
    steps = [(str(path), number, seconds) for number, seconds in enumerate(run.timing.step_s)]
    return replace(_file_from_steps(path, steps, run.timing.cut if skip is None else skip), run=run)


def _file_from_steps(path: Path, steps: Sequence[Step], cut: int) -> StepFile:
    reason = "the clock was set back, or the step was not measured; measure the run again"
    faults = [
        f"{location}: step {number} took {seconds:g} s: {reason}"
        for location, number, seconds in steps
        if not (math.isfinite(seconds) and seconds > 0)
    ]
    numbers, step_s = tuple(number for _, number, _ in steps), tuple(seconds for _, _, seconds in steps)
    return StepFile(path, step_s, cut, numbers, _limit_faults(faults))


def _limit_faults(faults: Sequence[str]) -> tuple[str, ...]:
    remainder = [f"and {len(faults) - MAX_FAULTS} more such steps"] if len(faults) > MAX_FAULTS else []
    return (*faults[:MAX_FAULTS], *remainder)


def _quote(text: str) -> str:
    return clip(repr(text.rstrip("\r")), QUOTE_CHARACTERS)
