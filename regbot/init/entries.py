"""Where a repository builds its MoE layer: ``def build_layer(config, mesh, device, dtype)``, found in the syntax tree.

No file is imported or executed. What is found is a proposal: whether the function keeps the contract of docs/module.md
only a trace can tell.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import tomllib

from regbot.init.repository import Repository

NAME = "build_layer"
PARAMETERS = ("config", "mesh", "device", "dtype")
MOST_PYTHON_BYTES = 200_000_000

_LOOKED_FOR = re.compile(rf"def[ \t]+{NAME}\b|def[ \t]+\w+[ \t]*\(\s*config\s*[:,]")
_MOE_CLASS = re.compile(r"^class[ \t]+(\w{0,60}(?:MoE|MOE|Moe|MixtureOfExperts)\w{0,60})[ \t]*\(", re.MULTILINE)
_ASIDE = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?|scripts?|tools|third_party|3rdparty|vendor)/|(?:^|/)test_"
)
"""Folders whose code is not what a repository trains with: taken last."""


@dataclass(frozen=True)
class Entry:
    """A function with the contract's signature: ``root`` is the folder its package lives in, ``exact`` says whether
    name and parameters are the contract's own."""

    file: str
    root: str
    module: str
    function: str
    exact: bool

    @property
    def text(self) -> str:
        """As ``entry`` of a workload has it."""
        return f"{self.module}:{self.function}"


def python_files(repository: Repository) -> tuple[dict[str, str], list[str]]:
    """The text of the repository's Python files, shallowest first, and a warning where there are too many."""
    texts: dict[str, str] = {}
    left = MOST_PYTHON_BYTES
    names = repository.ending(".py")
    for number, name in enumerate(names):
        if left < 0:
            return texts, [f"{len(names):,} Python files: only the first {number:,} were looked at"]
        text = repository.read(name)
        if text is not None:
            texts[name] = text
            left -= len(text)
    return texts, []


def find_entries(repository: Repository, texts: dict[str, str]) -> list[Entry]:
    """All candidates, the one to take first."""
    found = []
    for name, text in texts.items():
        if not _LOOKED_FOR.search(text):
            continue
        for function, exact in _candidates(text):
            root, module = place(repository, name)
            if all(part.isidentifier() for part in module.split(".")):
                found.append(Entry(name, root, module, function, exact))
    return sorted(found, key=_rank)


def moe_classes(texts: dict[str, str]) -> list[tuple[str, str]]:
    """``(file, class)`` of classes that are called after a mixture of experts: what a build_layer could return."""
    found = [(name, title) for name, text in texts.items() for title in _MOE_CLASS.findall(text)]
    return sorted(found, key=lambda each: (bool(_ASIDE.search(each[0])), each[0].count("/"), each))


def _rank(entry: Entry) -> tuple[Any, ...]:
    aside = bool(_ASIDE.search(entry.file))
    return (aside, not entry.exact, entry.function != NAME, entry.file.count("/"), entry.file, entry.function)


def _candidates(text: str) -> Iterator[tuple[str, bool]]:
    """``(function, exact)`` of functions at the top of a module that take what the contract gives."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's source: invalid escapes and the like
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        needed = len(positional) - len(node.args.defaults)
        named = tuple(positional[:4]) == PARAMETERS
        callable_with_four = needed <= len(PARAMETERS) <= len(positional) and None not in node.args.kw_defaults
        if callable_with_four and (named or node.name == NAME):
            yield node.name, named and node.name == NAME


def place(repository: Repository, name: str) -> tuple[str, str]:
    """``(source root, dotted module)`` of a Python file.

    The root is what the nearest pyproject.toml declares, else its ``src`` folder, else the folder above the topmost
    package, else the project's own folder.
    """
    path = PurePosixPath(name)
    project = _project(repository, path)
    declared = [f"{project}{root}" for root in _declared(repository.read(f"{project}pyproject.toml"))]
    roots = [root for root in (*declared, f"{project}src") if root and name.startswith(f"{root}/")]
    root = max((r for r in roots if not repository.has(f"{r}/__init__.py")), key=len, default=None)
    if root is None:
        root = _above_package(repository, path, project)
    inside = name.removeprefix(f"{root}/") if root not in ("", ".") else name
    module = inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return root or ".", module


def _project(repository: Repository, path: PurePosixPath) -> str:
    """The nearest folder above with a pyproject.toml or setup.py, with a / at its end; '' for the top."""
    for parent in path.parents:
        prefix = "" if parent == PurePosixPath() else f"{parent}/"
        if any(repository.has(f"{prefix}{file}") for file in ("pyproject.toml", "setup.py", "setup.cfg")):
            return prefix
    return ""


def _above_package(repository: Repository, path: PurePosixPath, project: str) -> str:
    """The folder above the topmost regular package that holds the file; the project where it is in none."""
    top = None
    for parent in path.parents:
        if not repository.has(f"{parent}/__init__.py"):
            break
        top = parent
    if top is None:
        return project.rstrip("/")
    return "" if top.parent == PurePosixPath() else str(top.parent)


def _declared(text: str | None) -> list[str]:
    """Source roots that a pyproject.toml names for setuptools or poetry, relative to it."""
    try:
        tool = tomllib.loads(text or "").get("tool")
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    setuptools = _get(tool, "setuptools")
    where = _get(_get(_get(setuptools, "packages"), "find"), "where")
    package_dir = _get(_get(setuptools, "package-dir"), "")
    packages = _get(_get(tool, "poetry"), "packages")
    found = [*(where if isinstance(where, list) else []), package_dir]
    found += [_get(each, "from") for each in packages] if isinstance(packages, list) else []
    return [root.strip("/") for root in found if isinstance(root, str) and root.strip("./") and ".." not in root]


def _get(table: Any, key: str) -> Any:
    return table.get(key) if isinstance(table, dict) else None
