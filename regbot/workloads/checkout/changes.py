"""Find the files whose behaviour differs between two commits. The files are read from git, not reported by a guest.

Two versions of a Python file behave the same if their syntax trees are equal without comments and docstrings. All other
files differ if any byte differs.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regbot.records.text.python_code import dump_code
from regbot.workloads.checkout.git import OFFLINE, CheckoutError, read_blobs, try_git
from regbot.workloads.checkout.inert import EXECUTABLE, REGULAR, is_inert

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

_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
_BATCH_FILES = 100
"""Number of files of which both versions are read into memory at the same time."""
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
        return is_inert(self.name, self.modes, globs)


class ChangedFiles(NamedTuple):
    paths: list[str] | None
    """None if they are unknown."""
    inert: list[str]
    """Those of ``paths`` that cannot affect a run."""


class _CodeDigests:
    """Digests of the code in Python files of a repository, by blob."""

    def __init__(self, repo: Path) -> None:
        self._repo, self._parsed_bytes = repo, 0
        self._digests: dict[str, str] = {}

    def load(self, entries: Sequence[DiffEntry]) -> None:
        for start in range(0, len(entries), _BATCH_FILES):
            batch = [entry for entry in entries[start : start + _BATCH_FILES] if entry.has_python_after]
            blobs = [blob for entry in batch for blob in (entry.blobs if entry.is_python else entry.blobs[1:])]
            new_blobs = [blob for blob in dict.fromkeys(blobs) if blob not in self._digests]
            for blob, content in _read_python(self._repo, new_blobs).items():
                self._parsed_bytes += len(content)
                code = _dump(content) if self._parsed_bytes <= MAX_PARSED_BYTES else None
                if code is not None:
                    self._digests[blob] = hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()

    def find(self, blob: str) -> str:
        """Return the digest of the code; ``blob`` itself if it is not known to be Python code."""
        return self._digests.get(blob, blob)

    def are_equal(self, entry: DiffEntry) -> bool:
        return entry.is_python and self.find(entry.blobs[0]) == self.find(entry.blobs[1])


def list_changed_files(repo: Path, base: str, head: str, inert: Sequence[str]) -> ChangedFiles:
    """Return the files whose behaviour differs between two commits. ``inert`` is the setting of that name of the base.

    They are unknown if git fails, or if too many files differ or a name is too long or not printable.
    Changed submodules are included, even if .gitmodules or the user's configuration ignores them.
    """
    result = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = list(_parse_entries(result.out))
    if result.code != 0 or not _is_reportable(entries):
        return ChangedFiles(None, [])
    digests = _CodeDigests(repo)
    digests.load([entry for entry in entries if entry.is_python])
    changed_entries = [entry for entry in entries if not digests.are_equal(entry)]
    return ChangedFiles(
        [entry.name for entry in changed_entries], [entry.name for entry in changed_entries if entry.is_inert(inert)]
    )


def list_diff_entries(repo: Path, before: str, after: str) -> list[DiffEntry]:
    """Return all paths that differ between two commits or trees, with modes and blobs. Only trees are read. Raises
    CheckoutError."""
    result = try_git(repo, *_DIFF, before, after, env=OFFLINE)
    if result.code != 0:
        raise CheckoutError(f"{repo}: git diff-tree failed: {result.error_line}")
    return list(_parse_entries(result.out))


def digest_behaviour(repo: Path, base: str, head: str, inert: Sequence[str]) -> str | None:
    """Return a digest of everything in the commit ``head`` that may affect a run; None if it is unknown.

    Heads of the same base that differ only in comments, docstrings and inert files have the same digest. The digest
    also depends on the tree of ``base``. ``inert`` is the setting of that name of the base.
    """
    base_tree = try_git(repo, "rev-parse", f"{base}^{{tree}}", env=OFFLINE)
    diff = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = [entry for entry in _parse_entries(diff.out) if not entry.is_inert(inert)]
    if base_tree.code != 0 or diff.code != 0 or not _is_reportable(entries):
        return None
    digests = _CodeDigests(repo)
    digests.load(entries)
    contents = [
        (entry.name, entry.modes[1], digests.find(entry.blobs[1])) for entry in entries if not digests.are_equal(entry)
    ]
    document = json.dumps([base_tree.out.strip(), sorted(contents)])
    return hashlib.sha256(document.encode()).hexdigest()


def have_same_code(repo: Path, trees: Sequence[tuple[str, str]], inert: Sequence[str]) -> list[bool]:
    """Return, for each pair of trees, whether they behave the same. Inert files are ignored.

    False means that a file changes behaviour, or that this is unknown. Only a few git commands run for all pairs.
    """
    are_same = [before == after for before, after in trees]
    differing_indices = [index for index, is_same_tree in enumerate(are_same) if not is_same_tree]
    diffs = _diff_trees(repo, [trees[index] for index in differing_indices])
    remaining: dict[int, list[DiffEntry]] = {}  # by index of the pair: Python files that are not compared yet
    for index, entries in zip(differing_indices, diffs, strict=True):
        if entries is not None and _is_reportable(entries):
            remaining[index] = [entry for entry in entries if not entry.is_inert(inert)]
            are_same[index] = all(entry.is_python for entry in remaining[index])
    digests = _CodeDigests(repo)
    # Compare one file of each pair per round. A pair with a difference drops out, and its other files are not read.
    while remaining := {index: entries for index, entries in remaining.items() if entries and are_same[index]}:
        next_entries = {index: entries.pop() for index, entries in remaining.items()}
        digests.load(list(next_entries.values()))
        for index, entry in next_entries.items():
            are_same[index] = digests.are_equal(entry)
    return are_same


def _is_reportable(entries: Sequence[DiffEntry]) -> bool:
    names = [entry.name for entry in entries]
    has_short_names = all(len(name) <= MAX_PATH_CHARACTERS for name in names)
    has_printable_names = all(name.isprintable() for name in names)  # a name that is not UTF-8 is not printable
    return len(names) <= MAX_FILES and has_short_names and has_printable_names


def _diff_trees(repo: Path, trees: Sequence[tuple[str, str]]) -> list[list[DiffEntry] | None]:
    """Return the differing paths of each pair of trees. If git fails, return None for every pair."""
    if not trees:
        return []
    tree_lines = "".join(f"{before} {after}\n" for before, after in trees)
    result = try_git(repo, *_DIFF, "--stdin", env=OFFLINE, stdin=tree_lines)
    diffs: list[list[DiffEntry] | None] = []
    position = 0
    for before, after in trees:
        header = f"{before} {after}\n"
        if result.code != 0 or not result.out.startswith(header, position):
            return [None] * len(trees)
        position += len(header)
        start = position
        while result.out.startswith(":", position):  # an entry ends at its second NUL (see _parse_entries)
            end_of_fields = result.out.index("\0", position)
            position = result.out.index("\0", end_of_fields + 1) + 1
        diffs.append(list(_parse_entries(result.out[start:position])))
    return diffs


def _parse_entries(raw: str) -> Iterator[DiffEntry]:
    """Parse git's raw diff format. Each entry is ``:MODE MODE BLOB BLOB STATUS``, NUL, path, NUL."""
    fields = raw.split("\0")
    for modes_and_blobs, name in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_blob, new_blob = modes_and_blobs.removeprefix(":").split(" ")[:4]  # without STATUS
        yield DiffEntry(name, (old_mode, new_mode), (old_blob, new_blob))


def _read_python(repo: Path, blobs: Sequence[str]) -> dict[str, bytes]:
    """Return the content of each blob. Blobs that do not exist or are larger than MAX_PYTHON_BYTES are left out.

    Return {} if git cannot read the blobs.
    """
    listing = try_git(repo, "cat-file", "--batch-check", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in blobs))
    sizes: dict[str, int] = {}
    for line in listing.out.splitlines():
        blob, kind, *size = line.split(" ")  # "BLOB missing" has no size
        if kind == "blob" and int(size[0]) <= MAX_PYTHON_BYTES:
            sizes[blob] = int(size[0])
    return read_blobs(repo, sizes) or {}


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
