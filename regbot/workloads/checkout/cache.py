"""The cache folder of a repository, and the cache entry of a worktree: its folder, marker file and private caches."""

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from regbot.engines.removal import remove_folder
from regbot.workloads.checkout.git import CheckoutError, common_dir, origin_of, without_credentials


def repository_cache(cache: Path, repo: Path) -> Path:
    """Return the folder of ``repo`` in the cache of this node, for everything that depends on the repository.

    It is the same for every clone of one origin. Two repositories on one node share none of it. Raises CheckoutError.
    """
    origin = without_credentials(origin_of(repo))
    # As in git, an origin is a URL if it has a colon before the first slash.
    is_absolute = ":" in origin.partition("/")[0] or origin.startswith("/")
    identity = origin if is_absolute else str(common_dir(repo))
    return cache / "repositories" / hashlib.sha256(identity.encode()).hexdigest()[:24]


def set_aside_folder(cache_dir: Path) -> Path:
    return cache_dir / "set-aside"


@dataclass(frozen=True)
class CacheEntry:
    """The places of one worktree's files in the cache. The files need not exist."""

    cache_dir: Path
    key: str

    @property
    def path(self) -> Path:
        return self.cache_dir / "worktrees" / self.key

    @property
    def marker(self) -> Path:
        return self.cache_dir / "worktrees" / f"{self.key}.json"

    @property
    def private(self) -> Path:
        """Folder for files of code that runs in this worktree alone."""
        return self.cache_dir / "private" / self.key

    @property
    def paper(self) -> Path:
        """Folder for the paper GPU of a torch in this worktree. No code in the worktree may write to it."""
        return self.cache_dir / "paper" / self.key

    def clone(self, name: str) -> Path:
        return self.cache_dir / "repos" / name

    @property
    def environment(self) -> dict[str, str]:
        return cache_variables(self.private)

    def lock(self, timeout_s: float) -> contextlib.AbstractContextManager[None]:
        return lock(self.path.with_name(f"{self.key}.lock"), timeout_s)

    def clear(self) -> None:
        """Remove everything. A folder that cannot be removed is moved to ``set_aside_folder``."""
        self.marker.unlink(missing_ok=True)  # removed first, so that an interrupted removal counts as incomplete
        for folder in (self.path, self.private, self.paper):
            self._clear_folder(folder)

    def _clear_folder(self, folder: Path) -> None:
        try:
            remove_folder(folder)
        except OSError:
            set_aside = set_aside_folder(self.cache_dir)
            set_aside.mkdir(parents=True, exist_ok=True)
            folder.rename(set_aside / f"{self.key}.{secrets.token_hex(4)}")


def cache_variables(folder: Path) -> dict[str, str]:
    return {
        "XDG_CACHE_HOME": str(folder / "xdg"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        "EP_JIT_CACHE_DIR": str(folder / "deepep"),
        "HYBRID_EP_CACHE_DIR": str(folder / "hybridep"),
    }


def create_cache_folders(variables: Mapping[str, str]) -> None:
    """Create the folders that ``variables`` name. Replace links and files that code under test has put in their place.

    A sandbox makes these folders writable. If a folder were a link, its target would become writable too.
    """
    for folder in map(Path, variables.values()):
        if folder.is_symlink() or not folder.is_dir():
            remove_folder(folder)
            folder.mkdir(parents=True)


@contextlib.contextmanager
def lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file ``path``. Raises CheckoutError if another process holds it for ``timeout_s`` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path, timeout=timeout_s))
        except Timeout as error:
            problem = f"{path}: locked by another regbot for {timeout_s:.0f} s"
            raise CheckoutError(problem, "wait until it ends, or stop it") from error
        yield
