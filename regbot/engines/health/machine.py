"""Facts about this machine. Step times are compared only between machines of the same class."""

import os
import platform
import re
import socket
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

from regbot.records.run import Node
from regbot.records.text.clip import clip_label
from regbot.records.text.printable import printable
from regbot.records.text.words import count

QUERY_TIMEOUT_S = 30.0
NO_DRIVER = "none"
"""Stands in place of the driver's version on a machine without GPUs."""
CONTAINER = "REGBOT_CONTAINER"
"""Environment variable that names the container image. The value ends with the image's digest, ``sha256:...``."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}(?![0-9a-f])")


@cache
def this_node() -> Node:
    """Return this machine as a node, of a class such as '8 x NVIDIA H100', or of its processors without GPUs."""
    gpus, driver = _query_gpus()
    cores = len(os.sched_getaffinity(0))
    gpu_class = " + ".join(f"{number} x {name}" for name, number in Counter(gpus).items())
    return Node(
        name=clip_label(printable(socket.gethostname())),
        node_class=clip_label(gpu_class) or _processor_class(cores),
        cores=cores,
        gpus=gpus,
        driver=driver,
        container=image_digest(os.environ.get(CONTAINER, "")),
    )


def without_gpus(node: Node) -> Node:
    """Return ``node`` as the class of its processors, for runs that use only these."""
    if not node.gpus:
        return node
    return node.model_copy(update={"gpus": [], "driver": NO_DRIVER, "node_class": _processor_class(node.cores)})


def image_digest(image: str) -> str | None:
    """Return the digest in ``image``; None without one. A name or a tag may denote another image later."""
    match = DIGEST.search(image)
    return match.group() if match else None


def _query_gpus() -> tuple[list[str], str]:
    """Return the names of the GPUs and the version of the driver; [] and NO_DRIVER if nvidia-smi does not answer."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [], NO_DRIVER
    rows = [printable(line).rpartition(",") for line in output.splitlines() if line]
    names = [clip_label(name.strip()) for name, _, _ in rows]
    drivers = dict.fromkeys(driver.strip() for _, _, driver in rows)
    return names, clip_label(", ".join(drivers)) or NO_DRIVER


def _processor_class(cores: int) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    name = printable(match.group(1)) if match else platform.processor() or platform.machine()
    return clip_label(f"{name}, {count(cores, 'core')}")
