"""Which files of two commits differ in what they do: read from git by the trusted side, believed from nobody.

A Python file whose syntax tree is the same without comments and docstrings does the same; every other file that differs
in a byte may do something else.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from regbot.checkout.git import try_git

MOST_FILES = 500
"""Names that are kept; where more files differ, nothing is claimed of them."""
MOST_CHARACTERS = 500
MOST_BYTES = 1_000_000
"""Of a Python file that is looked into; a larger one is generated, and counts as changed."""

OFFLINE = {"GIT_ALLOW_PROTOCOL": "none"}
"""For whatever reads trees and files: a partial clone would fetch what it lacks, and so write into the repository."""

_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
_REGULAR = {"100644", "100755"}
_AT_ONCE = 100
"""Files that are held in memory together, in both versions."""

_WORDS = re.compile(
    rb'#[^\n]*|[rRbBfFuU]{0,2}(?:"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\\?\Z)|\'\'\'(?:[^\\\']|\\.|\'(?!\'\'))*+(?:\'\'\'|\\?\Z)'
    rb"|\"(?:[^\"\\\n]|\\.)*+\"?|'(?:[^'\\\n]|\\.)*+'?)|\d[\w.]*|([A-Za-z_]\w*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Entry:
    """A path that two trees disagree on, with what is there in each."""

    name: str
    modes: tuple[str, str]
    blobs: tuple[str, str]

    @property
    def is_python(self) -> bool:
        """A Python file in both trees: no symbolic link, no submodule, neither added nor removed."""
        return self.name.endswith(".py") and set(self.modes) <= _REGULAR


def changed_files(repo: Path, base: str, head: str) -> list[str] | None:
    """Paths of files that do something else in the two commits; None where they cannot be told.

    Submodules count, whatever .gitmodules or the user's configuration would leave out.
    """
    answer = try_git(repo, *_DIFF, base, head, env=OFFLINE)
    entries = list(_entries(answer.out))
    if answer.code != 0 or not _can_be_told(entries):
        return None
    same = _same_python(repo, [entry for entry in entries if entry.is_python])
    return [entry.name for entry in entries if entry not in same]


def differing_files(repo: Path, trees: Sequence[tuple[str, str]]) -> list[list[str] | None]:
    """For each pair of trees the paths that they disagree on, in a byte; None where that cannot be told."""
    return [None if found is None else [entry.name for entry in found] for found in _each_diff(repo, trees)]


def same_code(repo: Path, trees: Sequence[tuple[str, str]], inert: Callable[[str], bool]) -> list[bool]:
    """For each pair of trees: is nothing in ``changed_files``, apart from paths that are ``inert``?

    Takes a few git commands for all pairs together; False where it cannot be told.
    """
    left: dict[int, list[_Entry]] = {}
    answers = [before == after for before, after in trees]
    asked = [number for number, equal in enumerate(answers) if not equal]
    for number, entries in zip(asked, _each_diff(repo, [trees[number] for number in asked]), strict=True):
        if entries is not None and _can_be_told(entries):
            matter = [entry for entry in entries if not inert(entry.name)]
            answers[number] = all(entry.is_python for entry in matter)
            left[number] = matter if answers[number] else []
    while left := {number: entries for number, entries in left.items() if entries and answers[number]}:
        next_files = {number: entries.pop() for number, entries in left.items()}
        same = _same_python(repo, list(next_files.values()))
        for number, entry in next_files.items():
            answers[number] = entry in same
    return answers


def _can_be_told(entries: Sequence[_Entry]) -> bool:
    names = [entry.name for entry in entries]
    few = len(names) <= MOST_FILES and all(len(name) <= MOST_CHARACTERS for name in names)
    return few and all(name.isprintable() for name in names)  # not printable: also what is no text at all


def _each_diff(repo: Path, trees: Sequence[tuple[str, str]]) -> list[list[_Entry] | None]:
    """What each pair of trees disagrees on; None where git does not say."""
    if not trees:
        return []
    answer = try_git(repo, *_DIFF, "--stdin", env=OFFLINE, stdin="".join(f"{a} {b}\n" for a, b in trees))
    found: list[list[_Entry] | None] = []
    at = 0
    for before, after in trees:
        title = f"{before} {after}\n"
        if answer.code != 0 or not answer.out.startswith(title, at):
            return [None] * len(trees)
        at += len(title)
        start = at
        while answer.out.startswith(":", at):
            at = answer.out.index("\0", answer.out.index("\0", at) + 1) + 1
        found.append(list(_entries(answer.out[start:at])))
    return found


def _entries(raw: str) -> Iterator[_Entry]:
    """The raw format of git: ``:MODE MODE BLOB BLOB STATUS``, then the path, each ended by a NUL."""
    words = raw.split("\0")
    for told, name in zip(words[::2], words[1::2], strict=False):
        mode, other_mode, blob, other_blob = told.removeprefix(":").split(" ")[:4]
        yield _Entry(name, (mode, other_mode), (blob, other_blob))


def _same_python(repo: Path, entries: Sequence[_Entry]) -> set[_Entry]:
    """Those of the Python files that do the same in both trees."""
    same = set()
    for start in range(0, len(entries), _AT_ONCE):
        some = entries[start : start + _AT_ONCE]
        blobs = _contents(repo, sorted({blob for entry in some for blob in entry.blobs}))
        for entry in some:
            ours, theirs = (blobs.get(blob) for blob in entry.blobs)
            if ours is not None and theirs is not None and _does_the_same(ours, theirs):
                same.add(entry)
    return same


def _contents(repo: Path, blobs: Sequence[str]) -> dict[str, bytes]:
    """What is in each of the blobs that are there and not too large."""
    told = try_git(repo, "cat-file", "--batch-check", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in blobs))
    lines = (line.split(" ") for line in told.out.splitlines())
    sizes = {line[0]: int(line[2]) for line in lines if line[1] == "blob" and int(line[2]) <= MOST_BYTES}
    answer = try_git(repo, "cat-file", "--batch", env=OFFLINE, stdin="".join(f"{blob}\n" for blob in sizes))
    out = answer.out.encode("utf-8", "surrogateescape")
    contents, at = {}, 0
    for blob, size in sizes.items():
        at += len(f"{blob} blob {size}\n")
        contents[blob] = out[at : at + size]
        at += size + 1
    return contents if answer.code == 0 and len(out) == at else {}


def _does_the_same(ours: bytes, theirs: bytes) -> bool:
    if _words(ours) != _words(theirs):  # so are their trees: most pairs differ, and a parser takes ten times as long
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the code that is read, not of ours
            bodies = [_without_docstring(ast.parse(source).body) for source in (ours, theirs)]
        first, second = _where_they_differ(ours, theirs, *bodies)
        return _code(first) == _code(second)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _words(source: bytes) -> list[bytes]:
    """The names and keywords of a Python file in order, as far as every way to write one tree has them."""
    words = (word for word in _WORDS.findall(source) if word not in (b"", b"pass"))
    return [b"if" if word == b"elif" else word for word in words if word != b"else"]


def _where_they_differ(
    ours: bytes, theirs: bytes, our_body: list[ast.stmt], their_body: list[ast.stmt]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Both bodies without the statements that come of equal lines before or after, which are the same.

    What was read before it, and its own lines, make a statement what it is. One that begins in an equal line after a
    difference is the same where it begins at the same place in both, for a statement begins there.
    """
    our_lines, their_lines = _lines(ours), _lines(theirs)
    if our_lines[:2] != their_lines[:2]:  # which may say how the rest is encoded
        return our_body, their_body
    before = _equal_items(our_lines, their_lines)
    after = min(_equal_items(our_lines[::-1], their_lines[::-1]), len(our_lines) - before, len(their_lines) - before)
    begun = [sum(_first_line(one) <= before for one in body) for body in (our_body, their_body)]
    start = max(min(begun) - 1, 0)  # the last one begun may end beyond
    first, second = our_body[start:], their_body[start:]
    longer = len(our_lines) - len(their_lines)
    while first and second:
        line, other_line = _first_line(first[-1]), _first_line(second[-1])
        alone = first[-1].col_offset == 0 == second[-1].col_offset
        if not alone or line - other_line != longer or line <= len(our_lines) - after:
            break
        first, second = first[:-1], second[:-1]
    return first, second


def _lines(source: bytes) -> list[bytes]:
    """As the parser counts them."""
    return source.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def _equal_items(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """How many are equal before the first that are not."""
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


def _code(body: list[ast.stmt]) -> str:
    tree = ast.Module(body, [])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstring(node.body) or [ast.Pass()]
    return ast.dump(tree)
