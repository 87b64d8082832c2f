"""Check whether this process has loaded a paper GPU. A process that runs on real devices must not have one."""

from pathlib import Path

LIBRARY = "libregbot_paper.so"
MEMORY_MAPS = Path("/proc/self/maps")


def find_loaded_library() -> str:
    """Return the path of the paper GPU's library if this process has mapped it, else ''."""
    try:
        lines = MEMORY_MAPS.read_text(errors="replace").splitlines()
    except OSError:  # no such file on this system
        return ""
    # The path is the sixth and last field of a line.
    return next((line.split(maxsplit=5)[-1] for line in lines if line.endswith(LIBRARY)), "")
