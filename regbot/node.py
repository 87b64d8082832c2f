"""Facts about the machine that runs are timed on: step times are compared only within one class of machine."""

import os
import platform
import re
import shutil
import socket
import subprocess
from functools import cache
from pathlib import Path

from regbot.records.run import Node
from regbot.text import printable

QUERY_TIMEOUT_S = 30.0


@cache
def this_node() -> Node:
    """This machine. Its class names what decides speed: the GPUs, or without any the processor and how much of it."""
    graphics = _gpus()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if graphics:
        kinds = {name: graphics.count(name) for name in dict.fromkeys(graphics)}
        words = " + ".join(f"{number} x {name}" for name, number in kinds.items())
    else:
        words = f"{_processor()}, {cores} core{'s' * (cores > 1)}"
    return Node(name=printable(socket.gethostname())[:500], node_class=words[:500], cores=cores, gpus=graphics)


def _gpus() -> list[str]:
    """Names of the GPUs, as the driver's own tool lists them; [] where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        asked = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [printable(line.strip())[:500] for line in asked.stdout.splitlines() if asked.returncode == 0 and line]


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return printable(found.group(1)) if found else platform.processor() or platform.machine()
