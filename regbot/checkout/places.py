"""Where a worktree lies in the cache: its folder, what is known of it, and caches of its own."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from regbot.checkout.git import CheckoutError


@dataclass(frozen=True)
class Place:
    """The files of one worktree; ``key`` is of what decides its content."""

    cache_dir: Path
    key: str

    @property
    def path(self) -> Path:
        """The worktree itself."""
        return self.cache_dir / "worktrees" / self.key

    @property
    def marker(self) -> Path:
        """What is known of it; missing while it is incomplete."""
        return self.cache_dir / "worktrees" / f"{self.key}.json"

    @property
    def private(self) -> Path:
        """What only its own guests use."""
        return self.cache_dir / "private" / self.key

    def clone(self, name: str) -> Path:
        """A private clone, which others share."""
        return self.cache_dir / "repos" / name

    @property
    def environment(self) -> dict[str, str]:
        """Where its guests find their caches."""
        return {
            "XDG_CACHE_HOME": str(self.private / "xdg"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.private / "inductor"),
            "TRITON_CACHE_DIR": str(self.private / "triton"),
            "CUDA_CACHE_PATH": str(self.private / "cuda"),
        }

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Nobody else makes or clears it meanwhile. Raises CheckoutError where another does for so long."""
        with locked(self.path.with_name(f"{self.key}.lock"), timeout_s):
            yield

    def clear(self) -> None:
        """Leave nothing of it."""
        self.marker.unlink(missing_ok=True)  # first: from here on it is incomplete
        remove(self.path)
        remove(self.private)

    def own_caches(self) -> None:
        """Make the caches; a link that code under test has put there is none: a sandbox lets it write to what it is."""
        for folder in map(Path, self.environment.values()):
            if folder.is_symlink() or not folder.is_dir():
                remove(folder)
                folder.unlink(missing_ok=True)
                folder.mkdir(parents=True)


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Nobody else holds ``path`` meanwhile. Raises CheckoutError where another does for so long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=timeout_s)
    try:
        lock.acquire()
    except Timeout as error:
        raise CheckoutError(f"{path}: held by another regbot for {timeout_s:.0f} s; wait for it or end it") from error
    try:
        yield
    finally:
        lock.release()


def remove(folder: Path) -> None:
    """Remove a folder, read-only parts included, such as package caches that a build made."""
    if folder.is_symlink():
        folder.unlink()
    if not folder.exists():
        return
    with contextlib.suppress(PermissionError):
        shutil.rmtree(folder)
        return
    folder.chmod(0o700)
    for root, names, _ in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)
