"""Which training stack a repository is, or is built on: told from its paths, its metadata and its imports.

Nothing of the repository is imported. What is named here is what the adapters need (docs/frameworks.md): the folders
that packages live in, and for Megatron Bridge a recipe.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import tomllib
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from regbot.init.repository import Repository

Framework = Literal["torchtitan", "megatron", "megatron-bridge", "maxtext"]

TITLES: dict[Framework, str] = {
    "torchtitan": "torchtitan",
    "megatron": "Megatron-LM (Megatron-core)",
    "megatron-bridge": "Megatron Bridge",
    "maxtext": "MaxText",
}

_PATHS: tuple[tuple[Framework, tuple[str, ...]], ...] = (
    ("megatron-bridge", ("megatron/bridge/__init__.py",)),
    ("torchtitan", ("torchtitan/trainer.py", "torchtitan/train.py")),
    ("maxtext", ("maxtext/configs/base.yml",)),
    ("megatron", ("megatron/core/__init__.py",)),
)
"""Files that only the framework itself has, below one of its source roots. Bridge first: it may carry Megatron-core."""

_DISTRIBUTIONS: dict[str, Framework] = {
    "megatron-bridge": "megatron-bridge",
    "torchtitan": "torchtitan",
    "maxtext": "maxtext",
    "megatron-core": "megatron",
    "megatron-lm": "megatron",
}
_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(torchtitan|maxtext|megatron\.bridge|megatron\.core)\b", re.MULTILINE
)
_IMPORTED: dict[str, Framework] = {
    "megatron.bridge": "megatron-bridge",
    "torchtitan": "torchtitan",
    "maxtext": "maxtext",
    "megatron.core": "megatron",
}
_ORDER: tuple[Framework, ...] = tuple(framework for framework, _ in _PATHS)

_RECIPE = re.compile(r"qwen3_30b_a3b\w*pretrain\w*config|qwen3_30b_a3b_pretrain\w*|mixtral_8x7b\w*pretrain\w*")
_OLD_MAXTEXT = "MaxText/configs/base.yml"
_SOURCE = re.compile(r"/([A-Za-z0-9][\w.-]*?)(?:\.git)?(?:[@#].*)?$")
"""The repository's name in ``git+https://host/owner/name.git@revision``."""
REQUIREMENTS = re.compile(r"(?:[^/]+/)?(?:[^/]*requirements[^/]*|requirements/[^/]+)\.(?:txt|in)")


@dataclass(frozen=True)
class Stack:
    """A framework that was found. ``own``: the repository holds its source, else it is only used there.

    ``root`` is the folder in the repository that its packages live in ("." for the top), ``recipe`` an entry of it
    where the adapter needs one.
    """

    framework: Framework
    own: bool
    evidence: str
    root: str = "."
    recipe: str = ""


def find_stacks(repository: Repository, texts: dict[str, str]) -> list[Stack]:
    """All frameworks that the repository holds or names, the one to take first. ``texts``: its Python files."""
    held = [stack for framework, marks in _PATHS if (stack := _held(repository, framework, marks, texts)) is not None]
    used = _used(repository, texts)
    frameworks = {stack.framework for stack in held}
    others = [used[framework] for framework in _ORDER if framework in used and framework not in frameworks]
    return [*held, *others]


def notes(repository: Repository) -> list[str]:
    """What was recognised and cannot be traced."""
    if any(name.endswith(f"/{_OLD_MAXTEXT}") or name == _OLD_MAXTEXT for name in repository.names):
        return [
            "this is MaxText with its older layout (MaxText/configs); regbot compiles that of 0.2 and newer (maxtext/)"
        ]
    return []


def _held(repository: Repository, framework: Framework, marks: tuple[str, ...], texts: dict[str, str]) -> Stack | None:
    """The framework's own source; the shallowest copy, where there are several."""
    for name in repository.ending(*marks):
        mark = next(mark for mark in marks if name.endswith(mark))
        root = name.removesuffix(mark)
        if root and not root.endswith("/"):
            continue  # nottorchtitan/train.py
        recipe = _recipe(root, texts) if framework == "megatron-bridge" else ""
        return Stack(framework, True, f"{name} is in the repository", root.rstrip("/") or ".", recipe)
    return None


def _recipe(root: str, texts: dict[str, str]) -> str:
    """A function of Bridge's recipes that makes a shape of ours, as ``package.module:function``; '' without one."""
    for name in sorted(name for name in texts if name.startswith(f"{root}megatron/bridge/") and "recipes/" in name):
        for function in _functions(texts[name]):
            if _RECIPE.fullmatch(function.name) and not _needed(function):
                module = name.removeprefix(root).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                return f"{module}:{function.name}"
    return ""


def _functions(text: str) -> Iterator[ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _needed(function: ast.FunctionDef) -> bool:
    """Does it have a parameter that must be given?"""
    given = function.args
    positional = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return positional > 0 or None in given.kw_defaults


def _used(repository: Repository, texts: dict[str, str]) -> dict[Framework, Stack]:
    """Frameworks that are asked for or imported, each with where that is."""
    found: dict[Framework, Stack] = {}
    for name, wanted in requirements(repository):
        framework = _DISTRIBUTIONS.get(wanted)
        if framework is not None:
            found.setdefault(framework, Stack(framework, False, f"{name} asks for {wanted}"))
    for name, text in sorted(texts.items()):
        for module in _IMPORT.findall(text):
            found.setdefault(_IMPORTED[module], Stack(_IMPORTED[module], False, f"{name} imports {module}"))
    return found


# ---- what is asked for


def requirements(repository: Repository) -> list[tuple[str, str]]:
    """``(file, distribution)`` of everything that metadata and requirement files ask for."""
    found = []
    readers = dict.fromkeys(("setup.cfg", "environment.yml"), _of_lines)
    readers |= {"pyproject.toml": _of_pyproject, "setup.py": _of_setup}
    for name in repository.ending(*readers, ".txt", ".in"):
        base = PurePosixPath(name).name
        reader = readers.get(base) if name.count("/") <= 1 else None
        if reader is None and REQUIREMENTS.fullmatch(name):
            reader = _of_lines
        text = repository.read(name) if reader is not None else None
        if reader is not None and text is not None:
            found += [(name, wanted) for line in reader(text) if (wanted := distribution(line))]
    return found


def distribution(line: str) -> str:
    """The normalised name that a line of requirements asks for; '' where it asks for none."""
    text = line.partition(" #")[0].strip().lstrip("-").strip()
    source = _SOURCE.search(text)
    if source is not None and "://" in text and " @ " not in text:
        return canonicalize_name(source.group(1))
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return ""


def _of_lines(text: str) -> list[str]:
    return text.splitlines()


def _of_pyproject(text: str) -> list[str]:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    project, tool = _table(document.get("project")), _table(document.get("tool"))
    poetry = _table(tool.get("poetry"))
    lists = [project.get("dependencies"), *_table(project.get("optional-dependencies")).values()]
    lists += _table(document.get("dependency-groups")).values()
    poetry_names = [*_table(poetry.get("dependencies"))]
    for group in _table(poetry.get("group")).values():
        poetry_names += _table(_table(group).get("dependencies"))
    return [line for each in lists if isinstance(each, list) for line in each if isinstance(line, str)] + poetry_names


def _of_setup(text: str) -> list[str]:
    """String constants of setup.py: among them is what it installs, wherever it stands."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
