"""Find the files whose behaviour differs between two commits. The files are read from git, not reported by a guest.

Two versions of a Python file behave the same if their syntax trees are equal without comments and docstrings. All other
files differ if any byte differs.
"""

import ast
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from regbot.checkout.git import OFFLINE, CheckoutError, try_git
from regbot.text.python_code import dump_code

MAX_FILES = 500
"""Limit on the number of changed files. If more files have changed, the result is unknown."""
MAX_PATH_CHARACTERS = 500
MAX_PYTHON_BYTES = 1_000_000
"""Size limit of Python files that are parsed. A larger file is probably generated code. It counts as changed."""

_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
_REGULAR = {"100644", "100755"}
_BATCH_FILES = 100
"""Number of files of which both versions are read into memory at the same time."""

_WORDS = re.compile(
    rb'#[^\n]*|[rRbBfFuU]{0,2}(?:"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\\?\Z)|\'\'\'(?:[^\\\']|\\.|\'(?!\'\'))*+(?:\'\'\'|\\?\Z)'
    rb"|\"(?:[^\"\\\n]|\\.)*+\"?|'(?:[^'\\\n]|\\.)*+'?)|\d[\w.]*|([A-Za-z_]\w*)",
    re.DOTALL,
)
"""Pattern for comments, strings, numbers and words. Only words, which are names or keywords, are in its group."""


@dataclass(frozen=True)
class DiffEntry:
    """A path that differs between two trees, with its mode and blob in each tree."""

    name: str
    modes: tuple[str, str]
    blobs: tuple[str, str]

    @property
    def is_python(self) -> bool:
        """Whether the path is a regular Python file in both trees. This excludes links, submodules, and files that were
        added or removed."""
        return self.name.endswith(".py") and set(self.modes) <= _REGULAR

    @property
    def has_python_after(self) -> bool:
        """Whether the path is a regular Python file in the second tree."""
        return self.name.endswith(".py") and self.modes[1] in _REGULAR


def list_changed_files(repo: Path, base: str, head: str) -> list[str] | None:
    """Return the paths of files whose behaviour differs between two commits; None if they are unknown.

    Changed submodules are included, even if .gitmodules or the user's configuration ignores them.
    """
    result = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = list(parse_entries(result.out))
    if result.code != 0 or not _is_reportable(entries):
        return None
    same = _same_python(repo, [entry for entry in entries if entry.is_python])
    return [entry.name for entry in entries if entry not in same]


def list_diff_entries(repo: Path, before: str, after: str) -> list[DiffEntry]:
    """Return all paths that differ between two commits or trees, with modes and blobs. Only trees are read. Raises
    CheckoutError."""
    result = try_git(repo, *_DIFF, before, after, env=OFFLINE)
    if result.code != 0:
        raise CheckoutError(f"{repo}: git diff-tree failed: {result.error_line}")
    return list(parse_entries(result.out))


def list_differing_files(repo: Path, trees: Sequence[tuple[str, str]]) -> list[list[str] | None]:
    """Return, for each pair of trees, the paths of files with different bytes; None for a pair if they are unknown."""
    return [None if entries is None else [entry.name for entry in entries] for entries in _diff_trees(repo, trees)]


def digest_behaviour(repo: Path, base: str, head: str, is_inert: Callable[[str], bool]) -> str | None:
    """Return a digest of everything in ``head`` that may affect a run; None if it is unknown.

    ``base`` and ``head`` are commits. Heads of the same base that differ only in comments, docstrings and files for
    which ``is_inert`` is true have the same digest. The digest also depends on the tree of ``base``.
    """
    tree = try_git(repo, "rev-parse", f"{base}^{{tree}}", env=OFFLINE)
    result = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = [entry for entry in parse_entries(result.out) if not is_inert(entry.name)]
    if tree.code != 0 or result.code != 0 or not _is_reportable(entries):
        return None
    same = _same_python(repo, [entry for entry in entries if entry.is_python])
    changed = [entry for entry in entries if entry not in same]
    contents: list[tuple[str, str, str]] = []
    for start in range(0, len(changed), _BATCH_FILES):
        batch = changed[start : start + _BATCH_FILES]
        sources = read_blobs(repo, sorted({entry.blobs[1] for entry in batch if entry.has_python_after}))
        for entry in batch:
            dump = _dump(sources[entry.blobs[1]]) if entry.blobs[1] in sources else None
            content = (
                entry.blobs[1] if dump is None else hashlib.sha256(dump.encode(errors="surrogatepass")).hexdigest()
            )
            contents.append((entry.name, entry.modes[1], content))
    document = json.dumps([tree.out.strip(), sorted(contents)])
    return hashlib.sha256(document.encode()).hexdigest()


def have_same_code(repo: Path, trees: Sequence[tuple[str, str]], is_inert: Callable[[str], bool]) -> list[bool]:
    """Return, for each pair of trees, whether they behave the same. Files for which ``is_inert`` is true are ignored.

    False means that a file changes behaviour, or that this is unknown. The function runs only a few git commands for
    all pairs together.
    """
    remaining: dict[int, list[DiffEntry]] = {}
    same = [before == after for before, after in trees]
    changed = [index for index, equal in enumerate(same) if not equal]
    for index, entries in zip(changed, _diff_trees(repo, [trees[index] for index in changed]), strict=True):
        if entries is not None and _is_reportable(entries):
            relevant = [entry for entry in entries if not is_inert(entry.name)]
            same[index] = all(entry.is_python for entry in relevant)
            remaining[index] = relevant if same[index] else []
    # Compare one file of each pair per round. A pair with a difference drops out, and its other files are not read.
    while remaining := {index: entries for index, entries in remaining.items() if entries and same[index]}:
        next_entries = {index: entries.pop() for index, entries in remaining.items()}
        same_entries = _same_python(repo, list(next_entries.values()))
        for index, entry in next_entries.items():
            same[index] = entry in same_entries
    return same


def _is_reportable(entries: Sequence[DiffEntry]) -> bool:
    """Return whether a result can name all entries: there are not too many, and their names are short and printable."""
    names = [entry.name for entry in entries]
    within_limits = len(names) <= MAX_FILES and all(len(name) <= MAX_PATH_CHARACTERS for name in names)
    return within_limits and all(name.isprintable() for name in names)  # a name that is not UTF-8 is not printable


def _diff_trees(repo: Path, trees: Sequence[tuple[str, str]]) -> list[list[DiffEntry] | None]:
    """Return the differing paths of each pair of trees. If git fails, return None for every pair."""
    if not trees:
        return []
    result = try_git(repo, *_DIFF, "--stdin", env=OFFLINE, stdin="".join(f"{a} {b}\n" for a, b in trees))
    diffs: list[list[DiffEntry] | None] = []
    position = 0
    for before, after in trees:
        header = f"{before} {after}\n"
        if result.code != 0 or not result.out.startswith(header, position):
            return [None] * len(trees)
        position += len(header)
        start = position
        while result.out.startswith(":", position):
            position = result.out.index("\0", result.out.index("\0", position) + 1) + 1
        diffs.append(list(parse_entries(result.out[start:position])))
    return diffs


def parse_entries(raw: str) -> Iterator[DiffEntry]:
    """Parse git's raw diff format. Each entry is ``:MODE MODE BLOB BLOB STATUS``, NUL, path, NUL."""
    fields = raw.split("\0")
    for modes_and_blobs, name in zip(fields[::2], fields[1::2], strict=False):
        mode, other_mode, blob, other_blob = modes_and_blobs.removeprefix(":").split(" ")[:4]
        yield DiffEntry(name, (mode, other_mode), (blob, other_blob))


def _same_python(repo: Path, entries: Sequence[DiffEntry]) -> set[DiffEntry]:
    """Return those Python files among ``entries`` that behave the same in both trees."""
    same = set()
    for start in range(0, len(entries), _BATCH_FILES):
        batch = entries[start : start + _BATCH_FILES]
        blobs = read_blobs(repo, sorted({blob for entry in batch for blob in entry.blobs}))
        for entry in batch:
            ours, theirs = (blobs.get(blob) for blob in entry.blobs)
            if ours is not None and theirs is not None and _behaves_the_same(ours, theirs):
                same.add(entry)
    return same


def read_blobs(repo: Path, blobs: Sequence[str]) -> dict[str, bytes]:
    """Return the content of each blob. Blobs that do not exist or are larger than MAX_PYTHON_BYTES are left out."""
    listing = try_git(repo, "cat-file", "--batch-check", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in blobs))
    lines = (line.split(" ") for line in listing.out.splitlines())
    sizes = {line[0]: int(line[2]) for line in lines if line[1] == "blob" and int(line[2]) <= MAX_PYTHON_BYTES}
    result = try_git(repo, "cat-file", "--batch", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in sizes))
    output = result.out.encode("utf-8", "surrogateescape")
    contents, position = {}, 0
    for blob, size in sizes.items():
        position += len(f"{blob} blob {size}\n")
        contents[blob] = output[position : position + size]
        position += size + 1
    return contents if result.code == 0 and len(output) == position else {}


def _behaves_the_same(ours: bytes, theirs: bytes) -> bool:
    if _words(ours) != _words(theirs):  # then the syntax trees differ too; parsing takes ten times longer
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warnings concern the compared files, not regbot
            bodies = [_without_docstring(ast.parse(source).body) for source in (ours, theirs)]
        our_rest, their_rest = _strip_equal_ends(ours, theirs, *bodies)
        return _dump_without_docstrings(our_rest) == _dump_without_docstrings(their_rest)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _dump(source: bytes) -> str | None:
    """Return the code of a Python file as text; None if the file cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warnings concern the file, not regbot
            return dump_code(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _words(source: bytes) -> list[bytes]:
    """Return the names and keywords of a Python file, in order.

    Files with equal syntax trees have equal lists. For this, ``pass`` and ``else`` are left out, and ``elif`` is
    replaced by ``if``.
    """
    words = (word for word in _WORDS.findall(source) if word not in (b"", b"pass"))
    return [b"if" if word == b"elif" else word for word in words if word != b"else"]


def _strip_equal_ends(
    ours: bytes, theirs: bytes, our_body: list[ast.stmt], their_body: list[ast.stmt]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return both bodies without those statements at their start and end that are certainly equal.

    Equal lines at the start of both files parse to equal statements. Where the lines at the end of both files are
    equal, two statements are equal if they begin on the same line, counted from the end of the file.
    """
    our_lines, their_lines = _lines(ours), _lines(theirs)
    if our_lines[:2] != their_lines[:2]:  # the first two lines may declare the encoding of the file
        return our_body, their_body
    equal_at_start = _count_equal_items(our_lines, their_lines)
    equal_at_end = min(
        _count_equal_items(our_lines[::-1], their_lines[::-1]),
        len(our_lines) - equal_at_start,
        len(their_lines) - equal_at_start,
    )
    started_counts = [
        sum(_first_line(statement) <= equal_at_start for statement in body) for body in (our_body, their_body)
    ]
    # The last statement that began in equal lines may continue in differing lines, so it stays.
    start = max(min(started_counts) - 1, 0)
    our_rest, their_rest = our_body[start:], their_body[start:]
    line_offset = len(our_lines) - len(their_lines)
    while our_rest and their_rest:
        our_line, their_line = _first_line(our_rest[-1]), _first_line(their_rest[-1])
        at_line_start = our_rest[-1].col_offset == 0 == their_rest[-1].col_offset
        if not at_line_start or our_line - their_line != line_offset or our_line <= len(our_lines) - equal_at_end:
            break
        our_rest, their_rest = our_rest[:-1], their_rest[:-1]
    return our_rest, their_rest


def _lines(source: bytes) -> list[bytes]:
    """Split ``source`` into lines at the same places as the Python parser."""
    return source.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def _count_equal_items(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """Return how many items at the start of both sequences are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def _first_line(statement: ast.stmt) -> int:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
    return statement.lineno


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _dump_without_docstrings(body: list[ast.stmt]) -> str:
    tree = ast.Module(body, [])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstring(node.body) or [ast.Pass()]
    return ast.dump(tree)
