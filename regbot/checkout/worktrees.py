"""One built worktree for each arm, made from a private clone and kept in the cache.

Worktrees are named by what decides their content (tree, build commands, interpreter), so that one made once serves
every later check; submodule commits need no mention, the tree fixes them. One that no longer holds what was built into
it is made again, since a stale or edited file measured as the commit's code is the worst error there is.
"""

import contextlib
import hashlib
import json
import os
import selectors
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field

from regbot.checkout.clones import Source, host_of, obtain, submodules
from regbot.checkout.git import (
    ALONE,
    TRANSFER_TIMEOUT_S,
    CheckoutError,
    common_dir,
    find_commit,
    git,
    kill_group,
    try_git,
)
from regbot.records.base import Record
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.run import Commit
from regbot.text import printable

_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=all")

IDLE_S = 24 * 3600.0
"""A worktree used within this time may be in use by another check, and is never dropped."""

ATTEMPTS = 3
"""To make one worktree: whoever cleans the cache may take a folder away while git fills it."""

Builder = Callable[[str, Path, Path, Mapping[str, str], float], tuple[int | None, bytes]]
"""Runs one build command: it, the checkout, the checkout's private folder, the environment, and how many seconds it may
take. Gives back its exit code, None where the time ran out, and the end of its output."""


class BuildError(Exception):
    """An arm's build command failed or timed out. The message has the command, its exit code and its last lines."""


@dataclass(frozen=True)
class Worktree:
    """The code of one commit on disk, submodules included, built."""

    path: Path
    commit: str
    tree: str
    submodules: dict[str, str]
    """Path from the top -> commit, nested ones too."""
    built: bool
    """Made by this call; False where an earlier one is used again."""
    key: str
    changed: tuple[str, ...]
    """Tracked files that the build commands changed: what is measured there is not the commit's code."""
    environment: dict[str, str]
    """Caches of its own, for everything that runs in it: compiled kernels of one arm must not serve the other."""


class _Part(Record):
    """The top of a worktree or one of its submodules."""

    path: str = Field(description="from the top, '' for the top itself")
    clone: str = Field(description="private clone that holds its objects")
    commit: Commit


class _Made(Record):
    """Written beside a worktree when it is complete, outside of it, so that code running in it cannot come upon it."""

    commit: Commit
    tree: Commit
    parts: Annotated[list[_Part], Field(min_length=1)]
    state: str = Field(description="digest of all differences from the commits, untracked files included")
    changed: list[str]


@dataclass(frozen=True)
class _Place:
    """The files that belong to one key."""

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
        return self.cache_dir / "private" / self.key

    def clone(self, name: str) -> Path:
        return self.cache_dir / "repos" / name

    @property
    def environment(self) -> dict[str, str]:
        return {
            "XDG_CACHE_HOME": str(self.private / "xdg"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.private / "inductor"),
            "TRITON_CACHE_DIR": str(self.private / "triton"),
            "CUDA_CACHE_PATH": str(self.private / "cuda"),
        }

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        with locked(self.path.with_name(f"{self.key}.lock"), timeout_s):
            yield

    def clear(self) -> None:
        self.marker.unlink(missing_ok=True)  # first: from here on it is incomplete
        _remove(self.path)
        _remove(self.private)


def check_out(
    repo: Path,
    commit: str,
    cache_dir: Path,
    build: Sequence[str],
    python: str,
    build_timeout_s: float,
    environment: Mapping[str, str] | None = None,
    builder: Builder | None = None,
    hosts: Sequence[str] | None = None,
) -> Worktree:
    """The worktree of ``commit``, made and built now or taken from the cache. Raises CheckoutError and BuildError.

    ``build`` commands are run by bash in the worktree, in ``environment`` (default: PATH and HOME only, because a
    pull request's code runs there) with the worktree's own caches and REGBOT_PYTHON, the interpreter ``python``.
    ``hosts``: beside origin's, that submodules may be fetched from; None for any.
    """
    common = common_dir(repo)
    commit = find_commit(repo, commit, "commit")
    tree = git(repo, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").strip()
    key = hashlib.sha256(json.dumps([str(common), tree, list(build), python]).encode()).hexdigest()[:24]
    place = _Place(cache_dir.resolve(), key)
    with place.locked(TRANSFER_TIMEOUT_S + build_timeout_s):
        made = _reusable(place)
        if reused := made is not None:
            os.utime(place.marker)  # for prune
        else:
            place.clear()
            made = _make(place, repo, common, commit, tree, hosts)
            _own_caches(place)
            if build:
                inherited = environment if environment is not None else _minimal_environment()
                env = {**inherited, **place.environment, "REGBOT_PYTHON": python}
                _build(place, commit, build, env, build_timeout_s, builder or _shell)
                state, changed = _state(place, made.parts)
                made = made.model_copy(update={"state": state, "changed": changed})
            write_record(place.marker, made)
        _own_caches(place)
    return Worktree(
        path=place.path,
        commit=commit,
        tree=tree,
        submodules={part.path: part.commit for part in made.parts if part.path},
        built=not reused,
        key=key,
        changed=tuple(made.changed),
        environment=place.environment,
    )


def prune(cache_dir: Path, keep: int, idle_s: float = IDLE_S) -> list[str]:
    """Drop all but the ``keep`` worktrees used last, and those never completed; the keys of the dropped ones.

    Stays away from one that was used within ``idle_s`` or that is being made.
    """
    cache_dir = cache_dir.resolve()
    places = [_Place(cache_dir, path.name) for path in (cache_dir / "worktrees").glob("*/")]
    used = {place: _modified(place.marker) for place in places}
    complete = sorted((place for place in places if used[place]), key=lambda place: used[place], reverse=True)
    incomplete = [place for place in places if not used[place]]
    dropped = []
    for place in complete[max(0, keep) :] + incomplete:
        with contextlib.suppress(CheckoutError), place.locked(0):
            if _modified(place.marker) <= time.time() - idle_s:  # again, under the lock
                place.clear()
                dropped.append(place.key)
    return dropped


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _reusable(place: _Place) -> _Made | None:
    """What is known of a complete worktree that still holds what was built into it; else None."""
    try:
        made = read_record(place.marker, _Made)
        return made if _state(place, made.parts)[0] == made.state else None
    except (RecordError, CheckoutError):
        return None


def _make(place: _Place, repo: Path, common: Path, commit: str, tree: str, hosts: Sequence[str] | None) -> _Made:
    own = Path(git(repo, "rev-parse", "--absolute-git-dir").removesuffix("\n"))
    origin = try_git(repo, "config", "--get", "remote.origin.url").out.strip() or str(common)
    git_dirs = tuple(dict.fromkeys((common, own)))  # a linked worktree has submodules of its own
    source = Source(str(repo), str(common), git_dirs, origin, remote=False)
    asked = None if hosts is None else {host_of(origin), *(host.lower() for host in hosts)}
    parts = [*_obtained(place, source, commit, "", asked)]
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(CheckoutError):
            return _filled(place, commit, tree, parts)
    return _filled(place, commit, tree, parts)


def _filled(place: _Place, commit: str, tree: str, parts: list[_Part]) -> _Made:
    """The worktree of what was obtained; nothing is left of it where that fails."""
    try:
        for part in parts:
            _add(place, part)
        return _Made(commit=commit, tree=tree, parts=parts, state=_state(place, parts)[0], changed=[])
    except BaseException:
        place.clear()
        raise


def _obtained(place: _Place, source: Source, commit: str, at: str, hosts: Set[str] | None) -> Iterator[_Part]:
    """``commit`` of ``source``, to be at the path ``at`` of the worktree, then its submodules; each is in its clone."""
    clone = place.clone(hashlib.sha256(source.identity.encode()).hexdigest()[:24] + ".git")
    with locked(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
        obtain(clone, source, commit)
    yield _Part(path=at, clone=clone.name, commit=commit)
    for path, wanted, submodule in submodules(clone, commit, source, hosts):
        yield from _obtained(place, submodule, wanted, f"{at}/{path}" if at else path, hosts)


def _add(place: _Place, part: _Part) -> None:
    """Check ``part`` out into the worktree, and nowhere else: a tree may have a link and a folder of one name."""
    clone, at = place.clone(part.clone), place.path
    for name in Path(part.path).parts:
        at /= name
        if at.is_symlink():
            raise CheckoutError(
                f"submodule {printable(part.path)}: {printable(name)} is a link too; it is not followed"
            )
    with locked(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
        place.path.parent.mkdir(parents=True, exist_ok=True)
        worktree = (f"--git-dir={clone}", "worktree")
        git(clone, *worktree, "prune", "--expire=now")
        add = (*worktree, "add", "--quiet", "--force", "--detach", str(at), part.commit)
        git(clone, *add, timeout_s=TRANSFER_TIMEOUT_S, env=ALONE)


def _state(place: _Place, parts: Sequence[_Part]) -> tuple[str, list[str]]:
    """A digest of how the worktree differs from its commits, and the tracked files that do.

    Guests run in the worktree. What one leaves there, ignored or not, could be imported in place of the commit's code
    by every later check, so untracked files count as much as tracked ones.

    With an index of its own: the worktree's may have been told to overlook a file. And without a look at the .git file
    in the worktree: code that ran there could have it point to a configuration that runs commands.
    """
    digest, changed = hashlib.sha256(), []
    tracked: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts):
            at = place.path / part.path
            env = {**ALONE, "GIT_INDEX_FILE": f"{folder}/{number}"}
            where = (f"--git-dir={place.clone(part.clone)}", f"--work-tree={at}")
            diff = (*where, "diff", *_DIFF)
            git(at, *where, "read-tree", part.commit, env=env)
            text = git(at, *diff, "--binary", part.commit, env=env, timeout_s=TRANSFER_TIMEOUT_S)
            digest.update(f"{part.path}\0{text}\0".encode("utf-8", "surrogateescape"))
            if text:
                names = git(at, *diff, "--name-only", "-z", part.commit, env=env, timeout_s=TRANSFER_TIMEOUT_S)
                changed += [printable(str(Path(part.path, name))) for name in names.split("\0") if name]
            names = git(at, *where, "ls-files", "-z", env=env)
            tracked.update(f"{part.path}/{name}" if part.path else name for name in names.split("\0"))
    for entry in _untracked(place.path, tracked):
        digest.update(f"{entry}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest(), changed


def _untracked(top: Path, tracked: Set[str]) -> Iterator[str]:
    """A line for each folder below ``top`` and each file that is not in ``tracked``, in a fixed order.

    By a walk, since git would not look into a repository that a guest made there. Files are known by their status, not
    their content, which takes too long to read where a virtual environment lies inside. The time of the last status
    change is part of it because, unlike the other times, nobody can set it. It says nothing of a file with several
    names (package caches link theirs into every environment): there it changes whenever a name comes or goes.
    """
    folders = [""]
    while folders:
        at = folders.pop()
        try:
            with os.scandir(top / at) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
            for entry in entries:
                name, status = f"{at}{entry.name}", entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(f"{name}/")
                    yield f"{status.st_mode:o} {name}"
                elif name not in tracked:
                    status_changed_ns = status.st_ctime_ns if status.st_nlink == 1 else 0
                    yield f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns} {status_changed_ns} {name}"
        except OSError as error:  # unreadable for the guest too, or gone meanwhile: then it differs from what was there
            yield f"{error.errno} {at}"


def _minimal_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def _own_caches(place: _Place) -> None:
    """Caches are folders, not links that code under test has put there: a sandbox lets it write to what they are."""
    for folder in map(Path, place.environment.values()):
        if folder.is_symlink() or not folder.is_dir():
            _remove(folder)
            folder.unlink(missing_ok=True)
            folder.mkdir(parents=True)


def _build(
    place: _Place, commit: str, build: Sequence[str], env: Mapping[str, str], timeout_s: float, run: Builder
) -> None:
    place.private.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    for command in build:
        code, output = run(command, place.path, place.private, env, max(0.0, deadline - time.monotonic()))
        if code == 0:
            continue
        place.clear()
        late = f"did not end within {timeout_s:g} s and was ended"
        how = late if code is None else f"failed with exit code {code}"
        lines = [printable(line) for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        last = "\n".join(f"  {line[:300]}" for line in lines[-20:]) or "  (it printed nothing)"
        raise BuildError(f"the build command of commit {commit[:10]} {how}: {command}\n{last}")


def _shell(command: str, at: Path, private: Path, env: Mapping[str, str], seconds: float) -> tuple[int | None, bytes]:
    """Exit code, None where the time ran out, and the end of the output of a bash command. Nothing of it is left.

    The end is that of bash, not of its output: a server that a build left behind would keep that open.
    """
    del private  # what is not confined writes where it likes
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=at,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(f"bash could not be started for the build command {command}: {error.strerror}") from error
    assert process.stdout is not None
    tail, late = bytearray(), 0
    with process, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while time.monotonic() < deadline and late < 64:
                ended = process.poll() is not None  # before the look at the output: its last words count
                if selector.select(0 if ended else 0.1):
                    data = os.read(process.stdout.fileno(), 65536)
                    tail = (tail + data)[-65536:]
                    late += ended
                    if not data:
                        process.wait(max(0.0, deadline - time.monotonic()))
                        break
                elif ended:
                    break
        except subprocess.TimeoutExpired:
            pass
        finally:
            code = process.poll()
            kill_group(process.pid)
    return code, bytes(tail)


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


def _remove(folder: Path) -> None:
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
