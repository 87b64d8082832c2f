"""Ranks with a GPU run on the cores of its NUMA node. Each case runs in a process of its own, whose cores change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regbot_guest import affinity

PROGRAM = """
import os, pathlib, sys, threading, types
from regbot_guest import affinity

affinity.PCI_DEVICES = pathlib.Path(sys.argv[1])
address = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9B, pci_device_id=0)
torch = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_properties=lambda index: address))
seen, ready, go_on = {}, threading.Event(), threading.Event()

def stay():
    ready.set()
    go_on.wait()
    seen["earlier thread"] = os.sched_getaffinity(0)

thread = threading.Thread(target=stay)
thread.start()
ready.wait()
result = affinity.pin_to_gpu(torch, 1, sys.argv[2] == "wanted")
go_on.set()
thread.join()
print(result, sorted(os.sched_getaffinity(0)), sorted(seen["earlier thread"]))
"""
ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = [
    pytest.mark.skipif(len(ALL) < 2, reason="needs Linux and two cores"),
    pytest.mark.skipif(len(ALL) < (os.cpu_count() or 1), reason="this process is pinned itself"),
]


def pin(folder: Path, wanted: str = "wanted", before: str = "") -> str:
    guest = str(Path(affinity.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", before + PROGRAM, str(folder), wanted],
        env=os.environ | {"PYTHONPATH": guest}, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """A folder of PCI devices. The GPU's NUMA node has the last core of this machine, and cores that it lacks."""
    gpu = tmp_path / "0000:9b:00.0"
    gpu.mkdir()
    (gpu / "local_cpulist").write_text(f"{ALL[-1]},4096-4099\n")
    return tmp_path


def test_all_threads_of_a_rank_are_pinned_to_the_cores_of_its_gpu_unless_the_key_switches_it_off(devices: Path) -> None:
    assert pin(devices) == f"numa [{ALL[-1]}] [{ALL[-1]}]"
    assert pin(devices, wanted="unwanted") == f"off {ALL} {ALL}"


def test_a_rank_that_its_launcher_has_pinned_stays_there(devices: Path) -> None:
    first = f"import os; os.sched_setaffinity(0, {{{ALL[0]}}})\n"
    assert pin(devices, before=first) == f"launcher [{ALL[0]}] [{ALL[0]}]"


def test_a_node_that_does_not_report_the_cores_changes_nothing(devices: Path) -> None:
    (devices / "0000:9b:00.0" / "local_cpulist").write_text("4096-4099\n")
    assert pin(devices) == f"unknown {ALL} {ALL}"
