"""Search a repository's syntax trees for a function ``build_layer(config, mesh, device, dtype)`` that builds its MoE
layer.

No file is imported or executed. The result is only a proposal. Whether a function meets the contract in docs/module.md
is known only after a trace.
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

FUNCTION_NAME = "build_layer"
PARAMETERS = ("config", "mesh", "device", "dtype")
MAX_PYTHON_BYTES = 200_000_000

_CANDIDATE = re.compile(rf"def[ \t]+{FUNCTION_NAME}\b|def[ \t]+\w+[ \t]*\(\s*config\s*[:,]")
"""Matches the start of a function with the contract's name or first parameter. Only files with a match are parsed."""
_MOE_CLASS = re.compile(r"^class[ \t]+(\w{0,60}(?:MoE|MOE|Moe|MixtureOfExperts)\w{0,60})[ \t]*\(", re.MULTILINE)
_SECONDARY = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?|scripts?|tools|third_party|3rdparty|vendor)/|(?:^|/)test_"
)
"""Matches paths of files whose code is probably not used for training. Functions in such files come last."""


@dataclass(frozen=True)
class EntryPoint:
    """A function that can be called with the arguments of the contract in docs/module.md."""

    file: str
    """Path in the repository."""
    root: str
    """Folder that contains the function's package, "." for the root of the repository."""
    module: str
    """Dotted name of the module."""
    function: str
    exact: bool
    """Whether the function has exactly the name and the parameters of the contract."""

    @property
    def text(self) -> str:
        """The text for the key ``entry`` of a workload."""
        return f"{self.module}:{self.function}"


def python_files(repository: Repository) -> tuple[dict[str, str], list[str]]:
    """Return the texts of the repository's Python files by name, and a warning if there are too many to read.

    Files in fewer folders come first.
    """
    texts: dict[str, str] = {}
    remaining_bytes = MAX_PYTHON_BYTES
    names = repository.names_ending(".py")
    for index, name in enumerate(names):
        if remaining_bytes < 0:
            return texts, [f"{len(names):,} Python files: only the first {index:,} were read"]
        text = repository.read(name)
        if text is not None:
            texts[name] = text
            remaining_bytes -= len(text)
    return texts, []


def find_entries(repository: Repository, texts: dict[str, str]) -> list[EntryPoint]:
    """Return all functions that may be the entry point, the best one first."""
    entry_points = []
    for file, text in texts.items():
        if not _CANDIDATE.search(text):
            continue
        for function, exact in _candidates(text):
            root, module = locate_module(repository, file)
            if all(part.isidentifier() for part in module.split(".")):
                entry_points.append(EntryPoint(file, root, module, function, exact))
    return sorted(entry_points, key=_rank)


def moe_classes(texts: dict[str, str]) -> list[tuple[str, str]]:
    """Return file and name of all classes with MoE in their name. A build_layer could return such a class.

    Files that are probably used for training come first, and among these, files in fewer folders.
    """
    classes = [(file, class_name) for file, text in texts.items() for class_name in _MOE_CLASS.findall(text)]

    def rank(file_and_class: tuple[str, str]) -> tuple[bool, int, tuple[str, str]]:
        file, _ = file_and_class
        return bool(_SECONDARY.search(file)), file.count("/"), file_and_class

    return sorted(classes, key=rank)


def _rank(entry: EntryPoint) -> tuple[Any, ...]:
    """Return a sort key that puts the best entry point first. The file and the function only make the order unique.

    A secondary file, such as a test, is probably not used for training."""
    is_secondary = bool(_SECONDARY.search(entry.file))
    return (
        is_secondary,
        not entry.exact,
        entry.function != FUNCTION_NAME,
        entry.file.count("/"),
        entry.file,
        entry.function,
    )


def _candidates(text: str) -> Iterator[tuple[str, bool]]:
    """Yield ``(function, exact)`` for each module-level function that can be called with the contract's arguments.

    ``exact`` says whether the function has both the name and the parameters of the contract. One of the two suffices
    for a candidate.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns about the user's code, such as invalid escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        required_count = len(positional) - len(node.args.defaults)
        accepts_four_arguments = required_count <= len(PARAMETERS) <= len(positional)
        has_required_keyword = None in node.args.kw_defaults  # a keyword-only parameter without a default
        has_contract_parameters = tuple(positional[: len(PARAMETERS)]) == PARAMETERS
        has_contract_name = node.name == FUNCTION_NAME
        if accepts_four_arguments and not has_required_keyword and (has_contract_parameters or has_contract_name):
            yield node.name, has_contract_parameters and has_contract_name


def locate_module(repository: Repository, name: str) -> tuple[str, str]:
    """Return ``(source root, dotted module)`` of the Python file ``name``.

    The source root is a folder that the nearest pyproject.toml declares, or the folder ``src`` beside this
    pyproject.toml. If several of these folders contain the file, the innermost is the source root. A folder that is
    itself a package is not a source root. If no such folder contains the file, the source root is the parent of the
    outermost package that contains the file, or else the folder of the project.
    """
    path = PurePosixPath(name)
    project = _project(repository, path)
    declared = [f"{project}{root}" for root in _declared_roots(repository.read(f"{project}pyproject.toml"))]
    containing_folders = [root for root in (*declared, f"{project}src") if root and name.startswith(f"{root}/")]
    possible_roots = (root for root in containing_folders if not repository.has(f"{root}/__init__.py"))
    root = max(possible_roots, key=len, default=None)
    if root is None:
        root = _above_package(repository, path, project)
    relative_name = name.removeprefix(f"{root}/") if root not in ("", ".") else name
    module = relative_name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return root or ".", module


def _project(repository: Repository, path: PurePosixPath) -> str:
    """Return the nearest parent folder that has project metadata, with a final /.

    Return '' for the root of the repository, and if no folder has project metadata."""
    for parent in path.parents:
        prefix = "" if parent == PurePosixPath() else f"{parent}/"
        if any(repository.has(f"{prefix}{file}") for file in ("pyproject.toml", "setup.py", "setup.cfg")):
            return prefix
    return ""


def _above_package(repository: Repository, path: PurePosixPath, project: str) -> str:
    """Return the parent folder of the outermost package that contains the file.

    If the file is in no package, return the project's folder.

    ``project`` is the result of ``_project``: the project's folder with a final /, or ''.
    """
    outermost_package = None
    for parent in path.parents:
        if not repository.has(f"{parent}/__init__.py"):
            break
        outermost_package = parent
    if outermost_package is None:
        return project.rstrip("/")
    is_at_root = outermost_package.parent == PurePosixPath()
    return "" if is_at_root else str(outermost_package.parent)


def _declared_roots(text: str | None) -> list[str]:
    """Return the source roots that a pyproject.toml declares for setuptools or poetry, relative to its folder.

    ``text`` is the text of the pyproject.toml; None if there is none. The root of the project is left out."""
    try:
        tool = tomllib.loads(text or "").get("tool")
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    setuptools = _get(tool, "setuptools")
    find_roots = _get(_get(_get(setuptools, "packages"), "find"), "where")
    package_dir = _get(_get(setuptools, "package-dir"), "")  # the key '' stands for all packages
    packages = _get(_get(tool, "poetry"), "packages")
    roots = [*(find_roots if isinstance(find_roots, list) else []), package_dir]
    roots += [_get(package, "from") for package in packages] if isinstance(packages, list) else []

    def is_folder_in_project(root: object) -> bool:
        """Return whether ``root`` is a folder below the project's own folder."""
        return isinstance(root, str) and root.strip("./") != "" and ".." not in root

    return [root.strip("/") for root in roots if is_folder_in_project(root)]


def _get(table: Any, key: str) -> Any:
    """Return the value of ``key``; None if ``table`` is no table or lacks the key."""
    return table.get(key) if isinstance(table, dict) else None
