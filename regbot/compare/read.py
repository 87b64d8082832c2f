"""One file of step times -> one run. CSV with the header ``step,step_s``, Run records, and what ``regbot.logs`` reads.

A log is a run as the training code told it: what is odd about it goes along as warnings. Two kinds of fault are told
apart. A file that is not what it should be (missing, another format, no number where one should stand, two runs in one
file) is a mistake to mend and raises RecordError. A file that is well formed and holds a measurement that failed (a
step of NaN or negative seconds, a run that crashed) is kept with its faults: the comparison is then invalid, which a
build must be able to tell from a wrong command line.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.judge.pairs import summaries
from regbot.logs import DOCUMENTS, Format, LogError, LogFile, StepLog, recognised
from regbot.logs import FORMATS as LOG_FORMATS
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.run import Run
from regbot.stats.steady import Steady, steady_state
from regbot.stats.summary import summarise
from regbot.text import printable

LEAST_STEPS, BETTER_STEPS = 8, 50
"""Steps of a file: the fewest that can be said to be steady, and what one should have."""

CSV_HEADER = "step,step_s"

SHORTEST_S, LONGEST_S = 1e-9, 1e7
"""A step outside of these was not measured in seconds: less than a nanosecond, more than a hundred days."""

MAX_FAULTS = 3
"""Bad values of one file that are told one by one."""

FORMATS = (
    f"what is read: CSV with the header '{CSV_HEADER}', one line per step; Run records (regbot/run@1); "
    f"{'; '.join(each.TITLE for each in LOG_FORMATS)}"
)

_OWN_RECORD = re.compile(r'"schema"\s*:\s*"regbot/')

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_COUNT = re.compile(r"\d{1,15}")


@dataclass(frozen=True)
class StepFile:
    """One run as its file tells it."""

    path: Path
    step_s: tuple[float, ...]
    """Seconds of every step, warm-up included."""
    cut: int
    """Leading steps that count for nothing."""
    numbers: tuple[int, ...]
    """Of the steps, as the file counts."""
    faults: tuple[str, ...] = ()
    """Why it cannot be compared with anything, each with the place and what to do."""
    run: Run | None = None
    """The record, where the file is one."""
    log: StepLog | None = None
    """What the log says, where the file is one."""
    steady: Steady | None = None
    """Where its steady state begins; None where it was not looked for, because the cut was given."""

    @property
    def name(self) -> str:
        """The path for messages and records: names of files may be anybody's."""
        return printable(str(self.path))

    @property
    def kept_s(self) -> tuple[float, ...]:
        """Seconds of the steps that count."""
        return self.step_s[self.cut :]

    def summaries(self) -> dict[str, float]:
        """Median and mean of the steps that count, on the log scale."""
        if self.run is not None and self.run.timing is not None:
            return summaries(self.run.timing, self.cut)
        return summarise(self.kept_s)


def read_steps(path: Path, skip: int | None = None, tokens_per_step: float | None = None) -> StepFile:
    """The run in ``path`` without its first ``skip`` steps; by default without those before its steady state.

    What a Run record planned to leave out is left out at least. ``tokens_per_step``, of one step on one rank, is for
    logs of torchtitan. Raises RecordError where the file cannot be read as a run, or no step is left after the cut.
    """
    try:
        found = _read(path, skip, tokens_per_step)
    except (RecordError, LogError) as error:
        raise RecordError(printable(str(error))) from error
    if found.faults:
        return found
    steps = len(found.step_s)
    if skip is None and steps < 2:
        raise RecordError(
            f"{found.name}: has {steps} step, and the first step of a process is never a usual one; give at least "
            f"{LEAST_STEPS} steps, better {BETTER_STEPS}"
        )
    if skip is None:
        steady = steady_state(found.step_s)
        found = replace(found, steady=steady, cut=max(found.cut, steady.cut))
    if steps <= found.cut:
        fewer = "leave out fewer with --skip N" if skip is None else "leave out fewer"
        raise RecordError(
            f"{found.name}: has {steps} steps, and the first {found.cut} are left out, so none is left; give at least "
            f"{found.cut + 1}, better {found.cut + BETTER_STEPS - 10}, or {fewer}"
        )
    return replace(found, faults=_suspects(found)) if found.log is not None else found


def _read(path: Path, skip: int | None, tokens_per_step: float | None) -> StepFile:
    log = LogFile(path, tokens_per_step)
    if each := _log_format(log):
        return _log(path, each.read(log), skip)
    try:
        data = read_capped(path.resolve() if path.is_symlink() else path)
    except RecordError as error:
        raise RecordError(f"{error}; one file is one run. {FORMATS[0].upper()}{FORMATS[1:]}") from error
    if not data.strip():
        raise RecordError(f"{path}: is empty; {FORMATS}")
    return _record(path, data, skip) if data.lstrip()[:1] == b"{" else _csv(path, data, skip)


def _log_format(log: LogFile) -> Format | None:
    """The format of a log, None for CSV and for records, which may hold lines of a log in their text."""
    head = log.head()
    first = head.partition("\n")[0].rstrip()
    if _is_header(first):
        return None
    if head.lstrip().startswith("{"):
        if _OWN_RECORD.search(head):
            return None
        if not first.endswith("}"):  # one object in many lines, and no file of an object a line
            return next((each for each in DOCUMENTS if each.recognises(head)), None)
    return recognised(log)


def _log(path: Path, found: StepLog, skip: int | None) -> StepFile:
    faults = [
        f"{found.origin}: step {step.number} took {step.seconds:g} s: {wrong}"
        for step in found.timed
        if (wrong := _wrong(step.seconds or math.nan))
    ]
    numbers = tuple(step.number for step in found.timed)
    return StepFile(path, found.step_s, found.leading(skip or 0), numbers, _first(faults), log=found)


def _suspects(file: StepFile) -> tuple[str, ...]:
    """Steps that count and were not waited for: the device's time stands in another step."""
    suspect = file.log.suspect if file.log is not None else ()
    return _first(
        [
            f"{file.name}: what it says of step {number} ({seconds:g} s) is no step time: only its dispatch was timed, "
            "and a neighbour has the rest; measure the run again, or leave out more steps with --skip N"
            for number, seconds in zip(file.numbers[file.cut :], file.kept_s, strict=True)
            if number in suspect
        ]
    )


def _csv(path: Path, data: bytes, skip: int | None) -> StepFile:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is not text (byte {error.start}); {FORMATS}") from error
    lines = text.split("\n")
    if not _is_header(lines[0]):
        raise RecordError(f"{path}:1: the first line is {_shown(lines[0])}; {FORMATS}")
    values: list[float] = []
    numbers: list[int] = []
    faults: list[str] = []
    before: tuple[int, int] | None = None
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        step, seconds = _row(f"{path}:{number}", line)
        if before is not None and step <= before[0]:
            what = "stands twice" if step == before[0] else f"comes after step {before[0]}"
            raise RecordError(
                f"{path}:{number}: step {step} {what} (line {before[1]}); steps must rise. One file is one run: split "
                "the file where a new run begins"
            )
        if wrong := _wrong(seconds):
            faults.append(f"{path}:{number}: step {step} took {seconds:g} s: {wrong}")
        before = (step, number)
        numbers.append(step)
        values.append(seconds)
    if not values:
        raise RecordError(f"{path}: has a header and no step; {FORMATS}")
    return StepFile(path, tuple(values), skip or 0, tuple(numbers), _first(faults))


def _is_header(line: str) -> bool:
    return [field.strip() for field in line.split(",")] == CSV_HEADER.split(",")


def _row(where: str, line: str) -> tuple[int, float]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 2:
        raise RecordError(
            f"{where}: has {len(fields)} fields, {_shown(line)}; there must be two, the step's number and its seconds "
            "with a decimal point and no other separator"
        )
    if not _COUNT.fullmatch(fields[0]):
        raise RecordError(f"{where}: the step is {_shown(fields[0])}; it must be a whole number")
    if not _NUMBER.fullmatch(fields[1]):
        raise RecordError(f"{where}: the time is {_shown(fields[1])}; it must be a number of seconds")
    return int(fields[0]), float(fields[1])


def _record(path: Path, data: bytes, skip: int | None) -> StepFile:
    first = data.lstrip().split(b"\n", 1)[0]
    if b'"regbot/session@1"' in first:
        raise RecordError(f"{path}: is a session of many runs; 'regbot judge {path}' judges it")
    document = parse_json(data, str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != "regbot/run@1":
        raise RecordError(f"{path}: is JSON with the schema {_shown(str(schema))}; {FORMATS}")
    run = parse_record(data, Run, str(path))
    if run.outcome != "ok":
        fault = f"{path}: the run ended as {run.outcome}: {run.reason or 'no reason was recorded'}; measure it again"
        return StepFile(path, (), 0, (), (fault,), run)
    if run.timing is None:
        raise RecordError(f"{path}: is a {run.tier} run without step times; give a timed one")
    values = run.timing.step_s
    faults = [
        f"{path}: step {i} took {value:g} s: {wrong}" for i, value in enumerate(values) if (wrong := _wrong(value))
    ]
    cut = run.timing.cut if skip is None else skip
    return StepFile(path, tuple(values), cut, tuple(range(len(values))), _first(faults), run)


def _wrong(seconds: float) -> str:
    """What is wrong with a step time, '' where nothing is."""
    if math.isnan(seconds):
        return "it was not measured; find out why, and measure the run again"
    if seconds <= 0:
        return "no step takes no time; a clock that can be set back was used, or a step was not measured"
    if not SHORTEST_S <= seconds <= LONGEST_S:
        return "no step takes so long or so short; times are in seconds"
    return ""


def _first(faults: Sequence[str]) -> tuple[str, ...]:
    more = [f"and {len(faults) - MAX_FAULTS} more such steps"] if len(faults) > MAX_FAULTS else []
    return (*faults[:MAX_FAULTS], *more)


def _shown(text: str) -> str:
    """Foreign text for a message: quoted, escaped, short."""
    return repr(text.rstrip("\r"))[:80]
