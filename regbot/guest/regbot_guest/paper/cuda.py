"""The functions of ``torch.cuda`` on a paper GPU.

A CPU build of torch has the module ``torch.cuda`` but not the functions under it; in a CUDA build they would call the
driver. The names are those that training frameworks use; what is missing is refused by name by torch itself.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from regbot_guest.paper.device import Device
from regbot_guest.paper.gpus import PER_NODE, Gpu
from regbot_guest.untraceable import Untraceable

_TYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


class Stream:
    """Everything runs at once and in order: a stream has nothing to wait for."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cuda", _index(device))
        self.device_index, self.device_type, self.stream_id, self.cuda_stream = self.device.index, 1, 0, 0
        self.priority = priority

    def record_event(self, event: Any = None) -> "Event":
        return event or Event()

    def query(self) -> bool:
        return True

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    """Over as soon as it is recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        raise Untraceable("torch.cuda.Event.elapsed_time was asked for: a paper GPU takes no time")

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class Properties:
    """What ``torch.cuda.get_device_properties`` returns."""

    warp_size, max_threads_per_multi_processor, max_threads_per_block = 32, 2048, 1024
    regs_per_multiprocessor, shared_memory_per_block, shared_memory_per_block_optin = 65536, 49152, 232448
    shared_memory_per_multiprocessor, L2_cache_size, gcnArchName, uuid = 233472, 50 << 20, "", "paper"
    is_integrated, is_multi_gpu_board, pci_bus_id, pci_device_id, pci_domain_id = False, False, 0, 0, 0

    def __init__(self, gpu: Gpu) -> None:
        self.name, self.total_memory, self.multi_processor_count = gpu.name, gpu.memory_bytes, gpu.multiprocessors
        self.major, self.minor = gpu.capability


class _TensorType(type):
    """``torch.cuda.FloatTensor`` and its siblings: frameworks ask ``isinstance`` of them, and call them."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and instance.is_cuda

    def __call__(cls, data: Any = None, *sizes: int, device: Any = None) -> Any:
        if isinstance(data, (list, tuple)):
            return torch.tensor(data, dtype=cls.dtype, device=device or "cuda")
        shape = (0,) if data is None else (data, *sizes)
        return torch.empty(shape, dtype=cls.dtype, device=device or "cuda")


def fill(device: Device) -> None:
    """Give ``torch.cuda`` what a program asks of it."""
    for name, value in {**_platform(device.gpu), **_memory(device), **_random(), **_streams()}.items():
        setattr(torch.cuda, name, value)
    for name, value in _random().items():
        setattr(torch.cuda.random, name, value)
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "memory_stats", "empty_cache"):
        setattr(torch.cuda.memory, name, getattr(torch.cuda, name))
    for name, dtype in _TYPES.items():
        setattr(torch.cuda, f"{name}Tensor", _TensorType(f"{name}Tensor", (), {"dtype": dtype}))
    _fill_tensor(device)
    _fill_storage()
    if torch.version.cuda is not None:
        _fill_cuda_build()


def _nothing() -> Callable[..., None]:
    """A function of its own each time: torch._dynamo refuses one object under two names."""
    return lambda *_, **__: None


def _index(device: Any) -> int:
    if device is None:
        return int(torch._C._accelerator_getDeviceIndex())
    if isinstance(device, int):
        return device if device >= 0 else int(torch._C._accelerator_getDeviceIndex())
    return torch.device(device).index or 0


def _set_device(device: Any) -> None:
    index = _index(device)
    if index >= PER_NODE:
        raise RuntimeError(f"invalid device ordinal: a paper node has {PER_NODE} GPUs, number {index} was asked for")
    torch._C._accelerator_setDeviceIndex(index)


@contextlib.contextmanager
def _on_device(device: Any) -> Iterator[None]:
    before = _index(None)
    _set_device(device)
    try:
        yield
    finally:
        _set_device(before)


def _platform(gpu: Gpu) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing(),
        "_lazy_init": _nothing(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: PER_NODE,
        "_device_count_nvml": lambda: PER_NODE,
        "current_device": lambda: _index(None),
        "set_device": _set_device,
        "device": _on_device,
        "get_device_name": lambda device=None: gpu.name,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_properties": lambda device=None: Properties(gpu),
        "get_arch_list": lambda: ["sm_{}{}".format(*gpu.capability)],
        "get_gencode_flags": lambda: "",
        "can_device_access_peer": lambda device, peer: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": _nothing(),
        "ipc_collect": _nothing(),
    }


def _memory(device: Device) -> dict[str, Any]:
    total = device.gpu.memory_bytes

    def stats(_: Any = None) -> dict[str, int]:
        now, peak = device.live_bytes, device.peak_bytes
        known = {f"{kind}_bytes.all.{when}": value for kind in ("allocated", "reserved", "active", "requested")
                 for when, value in (("current", now), ("peak", peak))}  # fmt: skip
        return collections.defaultdict(int, known)

    return {
        "memory_allocated": lambda _=None: device.live_bytes,
        "max_memory_allocated": lambda _=None: device.peak_bytes,
        "memory_reserved": lambda _=None: device.live_bytes,
        "max_memory_reserved": lambda _=None: device.peak_bytes,
        "memory_stats": stats,
        "mem_get_info": lambda _=None: (max(0, total - device.live_bytes), total),
        "reset_peak_memory_stats": lambda _=None: device.reset_peak(),
        "reset_max_memory_allocated": lambda _=None: device.reset_peak(),
        "empty_cache": _nothing(),
        "set_per_process_memory_fraction": _nothing(),
    }


def _random() -> dict[str, Any]:
    generators = tuple(torch.Generator(device=torch.device("cuda", index)) for index in range(PER_NODE))

    def generator_of(device: Any = None) -> torch.Generator:
        return generators[_index(device)]

    def seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    return {
        "default_generators": generators,
        "get_rng_state": lambda device="cuda": generator_of(device).get_state(),
        "set_rng_state": lambda state, device="cuda": generator_of(device).set_state(state) and None,
        "manual_seed": lambda seed: generator_of().manual_seed(seed) and None,
        "manual_seed_all": seed_all,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: generator_of().initial_seed(),
    }


def _streams() -> dict[str, Any]:
    return {
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "stream": lambda stream: contextlib.nullcontext(),
        "StreamContext": lambda stream: contextlib.nullcontext(),
        "set_stream": _nothing(),
        "current_stream": lambda device=None: Stream(device),
        "default_stream": lambda device=None: Stream(device),
    }


def _fill_tensor(device: Device) -> None:
    show = torch._tensor_str._str

    def describe(self: Tensor, *, tensor_contents: "str | None" = None) -> str:
        if self.device.type != "cuda" or device.is_known(self):
            return show(self, tensor_contents=tensor_contents)
        return f"tensor(unknown values, device='{self.device}', size={tuple(self.shape)}, dtype={self.dtype})"

    torch._tensor_str._str = describe
    _guard_bytes(torch.Tensor, "__dlpack__")
    _guard_array_interface()
    torch.Tensor.record_stream = _nothing()  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda self, *_, **__: False  # type: ignore[method-assign]


def _fill_storage() -> None:
    """Storages: resizing goes to the device, reading bytes is refused."""
    storage = torch.UntypedStorage
    resize = storage.resize_

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        torch.ops.regbot_paper.resize_storage(whole, size)
        return self

    storage.resize_ = resize_  # type: ignore[method-assign]
    for name in ("__getitem__", "__setitem__", "tolist", "__repr__", "__str__", "__iter__", "_write_file", "copy_"):
        _guard_bytes(storage, name)
    for name in ("__getitem__", "__setitem__", "tolist", "__iter__"):
        _guard_bytes(torch.TypedStorage, name)


def _guard_bytes(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cuda":
            return original(self, *args, **kwargs)
        if name in ("__repr__", "__str__"):
            return f"[storage of {self.nbytes()} bytes on a paper GPU, which has no bytes]"
        _refuse_bytes(name)

    setattr(owner, name, guarded)


def _guard_array_interface() -> None:
    """A property, so that tensors of the host still lack it for ``hasattr``."""
    original = torch.Tensor.__cuda_array_interface__.__get__

    def interface(self: Tensor) -> Any:
        if self.device.type == "cuda":
            _refuse_bytes("__cuda_array_interface__")
        return original(self)

    torch.Tensor.__cuda_array_interface__ = property(interface)  # type: ignore[assignment, method-assign]


def _refuse_bytes(name: str) -> NoReturn:
    torch.ops.regbot_paper.refuse(f"the bytes of a storage were read or written ({name}): a paper GPU has none")
    raise AssertionError("refuse returned")


def _fill_cuda_build() -> None:
    """What a CUDA build's own Python calls below ``torch.cuda``."""
    module: Any = torch._C
    module._cuda_getDevice = lambda: _index(None)
    module._cuda_setDevice = lambda device: _set_device(device)  # its own object: see _nothing

    def exchange(device: int) -> int:
        before = _index(None)
        if device >= 0:
            _set_device(device)
        return before

    module._cuda_exchangeDevice = exchange
    module._cuda_maybeExchangeDevice = lambda device: exchange(device)
    module._cuda_isCurrentStreamCapturing = lambda: False
    module._cuda_getDeviceCount = lambda: PER_NODE
