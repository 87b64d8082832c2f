"""Queries of a driver that do not ask torch: whether NVML, nvidia-smi and a device file are there, as JSON."""

import json
import subprocess
from pathlib import Path


def find_driver() -> list[bool]:
    nvml = True
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        nvml = False
    try:
        smi = subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0
    except OSError:
        smi = False
    return [nvml, smi, Path("/dev/nvidia0").exists()]


if __name__ == "__main__":
    print(json.dumps(find_driver()))
