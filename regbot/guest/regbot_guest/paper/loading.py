"""Loads the paper GPU's library, and installs the paper GPU as the device ``cuda`` of this process."""

import ctypes
import importlib.util
import sys
from pathlib import Path

from regbot_guest.paper.device import Device, open_paper_gpu, paper_gpu
from regbot_guest.paper.gpus import DEFAULT, GPUS

TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so")
"""Libraries of torch that the paper GPU's library needs. They are loaded before it."""


class LoadError(Exception):
    """The library cannot be loaded, or torch was imported before the library."""


def install(library: Path, gpu: str = DEFAULT) -> Device:
    """Turn the device ``cuda`` of this process into a paper GPU that imitates ``gpu``, a key of ``GPUS``. Call this
    before ``import torch``, which looks up its functions for a device only once. Raises LoadError.
    """
    existing_gpu = paper_gpu()
    if existing_gpu is not None:
        return existing_gpu
    if "torch" in sys.modules:
        raise LoadError("torch was imported before the paper GPU; install it first")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise LoadError(f"{sys.executable} has no torch")
    library_folder = Path(spec.origin).parent / "lib"
    try:
        for name in TORCH_LIBRARIES:
            ctypes.CDLL(str(library_folder / name), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise LoadError(f"the paper GPU cannot be loaded: {error}") from error
    # These modules import torch, which must come after the library.
    from regbot_guest.paper import collectives, cuda, graphs, refused_functions

    device = open_paper_gpu(GPUS[gpu])
    cuda.install_functions(device)
    graphs.install_functions(device)
    refused_functions.refuse_functions(device)
    collectives.install_kernels(device)
    return device
