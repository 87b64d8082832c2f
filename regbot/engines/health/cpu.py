"""The processors of this machine during a run: the share of time that other processes take, and the clock frequencies.

Only the cores that this process may use count. When a process waits for a child that has ended, the kernel adds the
child's CPU time to the parent's. The supervisor waits for all processes of a run, and this process waits for the
supervisor, so the run's own CPU time is known exactly.
"""

import math
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from regbot.records.health import CpuUsage, SampleRange

MAX_CLOCKS = 16
"""Largest number of cores whose clock is read in one sample."""
_CPUFREQ = Path("/sys/devices/system/cpu")


def parse_ticks(stat: str, cores: frozenset[int], per_second: int) -> tuple[float, float] | None:
    """Return busy and stolen CPU seconds since the machine started, summed over ``cores``, from ``stat``, the text of
    /proc/stat; None if it does not list them. Busy is user and kernel time: time in interrupts belongs to no process.
    Stolen time is what the hypervisor gave to other virtual machines. ``per_second`` is the number of clock ticks per
    second."""
    rows = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    ticks_by_core = {row[0].removeprefix("cpu"): [int(number) for number in row[1:]] for row in rows}
    try:  # user, nice, system, idle, I/O wait, interrupts, soft interrupts, stolen
        ticks = [ticks_by_core[str(core)] for core in cores]
        return sum(sum(row[:3]) for row in ticks) / per_second, sum(row[7] for row in ticks) / per_second
    except LookupError:
        return None


def load_shares(
    first: tuple[float, float] | None, last: tuple[float, float] | None, own_s: float, total_s: float
) -> tuple[float | None, float | None]:
    """Return the shares of the cores' time that other processes took, and that the hypervisor gave to other virtual
    machines; None where unknown. ``own_s`` is the CPU time of the run, ``total_s`` that of all its cores."""
    if first is None or last is None or total_s <= 0:
        return None, None
    other_share = (last[0] - first[0] - own_s) / total_s
    steal_share = (last[1] - first[1]) / total_s
    return min(1.0, max(0.0, other_share)), min(1.0, max(0.0, steal_share))


class CpuWatch:
    """Watches the processors from its creation until ``end``. ``sample`` may be called by any thread."""

    def __init__(self) -> None:
        self.cores = frozenset(os.sched_getaffinity(0))
        every_nth = max(1, math.ceil(len(self.cores) / MAX_CLOCKS))
        self._clock_cores = sorted(self.cores)[::every_nth]
        self._mhz: list[float] = []
        self._begun_at, self._own_s_before, self._first_ticks = time.monotonic(), _cpu_seconds(), self._ticks()

    def sample(self) -> None:
        """Read the highest clock. Idle cores have low clocks, so only the highest is useful. A virtual machine has
        none."""
        files = [_CPUFREQ / f"cpu{core}/cpufreq/scaling_cur_freq" for core in self._clock_cores]
        with suppress(OSError, ValueError):
            self._mhz.append(max(int(file.read_text()) / 1000 for file in files))

    def end(self) -> CpuUsage:
        """Return how the processors were used. Call this after this process has waited for the run."""
        wall_s = time.monotonic() - self._begun_at
        own_s = max(0.0, _cpu_seconds() - self._own_s_before)
        other_share, steal_share = load_shares(self._first_ticks, self._ticks(), own_s, len(self.cores) * wall_s)
        return CpuUsage(
            cores=len(self.cores),
            own_s=own_s,
            other_share=other_share,
            steal_share=steal_share,
            mhz=sample_range(self._mhz),
        )

    def _ticks(self) -> tuple[float, float] | None:
        return parse_ticks(Path("/proc/stat").read_text(), self.cores, os.sysconf("SC_CLK_TCK"))


def sample_range(values: list[float]) -> SampleRange | None:
    """Return the lowest, median and highest value; None if there are no values."""
    return SampleRange(low=min(values), median=median(values), high=max(values)) if values else None


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants that have ended and been waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
