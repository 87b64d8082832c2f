"""Whether a paper GPU is loaded in this process: a run on real devices must not have one."""

from pathlib import Path

LIBRARY = "libregbot_paper.so"
MAPS = Path("/proc/self/maps")


def loaded_library() -> str:
    """Path of the paper GPU's library where the process has mapped it, else ''."""
    try:
        lines = MAPS.read_text(errors="replace").splitlines()
    except OSError:  # no such file on this system
        return ""
    return next((line.split(maxsplit=5)[-1] for line in lines if line.endswith(LIBRARY)), "")
