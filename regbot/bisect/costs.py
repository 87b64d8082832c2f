"""Measuring what a command prints: its last line is one number, the cost."""

import itertools
import math
import time
from pathlib import Path

from regbot.bisect.measure import Ground, Prepared, last_line, observed, unusable
from regbot.bisect.noisy import Wanted
from regbot.bisect.seats import Seats
from regbot.engines import Ended, Engine, EngineError, Launch, NoSeatError, SeatLostError, clean_environment
from regbot.node import this_node
from regbot.records.bisection import Observation
from regbot.records.files import RecordError, read_capped, write_text
from regbot.trees import Trees
from regbot.workloads.guest import exit_words

CANNOT_BE_MEASURED = 125
"""Exit code of a command that says so, as git bisect has it."""

MOST_OUTPUT_BYTES = 2**25

COMPLAINTS = "record/stderr.txt"
"""What a command wrote to standard error, in the folder of its run."""

MOST_NUMBER = 100
"""Characters of the line that a command's number may take."""


class Costs:
    """What a command prints as its last line, run in each point's checkout by bash."""

    def __init__(
        self,
        command: str,
        exact: bool,
        ground: Ground,
        trees: Trees,
        engine: Engine,
        seats: Seats | None,
        out: Path,
        timeout_min: float,
    ) -> None:
        self._command, self._exact, self._ground, self._trees = command, exact, ground, trees
        self._engine, self._seats, self._out, self._timeout_min = engine, seats, out, timeout_min
        self._session = f"{this_node().name} {time.time_ns()}"
        self._numbers = itertools.count(1)

    def stratum(self, slot: int) -> str:
        if self._seats is not None:
            return self._seats.stratum(slot)
        return f"{self._session} {slot}" if slot else self._session

    def measure(self, wanted: Wanted, slot: int) -> Observation:
        name = f"runs/{self._session.rsplit(' ', 1)[-1]}.{next(self._numbers)}"
        stratum = self.stratum(slot)
        with self._ground.alone(wanted.point) as copy:
            for last in (False, True):
                ready = self._ground.prepare(wanted.point, None, self._trees, copy)
                if isinstance(ready, str):
                    return unusable(wanted, ready, stratum)
                try:
                    ended = self._run(ready, self._out / name, slot)
                except SeatLostError as error:
                    if self._seats is None:
                        raise
                    return self._seats.lost(slot, wanted, error)
                # A supervisor that was lost, or a checkout that was removed meanwhile, need not be the commit's fault.
                if last or (isinstance(ended, Ended) and (ended.exit_code == 0 or ready.path.is_dir())):
                    break
        assert not isinstance(ready, str)
        if isinstance(ended, str):
            _keep(self._out / name / "reason.txt", ended)
            return unusable(wanted, ended, stratum)
        return self._observed(wanted, stratum, ready, ended, name)

    def _run(self, ready: Prepared, scratch: Path, slot: int) -> Ended | str:
        """The end of a run of the command, or why it could not be run. Raises NoSeatError."""
        # Standard error apart: a warning after the number is not the last line.
        words = ("bash", "-c", 'exec 2>"$0"; exec bash -c "$1"', str(scratch / COMPLAINTS), self._command)
        launch = Launch(
            command=words,
            cwd=ready.path,
            env=clean_environment({"PYTHONDONTWRITEBYTECODE": "1", **ready.environment}),
            log=scratch / "output.log",
            record_dir=scratch / "record",
            timeout_s=self._timeout_min * 60,
            max_output_bytes=MOST_OUTPUT_BYTES,
            max_dir_bytes=MOST_OUTPUT_BYTES,
            writable=(ready.path,),  # it may write where it stands
        )
        try:
            return self._seats.of(slot).run(launch) if self._seats is not None else self._engine.run(launch)
        except NoSeatError:
            raise
        except EngineError as error:
            return str(error)

    def _observed(self, wanted: Wanted, stratum: str, ready: Prepared, ended: Ended, name: str) -> Observation:
        number: float | None = None
        if ended.timed_out:
            reason = f"the command did not end within {self._timeout_min:g} min (--timeout) and was ended"
        elif ended.dir_overflow:
            reason = f"the command printed more than {MOST_OUTPUT_BYTES // 2**20} MiB on standard error and was ended"
        elif ended.exit_code == CANNOT_BE_MEASURED:
            reason = "the command says that it cannot be measured (exit code 125)"
        elif ended.exit_code != 0:
            said = (
                last_line(_end_of(self._out / name / COMPLAINTS)) or last_line(ended.log_tail) or "it printed nothing"
            )
            reason = f"the command {exit_words(ended.exit_code or 0)}: {said}"
        else:
            number, reason = cost_of(ended.log_tail, self._exact)
        usable = number is not None
        values: dict[str, float] = {}
        if number is not None:
            values = {"cost": number if self._exact else math.log(number)}
        return observed(
            wanted,
            stratum,
            ready,
            usable=usable,
            reason=reason,
            state=f"{number + 0.0:.17g}" if number is not None and self._exact else "",
            values=values,
            wall_s=ended.wall_s,
            record=f"{name}/output.log",
        )


def cost_of(output: str, exact: bool) -> tuple[float | None, str]:
    """The number in the last line of what a command printed; else None and what is wrong."""
    line = last_line(output)
    if not line:
        return None, "the command printed nothing; its last line must be one number, the cost"
    shown = line if len(line) <= MOST_NUMBER else f"{line[:MOST_NUMBER]}…"
    try:
        number = float(line)
    except ValueError:
        words = line.split()
        several = len(words) > 1 and all(_is_number(word) for word in words)
        what = f"{len(words)} numbers" if several else "no number"
        return None, f"the last line that the command printed is {what}: {shown!r}; print one number, the cost"
    if not math.isfinite(number):
        return None, f"the cost that the command printed is {shown}; it must be finite"
    if not exact and number <= 0:
        return None, f"the cost that the command printed is {shown}; a noisy cost must be positive (or give --exact)"
    return number, ""


def _keep(path: Path, reason: str) -> None:
    """Keep why the engine failed. Raises EngineError where there is no room for that either: then it was the disk."""
    try:
        write_text(path, f"{reason}\n")
    except OSError as error:
        raise EngineError(
            f"{path.parent}: cannot be written to: {error.strerror or error}; see to it, and go on with --resume"
        ) from error


def _end_of(path: Path) -> str:
    try:
        return read_capped(path, MOST_OUTPUT_BYTES)[-4000:].decode("utf-8", "replace")
    except RecordError:
        return ""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
