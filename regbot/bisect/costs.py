"""Measurement of the cost that a command prints: one number in its last line.

A cost is the number that the bisection searches by, such as a time or a loss.
"""

import math
import time
from pathlib import Path

from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.measure import (
    PointCheckouts,
    PreparedPoint,
    SessionSeat,
    build_observation,
    last_line,
    unusable_observation,
)
from regbot.engines import Engine, EngineError, Launch, LaunchResult, NoSeatError, SeatLostError, clean_environment
from regbot.engines.guest import describe_exit
from regbot.records.bisection import Observation
from regbot.records.files import RecordError, read_capped, write_text
from regbot.records.text.clip import clip

SKIP_EXIT_CODE = 125
"""Exit code by which a command says that it cannot measure this point, as in git bisect."""

MAX_OUTPUT_BYTES = 2**25
"""Limit for the standard output of a command, and again for its standard error."""

STDERR_FILE = "record/stderr.txt"
"""File for the standard error of a command, relative to the folder of its run."""


class CommandMeasurer:
    """Measurer that runs a command with bash in the checkout of each point and reads the last line of the output."""

    def __init__(
        self,
        command: str,
        checkouts: PointCheckouts,
        engine: Engine,
        seat: SessionSeat | None,
        out: Path,
        *,
        exact: bool,
        timeout_min: float,
    ) -> None:
        """``seat`` is None if the command runs without a reservation of nodes, because its cost has no noise
        (``exact``). ``out`` is the output folder of the bisection. ``timeout_min`` limits one run of the command."""
        self._command, self._exact, self._checkouts = command, exact, checkouts
        self._engine, self._seat, self._out, self._timeout_min = engine, seat, out, timeout_min

    def stratum(self) -> str:
        return self._seat.stratum if self._seat is not None else ""

    def measure(self, request: MeasurementRequest) -> Observation:
        name = f"runs/{time.time_ns()}"
        stratum = self.stratum()
        prepared = self._checkouts.prepare(request.point, task=None)
        if isinstance(prepared, str):  # the reason why the point cannot be measured
            return unusable_observation(request, prepared, stratum)
        launch = self._launch(prepared, self._out / name)
        try:
            result = self._seat.reserve().run(launch) if self._seat is not None else self._engine.run(launch)
        except SeatLostError as error:
            if self._seat is None:  # no nodes were reserved, so none can be replaced
                raise
            return self._seat.record_loss(request, error)
        except NoSeatError:
            raise
        except EngineError as error:
            _write_reason(self._out / name / "reason.txt", str(error))
            return unusable_observation(request, str(error), stratum)
        return self._to_observation(request, stratum, prepared, result, name)

    def _launch(self, prepared: PreparedPoint, scratch: Path) -> Launch:
        """Return the launch of the command. ``scratch`` is the folder of the run, for its output."""
        variables = prepared.version.variables() if prepared.version is not None else {}
        # The outer bash sends standard error to a separate file ($0), and then runs the command ($1). Otherwise a
        # warning could become the last line after the number.
        words = ("bash", "-c", 'exec 2>"$0"; exec bash -c "$1"', str(scratch / STDERR_FILE), self._command)
        return Launch(
            command=words,
            cwd=prepared.path,
            env=clean_environment({"PYTHONDONTWRITEBYTECODE": "1", **prepared.environment, **variables}),
            log=scratch / "output.log",
            record_dir=scratch / "record",
            timeout_s=self._timeout_min * 60,
            max_output_bytes=MAX_OUTPUT_BYTES,
            max_dir_bytes=MAX_OUTPUT_BYTES,
            writable=(prepared.path,),  # the command may write into its checkout
        )

    def _to_observation(
        self, request: MeasurementRequest, stratum: str, prepared: PreparedPoint, result: LaunchResult, name: str
    ) -> Observation:
        """Return the observation of a command that was run: its cost, or why it gave no cost.

        ``name`` is the folder of the run, relative to the output folder.
        """
        number: float | None = None
        if result.timed_out:
            reason = f"the command did not end within {self._timeout_min:g} min (--timeout) and was killed"
        elif result.excess:
            reason = f"the command {result.excess} and was killed; its standard error goes to its record folder"
        elif result.exit_code == SKIP_EXIT_CODE:
            reason = "the command exited with 125, which means: not measurable"
        elif result.exit_code != 0:
            complaint = last_line(_read_tail(self._out / name / STDERR_FILE)) or last_line(result.log_tail)
            reason = f"the command {describe_exit(result.exit_code)}: {complaint or 'it printed nothing'}"
        else:
            number, reason = parse_cost(result.log_tail, self._exact)
        values: dict[str, float] = {}
        if number is not None:  # noisy costs are compared by their logarithms
            values = {"cost": number if self._exact else math.log(number)}
        return build_observation(
            request,
            stratum,
            prepared,
            usable=number is not None,
            reason=reason,
            # Adding 0.0 turns -0.0 into 0.0, so that both are the same value.
            state=f"{number + 0.0:.17g}" if number is not None and self._exact else "",
            values=values,
            wall_s=result.wall_s,
            record=f"{name}/output.log",
        )


def parse_cost(output: str, exact: bool) -> tuple[float | None, str]:
    """Parse the cost from the last line of a command's output.

    Return the cost and ''. If the line is no valid cost, return None and the reason. With ``exact``, costs are compared
    for equality, so they may be zero or negative.
    """
    line = last_line(output)
    quoted = clip(line, 100)
    try:
        number = float(line)
    except ValueError:
        problem = f"{quoted!r} is no number" if line else "there is none"
        return None, f"the last line that the command prints must be one number, the cost, but {problem}"
    if not math.isfinite(number):
        return None, f"the cost that the command printed is {quoted}; it must be finite"
    if not exact and number <= 0:
        return None, f"the cost that the command printed is {quoted}; a noisy cost must be positive (or give --exact)"
    return number, ""


def _write_reason(path: Path, reason: str) -> None:
    """Write the reason to a file. Raises EngineError if this fails: then the disk is at fault, and not the commit."""
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
