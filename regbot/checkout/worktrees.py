"""One built worktree for each arm, made from a private clone and kept in the cache.

Worktrees are named by what decides their content (tree, build commands, interpreter), so that one made once serves
every later check; submodule commits need no mention, the tree fixes them. One that no longer holds what was built into
it is made again, since a stale or edited file measured as the commit's code is the worst error there is.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from regbot.checkout.building import Builder, build_in, in_a_shell, minimal_environment
from regbot.checkout.clones import Source, host_of, obtain, submodules
from regbot.checkout.contents import Part, state_of
from regbot.checkout.git import ALONE, TRANSFER_TIMEOUT_S, CheckoutError, common_dir, find_commit, git, try_git
from regbot.checkout.places import Place, locked
from regbot.records.base import Record
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.run import Commit
from regbot.text import printable

IDLE_S = 24 * 3600.0
"""A worktree used within this time may be in use by another check, and is never dropped."""

ATTEMPTS = 3
"""To make one worktree: whoever cleans the cache may take a folder away while git fills it."""


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


class _Made(Record):
    """Written beside a worktree when it is complete, outside of it, so that code running in it cannot come upon it."""

    commit: Commit
    tree: Commit
    parts: Annotated[list[Part], Field(min_length=1)]
    state: str = Field(description="digest of all differences from the commits, untracked files included")
    changed: list[str]


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
    place = Place(cache_dir.resolve(), key)
    with place.locked(TRANSFER_TIMEOUT_S + build_timeout_s):
        made = _reusable(place)
        if reused := made is not None:
            os.utime(place.marker)  # for prune
        else:
            place.clear()
            made = _make(place, repo, common, commit, tree, hosts)
            place.own_caches()
            if build:
                inherited = environment if environment is not None else minimal_environment()
                env = {**inherited, **place.environment, "REGBOT_PYTHON": python}
                build_in(place, commit, build, env, build_timeout_s, builder or in_a_shell)
                state, changed = state_of(place, made.parts)
                made = made.model_copy(update={"state": state, "changed": changed})
            write_record(place.marker, made)
        place.own_caches()
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
    places = [Place(cache_dir, path.name) for path in (cache_dir / "worktrees").glob("*/")]
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


def _reusable(place: Place) -> _Made | None:
    """What is known of a complete worktree that still holds what was built into it; else None."""
    try:
        made = read_record(place.marker, _Made)
        return made if state_of(place, made.parts)[0] == made.state else None
    except (RecordError, CheckoutError):
        return None


def _make(place: Place, repo: Path, common: Path, commit: str, tree: str, hosts: Sequence[str] | None) -> _Made:
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


def _filled(place: Place, commit: str, tree: str, parts: list[Part]) -> _Made:
    """The worktree of what was obtained; nothing is left of it where that fails."""
    try:
        for part in parts:
            _add(place, part)
        return _Made(commit=commit, tree=tree, parts=parts, state=state_of(place, parts)[0], changed=[])
    except BaseException:
        place.clear()
        raise


def _obtained(place: Place, source: Source, commit: str, at: str, hosts: Set[str] | None) -> Iterator[Part]:
    """``commit`` of ``source``, to be at the path ``at`` of the worktree, then its submodules; each is in its clone."""
    clone = place.clone(hashlib.sha256(source.identity.encode()).hexdigest()[:24] + ".git")
    with locked(clone.with_suffix(".lock"), 2 * TRANSFER_TIMEOUT_S):
        obtain(clone, source, commit)
    yield Part(path=at, clone=clone.name, commit=commit)
    for path, wanted, submodule in submodules(clone, commit, source, hosts):
        yield from _obtained(place, submodule, wanted, f"{at}/{path}" if at else path, hosts)


def _add(place: Place, part: Part) -> None:
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
