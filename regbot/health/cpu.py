"""The processors of this machine during a run: the share of time that other processes take, and the clock frequencies.

The numbers come from /proc/stat, only for the cores that this process may use. Other cores do not affect the run. The
CPU time of the run itself is known exactly, and the run's processes need not be queried. When a process waits for a
child that has ended, the kernel adds the child's CPU time to the parent's. The supervisor waits for all processes of a
run, and this process waits for the supervisor.

This works only for runs that this process starts, one at a time. It does not work for processes on another machine. On
systems other than Linux only the load is known.
"""

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
    busy_s: float
    """User and kernel time. Time in interrupts is not included, because it belongs to no process."""
    steal_s: float
    """Time that the hypervisor gave to other virtual machines."""


def parse_ticks(stat: str, cores: frozenset[int], per_second: int) -> Ticks | None:
    """Sum the CPU times of ``cores`` in ``stat``, the text of /proc/stat. Return None if it lists none of ``cores``.

    ``per_second`` is the number of clock ticks per second.
    """
    ticks: list[tuple[int, int]] = []
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in cores and len(numbers) >= 8:
            user, nice, system, _, _, _, _, steal = map(int, numbers[:8])
            ticks.append((user + nice + system, steal))
    if not ticks:
        return None
    busy_sum, steal_sum = (sum(values) for values in zip(*ticks, strict=True))
    return Ticks(len(ticks), busy_sum / per_second, steal_sum / per_second)


def load_shares(
    first: Ticks | None, last: Ticks | None, own_s: float, wall_s: float
) -> tuple[float | None, float | None]:
    """Return two shares of the cores' time: the share that other processes took, and the share that was stolen.

    ``own_s`` is the CPU time of the run. Both shares are None if they are unknown.
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
        self._clock_cores = sorted(self.cores)[:: -(-len(self.cores) // MAX_CLOCKS) or 1]
        self._mhz: list[float] = []
        self._loads: list[float] = []
        self._free: list[int] = []

    def snapshot(self) -> CpuSnapshot:
        """Return the current load and the free memory."""
        return CpuSnapshot(load=_load(), free_bytes=_free_bytes())

    def begin(self) -> None:
        """Read the CPU times. Call this just before the run starts."""
        self._begun, self._first_own_s, self._first_ticks = time.monotonic(), _cpu_seconds(), self._ticks()

    def sample(self) -> None:
        """Take a sample of values that the kernel does not add up: clocks, load and free memory."""
        for values, value in ((self._mhz, self._highest_clock()), (self._loads, _load()), (self._free, _free_bytes())):
            if value is not None:
                values.append(value)  # type: ignore[arg-type]

    def end(self) -> None:
        """Read the CPU times again. Call this after the run has ended and this process has waited for it."""
        self._wall_s, self._own_s = time.monotonic() - self._begun, max(0.0, _cpu_seconds() - self._first_own_s)
        self._last_ticks = self._ticks()

    def summary(self) -> CpuUsage:
        """Return how the processors were used between ``begin`` and ``end``."""
        own_s = self._own_s
        other, steal = load_shares(self._first_ticks, self._last_ticks, own_s, self._wall_s)
        return CpuUsage(
            cores=max(1, len(self.cores)),
            own_s=own_s,
            other_share=other,
            steal_share=steal,
            load_high=max(self._loads, default=None),
            mhz=sample_range(self._mhz),
            free_low_bytes=min(self._free, default=None),
        )

    def _ticks(self) -> Ticks | None:
        try:
            text = (_PROC / "stat").read_text()
        except OSError:
            return None
        return parse_ticks(text, self.cores, os.sysconf("SC_CLK_TCK"))

    def _highest_clock(self) -> float | None:
        """Return the highest clock of the sampled cores. Idle cores have low clocks, so only the highest is useful."""
        clocks: list[float] = []
        try:
            for core in self._clock_cores:
                clocks.append(int((_CPUFREQ / f"cpu{core}/cpufreq/scaling_cur_freq").read_text()) / 1000)  # noqa: PERF401
        except (OSError, ValueError):  # a virtual machine has no file with the clock
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
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _free_bytes() -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match.group(1)) * 1024 if match else None


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
