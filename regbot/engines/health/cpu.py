"""The processors of this machine during a run: the share of time that other processes take, and the clock frequencies.

The numbers come from /proc/stat, only for the cores that this process may use. Other cores do not affect the run. The
CPU time of the run itself is known exactly, and the run's processes need not be queried. When a process waits for a
child that has ended, the kernel adds the child's CPU time to the parent's. The supervisor waits for all processes of a
run, and this process waits for the supervisor.

This works only for runs that this process starts, one at a time. It does not work for processes on another machine. On
systems other than Linux only the load is known.
"""

import math
import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from regbot.records.health import CpuSnapshot, CpuUsage, SampleRange

MAX_CLOCKS = 16
"""Largest number of cores whose clock is read in one sample."""
MEGAHERTZ = re.compile(r"^cpu MHz\s*:\s*([0-9.]+)$", re.MULTILINE)
_PROC = Path("/proc")
_CPUFREQ = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Ticks:
    """CPU seconds since the machine started, summed over some cores."""

    cores: int
    """Number of these cores."""
    busy_s: float
    """User and kernel time. Time in interrupts is not included, because it belongs to no process."""
    steal_s: float
    """Time that the hypervisor gave to other virtual machines."""


def parse_ticks(stat: str, cores: frozenset[int], per_second: int) -> Ticks | None:
    """Sum the CPU times of ``cores`` in ``stat``, the text of /proc/stat. Return None if it lists none of ``cores``.

    ``per_second`` is the number of clock ticks per second.
    """
    core_count = busy_ticks = steal_ticks = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        core = name.removeprefix("cpu")
        is_core_line = name.startswith("cpu") and core.isdecimal()  # the line 'cpu' sums all cores of the machine
        if is_core_line and int(core) in cores and len(numbers) >= 8:
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, numbers[:8])
            core_count += 1
            busy_ticks += user + nice + system
            steal_ticks += steal
    if not core_count:
        return None
    return Ticks(cores=core_count, busy_s=busy_ticks / per_second, steal_s=steal_ticks / per_second)


def load_shares(
    first: Ticks | None, last: Ticks | None, own_s: float, wall_s: float
) -> tuple[float | None, float | None]:
    """Return two shares of the cores' time: the share that other processes took, and the share that the hypervisor gave
    to other virtual machines.

    ``first`` and ``last`` are the CPU times before and after the run. ``own_s`` is the CPU time of the run, and
    ``wall_s`` is its duration. Both shares are None if they are unknown.
    """
    if first is None or last is None or wall_s <= 0:
        return None, None
    total_s = last.cores * wall_s
    other_s = last.busy_s - first.busy_s - own_s
    return _clamp(other_s / total_s), _clamp((last.steal_s - first.steal_s) / total_s)


class CpuWatch:
    """Watches the processors during a run.

    Call ``begin``, then ``sample`` any number of times from any thread, then ``end``, then ``summary``.
    """

    def __init__(self) -> None:
        self.cores = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
        every_nth = max(1, math.ceil(len(self.cores) / MAX_CLOCKS))
        self._clock_cores = sorted(self.cores)[::every_nth]
        """Cores whose clock is read: at most ``MAX_CLOCKS``, spread evenly."""
        self._mhz: list[float] = []
        """Highest clock in each sample."""
        self._loads: list[float] = []
        """Load average in each sample."""
        self._free_bytes: list[int] = []
        """Free memory in each sample."""

    def snapshot(self) -> CpuSnapshot:
        """Return the current load and the free memory."""
        return CpuSnapshot(load=_load(), free_bytes=_free_bytes())

    def begin(self) -> None:
        """Read the CPU times. Call this just before the run starts."""
        self._begun_at, self._own_s_before, self._first_ticks = time.monotonic(), _cpu_seconds(), self._ticks()

    def sample(self) -> None:
        """Take a sample of values that the kernel does not add up: clocks, load and free memory."""
        if (mhz := self._highest_clock()) is not None:
            self._mhz.append(mhz)
        if (load := _load()) is not None:
            self._loads.append(load)
        if (free_bytes := _free_bytes()) is not None:
            self._free_bytes.append(free_bytes)

    def end(self) -> None:
        """Read the CPU times again. Call this after the run has ended and this process has waited for it."""
        self._wall_s = time.monotonic() - self._begun_at
        self._own_s = max(0.0, _cpu_seconds() - self._own_s_before)
        self._last_ticks = self._ticks()

    def summary(self) -> CpuUsage:
        """Return how the processors were used between ``begin`` and ``end``."""
        other_share, steal_share = load_shares(self._first_ticks, self._last_ticks, self._own_s, self._wall_s)
        return CpuUsage(
            cores=max(1, len(self.cores)),
            own_s=self._own_s,
            other_share=other_share,
            steal_share=steal_share,
            load_high=max(self._loads, default=None),
            mhz=sample_range(self._mhz),
            free_low_bytes=min(self._free_bytes, default=None),
        )

    def _ticks(self) -> Ticks | None:
        """Return the CPU times of ``cores`` so far, or None if /proc/stat does not have them."""
        try:
            text = (_PROC / "stat").read_text()
        except OSError:
            return None
        return parse_ticks(text, self.cores, os.sysconf("SC_CLK_TCK"))

    def _highest_clock(self) -> float | None:
        """Return the highest clock of the sampled cores in MHz, or None if the machine does not tell. Idle cores have
        low clocks, so only the highest is useful.
        """
        clocks: list[float] = []
        try:
            for core in self._clock_cores:
                clocks.append(int((_CPUFREQ / f"cpu{core}/cpufreq/scaling_cur_freq").read_text()) / 1000)  # noqa: PERF401
        except (OSError, ValueError):  # a virtual machine has no such files; cpuinfo has all cores
            try:
                clocks = [float(mhz) for mhz in MEGAHERTZ.findall((_PROC / "cpuinfo").read_text(errors="replace"))]
            except (OSError, ValueError):
                return None
        return max(clocks, default=None)


def sample_range(values: list[float]) -> SampleRange | None:
    """Return the lowest, median and highest value; None if there are no values."""
    return SampleRange(low=min(values), median=median(values), high=max(values)) if values else None


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants that have ended and been waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _load() -> float | None:
    """Return the load average of the last minute, or None if it is unknown."""
    try:
        last_minute, _, _ = os.getloadavg()
    except OSError:
        return None
    return last_minute


def _free_bytes() -> int | None:
    """Return the memory that is available without swapping, or None if it is unknown."""
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match.group(1)) * 1024 if match else None


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
