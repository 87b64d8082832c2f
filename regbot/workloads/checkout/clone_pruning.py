"""Remove private clones that nobody needs, so that changed submodule URLs and old repositories do not fill the disk.

A clone is only a cache: the next check that needs it fetches it again.
"""

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

from regbot.engines.removal import remove_folder
from regbot.workloads.checkout.cache import lock
from regbot.workloads.checkout.git import CheckoutError

CLONE_IDLE_S = 30 * 24 * 3600.0
"""A clone that was not used for so many seconds is removed."""
MAX_CLONES_BYTES = 50 * 1024**3
"""Total size of a repository's clones. Above it, the clones that were not used for the longest time are removed."""


def mark_used(clone: Path) -> None:
    os.utime(clone)


def prune_clones(
    folder: Path,
    used: Collection[str],
    busy_s: float,
    idle_s: float = CLONE_IDLE_S,
    max_bytes: int = MAX_CLONES_BYTES,
) -> list[str]:
    """Remove clones in ``folder`` that were not used for ``idle_s`` seconds. Return their names, the oldest first.

    While all clones together have more than ``max_bytes``, also remove newer ones, but none that was used within
    ``busy_s`` seconds, or is in ``used``, the clones of existing worktrees.
    """
    clones = sorted(folder.glob("*.git/"), key=_read_last_use)
    sizes = {clone: _measure_bytes(clone) for clone in clones}
    total_bytes = sum(sizes.values())
    removed_names = []
    for clone in clones:
        min_idle_s = idle_s if total_bytes <= max_bytes else busy_s
        if clone.name in used:
            continue
        # A clone is skipped if another check has its lock (CheckoutError) or has removed it (FileNotFoundError).
        with contextlib.suppress(CheckoutError, FileNotFoundError), lock(clone.with_suffix(".lock"), timeout_s=0):
            if clone.stat().st_mtime <= time.time() - min_idle_s:  # read under the lock
                remove_folder(clone)
                total_bytes -= sizes[clone]
                removed_names.append(clone.name)
    return removed_names


def _read_last_use(clone: Path) -> float:
    try:
        return clone.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _measure_bytes(folder: Path) -> int:
    total, folders = 0, [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as listing:
            for item in listing:
                if item.is_dir(follow_symlinks=False):
                    folders.append(Path(item))
                else:
                    total += item.stat(follow_symlinks=False).st_size
    return total
