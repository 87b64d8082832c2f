"""The functions of ``torch.cuda`` on a paper GPU.

In a CPU build of torch, the module ``torch.cuda`` exists, but its functions do not work. In a CUDA build they would
call the driver. This module provides the functions that training frameworks use. If any other function is called, torch
itself raises an error that names the function.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from regbot_guest.paper.device import Device
from regbot_guest.paper.gpus import GPUS_PER_NODE, GpuModel
from regbot_guest.untraceable import Untraceable

_TYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


class PaperStream:
    """Replacement for ``torch.cuda.Stream``. Operators run immediately and in order, so waiting does nothing."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cuda", _device_index(device))
        self.device_index, self.device_type, self.stream_id, self.cuda_stream = self.device.index, 1, 0, 0
        self.priority = priority

    def record_event(self, event: Any = None) -> "PaperEvent":
        return event or PaperEvent()

    def query(self) -> bool:
        return True

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def __enter__(self) -> "PaperStream":
        return self

    def __exit__(self, *_: object) -> None: ...


class PaperStreamContext(contextlib.nullcontext[None]):
    """Result of ``torch.cuda.stream``. It has to be a class, because torch._dynamo uses it in ``isinstance``."""


class PaperEvent:
    """Replacement for ``torch.cuda.Event``. An event is complete as soon as it is recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        raise Untraceable("torch.cuda.Event.elapsed_time was called: a paper GPU has no times")

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class DeviceProperties:
    """Result of ``torch.cuda.get_device_properties``."""

    warp_size, max_threads_per_multi_processor, max_threads_per_block = 32, 2048, 1024
    regs_per_multiprocessor, shared_memory_per_block, shared_memory_per_block_optin = 65536, 49152, 232448
    shared_memory_per_multiprocessor, L2_cache_size, gcnArchName, uuid = 233472, 50 << 20, "", "paper"
    is_integrated, is_multi_gpu_board, pci_bus_id, pci_device_id, pci_domain_id = False, False, 0, 0, 0

    def __init__(self, gpu: GpuModel) -> None:
        self.name, self.total_memory, self.multi_processor_count = gpu.name, gpu.memory_bytes, gpu.multiprocessors
        self.major, self.minor = gpu.capability


class _TensorType(type):
    """Type of ``torch.cuda.FloatTensor`` and similar names. Frameworks call these names and use them in
    ``isinstance``.
    """

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and instance.is_cuda

    def __call__(cls, data: Any = None, *sizes: int, device: Any = None) -> Any:
        if isinstance(data, (list, tuple)):
            return torch.tensor(data, dtype=cls.dtype, device=device or "cuda")
        shape = (0,) if data is None else (data, *sizes)
        return torch.empty(shape, dtype=cls.dtype, device=device or "cuda")


def install_functions(device: Device) -> None:
    """Add the functions of this module to ``torch.cuda``."""
    for name, value in {
        **_platform_functions(device.gpu),
        **_memory_functions(device),
        **_random_functions(),
        **_stream_functions(),
    }.items():
        setattr(torch.cuda, name, value)
    for name, value in _random_functions().items():
        setattr(torch.cuda.random, name, value)
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "memory_stats", "empty_cache"):
        setattr(torch.cuda.memory, name, getattr(torch.cuda, name))
    for name, dtype in _TYPES.items():
        setattr(torch.cuda, f"{name}Tensor", _TensorType(f"{name}Tensor", (), {"dtype": dtype}))
    _patch_tensor(device)
    _patch_truncated_normal()
    _patch_storage()
    if torch.version.cuda is not None:
        _patch_cuda_build(device)


def _no_op() -> Callable[..., None]:
    """Return a new function that does nothing. Each name needs its own object, because torch._dynamo refuses an object
    with two names.
    """
    return lambda *_, **__: None


def _device_index(device: Any) -> int:
    if device is None:
        return int(torch._C._accelerator_getDeviceIndex())
    if isinstance(device, int):
        return device if device >= 0 else int(torch._C._accelerator_getDeviceIndex())
    return torch.device(device).index or 0


def _set_device(device: Any) -> None:
    index = _device_index(device)
    if index >= GPUS_PER_NODE:
        raise RuntimeError(
            f"invalid device ordinal: a paper node has {GPUS_PER_NODE} GPUs, but number {index} was requested"
        )
    torch._C._accelerator_setDeviceIndex(index)


@contextlib.contextmanager
def _on_device(device: Any) -> Iterator[None]:
    before = _device_index(None)
    _set_device(device)
    try:
        yield
    finally:
        _set_device(before)


def _platform_functions(gpu: GpuModel) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _no_op(),
        "_lazy_init": _no_op(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: GPUS_PER_NODE,
        "_device_count_nvml": lambda: GPUS_PER_NODE,
        "current_device": lambda: _device_index(None),
        "set_device": _set_device,
        "device": _on_device,
        "get_device_name": lambda device=None: gpu.name,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_properties": lambda device=None: DeviceProperties(gpu),
        "get_arch_list": lambda: ["sm_{}{}".format(*gpu.capability)],
        "get_gencode_flags": lambda: "",
        "can_device_access_peer": lambda device, peer: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "synchronize": _no_op(),
        "ipc_collect": _no_op(),
    }


def _memory_functions(device: Device) -> dict[str, Any]:
    total = device.gpu.memory_bytes

    def stats(_: Any = None) -> dict[str, int]:
        current, peak = device.live_bytes, device.peak_bytes
        statistics = {
            f"{kind}_bytes.all.{statistic}": value
            for kind in ("allocated", "reserved", "active", "requested")
            for statistic, value in (("current", current), ("peak", peak))
        }
        return collections.defaultdict(int, statistics)

    return {
        "memory_allocated": lambda _=None: device.live_bytes,
        "max_memory_allocated": lambda _=None: device.peak_bytes,
        "memory_reserved": lambda _=None: device.live_bytes,
        "max_memory_reserved": lambda _=None: device.peak_bytes,
        "memory_stats": stats,
        "mem_get_info": lambda _=None: (max(0, total - device.live_bytes), total),
        "reset_peak_memory_stats": lambda _=None: device.reset_peak(),
        "reset_max_memory_allocated": lambda _=None: device.reset_peak(),
        "empty_cache": _no_op(),
        "set_per_process_memory_fraction": _no_op(),
    }


def _random_functions() -> dict[str, Any]:
    generators = tuple(torch.Generator(device=torch.device("cuda", index)) for index in range(GPUS_PER_NODE))

    def get_generator(device: Any = None) -> torch.Generator:
        return generators[_device_index(device)]

    def seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    return {
        "default_generators": generators,
        "get_rng_state": lambda device="cuda": get_generator(device).get_state(),
        "set_rng_state": lambda state, device="cuda": get_generator(device).set_state(state) and None,
        "manual_seed": lambda seed: get_generator().manual_seed(seed) and None,
        "manual_seed_all": seed_all,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: get_generator().initial_seed(),
    }


def _stream_functions() -> dict[str, Any]:
    return {
        "Stream": PaperStream,
        "ExternalStream": PaperStream,
        "Event": PaperEvent,
        "stream": PaperStreamContext,
        "StreamContext": PaperStreamContext,
        "set_stream": _no_op(),
        "current_stream": lambda device=None: PaperStream(device),
        "default_stream": lambda device=None: PaperStream(device),
    }


def _patch_tensor(device: Device) -> None:
    original = torch._tensor_str._str

    def describe(self: Tensor, *, tensor_contents: "str | None" = None) -> str:
        if self.device.type != "cuda" or device.is_known(self):
            return original(self, tensor_contents=tensor_contents)
        return f"tensor(unknown values, device='{self.device}', size={tuple(self.shape)}, dtype={self.dtype})"

    torch._tensor_str._str = describe
    _guard_bytes(torch.Tensor, "__dlpack__")
    _guard_array_interface()
    torch.Tensor.record_stream = _no_op()  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda self, *_, **__: False  # type: ignore[method-assign]


def _patch_truncated_normal() -> None:
    """Replace the loop of ``torch.nn.init.trunc_normal_`` that draws again while a value is outside of the bounds.

    The values are unknown, so one draw is taken to be inside. A torch without this function needs no replacement.
    """
    original = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
    if original is None:
        return

    def draw_once(
        tensor: Tensor, mean: float, std: float, a: float, b: float, generator: "torch.Generator | None" = None
    ) -> Tensor:
        if not tensor.is_cuda:
            return original(tensor, mean, std, a, b, generator)
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator)

    setattr(torch.nn.init, "_no_grad_trunc_normal_", draw_once)  # noqa: B010 (mypy rejects an assignment)


def _patch_storage() -> None:
    """Make ``resize_`` of storages work on the device, and refuse to read the bytes of a storage."""
    storage = torch.UntypedStorage
    resize = storage.resize_

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        storage_bytes = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        torch.ops.regbot_paper.resize_storage(storage_bytes, size)
        return self

    storage.resize_ = resize_  # type: ignore[method-assign]
    for name in ("__getitem__", "__setitem__", "tolist", "__repr__", "__str__", "__iter__", "_write_file", "copy_"):
        _guard_bytes(storage, name)
    for name in ("__getitem__", "__setitem__", "tolist", "__iter__"):
        _guard_bytes(torch.TypedStorage, name)


def _guard_bytes(owner: Any, name: str) -> None:
    """Make the method ``name`` of ``owner`` refuse objects on the device, because the method needs their bytes."""
    original = getattr(owner, name)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cuda":
            return original(self, *args, **kwargs)
        if name in ("__repr__", "__str__"):
            return f"[storage of {self.nbytes()} bytes on a paper GPU, which has no bytes]"
        _refuse_bytes(name)

    setattr(owner, name, wrapper)


def _guard_array_interface() -> None:
    """Refuse the CUDA array interface of tensors on the device. The replacement is a property, so that ``hasattr`` is
    still False for host tensors.
    """
    original = torch.Tensor.__cuda_array_interface__.__get__

    def interface(self: Tensor) -> Any:
        if self.device.type == "cuda":
            _refuse_bytes("__cuda_array_interface__")
        return original(self)

    torch.Tensor.__cuda_array_interface__ = property(interface)  # type: ignore[assignment, method-assign]


def _refuse_bytes(name: str) -> NoReturn:
    torch.ops.regbot_paper.refuse(f"the bytes of a storage were read or written ({name}): a paper GPU has no bytes")
    raise AssertionError("refuse returned")


def _patch_cuda_build(device: Device) -> None:
    """Replace the functions of ``torch._C`` which the Python code of a CUDA build calls."""
    module: Any = torch._C
    module._cuda_getDevice = lambda: _device_index(None)
    module._cuda_setDevice = lambda index: _set_device(index)  # a new object, for the reason given in _no_op

    def exchange(index: int) -> int:
        before = _device_index(None)
        if index >= 0:
            _set_device(index)
        return before

    module._cuda_exchangeDevice = exchange
    module._cuda_maybeExchangeDevice = lambda index: exchange(index)
    module._cuda_isCurrentStreamCapturing = lambda: device.is_capturing
    module._cuda_getDeviceCount = lambda: GPUS_PER_NODE
