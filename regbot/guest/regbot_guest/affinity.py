"""Pins a rank to the cores of its GPU's NUMA node, because launches of the same code otherwise differ in host times."""

import contextlib
import os
from pathlib import Path
from typing import Any

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""Folder with one folder for each PCI device. Its file ``local_cpulist`` has the cores of the device's NUMA node."""


def pin_to_gpu(torch: Any, index: int, is_enabled: bool = True) -> str:
    """Pin all threads of this process to the cores of the NUMA node of GPU ``index``. Never raises.

    Returns ``numa`` if pinned, ``off`` if not enabled, ``launcher`` if the launcher allows only some cores, and
    ``unknown`` if the system does not report the GPU's cores.
    """
    if not is_enabled:
        return "off"
    try:
        allowed_cores = os.sched_getaffinity(0)
        if len(allowed_cores) < (os.cpu_count() or 1):
            return "launcher"
        gpu = torch.cuda.get_device_properties(index)
        address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
        cores = allowed_cores & _read_cores(PCI_DEVICES / address)
        if not cores:
            return "unknown"
        os.sched_setaffinity(0, cores)  # threads that this thread starts later inherit its cores
    except Exception:  # the system lacks these files or calls, or this torch lacks these properties
        return "unknown"
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread has ended
            os.sched_setaffinity(int(thread.name), cores)
    return "numa"


def _read_cores(device_folder: Path) -> set[int]:
    """``device_folder`` is in ``PCI_DEVICES``. Its list of cores has a form such as ``0-15,32-47``."""
    cores: set[int] = set()
    for core_range in (device_folder / "local_cpulist").read_text(encoding="ascii").strip().split(","):
        first, _, last = core_range.partition("-")
        cores.update(range(int(first), int(last or first) + 1))  # a single core, such as 7, has no last one
    return cores
