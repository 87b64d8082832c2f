"""A stand-in for nvidia-ml-py: GPUs that tests can make sick. Its functions have the names and
parameters that nvidia-ml-py 13.615.71 defines."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

TIMEOUT, NOT_SUPPORTED, LOST = 10, 3, 15


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Card:
    """One GPU. What is a function is asked with the number of samples so far."""

    name: str = "NVIDIA H100 80GB HBM3"
    clock: int | Callable[[int], int] = 1755
    max_clock: int = 1980
    reasons: int | Callable[[int], int] = 0
    temperature: int = 61
    used: int = 600 * 2**20
    ecc: int | Callable[[int], int] = 0
    pids: Callable[[int], list[int]] = lambda _: []
    xids: list[tuple[int, int]] = field(default_factory=list)
    """Number of the sample that they come with, and the error."""
    raises: dict[str, int] = field(default_factory=dict)
    """By function the error that it ends in."""


class StandIn:
    """The module. ``samples`` of a card is how often its clock was asked for: 0 before the run."""

    NVMLError: type[Exception] = NVMLError

    def __init__(self, *cards: Card) -> None:
        self.cards = cards
        self.samples: Counter[int] = Counter()
        self.open = 0
        self.watched: list[int] = []
        self.reported: set[tuple[int, int, int]] = set()
        self.asked: Counter[str] = Counter()

    def _answer(self, handle: int, function: str, value: Any) -> Any:
        self.asked[function] += 1
        card = self.cards[handle]
        if function in card.raises:
            raise NVMLError(card.raises[function])
        return value(max(0, self.samples[handle] - 1)) if callable(value) else value

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self.cards[handle].name)

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-{handle}a{handle}b".encode()

    def nvmlDeviceGetClockInfo(self, handle: int, type: int) -> int:
        assert type == 1
        self.samples[handle] += 1
        return int(self._answer(handle, "nvmlDeviceGetClockInfo", self.cards[handle].clock))

    def nvmlDeviceGetMaxClockInfo(self, handle: int, type: int) -> int:
        assert type == 1
        return int(self._answer(handle, "nvmlDeviceGetMaxClockInfo", self.cards[handle].max_clock))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return int(self._answer(handle, "nvmlDeviceGetCurrentClocksEventReasons", self.cards[handle].reasons))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == 0
        return int(self._answer(handle, "nvmlDeviceGetTemperature", self.cards[handle].temperature))

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        function = "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo"
        return self._answer(handle, function, SimpleNamespace(used=self.cards[handle].used))

    def nvmlDeviceGetTotalEccErrors(self, handle: int, errorType: int, counterType: int) -> int:
        assert (errorType, counterType) == (1, 0)
        return int(self._answer(handle, "nvmlDeviceGetTotalEccErrors", self.cards[handle].ecc))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        pids = self._answer(handle, "nvmlDeviceGetComputeRunningProcesses", self.cards[handle].pids)
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]

    def nvmlEventSetCreate(self) -> list[int]:
        return self.watched

    def nvmlDeviceRegisterEvents(self, handle: int, eventTypes: int, eventSet: list[int]) -> None:
        assert eventTypes == 8
        eventSet.append(handle)

    def nvmlEventSetWait(self, eventSet: list[int], timeoutms: int) -> Any:
        assert timeoutms == 0
        for handle in eventSet:
            for at, xid in self.cards[handle].xids:
                if at < self.samples[handle] and (handle, at, xid) not in self.reported:
                    self.reported.add((handle, at, xid))
                    return SimpleNamespace(device=handle, eventType=8, eventData=xid)
        raise NVMLError(TIMEOUT)

    def nvmlEventSetFree(self, eventSet: list[int]) -> None:
        eventSet.clear()


FUNCTIONS = [name for name in vars(StandIn) if name.startswith("nvml")]
