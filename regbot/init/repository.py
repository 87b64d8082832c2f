"""Read the user's repository for ``regbot init``: file names, texts and branches. Nothing is executed.

The file names come from git, so that ignored files (environments, build output) are left out. A cloned repository can
contain anything. So files are read only up to a size limit, and never through a link.
"""

import os
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from regbot.checkout.git import CheckoutError, git, try_git
from regbot.text.printable import printable

MAX_FILES = 200_000
"""Limit on the number of file names. Further names are left out, with a warning."""
MAX_FILE_BYTES = 1_000_000
"""Size limit of files to read. A larger file is generated code or data."""

_ADDRESS = re.compile(
    r"(?:https?|ssh|git)://(?:[^/@]*@)?(?P<host>[^/:@]+)(?::\d+)?/|(?:[^/:@]+@)?(?P<scp_host>[^/:@\\]{2,}\.[^/:@\\]+):"
)
"""Matches ``https://HOST/...`` and ``git@HOST:...``. In the second form the host must have a dot. Without a dot it may
be the user's own ssh alias for github.com."""
_REGBOT_PROJECT = re.compile(r"""^name *= *["']regbot(?:-moe)?["'] *$""", re.MULTILINE)
USUAL_BRANCHES = ("main", "master")


@dataclass(frozen=True)
class Repository:
    """A work tree. ``names`` has the relative paths of all its files that git does not ignore, tracked or not."""

    root: Path
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    def has(self, *names: str) -> bool:
        """Return whether all files ``names`` exist."""
        return all(name in self.name_set for name in names)

    def names_ending(self, *suffixes: str) -> list[str]:
        """Return the files whose name ends with one of ``suffixes``. Files in fewer folders come first."""
        return sorted(
            (name for name in self.names if name.endswith(suffixes)), key=lambda name: (name.count("/"), name)
        )

    def read(self, name: str) -> str | None:
        """Return the text of the file ``name``; None if it cannot be read, as in ``read_text``."""
        return read_text(self.root, name)


def read_text(root: Path, name: str) -> str | None:
    """Return the text of the file ``root``/``name``; None if it cannot be read.

    It must be a regular UTF-8 file of at most MAX_FILE_BYTES. No part of its path below ``root`` may be a link.
    """
    path = root.joinpath(*PurePosixPath(name).parts)
    if any(parent.is_symlink() for parent in _between(root, path)):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return None
        try:
            return file.read(MAX_FILE_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None


def find_link(root: Path, name: str) -> str | None:
    """Return the first part of the path ``name`` below ``root`` that is a symbolic link; None if there is no link."""
    path = root.joinpath(*PurePosixPath(name).parts)
    link = next((part for part in (*_between(root, path), path) if part.is_symlink()), None)
    return link.relative_to(root).as_posix() if link else None


def open_repository(folder: Path) -> Repository:
    """Open the repository that contains ``folder``. Raises CheckoutError if no repository contains it."""
    work_tree = try_git(folder, "rev-parse", "--is-inside-work-tree", "--show-toplevel")
    if work_tree.code != 0 and "not a git repository" in work_tree.error:
        raise CheckoutError(
            f"{folder.resolve()}: is not in a git repository", "run 'git init' first, or give --repo DIR"
        )
    # The first line says whether the folder is in a work tree. The second line is the root of the work tree.
    is_inside, _, top_level = work_tree.out.partition("\n")
    if work_tree.code != 0 or is_inside != "true" or not top_level:
        reason = work_tree.error_line if work_tree.code != 0 else "it has no work tree"
        raise CheckoutError(
            f"{folder.resolve()}: regbot cannot be installed there: {reason}", "give a checkout: --repo DIR"
        )
    root = Path(top_level.removesuffix("\n"))
    listing = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    all_names = [name for name in listing.split("\0") if name]
    printable_names = [name for name in all_names if printable(name) == name]
    warnings = []
    if len(printable_names) < len(all_names):
        unprintable_count = len(all_names) - len(printable_names)
        warnings.append(f"not read, because their names cannot be printed: {unprintable_count} files")
    if len(printable_names) > MAX_FILES:
        warnings.append(f"{len(printable_names):,} files: only the first {MAX_FILES:,} were read")
    names = _without_regbot(root, printable_names[:MAX_FILES])
    return Repository(root, tuple(names), tuple(warnings))


def _without_regbot(root: Path, names: list[str]) -> list[str]:
    """Return ``names`` without the files of a copy of regbot in the repository, which is not training code."""
    # The slash leaves out the pyproject.toml at the root, which belongs to the user's own project.
    projects = (name for name in names if name.endswith("/pyproject.toml"))
    regbot_folders = tuple(
        name.removesuffix("pyproject.toml") for name in projects if _REGBOT_PROJECT.search(read_text(root, name) or "")
    )
    return [name for name in names if not name.startswith(regbot_folders)]


@dataclass(frozen=True)
class TargetBranch:
    """The target branch of pull requests. ``why`` is the evidence for it."""

    name: str
    why: str


def default_branch(root: Path) -> TargetBranch:
    """Return the default branch of origin, or else a local main or master, or else the current branch.

    Raises CheckoutError if none of these exists.
    """
    origin_head = try_git(root, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
    name = origin_head.out.strip().removeprefix("origin/")
    if origin_head.code == 0 and name:
        return TargetBranch(name, "origin/HEAD")
    current_branch = try_git(root, "symbolic-ref", "--short", "HEAD").out.strip()
    local_branches = try_git(root, "for-each-ref", "--format=%(refname:short)", "refs/heads").out.split("\n")
    for usual_name in USUAL_BRANCHES:
        if usual_name in local_branches:
            return TargetBranch(usual_name, "the current branch" if usual_name == current_branch else "a local branch")
    if current_branch:
        return TargetBranch(current_branch, "the current branch")
    raise CheckoutError(
        f"{root}: HEAD is detached and origin has no default branch",
        "give the target branch of pull requests: --branch NAME",
    )


def origin_host(root: Path) -> str:
    """Return the host in the address of the remote origin, in lower case; '' if there is none or it is unprintable."""
    address = try_git(root, "remote", "get-url", "origin").out.strip()
    match = _ADDRESS.match(address) if address else None
    host = (match["host"] or match["scp_host"]).lower() if match else ""
    return host if printable(host) == host else ""


def has_owner(root: Path, path: str) -> bool:
    """Return whether CODEOWNERS has an owner for ``path``, for one of its parent folders, or for all files."""
    for name in (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS"):
        text = read_text(root, name) or ""
        for line in text.splitlines():
            pattern, *owners = line.split() or [""]
            folder = pattern.strip("/")
            if owners and (folder == "*" or path == folder or path.startswith(f"{folder}/")):
                return True
    return False


def _between(root: Path, path: Path) -> list[Path]:
    """Return the folders below ``root`` that contain ``path``, outermost first."""
    return [parent for parent in reversed(path.parents) if root in parent.parents]
