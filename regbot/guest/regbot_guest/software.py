"""The software environment of this process: everything that affects step times, except the code under test.

Of environment variables, as they are at the start of the process, only a hash is stored, because values may be private.
Two launches of one commit on one machine must have the same hash, so variables that differ per launch are left out.
"""

import hashlib
import importlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

RELEVANT_VARIABLES = re.compile(
    r"(NCCL|RCCL|CUDA|CUDNN|CUBLAS|NVTE|NVSHMEM|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|GOMP|OPENBLAS|XLA|JAX"
    r"|LIBTPU|HIP|HSA|ROCM|ROCBLAS|HIPBLASLT|MIOPEN|GPU|GLOO|UCX|FI|EP|DEEPEP|HYBRID_EP|MALLOC|ATEN|DNNL|ONEDNN)_\w+"
    r"|NVIDIA_TF32_OVERRIDE|LD_PRELOAD|LD_LIBRARY_PATH|GLIBC_TUNABLES|PYTHONOPTIMIZE|PYTHONMALLOC|PYTHONDEVMODE"
    r"|NUM_OF_\w+|NVLINK_DOMAIN_SIZE|USE_MNNVL|USE_NIXL"
)

PER_LAUNCH_VARIABLES = re.compile(
    # Visible devices are left out, because the node class already contains their number and kind.
    r"(CUDA|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|CUDA_MPS_(PIPE|LOG)_DIRECTORY"
    # Variables that launchers set for each rank, and destinations of logs.
    r"|NCCL_COMM_ID|NCCL_HOSTID|NCCL_DEBUG_FILE|TORCH_(NCCL|FR)_\w*(FILE|PIPE)\w*|TORCH_LOGS_OUT|TORCH_TRACE"
    r"|JAX_(COORDINATOR|PROCESS|LOCAL)_\w+|\w+_(DUMP|LOG|DEBUG|OUTPUT|TEMP|TMP)_?DIR"
    # Paths of caches. Each arm has its own cache.
    r"|\w+_CACHE_(DIR|PATH|ROOT)"
)
"""Names of relevant variables that differ per launch and do not affect the step time."""

_DUMP_FLAGS = re.compile(r"--xla_dump_\w+(=\S*)?|--xla_gpu_\w*cache_dir=\S*")
"""Flags of XLA that name destinations of dumps and caches. They differ per launch."""


def environment(torch: Any, variables: Mapping[str, str]) -> dict[str, Any]:
    """``torch`` is None for a framework without torch. ``variables`` are those that the process had at its start."""
    packages = sorted(f"{dist.metadata['Name']}=={dist.version}" for dist in metadata.distributions())
    return {
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
        "platform": platform.platform(),
        "packages": hashlib.sha256("\n".join(packages).encode()).hexdigest(),
        "toolkit": None if torch is None else toolkit(torch),
        "nccl": None if torch is None else nccl(torch),
        # A framework without torch runs on jax.
        "jax": _installed_version("jax") if torch is None else None,
        "jaxlib": _installed_version("jaxlib") if torch is None else None,
        "variables": fingerprint(variables),
    }


def module_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions that the modules themselves report, by the name of the package, such as megatron-core."""
    modules = {name.replace(".", "-"): importlib.import_module(name) for name in names}
    return {name: str(module.__version__) for name, module in modules.items() if hasattr(module, "__version__")}


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def fingerprint(variables: Mapping[str, str]) -> str:
    """Return the SHA-256 of the relevant environment variables. This is not the fingerprint of the device program."""
    return hashlib.sha256(json.dumps(relevant_variables(variables), sort_keys=True).encode()).hexdigest()


def relevant_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can affect the step time, without flags of XLA for dumps, and without empty ones."""
    relevant: dict[str, str] = {}
    for name, value in variables.items():
        if not RELEVANT_VARIABLES.fullmatch(name) or PER_LAUNCH_VARIABLES.fullmatch(name):
            continue
        if name == "XLA_FLAGS":
            remaining_flags = _DUMP_FLAGS.sub("", value).split()
            value = " ".join(remaining_flags)
        if value:
            relevant[name] = value
    return relevant


def toolkit(torch: Any) -> str:
    """Return the toolkit that torch was built with: ``cuda 13.0``, ``rocm 7.1``, or ``none`` for a CPU build."""
    version = torch.version
    if getattr(version, "hip", None):
        return f"rocm {version.hip}"
    return f"cuda {version.cuda}" if version.cuda else "none"


def nccl(torch: Any) -> str | None:
    """Return the version of NCCL (RCCL under ROCm) in torch, ``none`` without NCCL, or None if it is unknown."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_nccl_available()):
        return "none"
    try:
        version = torch.cuda.nccl.version()
    except (RuntimeError, AttributeError, ImportError):
        return None
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)
