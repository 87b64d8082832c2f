"""Code proof: which files the step loaded, and whether they belong to the arm's worktree. An editable installation from
another folder may win over the search path.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SKIPPED_FILES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py"}
"""Python files in a source root that training does not import."""


def watched_packages(root: Path, source_roots: Iterable[str], requested: Iterable[str], entry: Any) -> set[str]:
    """Return the packages and modules that must be loaded from ``root``: ``requested``, or all in the source roots, and
    that of ``entry``. A name may have dots, because a checkout may have only a part of a namespace package.
    """
    names = set(requested)
    if not names:
        for folder in (root / source for source in source_roots):
            if not folder.is_dir():
                continue
            names |= {child.name for child in folder.iterdir() if (child / "__init__.py").is_file()}
            names |= {child.stem for child in folder.glob("*.py") if child.name not in SKIPPED_FILES}
    if entry:
        module, _, _ = entry.partition(":")
        package, _, _ = module.partition(".")
        names.add(package)
    return names


def code_proof(root: Path, watched: set[str]) -> dict[str, Any]:
    """Return one file of each watched package that was loaded from ``root`` (``watched``) and from elsewhere
    (``foreign``), and a hash of the code in each file that was loaded from ``root`` (``files``).
    """
    root = root.resolve()
    own_packages: dict[str, str] = {}
    foreign_packages: dict[str, str] = {}
    file_hashes: dict[str, str] = {}
    loaded_files = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    for name, file in sorted((name, file) for name, file in loaded_files if isinstance(file, str)):
        path = Path(file)
        if not path.is_file():
            continue
        package = name
        while package and package not in watched:
            package, _, _ = package.rpartition(".")  # the package that contains it
        relative = path_in_checkout(path, root)
        if relative is not None:
            with suppress(OSError):  # no hash for a file that is removed or unreadable by now
                file_hashes[relative] = code_hash(path)
        if package:
            if relative is None:
                foreign_packages.setdefault(package, str(path))
            else:
                own_packages.setdefault(package, relative)
    return {"watched": own_packages, "foreign": foreign_packages, "files": dict(sorted(file_hashes.items()))}


def code_hash(path: Path) -> str:
    """Return the SHA-256 of the syntax tree without docstrings, or of the bytes if the file is not valid Python."""
    source = path.read_bytes()
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]  # a body must not be empty
        return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not Python, or nested too deeply for the parser
        return hashlib.sha256(source).hexdigest()


def path_in_checkout(path: Path, root: Path) -> str | None:
    """Return ``path`` relative to ``root``, or None if it does not belong to the checkout's code."""
    try:
        relative = path.resolve().relative_to(root.resolve())
    except ValueError:
        return None
    # A virtual environment inside the checkout does not belong to the checkout's code.
    is_installed = "site-packages" in relative.parts or "dist-packages" in relative.parts
    return None if is_installed else relative.as_posix()
