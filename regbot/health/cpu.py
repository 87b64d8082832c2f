"""The processors of this machine while a run runs: what others take of them, and how fast they are clocked.

From /proc/stat, the cores that this process may use only: other cores of a machine are not the run's. What the run
itself took is known exactly, without looking at any process: the kernel adds the CPU time of every process that was
waited for to its parent's account, the supervisor waits for all descendants of a run, and this process waits for the
supervisor. So it holds for a run that this process starts, one at a time, and not where the run's processes live on
another machine. Off Linux nothing but memory of it is known.
"""

import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from regbot.records.health import CpuDuring, CpuMoment, Span

MOST_CLOCKS = 16
"""Cores whose clock is read in one sample."""
MEGAHERTZ = re.compile(r"^cpu MHz\s*:\s*([0-9.]+)$", re.MULTILINE)
_PROC = Path("/proc")
_CPUFREQ = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Ticks:
    """CPU seconds since the machine started, of some cores together."""

    cores: int
    busy_s: float
    """In user space and in the kernel. Interrupts are nobody's, and are left out."""
    steal_s: float


def ticks_of(stat: str, cores: frozenset[int], per_second: int) -> Ticks | None:
    """What ``stat``, the text of /proc/stat, says of ``cores``; None where it says nothing."""
    found: list[tuple[int, int]] = []
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in cores and len(numbers) >= 8:
            user, nice, system, _, _, _, _, steal = map(int, numbers[:8])
            found.append((user + nice + system, steal))
    if not found:
        return None
    busy, stolen = (sum(column) for column in zip(*found, strict=True))
    return Ticks(len(found), busy / per_second, stolen / per_second)


def during(first: Ticks | None, last: Ticks | None, own_s: float, wall_s: float) -> tuple[float | None, float | None]:
    """Shares of the cores' time that others took and that was stolen; None where it is not known."""
    if first is None or last is None or wall_s <= 0:
        return None, None
    whole_s = last.cores * wall_s
    other_s = last.busy_s - first.busy_s - own_s
    return _share(other_s / whole_s), _share((last.steal_s - first.steal_s) / whole_s)


class CpuWatch:
    """The processors between two moments: ``begin``, any number of ``sample``, by any thread, ``end``, ``summary``."""

    def __init__(self) -> None:
        self.cores = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
        self._clocked = sorted(self.cores)[:: -(-len(self.cores) // MOST_CLOCKS) or 1]
        self._mhz: list[float] = []
        self._loads: list[float] = []
        self._free: list[int] = []

    def moment(self) -> CpuMoment:
        """The processors now."""
        return CpuMoment(load=_load(), free_bytes=_free())

    def begin(self) -> None:
        """The run is about to start."""
        self._begun, self._own, self._first = time.monotonic(), _own_s(), self._ticks()

    def sample(self) -> None:
        """Note what has no account of its own: clocks, load, free memory."""
        for values, value in ((self._mhz, self._fastest()), (self._loads, _load()), (self._free, _free())):
            if value is not None:
                values.append(value)  # type: ignore[arg-type]

    def end(self) -> None:
        """The run has ended and has been waited for."""
        self._wall_s, self._own_s = time.monotonic() - self._begun, max(0.0, _own_s() - self._own)
        self._last = self._ticks()

    def summary(self) -> CpuDuring:
        """What was seen between ``begin`` and ``end``."""
        own_s = self._own_s
        other, steal = during(self._first, self._last, own_s, self._wall_s)
        return CpuDuring(
            cores=max(1, len(self.cores)),
            own_s=own_s,
            other_share=other,
            steal_share=steal,
            load_high=max(self._loads, default=None),
            mhz=span(self._mhz),
            free_low_bytes=min(self._free, default=None),
        )

    def _ticks(self) -> Ticks | None:
        try:
            text = (_PROC / "stat").read_text()
        except OSError:
            return None
        return ticks_of(text, self.cores, os.sysconf("SC_CLK_TCK"))

    def _fastest(self) -> float | None:
        """Of the cores that are looked at: the busy ones are clocked highest, and idle ones say nothing."""
        found: list[float] = []
        try:
            for core in self._clocked:
                found.append(int((_CPUFREQ / f"cpu{core}/cpufreq/scaling_cur_freq").read_text()) / 1000)  # noqa: PERF401
        except (OSError, ValueError):  # a virtual machine has no such file
            try:
                found = [float(each) for each in MEGAHERTZ.findall((_PROC / "cpuinfo").read_text(errors="replace"))]
            except (OSError, ValueError):
                return None
        return max(found, default=None)


def span(values: list[float]) -> Span | None:
    """Lowest, median and highest; None of no values."""
    return Span(low=min(values), median=median(values), high=max(values)) if values else None


def _own_s() -> float:
    """CPU seconds of this process and of every process below it that has been waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _free() -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
