"""Streams and events of a paper GPU. They are numbered, compared and selected as on a real GPU, but order nothing,
because operators run immediately. The library creates them, so ``torch.Stream``, ``torch.accelerator`` and autograd's
device threads see the same streams as ``torch.cuda``.
"""

import ctypes
from typing import Any

import torch

from regbot_guest.paper.device import paper_gpu

_DEVICE_TYPE = 1
_IS_POOLED, _PRIORITY_SHIFT, _PRIORITY_BITS = 1, 1, 0b1111
"""Layout of a stream's number, as in ``new_stream`` of ``cpp/platform.cpp``. Bit 0 marks a stream that a program has
created. Bits 1 to 4 are 1 minus the stream's priority.
"""
_LEAST_PRIORITY, _GREATEST_PRIORITY = 0, -3
_HANDLES_PER_GPU = 4096
"""Distance between the handles of streams of two GPUs. It is larger than every number of a stream."""


def gpu_index(device: Any) -> int:
    """Return the number of the GPU that ``device`` names. None, -1 and ``cuda`` mean the current one. Raises
    RuntimeError if there is no such GPU, and ValueError if ``device`` is not a GPU.
    """
    index = int(torch.cuda._utils._get_device_index(device, optional=True))
    if index >= torch.cuda.device_count():
        raise RuntimeError(
            f"invalid device ordinal: a paper node has {torch.cuda.device_count()} GPUs, but number {index} was "
            "requested"
        )
    return index if index >= 0 else int(torch._C._accelerator_getDeviceIndex())


class PaperStream(torch.Stream):
    """Replacement for ``torch.cuda.Stream``. ``numbers`` describe an existing stream: ``stream_id``, ``device_index``
    and ``device_type``, or the handle ``stream_ptr``.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **numbers: int) -> "PaperStream":
        if "stream_ptr" in numbers:  # the handle serves as the id
            numbers = {"stream_id": numbers["stream_ptr"], "device_index": gpu_index(device)}
        if "stream_id" in numbers:
            return super().__new__(
                cls, numbers["stream_id"], numbers["device_index"], numbers.get("device_type", _DEVICE_TYPE)
            )
        return super().__new__(cls, torch.device("cuda", gpu_index(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """Handle: 0 for the default stream, that of an ExternalStream, else a number too small for an address."""
        if not self.stream_id & _IS_POOLED:
            return self.stream_id  # the default stream, or the handle of an ExternalStream
        return (self.device_index + 1) * _HANDLES_PER_GPU + self.stream_id

    @property
    def native_handle(self) -> int:
        return self.cuda_stream

    @property
    def priority(self) -> int:
        if not self.stream_id & _IS_POOLED:
            return _LEAST_PRIORITY
        # These bits are 1 minus the priority.
        return 1 - (self.stream_id >> _PRIORITY_SHIFT & _PRIORITY_BITS)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return _LEAST_PRIORITY, _GREATEST_PRIORITY

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        event = PaperEvent() if event is None else event
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        device = paper_gpu()
        return device is not None and device.is_capturing

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of this protocol, which is 0, and the handle."""
        return 0, self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PaperStream) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class PaperExternalStream(PaperStream):
    """Replacement for ``torch.cuda.ExternalStream``, a stream that other code created. ``stream_ptr`` is its handle."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_: Any) -> "PaperExternalStream":
        return super().__new__(cls, device, stream_ptr=stream_ptr)  # type: ignore[return-value]


def _make_refusing(reason: str) -> Any:
    return staticmethod(lambda *_, **__: torch.ops.regbot_paper.refuse(reason))


class PaperEvent(torch.Event):
    """Replacement for ``torch.cuda.Event``. An event is complete as soon as it is recorded."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: bool
    ) -> "PaperEvent":
        return super().__new__(cls, "cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    @property
    def cuda_event(self) -> int:
        """Number in place of the address that CUDA uses as the handle of an event: 0 until the event is recorded."""
        return self.event_id

    @property
    def device(self) -> Any:  # type: ignore[override]
        return super().device if self.event_id else None

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def record(self, stream: Any = None) -> None:
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        super().wait(current_stream() if stream is None else stream)

    elapsed_time = _make_refusing("torch.cuda.Event.elapsed_time was called: a paper GPU has no times")
    ipc_handle = _make_refusing("torch.cuda.Event.ipc_handle was called: a paper GPU shares no events with processes")
    from_ipc_handle = _make_refusing(
        "torch.cuda.Event.from_ipc_handle was called: a paper GPU shares no events with processes"
    )

    def __repr__(self) -> str:
        state = f"{self.cuda_event:#x}" if self.cuda_event else "uninitialized"
        return f"<torch.cuda.Event {state}>"


def current_stream(device: Any = None) -> PaperStream:
    stream = torch._C._accelerator_getStream(gpu_index(device))
    return PaperStream(stream_id=stream.stream_id, device_index=stream.device_index)


def default_stream(device: Any = None) -> PaperStream:
    return PaperStream(stream_id=0, device_index=gpu_index(device))


def set_stream(stream: Any) -> None:
    """Make ``stream`` the current stream of its GPU, and this GPU the current GPU. None changes nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


FUNCTIONS: dict[str, Any] = {
    "Stream": PaperStream,
    "ExternalStream": PaperExternalStream,
    "Event": PaperEvent,
    "set_stream": set_stream,
    "_set_stream_by_id": lambda stream_id, device_index, device_type: set_stream(
        PaperStream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    ),
    "current_stream": current_stream,
    "default_stream": default_stream,
    "get_stream_from_external": lambda data_ptr, device=None: PaperStream(device, stream_ptr=data_ptr),
}
