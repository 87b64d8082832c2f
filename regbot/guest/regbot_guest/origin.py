"""Proof of code: which files the step was made of, and whether they are the arm's own.

A package that is installed in editable mode from another folder is imported from there however the path looks from
outside. So the guest reports, after the step, where every watched package really came from.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

SKIPPED_FILES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py"}


def watched_packages(root: Path, source_roots: Iterable[str], asked: Iterable[str], entry: Any) -> set[str]:
    """Top-level names that must come from ``root``: those asked for, else all it holds, and always the entry's."""
    names = set(asked)
    if not names:
        for folder in (root / source for source in source_roots):
            if not folder.is_dir():
                continue
            names |= {child.name for child in folder.iterdir() if (child / "__init__.py").is_file()}
            names |= {child.stem for child in folder.glob("*.py") if child.name not in SKIPPED_FILES}
    if entry:
        names.add(entry.split(":")[0].split(".")[0])
    return names


def code_proof(root: Path, watched: set[str]) -> dict[str, Any]:
    """Where the watched packages were loaded from, relative to ``root``, and a hash of each loaded file's code."""
    root = root.resolve()
    inside: dict[str, str] = {}
    foreign: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, path in _loaded():
        top = name.split(".")[0]
        relative = _relative(path, root)
        if relative is not None:
            with suppress(OSError):  # gone or unreadable by now; where it came from is still told below
                files[relative] = code_hash(path)
        if top in watched:
            if relative is None:
                foreign.setdefault(top, str(path))
            else:
                inside.setdefault(top, relative)
    return {"watched": inside, "foreign": foreign, "files": dict(sorted(files.items()))}


def code_hash(path: Path) -> str:
    """SHA-256 of the syntax tree, which has no comments or layout, without docstrings; of the bytes if no Python."""
    source = path.read_bytes()
    try:
        return hashlib.sha256(_code(source).encode()).hexdigest()
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not Python, or nested deeper than the parser goes
        return hashlib.sha256(source).hexdigest()


def _code(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and _has_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _has_docstring(node: Any) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _loaded() -> list[tuple[str, Path]]:
    def files() -> Iterator[tuple[str, Path]]:
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and Path(path).is_file():
                yield name, Path(path)

    return sorted(files())


def _relative(path: Path, root: Path) -> Any:
    try:
        relative = path.resolve().relative_to(root)
    except ValueError:
        return None
    # A virtual environment inside the checkout is not the checkout's code.
    return None if {"site-packages", "dist-packages"} & set(relative.parts) else str(relative)
