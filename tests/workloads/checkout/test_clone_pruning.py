"""Private clones that no worktree needs are removed by age and total size."""

import os
import time
from pathlib import Path

from regbot.workloads.checkout.cache import lock
from regbot.workloads.checkout.clone_pruning import prune_clones

DAY_S = 24 * 3600.0


def add_clone(folder: Path, name: str, age_s: float, size: int = 1_000) -> Path:
    clone = folder / f"{name}.git"
    (clone / "objects").mkdir(parents=True)
    (clone / "objects" / "pack").write_bytes(b"x" * size)
    then = time.time() - age_s
    os.utime(clone, (then, then))
    return clone


def test_the_oldest_clones_are_removed_until_the_others_fit(tmp_path: Path) -> None:
    for day in range(2, 6):
        add_clone(tmp_path, f"day-{day}", day * DAY_S)
    assert prune_clones(tmp_path, set(), busy_s=DAY_S, max_bytes=2_500) == ["day-5.git", "day-4.git"]


def test_clones_in_use_stay_whatever_their_size(tmp_path: Path) -> None:
    add_clone(tmp_path, "busy", DAY_S / 2)
    add_clone(tmp_path, "needed", 40 * DAY_S)
    locked = add_clone(tmp_path, "locked", 40 * DAY_S)
    with lock(locked.with_suffix(".lock"), 1):
        assert prune_clones(tmp_path, {"needed.git"}, busy_s=DAY_S, max_bytes=0) == []
    assert prune_clones(tmp_path, {"needed.git"}, busy_s=DAY_S, max_bytes=0) == ["locked.git"]
    assert prune_clones(tmp_path / "no-cache-yet", set(), busy_s=0) == []
