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
NO_DRIVER = "none"
CONTAINER = "REGBOT_CONTAINER"
"""Variable that names the image: its digest, sha256:..., with or without a name before it."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}(?![0-9a-f])")


@cache
def this_node() -> Node:
    """This machine. Its class names what decides speed: the GPUs, or without any the processor and how much of it."""
    graphics, driver = _gpus()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if graphics:
        kinds = {name: graphics.count(name) for name in dict.fromkeys(graphics)}
        words = " + ".join(f"{number} x {name}" for name, number in kinds.items())
    else:
        words = f"{_processor()}, {cores} core{'s' * (cores > 1)}"
    return Node(
        name=printable(socket.gethostname())[:500],
        node_class=words[:500],
        cores=cores,
        gpus=graphics,
        driver=driver,
        container=container(os.environ.get(CONTAINER, "")),
    )


def container(given: str) -> str | None:
    """The digest of the image that this process runs in, as whoever started it says; None where that is no digest.

    A name or a tag is none: it stands for another image tomorrow.
    """
    found = DIGEST.search(given)
    return found.group() if found else None


def _gpus() -> tuple[list[str], str]:
    """Names of the GPUs, as the driver's own tool lists them, and the driver's version; [] and 'none' without any."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], NO_DRIVER
    try:
        asked = subprocess.run(
            [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return [], NO_DRIVER
    lines = [printable(line).rpartition(",") for line in asked.stdout.splitlines() if line and asked.returncode == 0]
    drivers = dict.fromkeys(driver.strip() for _, _, driver in lines)
    return [name.strip()[:500] for name, _, _ in lines], ", ".join(drivers)[:500] or NO_DRIVER


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return printable(found.group(1)) if found else platform.processor() or platform.machine()
