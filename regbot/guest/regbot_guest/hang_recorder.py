"""Evidence about hung runs. A killed process cannot report, so each rank writes two files before the time limit:

stacks.{rank}   stacks of all threads, written without the GIL, so also while the process is stuck in C
flight.{rank}   the last collective of torch's Flight Recorder, as JSON. A rank that holds the GIL does not write it
"""

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from regbot_guest import flight_recorder

FLIGHT_BEFORE_STACKS_S = 0.5


def margin_s(limit_s: float) -> float:
    """Return how many seconds before the limit a rank writes its stacks: 2%, from 2 s to 30 s, at most a quarter."""
    return min(max(2.0, 0.02 * limit_s), 30.0, limit_s / 4)


class HangRecorder:
    """Writes a rank's two files to ``folder``. If it is not writable, nothing is recorded, and the run continues."""

    def __init__(self, folder: Path, rank: int, limit_s: float) -> None:
        self._folder, self._rank = folder, rank
        self._stacks: TextIO | None = None
        self._is_reading_flights = False
        with contextlib.suppress(OSError):
            self._stacks = (folder / f"stacks.{rank}").open("w", encoding="utf-8")  # stays open until the process ends
            # The stacks name a thread only by its id, so the first line tells which thread is the main one.
            self._stacks.write(f"main 0x{threading.main_thread().ident or 0:016x}\n")
            self._stacks.flush()
        self.schedule_dump(max(0.1, limit_s - margin_s(limit_s) - seconds_since_launch()))

    def schedule_dump(self, delay_s: float) -> None:
        """Write the files ``delay_s`` seconds from now. This cancels an earlier schedule."""
        self._dump_at_s = time.monotonic() + delay_s
        if self._stacks is not None:
            faulthandler.dump_traceback_later(delay_s, file=self._stacks)
        if self._is_reading_flights:
            threading.Thread(
                target=self._record_flight, args=(self._dump_at_s,), name="regbot-hang-recorder", daemon=True
            ).start()

    def record_collectives(self) -> None:
        """Let torch's Flight Recorder record. Call this before the first process group is created."""
        flight_recorder.switch_on(sys.modules.get("torch._C._distributed_c10d"))
        self._is_reading_flights = True
        self.schedule_dump(self._dump_at_s - time.monotonic())

    def _record_flight(self, dump_at_s: float) -> None:
        time.sleep(max(0.0, dump_at_s - time.monotonic() - FLIGHT_BEFORE_STACKS_S))
        if dump_at_s != self._dump_at_s:
            return  # a later call of schedule_dump has changed the time
        with contextlib.suppress(Exception):  # torch's format may differ, or the disk may be full
            call = flight_recorder.read_last_call(sys.modules.get("torch._C._distributed_c10d"))
            (self._folder / f"flight.{self._rank}").write_text(json.dumps(call), encoding="utf-8")


def seconds_since_launch() -> float:
    """Return the seconds since the launcher, or without one this process, started. 0 if unknown. Read from this
    machine's boot clock: the wall clocks of two nodes may differ by minutes.
    """
    has_launcher = "LOCAL_RANK" in os.environ  # a launcher sets it, and is the parent process
    pid = os.getppid() if has_launcher else os.getpid()
    try:
        _, _, fields_after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
        start_ticks = int(fields_after_name.split()[19])  # field 22 of the file, see man proc_pid_stat
        start_s = start_ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
