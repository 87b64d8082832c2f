"""The functions of ``torch.cuda`` on a paper GPU.

If a function would reach the driver and has an answer on a paper GPU, this module replaces it. If it has no answer,
calling it is refused by name (``refused_functions.py``). All others are torch's own, and call those replaced here.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from regbot_guest.paper import refused_functions, streams
from regbot_guest.paper.device import Device
from regbot_guest.paper.gpus import GPUS_PER_NODE, GpuModel
from regbot_guest.paper.streams import gpu_index

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip

# Names in the result of torch.cuda.memory_stats: statistics of bytes, statistics by pool, and counts of events.
_BYTE_STATISTICS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_POOL_STATISTICS = (*_BYTE_STATISTICS, "inactive_split_bytes", "allocation", "segment", "active", "inactive_split")
_EVENT_STATISTICS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
                     "max_split_size")  # fmt: skip
_SYNC_DEBUG_MODES: dict[str, "int | str"] = {"default": 0, "warn": 1, "error": 2}
NCCL_VERSION = (2, 27, 5)
"""Version that a CPU build of torch reports. Programs ask for it before they reduce in bfloat16."""


class DeviceProperties:
    """Result of ``torch.cuda.get_device_properties``. The class attributes are the same for all imitated GPUs."""

    max_threads_per_multi_processor, max_threads_per_block = 2048, 1024
    regs_per_multiprocessor, shared_memory_per_block, uuid = 65536, 49152, "paper"
    is_integrated, is_multi_gpu_board, pci_bus_id, pci_device_id, pci_domain_id = False, False, 0, 0, 0

    def __init__(self, gpu: GpuModel) -> None:
        self.name, self.total_memory, self.multi_processor_count = gpu.name, gpu.memory_bytes, gpu.multiprocessors
        self.major, self.minor = gpu.capability
        self.gcnArchName = gpu.architecture if gpu.architecture.startswith("gfx") else ""  # set only for AMD's GPUs
        self.warp_size, self.L2_cache_size = gpu.warp_size, gpu.l2_bytes
        self.shared_memory_per_block_optin = gpu.shared_bytes_per_block
        self.shared_memory_per_multiprocessor = gpu.shared_bytes


class PaperRuntime(types.ModuleType):
    """Result of ``torch.cuda.cudart``. Profilers have nothing to record, and host memory needs no registration.
    Functions that are missing here are refused when they are called.
    """

    class cudaError(int):  # noqa: N801 (the name is CUDA's)
        success = 0

    def __init__(self, device: Device) -> None:
        super().__init__("torch.cuda.cudart")
        self._device = device
        self.cudaGetErrorString = lambda code: f"CUDA error {code}"
        self.cudaMemGetInfo = lambda gpu: _free_and_total_memory(device, gpu)
        for name in ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"):
            setattr(self, name, lambda *_: self.cudaError.success)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return refused_functions.make_refusing(self._device, f"torch.cuda.cudart().{name}")


class _TensorType(type):
    """Type of ``torch.cuda.FloatTensor`` and the like, which frameworks call and use in ``isinstance``."""

    dtype: torch.dtype
    layout: torch.layout

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype == cls.dtype
            and instance.layout == cls.layout
            and instance.is_cuda
        )

    def __call__(cls, data: Any = None, *sizes: int, device: Any = None) -> Any:
        if isinstance(data, (list, tuple)):
            return torch.tensor(data, dtype=cls.dtype, device=device or "cuda")
        shape = (0,) if data is None else (data, *sizes)
        if cls.layout != torch.strided:
            torch.ops.regbot_paper.refuse(
                f"torch.cuda.sparse.{cls.__name__} was called: a paper GPU has no sparse tensors"
            )
        return torch.empty(shape, dtype=cls.dtype, device=device or "cuda")


def install_functions(device: Device) -> None:
    """Replace the functions of ``torch.cuda``, under all names that torch's modules have for them, and some methods."""
    runtime = PaperRuntime(device)
    torch.cuda._cudart = runtime
    # The compiled module behind ``torch.cuda.nvtx``, whose ranges nobody records.
    ranges = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd")
    torch.cuda.nvtx._nvtx = types.SimpleNamespace(**{name: lambda *_: 0 for name in ranges})  # type: ignore[assignment]
    functions = {
        **_platform_functions(device),
        **_memory_functions(device),
        **streams.FUNCTIONS,
        "cudart": lambda: runtime,
    }
    replace_everywhere(torch.cuda, functions)
    if torch.version.cuda is None:  # a CPU build of torch
        replace_everywhere(torch.cuda.nccl, {"version": lambda: NCCL_VERSION})
    generators = tuple(torch.Generator(device=torch.device("cuda", index)) for index in range(GPUS_PER_NODE))
    setattr(torch.cuda, "default_generators", generators)  # noqa: B010 (typed as a tuple of one)
    torch.cuda._initialized = True
    # Attention is chosen as without cuDNN, which a CUDA build of torch cannot load here.
    setattr(torch.backends.cudnn, "version", lambda: None)  # noqa: B010 (mypy rejects an assignment)
    for prefix, dtype in _DTYPES.items():
        name = f"{prefix}Tensor"
        for module, layout in ((torch.cuda, torch.strided), (torch.cuda.sparse, torch.sparse_coo)):
            setattr(module, name, _TensorType(name, (), {"dtype": dtype, "layout": layout}))
    _patch_accelerator()
    _patch_tensor(device)
    _patch_truncated_normal()
    _patch_storage()
    if torch.version.cuda is not None:
        _patch_cuda_build(device)


def replace_everywhere(owner: types.ModuleType, replacements: Mapping[str, Any]) -> None:
    """Set the attributes of ``owner``, and rebind the names that other modules of torch have for the old values, as
    after ``from torch.cuda import is_available``.
    """
    replacement_by_id = {}  # by the id of the old value
    for name, replacement in replacements.items():
        original = getattr(owner, name, None)
        if isinstance(original, (type, types.FunctionType, types.BuiltinFunctionType)):
            replacement_by_id[id(original)] = replacement
        _name_like_torch(replacement, owner, name)
        setattr(owner, name, replacement)
    for module in refused_functions.torch_modules():
        for name, value in list(vars(module).items()):
            if id(value) in replacement_by_id:
                setattr(module, name, replacement_by_id[id(value)])


def _name_like_torch(replacement: Any, owner: types.ModuleType, name: str) -> None:
    """For error messages and for torch._dynamo."""
    if isinstance(replacement, types.FunctionType) and replacement.__name__ == "<lambda>":
        replacement.__name__ = replacement.__qualname__ = name
        replacement.__module__ = owner.__name__


def _no_op() -> Callable[..., None]:
    """Each function of ``torch.cuda`` needs its own object: torch._dynamo refuses an object with two names."""
    return lambda *_, **__: None


def _set_device(device: Any) -> None:
    torch._C._accelerator_setDeviceIndex(gpu_index(device))


def _exchange_device(index: int) -> int:
    """Make ``index`` the current GPU and return the previous one. Negative numbers change nothing."""
    previous = gpu_index(None)  # None means the current GPU
    if index >= 0:
        _set_device(index)
    return previous


def _platform_functions(paper_device: Device) -> dict[str, Any]:
    gpu = paper_device.gpu
    sync_debug: dict[str, int | str] = {"mode": 0}  # a dict, because the functions below share it

    def set_sync_debug_mode(debug_mode: "int | str") -> None:
        sync_debug["mode"] = _SYNC_DEBUG_MODES.get(str(debug_mode), debug_mode)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _no_op(),
        "_lazy_init": _no_op(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: GPUS_PER_NODE,
        "_device_count_nvml": lambda: GPUS_PER_NODE,
        "current_device": lambda: gpu_index(-1),
        "set_device": _set_device,
        "_exchange_device": lambda index: _exchange_device(index),
        "_maybe_exchange_device": lambda index: _exchange_device(index),
        "_get_device_properties": lambda index: DeviceProperties(gpu),
        "get_arch_list": lambda: [gpu.architecture],
        "can_device_access_peer": lambda device, peer_device: gpu_index(device) != gpu_index(peer_device),
        "synchronize": lambda device=None: paper_device.on_host_wait("synchronize"),
        "ipc_collect": _no_op(),
        "set_sync_debug_mode": set_sync_debug_mode,
        "get_sync_debug_mode": lambda: sync_debug["mode"],
    }


def _free_and_total_memory(paper_gpu: Device, device: Any) -> tuple[int, int]:
    total = paper_gpu.gpu.memory_bytes
    live, _ = paper_gpu.memory_use(gpu_index(device))
    return max(0, total - live), total


def _memory_functions(paper_gpu: Device) -> dict[str, Any]:
    def nested_statistics(device: Any = None) -> dict[str, Any]:
        """Of CUDA's statistics, only bytes of all pools together are known. All other numbers are 0."""
        live, peak = paper_gpu.memory_use(gpu_index(device))
        pools = ("all", "large_pool", "small_pool")
        zeros = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        counts = {kind: {pool: dict(zeros) for pool in pools} for kind in _POOL_STATISTICS}
        for kind in _BYTE_STATISTICS:
            counts[kind]["all"] |= {"current": live, "peak": peak}
        events = dict.fromkeys(_EVENT_STATISTICS, 0)
        return {**counts, **events, "oversize_allocations": dict(zeros), "oversize_segments": dict(zeros)}

    return {
        "memory_stats_as_nested_dict": nested_statistics,
        "mem_get_info": lambda device=None: _free_and_total_memory(paper_gpu, device),
        "reset_peak_memory_stats": lambda device=None: paper_gpu.reset_peak(gpu_index(device)),
        "reset_accumulated_memory_stats": _no_op(),
        "empty_cache": _no_op(),
        "get_allocator_backend": lambda: "native",
        "set_per_process_memory_fraction": _no_op(),
        "get_per_process_memory_fraction": lambda device=None: 1.0,
    }


def _patch_accelerator() -> None:
    """The memory functions of ``torch.accelerator`` need CUDA's allocator, so they call those of ``torch.cuda``."""
    names = (
        "empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved",
        "max_memory_reserved", "reset_accumulated_memory_stats", "reset_peak_memory_stats",
    )  # fmt: skip
    replacements = {
        name: _make_caller(getattr(torch.cuda, cuda_name))
        for name, cuda_name in (*zip(names, names, strict=True), ("get_memory_info", "mem_get_info"))
        if hasattr(torch.accelerator, name)
    }
    replace_everywhere(torch.accelerator, replacements)


def _make_caller(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments)


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
    """The original draws again while a value is outside of the bounds. Values are unknown here: draw once."""
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
    storage_class = torch.UntypedStorage
    original_resize = storage_class.resize_

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return original_resize(self, size)
        # A tensor with this storage, because the device resizes the storage of a tensor.
        storage_bytes = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        torch.ops.regbot_paper.resize_storage(storage_bytes, size)
        return self

    storage_class.resize_ = resize_  # type: ignore[method-assign]
    for name in ("__getitem__", "__setitem__", "tolist", "__repr__", "__str__", "__iter__", "_write_file", "copy_"):
        _guard_bytes(storage_class, name)
    for name in ("__getitem__", "__setitem__", "tolist", "__iter__"):
        _guard_bytes(torch.TypedStorage, name)


def _guard_bytes(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cuda":
            return original(self, *args, **kwargs)
        if name in ("__repr__", "__str__"):
            return f"[storage of {self.nbytes()} bytes on a paper GPU, which has no bytes]"
        _refuse_bytes(name)

    setattr(owner, name, wrapper)


def _guard_array_interface() -> None:
    """A property, so that ``hasattr`` is still False for host tensors."""
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
    module: Any = torch._C
    module._cuda_getDevice = lambda: gpu_index(-1)
    module._cuda_setDevice = lambda index: _set_device(index)  # a separate object, for the reason in _no_op
    module._cuda_exchangeDevice = lambda index: _exchange_device(index)
    module._cuda_maybeExchangeDevice = lambda index: _exchange_device(index)
    module._cuda_isCurrentStreamCapturing = lambda: device.is_capturing
    module._cuda_getDeviceCount = lambda: GPUS_PER_NODE
