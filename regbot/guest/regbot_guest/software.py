"""The software stack that this process runs on: what step times depend on beside the code under test.

Environment variables are hashed as the process began with them: what code under test sets later is its own doing, and
shows in its sources. A hash, because values may be private. Two launches of one commit on one machine agree, so what a
launcher or regbot sets anew for each launch is left out.
"""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

MATTERS = re.compile(
    r"(NCCL|RCCL|CUDA|CUDNN|CUBLAS|NVTE|NVSHMEM|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|GOMP|OPENBLAS|XLA|JAX"
    r"|LIBTPU|HIP|HSA|ROCM|ROCBLAS|HIPBLASLT|MIOPEN|GPU|GLOO|UCX|FI|EP|HYBRID_EP|MALLOC|ATEN|DNNL|ONEDNN)_\w+"
    r"|NVIDIA_TF32_OVERRIDE|LD_PRELOAD|LD_LIBRARY_PATH|GLIBC_TUNABLES|PYTHONOPTIMIZE|PYTHONMALLOC|PYTHONDEVMODE"
    r"|NUM_OF_\w+"
)
"""Names of variables that can change how fast a step is."""

PER_LAUNCH = re.compile(
    # Which devices: the class of the node tells how many and of what kind.
    r"(CUDA|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|CUDA_MPS_(PIPE|LOG)_DIRECTORY"
    # What launchers tell each rank, and where logs go.
    r"|NCCL_COMM_ID|NCCL_HOSTID|NCCL_DEBUG_FILE|TORCH_(NCCL|FR)_\w*(FILE|PIPE)\w*|TORCH_LOGS_OUT|TORCH_TRACE"
    r"|JAX_(COORDINATOR|PROCESS|LOCAL)_\w+|\w+_(DUMP|LOG|DEBUG|OUTPUT|TEMP|TMP)_?DIR"
    # Caches: regbot gives each arm its own.
    r"|\w+_CACHE_(DIR|PATH|ROOT)"
)
"""Of those, what differs from launch to launch without changing anything."""

_DUMP = re.compile(r"--xla_dump_\w+(=\S*)?|--xla_gpu_\w*cache_dir=\S*")


def environment(torch: Any, variables: Mapping[str, str]) -> dict[str, Any]:
    """The record of the stack. ``torch`` is the module, None where the framework is another; ``variables`` those that
    the process began with."""
    installed = sorted(f"{dist.metadata['Name']}=={dist.version}" for dist in metadata.distributions())
    return {
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
        "platform": platform.platform(),
        "packages": hashlib.sha256("\n".join(installed).encode()).hexdigest(),
        "toolkit": None if torch is None else toolkit(torch),
        "nccl": None if torch is None else nccl(torch),
        "variables": fingerprint(variables),
    }


def fingerprint(variables: Mapping[str, str]) -> str:
    """SHA-256 over the names and values that matter."""
    return hashlib.sha256(json.dumps(that_matter(variables), sort_keys=True).encode()).hexdigest()


def that_matter(variables: Mapping[str, str]) -> dict[str, str]:
    """Of ``variables`` those that can change how fast a step is and are the same in every launch."""
    found: dict[str, str] = {}
    for name, value in variables.items():
        if MATTERS.fullmatch(name) and not PER_LAUNCH.fullmatch(name):
            value = " ".join(_DUMP.sub("", value).split()) if name == "XLA_FLAGS" else value
            if value:
                found[name] = value
    return found


def toolkit(torch: Any) -> str:
    """``cuda 13.0``, ``rocm 7.1``: what torch was built with; ``none`` for a CPU build."""
    version = torch.version
    if getattr(version, "hip", None):
        return f"rocm {version.hip}"
    return f"cuda {version.cuda}" if version.cuda else "none"


def nccl(torch: Any) -> str | None:
    """Version of the NCCL (of the RCCL under ROCm) in this torch; ``none`` where it has none, None where it does not
    say."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_nccl_available()):
        return "none"
    try:
        version = torch.cuda.nccl.version()
    except (RuntimeError, AttributeError, ImportError):
        return None
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)
