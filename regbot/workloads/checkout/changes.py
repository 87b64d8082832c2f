"""Find the files whose behaviour differs between two commits, and match paths against git's pathspecs, which are
relative to the root of the repository. The files are read from git, not reported by a guest.

Two versions of a Python file behave the same if their syntax trees are equal without comments and docstrings. All other
files differ if any byte differs.
"""

import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from regbot.records.config.globs import matches_glob
from regbot.records.text.python_code import dump_code
from regbot.workloads.checkout.git import OFFLINE, CheckoutError, common_dir, git, read_blobs, try_git

MAX_FILES = 500
"""Limit on the number of changed files. If more files have changed, the result is unknown."""
MAX_PATH_CHARACTERS = 500
MAX_PYTHON_BYTES = 1_000_000
"""Size limit of Python files that are parsed. A larger file is probably generated code. It counts as changed."""
MAX_PARSED_BYTES = 20 * MAX_PYTHON_BYTES
"""Limit on the Python files of one comparison that are parsed. A large one takes ten seconds. Further ones count as
changed."""
MAX_BRACES_TIMES_BYTES = 2_000_000_000
"""A file with more counts as changed. For each brace of an f-string, Python 3.11 searches the whole string."""

REGULAR, EXECUTABLE, ABSENT = "100644", "100755", "000000"
"""Git's modes of a file, of a file with the executable bit, and of a path that a tree lacks."""
_DOCUMENTATION = {".md", ".rst"}
_LICENCES = {"LICENSE", "LICENSE.txt", "LICENCE", "LICENCE.txt", "COPYING", "NOTICE"}
_ENCODING = re.compile(rb"coding[:=][ \t]*+(?!(?:utf-?8|ascii|latin-1|iso-8859-1)(?![-\w.]))", re.IGNORECASE)
"""Declaration of an encoding, in the first two lines, in which braces may be other bytes."""


@dataclass(frozen=True)
class DiffEntry:
    """A path that differs between two trees."""

    name: str
    modes: tuple[str, str]
    """Git's file mode in the first and in the second tree, such as ``100644``; ``000000`` if it lacks the path."""
    blobs: tuple[str, str]

    @property
    def is_python(self) -> bool:
        """Whether the path is a regular Python file of the same mode in both trees. This excludes links, submodules,
        and files that were added or removed."""
        return self.has_python_after and self.modes[0] == self.modes[1]

    @property
    def has_python_after(self) -> bool:
        return self.name.endswith(".py") and self.modes[1] in (REGULAR, EXECUTABLE)

    def is_inert(self, globs: Sequence[str]) -> bool:
        """Return whether the change cannot affect a run, by the file's name and modes alone.

        ``globs`` is the setting ``inert`` of the base: files that are inert besides documentation, and after a ``!``
        files that are not. A link or a submodule is never inert. Executable documentation is a program. Nothing is
        searched for a mention of the file, because code can load a file without naming it. Reports of a training
        process do not count either: code of a pull request can forge them.
        """
        if not {*self.modes} <= {REGULAR, EXECUTABLE, ABSENT}:
            return False
        if any(matches_glob(glob[1:], self.name) for glob in globs if glob.startswith("!")):
            return False
        is_listed = any(matches_glob(glob, self.name) for glob in globs if not glob.startswith("!"))
        file = PurePosixPath(self.name)
        is_setting_of_github = file.parts[0] == ".github" and file.suffix in (".yml", ".yaml")
        is_documentation = file.suffix.lower() in _DOCUMENTATION or file.name in _LICENCES or is_setting_of_github
        return is_listed or (is_documentation and EXECUTABLE not in self.modes)


class ChangedFiles(NamedTuple):
    paths: list[str] | None
    """None if they are unknown."""
    inert: list[str]
    """Those of ``paths`` that cannot affect a run."""


def list_changed_files(repo: Path, base: str, head: str, inert: Sequence[str]) -> ChangedFiles:
    """Return the files whose behaviour differs between two commits. ``inert`` is the setting of that name of the base.

    They are unknown if git fails, or if too many files differ or a name is too long or not printable.
    Changed submodules are included, even if .gitmodules or the user's configuration ignores them.
    """
    changes = _list_changes(repo, base, head)
    if changes is None:
        return ChangedFiles(None, [])
    return ChangedFiles([entry.name for entry in changes], [entry.name for entry in changes if entry.is_inert(inert)])


def list_diff_entries(repo: Path, before: str, after: str, pathspecs: Sequence[str] = ()) -> list[DiffEntry]:
    """Return all paths that differ between two commits or trees; with ``pathspecs``, only paths that match one of them.

    Both paths of a renamed file are listed. Only trees are read. Raises CheckoutError.
    """
    # With --git-dir, git takes the current folder for the root of the repository. Otherwise git would take pathspecs as
    # relative to ``repo``, which can be a subfolder.
    git_dir = (f"--git-dir={common_dir(repo)}",) if pathspecs else ()
    options = ("-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
    # Each entry is ``:MODE MODE BLOB BLOB STATUS``, NUL, path, NUL.
    fields = git(repo, *git_dir, "diff-tree", *options, before, after, "--", *pathspecs, env=OFFLINE).split("\0")
    entries = []
    for modes_and_blobs, name in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_blob, new_blob = modes_and_blobs.removeprefix(":").split(" ")[:4]  # without STATUS
        entries.append(DiffEntry(name, (old_mode, new_mode), (old_blob, new_blob)))
    return entries


def list_changed_paths(repo: Path, base: str, head: str, pathspecs: Sequence[str] = ()) -> list[str]:
    return [entry.name for entry in list_diff_entries(repo, base, head, pathspecs)]


def has_matching_path(repo: Path, commit: str, pathspecs: Sequence[str]) -> bool:
    """Return whether a file of ``commit`` matches one of the pathspecs. Raises CheckoutError."""
    empty_tree = git(repo, "hash-object", "-t", "tree", os.devnull).strip()
    # All files of a commit differ from the empty tree.
    return bool(list_diff_entries(repo, empty_tree, commit, pathspecs))


def list_unmatched_paths(repo: Path, paths: Sequence[str], pathspecs: Sequence[str]) -> list[str]:
    """Return those of ``paths`` that match no pathspec. The paths need not exist in any commit.

    Git matches pathspecs only against the paths of an index, so ``paths`` are written into a temporary index. Raises
    CheckoutError.
    """
    empty_blob = git(repo, "hash-object", os.devnull).strip()
    with tempfile.TemporaryDirectory(prefix="regbot-") as folder:
        env = {**OFFLINE, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        git_dir = f"--git-dir={common_dir(repo)}"
        entries = "".join(f"100644 {empty_blob}\t{path}\0" for path in paths)
        git(repo, git_dir, "update-index", "-z", "--index-info", env=env, stdin=entries)
        matched_paths = git(repo, git_dir, "ls-files", "-z", "--full-name", "--", *pathspecs, env=env).split("\0")
    return [path for path in paths if path not in matched_paths]


def digest_behaviour(repo: Path, base: str, head: str, inert: Sequence[str]) -> str | None:
    """Return a digest of all changes from ``base`` to ``head`` that may affect a run; None if it is unknown.

    The digest stays the same if comments, docstrings or inert files change, or if the branch is updated to a new base.
    ``inert`` is the setting of that name of the base.
    """
    changes = _list_changes(repo, base, head)
    if changes is None:
        return None
    # What a file was counts too: the same content of head can be an improvement of one base and the revert of another.
    contents = [(entry.name, *entry.modes, *code) for entry, code in changes.items() if not entry.is_inert(inert)]
    base_tree = git(repo, "rev-parse", f"{base}^{{tree}}", env=OFFLINE).strip()
    # Without a change, only checks of the same base are of the same code.
    return hashlib.sha256(json.dumps(sorted(contents) or base_tree).encode()).hexdigest()


def have_same_code(repo: Path, before: str, after: str, inert: Sequence[str]) -> bool:
    """Return whether two trees behave the same. Inert files are ignored.

    False means that a file changes behaviour, or that this is unknown.
    """
    changes = _list_changes(repo, before, after)
    return changes is not None and all(entry.is_inert(inert) for entry in changes)


def _list_changes(repo: Path, before: str, after: str) -> dict[DiffEntry, tuple[str, str]] | None:
    """Return the paths whose behaviour differs, each with digests of its two contents; None if they are unknown."""
    try:
        entries = list_diff_entries(repo, before, after)
    except CheckoutError:
        return None
    # A name that is not UTF-8 is not printable.
    names_are_short = all(len(entry.name) <= MAX_PATH_CHARACTERS and entry.name.isprintable() for entry in entries)
    if len(entries) > MAX_FILES or not names_are_short:
        return None
    digests = _digest_code(repo, entries)
    code = {
        entry: (digests.get(entry.blobs[0], entry.blobs[0]), digests.get(entry.blobs[1], entry.blobs[1]))
        for entry in entries
    }
    return {entry: pair for entry, pair in code.items() if not entry.is_python or pair[0] != pair[1]}


def _digest_code(repo: Path, entries: Sequence[DiffEntry]) -> dict[str, str]:
    """Return digests of the code in the Python files of ``entries``, by blob. Files that are missing, too large, beyond
    MAX_PARSED_BYTES, or cannot be parsed are left out.
    """
    files = [entry for entry in entries if entry.has_python_after]
    blobs = dict.fromkeys(blob for entry in files for blob in (entry.blobs if entry.is_python else entry.blobs[1:]))
    listing = try_git(repo, "cat-file", "--batch-check", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in blobs))
    sizes: dict[str, int] = {}
    remaining = MAX_PARSED_BYTES
    for line in listing.out.splitlines():
        blob, kind, *size = line.split(" ")  # "BLOB missing" has no size
        if kind == "blob" and int(size[0]) <= min(MAX_PYTHON_BYTES, remaining):
            sizes[blob] = int(size[0])
            remaining -= sizes[blob]
    codes = {blob: _dump(content) for blob, content in (read_blobs(repo, sizes) or {}).items()}
    return {
        blob: hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()
        for blob, code in codes.items()
        if code is not None
    }


def _dump(source: bytes) -> str | None:
    """Return the code of a Python file as text; None if the file cannot be parsed, or not within seconds."""
    first_lines = re.split(rb"\r\n|\r|\n", source, maxsplit=2)[:2]
    if any(map(_ENCODING.search, first_lines)) or source.count(b"{") * len(source) > MAX_BRACES_TIMES_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warnings concern the file, not regbot
            return dump_code(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
