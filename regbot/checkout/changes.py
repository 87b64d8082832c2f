"""Which files of two commits differ in what they do: read from git by the trusted side, believed from nobody.

A Python file whose syntax tree is the same without comments and docstrings does the same; every other file that differs
in a byte may do something else.
"""

import ast
from pathlib import Path

from regbot.checkout.git import try_git

MOST_FILES = 500
"""Names that are kept; where more files differ, nothing is claimed of them."""
MOST_CHARACTERS = 500


def changed_files(repo: Path, base: str, head: str) -> list[str] | None:
    """Paths of files that do something else in the two commits; None where they cannot be told.

    Submodules count, whatever .gitmodules or the user's configuration would leave out.
    """
    options = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=none")
    answer = try_git(repo, "diff-tree", *options, base, head)
    names = [name for name in answer.out.split("\0") if name]
    if answer.code != 0 or len(names) > MOST_FILES or any(len(name) > MOST_CHARACTERS for name in names):
        return None
    if any(not name.isprintable() for name in names):  # also what is no text at all
        return None
    return [name for name in names if not _does_the_same(repo, name, base, head)]


def _does_the_same(repo: Path, name: str, base: str, head: str) -> bool:
    if not name.endswith(".py"):
        return False
    answers = [try_git(repo, "show", f"{commit}:{name}") for commit in (base, head)]
    if any(answer.code != 0 for answer in answers):
        return False
    try:
        ours, theirs = (_code(answer.out) for answer in answers)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return ours == theirs


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node) is not None :] or [ast.Pass()]
    return ast.dump(tree)
