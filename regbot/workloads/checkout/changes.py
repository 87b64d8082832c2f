"""Find the files whose behaviour differs between two commits. The files are read from git, not reported by a guest.

Two versions of a Python file behave the same if their syntax trees are equal without comments and docstrings. All other
files differ if any byte differs.
"""

import ast
import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from regbot.records.text.python_code import dump_code
from regbot.workloads.checkout.git import OFFLINE, CheckoutError, try_git
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

_WORDS = re.compile(
    rb'#[^\n]*|[rRbBfFuU]{0,2}(?:"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\\?\Z)|\'\'\'(?:[^\\\']|\\.|\'(?!\'\'))*+(?:\'\'\'|\\?\Z)'
    rb"|\"(?:[^\"\\\n]|\\.)*+\"?|'(?:[^'\\\n]|\\.)*+'?)|\d[\w.]*|([A-Za-z_]\w*)",
    re.DOTALL,
)
"""Pattern for comments, strings, numbers and words. A word is a name or a keyword. The pattern's group matches only
words and is empty for the rest, so that ``findall`` returns the words."""


_ENCODING = re.compile(rb"coding[:=][ \t]*+(?!(?:utf-?8|ascii|latin-1|iso-8859-1)(?![-\w.]))", re.IGNORECASE)
"""Declaration of an encoding, in the first two lines, in which braces may be other bytes."""


@dataclass(frozen=True)
class DiffEntry:
    """A path that differs between two trees."""

    name: str
    """The path, relative to the root of the repository."""
    modes: tuple[str, str]
    """Git's file mode in the first and in the second tree, such as ``100644``; ``000000`` if it lacks the path."""
    blobs: tuple[str, str]
    """Id of the content in the first and in the second tree; zeros if it lacks the path."""

    @property
    def mode_after(self) -> str:
        """The mode in the second tree."""
        return self.modes[1]

    @property
    def blob_after(self) -> str:
        """The id of the content in the second tree."""
        return self.blobs[1]

    @property
    def is_python(self) -> bool:
        """Whether the path is a regular Python file of the same mode in both trees. This excludes links, submodules,
        and files that were added or removed."""
        return self.has_python_after and self.modes[0] == self.modes[1]

    @property
    def has_python_after(self) -> bool:
        """Whether the path is a regular Python file in the second tree."""
        return self.name.endswith(".py") and self.mode_after in (REGULAR, EXECUTABLE)

    def is_inert(self, globs: Sequence[str]) -> bool:
        """Whether the difference cannot affect a run. ``globs`` is the setting ``inert`` of the base."""
        return is_inert(self.name, self.modes, globs)


class ChangedFiles(NamedTuple):
    """Files whose behaviour differs between two commits."""

    paths: list[str] | None
    """None if they are unknown."""
    inert: list[str]
    """Those of ``paths`` that cannot affect a run."""


def list_changed_files(repo: Path, base: str, head: str, inert: Sequence[str]) -> ChangedFiles:
    """Return the files whose behaviour differs between two commits. ``inert`` is the setting of that name of the base.

    They are unknown if git fails, or if too many files differ or a name is too long or not printable.
    Changed submodules are included, even if .gitmodules or the user's configuration ignores them.
    """
    result = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = list(parse_entries(result.out))
    if result.code != 0 or not _is_reportable(entries):
        return ChangedFiles(None, [])
    unchanged_entries = _find_same_python(repo, [entry for entry in entries if entry.is_python])
    changed_entries = [entry for entry in entries if entry not in unchanged_entries]
    return ChangedFiles(
        [entry.name for entry in changed_entries], [entry.name for entry in changed_entries if entry.is_inert(inert)]
    )


def list_diff_entries(repo: Path, before: str, after: str) -> list[DiffEntry]:
    """Return all paths that differ between two commits or trees, with modes and blobs. Only trees are read. Raises
    CheckoutError."""
    result = try_git(repo, *_DIFF, before, after, env=OFFLINE)
    if result.code != 0:
        raise CheckoutError(f"{repo}: git diff-tree failed: {result.error_line}")
    return list(parse_entries(result.out))


def digest_behaviour(repo: Path, base: str, head: str, inert: Sequence[str]) -> str | None:
    """Return a digest of everything in ``head`` that may affect a run; None if it is unknown.

    ``base`` and ``head`` are commits. Heads of the same base that differ only in comments, docstrings and inert files
    have the same digest. The digest also depends on the tree of ``base``. ``inert`` is the setting of that name of the
    base.
    """
    base_tree = try_git(repo, "rev-parse", f"{base}^{{tree}}", env=OFFLINE)
    diff = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = [entry for entry in parse_entries(diff.out) if not entry.is_inert(inert)]
    if base_tree.code != 0 or diff.code != 0 or not _is_reportable(entries):
        return None
    unchanged_entries = _find_same_python(repo, [entry for entry in entries if entry.is_python])
    changed_entries = [entry for entry in entries if entry not in unchanged_entries]
    parsed_bytes = 0
    contents: list[tuple[str, str, str]] = []  # path, mode in head, and a digest of the Python code or else the blob
    for start in range(0, len(changed_entries), _BATCH_FILES):
        batch = changed_entries[start : start + _BATCH_FILES]
        sources = read_blobs(repo, sorted({entry.blob_after for entry in batch if entry.has_python_after}))
        for entry in batch:
            source = sources.get(entry.blob_after)
            parsed_bytes += len(source or b"")
            code = _dump(source) if source is not None and parsed_bytes <= MAX_PARSED_BYTES else None
            content = entry.blob_after
            if code is not None:
                content = hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()
            contents.append((entry.name, entry.mode_after, content))
    document = json.dumps([base_tree.out.strip(), sorted(contents)])
    return hashlib.sha256(document.encode()).hexdigest()


def have_same_code(repo: Path, trees: Sequence[tuple[str, str]], inert: Sequence[str]) -> list[bool]:
    """Return, for each pair of trees, whether they behave the same. Inert files are ignored.

    False means that a file changes behaviour, or that this is unknown. The function runs only a few git commands for
    all pairs together.
    """
    remaining: dict[int, list[DiffEntry]] = {}  # by index of the pair: Python files that are not compared yet
    are_same = [before == after for before, after in trees]  # the result: whether the trees of a pair behave the same
    differing_indices = [index for index, is_same_tree in enumerate(are_same) if not is_same_tree]
    for index, entries in zip(
        differing_indices, _diff_trees(repo, [trees[index] for index in differing_indices]), strict=True
    ):
        if entries is not None and _is_reportable(entries):
            relevant = [entry for entry in entries if not entry.is_inert(inert)]
            are_same[index] = all(entry.is_python for entry in relevant)  # until a comparison below shows a difference
            remaining[index] = relevant if are_same[index] else []
    # Compare one file of each pair per round. A pair with a difference drops out, and its other files are not read.
    while remaining := {index: entries for index, entries in remaining.items() if entries and are_same[index]}:
        next_entries = {index: entries.pop() for index, entries in remaining.items()}
        same_entries = _find_same_python(repo, list(next_entries.values()))
        for index, entry in next_entries.items():
            are_same[index] = entry in same_entries
    return are_same


def _is_reportable(entries: Sequence[DiffEntry]) -> bool:
    """Return whether a result can name all entries: there are at most MAX_FILES, with short and printable names."""
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
        while result.out.startswith(":", position):  # an entry ends at its second NUL (see parse_entries)
            end_of_fields = result.out.index("\0", position)
            position = result.out.index("\0", end_of_fields + 1) + 1
        diffs.append(list(parse_entries(result.out[start:position])))
    return diffs


def parse_entries(raw: str) -> Iterator[DiffEntry]:
    """Parse git's raw diff format. Each entry is ``:MODE MODE BLOB BLOB STATUS``, NUL, path, NUL."""
    fields = raw.split("\0")
    for modes_and_blobs, name in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_blob, new_blob = modes_and_blobs.removeprefix(":").split(" ")[:4]  # without STATUS
        yield DiffEntry(name, (old_mode, new_mode), (old_blob, new_blob))


def _find_same_python(repo: Path, entries: Sequence[DiffEntry]) -> set[DiffEntry]:
    """Return those Python files among ``entries`` that behave the same in both trees."""
    same_entries = set()
    parsed_bytes = 0
    for start in range(0, len(entries), _BATCH_FILES):
        batch = entries[start : start + _BATCH_FILES]
        contents = read_blobs(repo, sorted({blob for entry in batch for blob in entry.blobs}))
        for entry in batch:
            old, new = (contents.get(blob) for blob in entry.blobs)
            parsed_bytes += len(old or b"") + len(new or b"")
            if old is None or new is None or parsed_bytes > MAX_PARSED_BYTES:
                continue
            if _behaves_the_same(old, new):
                same_entries.add(entry)
    return same_entries


def read_blobs(repo: Path, blobs: Sequence[str]) -> dict[str, bytes]:
    """Return the content of each blob. Blobs that do not exist or are larger than MAX_PYTHON_BYTES are left out.

    Return {} if git cannot read the blobs.
    """
    listing = try_git(repo, "cat-file", "--batch-check", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in blobs))
    sizes: dict[str, int] = {}
    for line in listing.out.splitlines():
        blob, kind, *size = line.split(" ")  # "BLOB missing" has no size
        if kind == "blob" and int(size[0]) <= MAX_PYTHON_BYTES:
            sizes[blob] = int(size[0])
    result = try_git(repo, "cat-file", "--batch", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in sizes))
    output = result.out.encode("utf-8", "surrogateescape")
    contents, position = {}, 0  # ``position`` is where the next header begins in ``output``
    for blob, byte_count in sizes.items():
        position += len(f"{blob} blob {byte_count}\n")
        contents[blob] = output[position : position + byte_count]
        position += byte_count + 1  # a newline follows the content
    return contents if result.code == 0 and len(output) == position else {}


def _behaves_the_same(old: bytes, new: bytes) -> bool:
    """Return whether two versions of a Python file have equal syntax trees without comments and docstrings.

    Return False if a version cannot be parsed.
    """
    if not _is_quickly_parsed(old) or not _is_quickly_parsed(new):
        return False
    if _words(old) != _words(new):  # then the syntax trees differ too; parsing takes ten times longer
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warnings concern the compared files, not regbot
            old_body, new_body = (_without_docstring(ast.parse(source).body) for source in (old, new))
        old_rest, new_rest = _strip_equal_ends(old, new, old_body, new_body)
        return _dump_without_docstrings(old_rest) == _dump_without_docstrings(new_rest)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _dump(source: bytes) -> str | None:
    """Return the code of a Python file as text; None if the file cannot be parsed."""
    if not _is_quickly_parsed(source):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warnings concern the file, not regbot
            return dump_code(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_quickly_parsed(source: bytes) -> bool:
    """Return whether Python parses a file in seconds."""
    if any(_ENCODING.search(line) for line in _lines(source)[:2]):
        return False
    return source.count(b"{") * len(source) <= MAX_BRACES_TIMES_BYTES


def _words(source: bytes) -> list[bytes]:
    """Return the names and keywords of a Python file, in order.

    Files with equal syntax trees have equal lists. For this, ``pass`` and ``else`` are left out, and ``elif`` is
    replaced by ``if``. For example, ``else:`` with a nested ``if`` has the same syntax tree as ``elif``.
    """
    words = (word for word in _WORDS.findall(source) if word not in (b"", b"pass", b"else"))
    return [b"if" if word == b"elif" else word for word in words]


def _strip_equal_ends(
    old_source: bytes, new_source: bytes, old_body: list[ast.stmt], new_body: list[ast.stmt]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the module-level statements of two versions of a file, without those that are certainly equal.

    These are statements at the start and at the end. Leaving them out saves the time to compare their syntax trees.
    Equal lines at the start of both files parse to equal statements. Where the lines at the end of both files are
    equal, two statements are equal if they begin on the same line, counted from the end of the file.
    """
    old_lines, new_lines = _lines(old_source), _lines(new_source)
    if old_lines[:2] != new_lines[:2]:  # the first two lines may declare the encoding of the file
        return old_body, new_body
    equal_at_start = _count_equal_items(old_lines, new_lines)
    equal_at_end = min(
        _count_equal_items(old_lines[::-1], new_lines[::-1]),
        len(old_lines) - equal_at_start,
        len(new_lines) - equal_at_start,
    )
    statements_in_equal_lines = min(
        sum(_first_line(statement) <= equal_at_start for statement in body) for body in (old_body, new_body)
    )
    # The last statement that began in equal lines may continue in differing lines, so it stays.
    start = max(statements_in_equal_lines - 1, 0)
    old_rest, new_rest = old_body[start:], new_body[start:]
    line_offset = len(old_lines) - len(new_lines)
    while old_rest and new_rest:
        old_line, new_line = _first_line(old_rest[-1]), _first_line(new_rest[-1])
        both_begin_lines = old_rest[-1].col_offset == 0 and new_rest[-1].col_offset == 0  # false after "a = 1; "
        is_same_line_from_end = old_line - new_line == line_offset
        is_in_equal_lines = old_line > len(old_lines) - equal_at_end
        if not (both_begin_lines and is_same_line_from_end and is_in_equal_lines):
            break
        old_rest, new_rest = old_rest[:-1], new_rest[:-1]
    return old_rest, new_rest


def _lines(source: bytes) -> list[bytes]:
    """Split ``source`` into lines at the same places as the Python parser."""
    return source.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def _count_equal_items(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """Return how many items at the start of both sequences are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _first_line(statement: ast.stmt) -> int:
    """Return the number of the line on which a statement begins. The decorators of a function or class belong to it."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
    return statement.lineno


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of ``body`` without the docstring, which can only be the first statement."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _dump_without_docstrings(body: list[ast.stmt]) -> str:
    """Return the syntax tree of ``body`` as text, without docstrings of functions and classes.

    The docstrings are removed from ``body`` too."""
    tree = ast.Module(body, [])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstring(node.body) or [ast.Pass()]
    return ast.dump(tree)
