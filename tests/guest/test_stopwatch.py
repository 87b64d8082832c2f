"""Time in collectives on a GPU, on a stand-in for torch.cuda whose streams have clocks of their own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from regbot_guest.stopwatch import Stopwatch


class Stream:
    """A stream: ``now`` is the second at which the work ends that was issued to it."""

    def __init__(self) -> None:
        self.now = 0.0


class Device:
    """A stand-in for the streams and events of one GPU."""

    def __init__(self) -> None:
        self.compute = self.current = Stream()

    def run(self, seconds: float) -> None:
        """Issue a kernel to the current stream."""
        self.current.now += seconds

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def event_class(device) -> type:  # noqa: N805 (the class below has a self of its own)
        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self, stream: Stream | None = None) -> None:
                self.at = (stream or device.current).now

            def wait(self, stream: Stream | None = None) -> None:
                stream = stream or device.current
                stream.now = max(stream.now, self.at)

            def elapsed_time(self, end: Any) -> float:
                return 1000 * float(end.at - self.at)

        return Event


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    for name, stand_in in {
        "Event": device.event_class(),
        "current_stream": lambda: device.current,
        "stream": device.on,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda: None,
        "memory_allocated": lambda: 1,
        "max_memory_allocated": lambda: 1,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(dist.ProcessGroup, "_allgather_base", lambda _, seconds: device.run(seconds))
    monkeypatch.delitem(sys.modules, "deep_ep", raising=False)
    return device


def all_gather(seconds: float) -> None:
    dist.ProcessGroup._allgather_base(None, seconds)  # type: ignore[attr-defined]


def seconds(steps: dict[str, Any]) -> dict[str, list[float]]:
    return {name: [round(value, 9) for value in steps[name]] for name in ("step_s", "wait_s", "overlapped_s")}


def test_of_a_collective_on_another_stream_only_the_wait_of_the_compute_stream_counts(device: Device) -> None:
    """As FSDP gathers parameters: on a stream of its own, with an event that the compute stream waits for."""
    gathering = Stream()
    before = torch.cuda.Event.record
    with Stopwatch(torch.device("cuda")) as watch:
        for computing_s in (0.3, 0.9):
            gathering.now = device.compute.now
            with device.on(gathering):
                all_gather(0.5)
                event = torch.cuda.Event()
                event.record()
            device.run(computing_s)
            event.wait()
            watch.end_step()
        steps = watch.record()
    assert seconds(steps) == {"step_s": [0.5, 0.9], "wait_s": [0.2, 0.0], "overlapped_s": [0.5, 0.5]}
    assert torch.cuda.Event.record is before


def test_exchanges_of_deep_ep_are_waited_for_once_it_is_imported(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Buffer:
        def dispatch(self) -> None:
            device.run(0.25)

    class HybridEPBuffer:
        def combine_with_unpermute(self) -> None:
            device.run(0.5)

    with Stopwatch(torch.device("cuda")) as watch:
        device.run(1.0)
        monkeypatch.setitem(sys.modules, "deep_ep", SimpleNamespace(Buffer=Buffer, HybridEPBuffer=HybridEPBuffer))
        watch.end_step()
        for _ in range(2):
            device.run(1.0)
            Buffer().dispatch()
            HybridEPBuffer().combine_with_unpermute()
            watch.end_step()
        steps = watch.record()
    assert seconds(steps) == {"step_s": [1.0, 1.75, 1.75], "wait_s": [0.0, 0.75, 0.75], "overlapped_s": [0.0] * 3}
