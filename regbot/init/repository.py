"""The user's repository as ``regbot init`` sees it: names of files, their text, branches. Nothing is executed.

Names come from git, so that what a repository ignores (environments, build output) is never looked into. Text is read
with a cap and never through a link: a repository that somebody cloned may hold anything.
"""

import os
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from regbot.checkout.git import CheckoutError, git, try_git
from regbot.text import printable

MOST_FILES = 200_000
MOST_BYTES = 1_000_000
"""Of a file that is looked into. A larger one is generated or data."""

_ADDRESS = re.compile(
    r"(?:https?|ssh|git)://(?:[^/@]*@)?(?P<host>[^/:@]+)(?::\d+)?/|(?:[^/:@]+@)?(?P<short>[^/:@\\]{2,}\.[^/:@\\]+):"
)
"""``https://HOST/...`` and ``git@HOST:...``. A word without a dot may be a name of the user's own for github.com."""
_REGBOT = re.compile(r"""^name *= *["']regbot["'] *$""", re.MULTILINE)
USUAL_BRANCHES = ("main", "master")


@dataclass(frozen=True)
class Repository:
    """A work tree. ``names``: its files with ``/``, tracked or not, without those that git ignores."""

    root: Path
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def known(self) -> frozenset[str]:
        return frozenset(self.names)

    def has(self, *names: str) -> bool:
        """Are all of these files there?"""
        return all(name in self.known for name in names)

    def ending(self, *ends: str) -> list[str]:
        """Names with one of these ends, shallowest first."""
        return sorted((name for name in self.names if name.endswith(ends)), key=lambda name: (name.count("/"), name))

    def read(self, name: str) -> str | None:
        """The text of a regular file inside of the work tree; None where it cannot be had, whatever the reason."""
        return read_text(self.root, name)


def read_text(root: Path, name: str) -> str | None:
    """The text of ``root``/``name`` where it is a regular UTF-8 file of at most MOST_BYTES, reached without a link."""
    path = root.joinpath(*PurePosixPath(name).parts)
    if any(parent.is_symlink() for parent in _between(root, path)):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        try:
            return file.read(MOST_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None


def linked(root: Path, name: str) -> str | None:
    """The first part of ``name`` below ``root`` that is a symbolic link, the file itself included; None without one."""
    path = root.joinpath(*PurePosixPath(name).parts)
    found = next((part for part in (*_between(root, path), path) if part.is_symlink()), None)
    return found.relative_to(root).as_posix() if found else None


def open_repository(folder: Path) -> Repository:
    """The repository that ``folder`` lies in. Raises CheckoutError with what to do where there is none."""
    inside = try_git(folder, "rev-parse", "--is-inside-work-tree", "--show-toplevel")
    if inside.code != 0 and "not a git repository" in inside.error:
        raise CheckoutError(f"{folder.resolve()}: is not in a git repository; run 'git init' first, or give --repo DIR")
    first, _, top = inside.out.partition("\n")
    if inside.code != 0 or first != "true" or not top:
        reason = inside.last_word if inside.code != 0 else "it has no work tree"
        raise CheckoutError(
            f"{folder.resolve()}: nothing can be installed there: {reason}; give a checkout: --repo DIR"
        )
    root = Path(top.removesuffix("\n"))
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    every = [name for name in listed.split("\0") if name]
    names = [name for name in every if printable(name) == name]
    warnings = []
    if len(names) < len(every):
        warnings.append(f"not looked at, because their names cannot be printed: {len(every) - len(names)} files")
    if len(names) > MOST_FILES:
        warnings.append(f"{len(names):,} files: only the first {MOST_FILES:,} were looked at")
    return Repository(root, tuple(_theirs(root, names[:MOST_FILES])), tuple(warnings))


def _theirs(root: Path, names: list[str]) -> list[str]:
    """``names`` without a copy of regbot that the repository carries: its layers and tests are not what is trained."""
    projects = (name for name in names if name.endswith("/pyproject.toml"))
    ours = tuple(
        name.removesuffix("pyproject.toml") for name in projects if _REGBOT.search(read_text(root, name) or "")
    )
    return [name for name in names if not name.startswith(ours)]


@dataclass(frozen=True)
class Branch:
    """The branch that pull requests go to, and ``why`` it is taken to be that."""

    name: str
    why: str


def default_branch(root: Path) -> Branch:
    """What origin says, else a local main or master, else the current branch. Raises CheckoutError without any."""
    told = try_git(root, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
    name = told.out.strip().removeprefix("origin/")
    if told.code == 0 and name:
        return Branch(name, "origin/HEAD")
    current = try_git(root, "symbolic-ref", "--short", "HEAD").out.strip()
    local = try_git(root, "for-each-ref", "--format=%(refname:short)", "refs/heads").out.split("\n")
    for usual in USUAL_BRANCHES:
        if usual in local:
            return Branch(usual, "the current branch" if usual == current else "a local branch")
    if current:
        return Branch(current, "the current branch")
    raise CheckoutError(
        f"{root}: HEAD is at no branch and origin names none; give the branch that pull requests go to: --branch NAME"
    )


def origin_host(root: Path) -> str:
    """The host of origin's address, in lower case; '' where there is none, or it names no host."""
    address = try_git(root, "remote", "get-url", "origin").out.strip()
    found = _ADDRESS.match(address) if address else None
    host = (found["host"] or found["short"]).lower() if found else ""
    return host if printable(host) == host else ""


def owned(root: Path, path: str) -> bool:
    """Does a file of code owners name ``path``, or the whole of the repository?"""
    texts = (read_text(root, name) or "" for name in (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS"))
    patterns = (line.split()[0].strip("/") for text in texts for line in text.splitlines() if len(line.split()) > 1)
    return any(pattern == "*" or path == pattern or path.startswith(f"{pattern}/") for pattern in patterns)


def _between(root: Path, path: Path) -> list[Path]:
    """The folders from below ``root`` down to the one that holds ``path``."""
    return [parent for parent in reversed(path.parents) if root in parent.parents]
