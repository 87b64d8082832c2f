"""Measurement of the cost that a command prints: one number in its last line.

A cost is the number that the bisection searches by, such as a time or a loss.
"""

import itertools
import math
import time
from pathlib import Path

from regbot.bisect.measure import PointCheckouts, PreparedPoint, build_observation, last_line, unusable_observation
from regbot.bisect.noisy import MeasurementRequest
from regbot.bisect.seats import Seats
from regbot.engines import Engine, EngineError, Launch, LaunchResult, NoSeatError, SeatLostError, clean_environment
from regbot.engines.guest import describe_exit
from regbot.health.machine import this_node
from regbot.records.bisection import Observation
from regbot.records.files import RecordError, read_capped, write_text
from regbot.text.clip import clip

SKIP_EXIT_CODE = 125
"""Exit code by which a command says that it cannot measure this point, as in git bisect."""

MAX_OUTPUT_BYTES = 2**25
"""Limit for the standard output of a command, and again for its standard error."""

STDERR_FILE = "record/stderr.txt"
"""File for the standard error of a command, relative to the folder of its run."""

MAX_NUMBER_CHARS = 100
"""Maximum number of characters that a message quotes from the last line of the output."""


class CommandMeasurer:
    """Measurer that runs a command with bash in the checkout of each point and reads the last line of the output."""

    def __init__(
        self,
        command: str,
        checkouts: PointCheckouts,
        engine: Engine,
        seats: Seats | None,
        out: Path,
        *,
        exact: bool,
        timeout_min: float,
    ) -> None:
        """``seats`` is None if the command runs on this machine without a reservation of nodes. ``out`` is the output
        folder of the bisection. ``exact``: costs are compared for equality, and not as noisy values. ``timeout_min``
        limits one run of the command.
        """
        self._command, self._exact, self._checkouts = command, exact, checkouts
        self._engine, self._seats, self._out, self._timeout_min = engine, seats, out, timeout_min
        self._started_ns = time.time_ns()
        self._session = f"{this_node().name} {self._started_ns}"
        self._numbers = itertools.count(1)  # numbers the runs, for the names of their folders

    def stratum(self, slot: int) -> str:
        """Return the stratum of a slot. Slots never share a stratum, because they may run at different speeds."""
        if self._seats is not None:  # nodes are reserved
            return self._seats.stratum(slot)
        return f"{self._session} {slot}" if slot else self._session

    def measure(self, request: MeasurementRequest, slot: int) -> Observation:
        """Run the command at the requested point. Try once more if the first failure may not be the commit's fault."""
        # The folder is named after the start time of this bisection, so that a resumed one uses new folders.
        name = f"runs/{self._started_ns}.{next(self._numbers)}"
        stratum = self.stratum(slot)
        with self._checkouts.reserve_copy(request.point) as copy:
            for is_retry in (False, True):
                prepared = self._checkouts.prepare(request.point, task=None, copy=copy)
                if isinstance(prepared, str):  # the reason why the point cannot be measured
                    return unusable_observation(request, prepared, stratum)
                try:
                    result = self._run_command(prepared, self._out / name, slot)
                except SeatLostError as error:
                    if self._seats is None:  # no nodes were reserved, so none can be replaced
                        raise
                    return self._seats.record_loss(slot, request, error)
                if is_retry or _has_valid_result(result, prepared.path):
                    break
        assert not isinstance(prepared, str)
        if isinstance(result, str):  # the reason why the command could not be run
            _write_reason(self._out / name / "reason.txt", result)
            return unusable_observation(request, result, stratum)
        return self._to_observation(request, stratum, prepared, result, name)

    def _run_command(self, prepared: PreparedPoint, scratch: Path, slot: int) -> LaunchResult | str:
        """Run the command once. Return how the command ended, or why it could not be run, as text.

        ``scratch`` is the folder of the run, for its output. Raises NoSeatError and SeatLostError, because they concern
        the nodes and not the command.
        """
        # The outer bash sends standard error to a separate file ($0), and then runs the command ($1). Otherwise a
        # warning could become the last line after the number.
        words = ("bash", "-c", 'exec 2>"$0"; exec bash -c "$1"', str(scratch / STDERR_FILE), self._command)
        launch = Launch(
            command=words,
            cwd=prepared.path,
            env=clean_environment({"PYTHONDONTWRITEBYTECODE": "1", **prepared.environment}),
            log=scratch / "output.log",
            record_dir=scratch / "record",
            timeout_s=self._timeout_min * 60,
            max_output_bytes=MAX_OUTPUT_BYTES,
            max_dir_bytes=MAX_OUTPUT_BYTES,
            writable=(prepared.path,),  # the command may write into its checkout
        )
        try:
            return self._seats.seat(slot).run(launch) if self._seats is not None else self._engine.run(launch)
        except NoSeatError:
            raise
        except EngineError as error:
            return str(error)

    def _to_observation(
        self, request: MeasurementRequest, stratum: str, prepared: PreparedPoint, result: LaunchResult, name: str
    ) -> Observation:
        """Return the observation of a command that was run: its cost, or why it gave no cost.

        ``name`` is the folder of the run, relative to the output folder. The record folder has the command's standard
        error.
        """
        number: float | None = None
        if result.timed_out:
            reason = f"the command did not end within {self._timeout_min:g} min (--timeout) and was killed"
        elif result.excess:
            reason = f"the command {result.excess} and was killed; its standard error goes to its record folder"
        elif result.exit_code == SKIP_EXIT_CODE:
            reason = "the command exited with 125, which means: not measurable"
        elif result.exit_code != 0:
            last_error_line = last_line(_read_tail(self._out / name / STDERR_FILE))
            complaint = last_error_line or last_line(result.log_tail) or "it printed nothing"
            reason = f"the command {describe_exit(result.exit_code or 0)}: {complaint}"
        else:
            number, reason = parse_cost(result.log_tail, self._exact)
        values: dict[str, float] = {}
        if number is not None:  # noisy costs are compared by their logarithms
            values = {"cost": number if self._exact else math.log(number)}
        was_killed = result.timed_out or bool(result.excess)
        return build_observation(
            request,
            stratum,
            prepared,
            usable=number is not None,
            reason=reason,
            skipped=result.exit_code == SKIP_EXIT_CODE and not was_killed,
            # Adding 0.0 turns -0.0 into 0.0, so that both are the same value.
            state=f"{number + 0.0:.17g}" if number is not None and self._exact else "",
            values=values,
            wall_s=result.wall_s,
            record=f"{name}/output.log",
        )


def _has_valid_result(result: LaunchResult | str, checkout: Path) -> bool:
    """Return whether a result counts, so that no second try is needed. ``result`` is a text if the command could not
    be run, which never counts.

    A success counts. A failure counts if the checkout still exists. If the checkout is gone, the cause may not be the
    commit.
    """
    return isinstance(result, LaunchResult) and (result.exit_code == 0 or checkout.is_dir())


def parse_cost(output: str, exact: bool) -> tuple[float | None, str]:
    """Parse the cost from the last line of a command's output.

    Return the cost and ''. If the line is no valid cost, return None and the reason. With ``exact``, costs are compared
    for equality, so they may be zero or negative.
    """
    line = last_line(output)
    if not line:
        return None, "the command printed nothing; its last line must be one number, the cost"
    quoted = clip(line, MAX_NUMBER_CHARS)
    try:
        number = float(line)
    except ValueError:
        words = line.split()
        is_list_of_numbers = len(words) > 1 and all(_is_number(word) for word in words)
        problem = f"{len(words)} numbers" if is_list_of_numbers else "no number"
        return None, f"the last line that the command printed is {problem}: {quoted!r}; print one number, the cost"
    if not math.isfinite(number):
        return None, f"the cost that the command printed is {quoted}; it must be finite"
    if not exact and number <= 0:
        return None, f"the cost that the command printed is {quoted}; a noisy cost must be positive (or give --exact)"
    return number, ""


def _write_reason(path: Path, reason: str) -> None:
    """Write the reason to a file. Raises EngineError if the file cannot be written, which is a fault of the disk."""
    try:
        write_text(path, f"{reason}\n")
    except OSError as error:
        raise EngineError(
            f"{path.parent}: cannot be written to: {error.strerror or error}",
            "free space or mend the permissions, then continue with --resume",
        ) from error


def _read_tail(path: Path) -> str:
    """Return the end of a file; '' if the file cannot be read or is too large."""
    try:
        return read_capped(path, MAX_OUTPUT_BYTES)[-4000:].decode("utf-8", "replace")
    except RecordError:
        return ""


def _is_number(word: str) -> bool:
    """Return whether Python reads the word as a number. This includes "nan" and "inf"."""
    try:
        float(word)
    except ValueError:
        return False
    return True
