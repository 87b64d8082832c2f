"""Detect the training framework that a repository contains or uses, from its paths, metadata and imports.

No code of the repository is imported. The result contains what the adapters need (docs/frameworks.md): the source root,
and for Megatron Bridge also a recipe.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal

import tomllib
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from regbot.config import BRIDGE_PROGRAM, MEGATRON_PROGRAM
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
"""Files that show that a repository contains a framework's source. Paths are relative to the source root.

Megatron Bridge is first, because it may include Megatron-core.
"""

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
_PRETRAIN_MODULES = ("megatron.training", "megatron.training.training")
"""Modules from which a training script for Megatron imports ``pretrain``."""
MEGATRON_SUBMODULE = "3rdparty/Megatron-LM"
"""Folder of Megatron-core's sources in a repository of Megatron Bridge."""
_OLD_MAXTEXT = "MaxText/configs/base.yml"
_NAME_IN_URL = re.compile(r"/(?P<name>[A-Za-z0-9][\w.-]*?)(?:\.git)?(?:[@#].*)?$")
"""Matches the name of the repository at the end of a URL, such as

- ``https://host/owner/name``
- ``git+https://host/owner/name.git``
- ``git+https://host/owner/name.git@revision``
- ``git+https://host/owner/name#egg=package``
"""
REQUIREMENTS = re.compile(r"(?:[^/]+/)?(?:[^/]*requirements[^/]*|requirements/[^/]+)\.(?:txt|in)")


@dataclass(frozen=True)
class Stack:
    """A detected training framework."""

    framework: Framework
    own: bool
    """Whether the repository contains the framework's source. If not, it requires or imports the framework."""
    evidence: str
    root: str = "."
    """Folder in the repository that contains the framework's packages, "." for the root of the repository."""
    recipe: str = ""
    """Name of a recipe of Megatron Bridge; '' if there is none, and for other frameworks."""
    program: str = ""
    """Training script that the adapter can run; '' if there is none."""

    @property
    def traced(self) -> Framework:
        """The framework that a trace runs.

        Megatron Bridge needs its script and a recipe. If one is missing, a training script for Megatron is traced."""
        if self.framework == "megatron-bridge" and not (self.program and self.recipe):
            return "megatron"
        return self.framework


def find_stacks(repository: Repository, texts: dict[str, str]) -> list[Stack]:
    """Return the frameworks that the repository contains or uses, the best one first.

    Frameworks whose source is in the repository come before those that it only requires or imports. ``texts`` has the
    repository's Python files.
    """
    candidates = [_find_own(repository, framework, paths, texts) for framework, paths in _PATHS]
    own_stacks = [stack for stack in candidates if stack is not None]
    own_frameworks = {stack.framework for stack in own_stacks}
    used_stacks = _find_used(repository, texts)
    only_used = [framework for framework in _ORDER if framework in used_stacks and framework not in own_frameworks]
    return [*own_stacks, *(used_stacks[framework] for framework in only_used)]


def unsupported_warnings(repository: Repository) -> list[str]:
    """Return a warning for each framework that is recognised but not supported by regbot."""
    if any(name.endswith(f"/{_OLD_MAXTEXT}") or name == _OLD_MAXTEXT for name in repository.names):
        return [
            "this is MaxText in its older layout (MaxText/configs); regbot supports MaxText 0.2 and newer (maxtext/)"
        ]
    return []


def _find_own(
    repository: Repository, framework: Framework, markers: tuple[str, ...], texts: dict[str, str]
) -> Stack | None:
    """Return the framework if the repository contains its source; None otherwise.

    ``markers`` are paths of files that only this framework's source has. If there are several copies of the source, use
    the one with the fewest parent folders. ``texts`` has the repository's Python files by name."""
    for name in repository.names_ending(*markers):
        marker = next(marker for marker in markers if name.endswith(marker))
        root = name.removesuffix(marker)
        if root and not root.endswith("/"):
            continue  # only the end of a folder's name matches, as in nottorchtitan/train.py
        recipe = _recipe(root, texts) if framework == "megatron-bridge" else ""
        program = _find_program(repository, framework, texts)
        evidence = f"{name} is in the repository"
        return Stack(
            framework, own=True, evidence=evidence, root=root.rstrip("/") or ".", recipe=recipe, program=program
        )
    return None


def _find_program(repository: Repository, framework: Framework, texts: dict[str, str]) -> str:
    """Return the training script that regbot can run unmodified; '' if there is none.

    A repository may have several scripts for Megatron. Scripts that belong to a copy of Megatron in a subfolder come
    last. Among the others, ``pretrain_gpt.py`` at the root comes first, and then the script with the fewest parent
    folders.
    """
    if framework == "megatron-bridge":
        return BRIDGE_PROGRAM if repository.has(BRIDGE_PROGRAM) else ""
    if framework != "megatron":
        return ""
    scripts = [name for name, text in texts.items() if not _is_test(name) and _imports_pretrain(text)]
    megatron_scripts = [
        name for name in repository.names_ending(MEGATRON_PROGRAM) if PurePosixPath(name).name == MEGATRON_PROGRAM
    ]

    def rank(name: str) -> tuple[bool, bool, int, str]:
        """Return a sort key that puts the best script first. False sorts before True."""
        path = PurePosixPath(name)
        is_at_root = str(path.parent) == "."
        is_copy = not is_at_root and (path.name == MEGATRON_PROGRAM or _is_vendored(repository, path))
        return is_copy, path.name != MEGATRON_PROGRAM, name.count("/"), name

    return min({*scripts, *megatron_scripts}, key=rank, default="")


def _is_vendored(repository: Repository, path: PurePosixPath) -> bool:
    """Return whether a parent folder of ``path``, other than the repository's root, contains a copy of Megatron."""
    return any(repository.has(f"{folder}/megatron/core/__init__.py") for folder in path.parents if str(folder) != ".")


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    return "tests" in path.parts or path.name.startswith("test_")


def _imports_pretrain(text: str) -> bool:
    """Return whether a module imports Megatron's function ``pretrain``, which a training script calls."""
    if "pretrain" not in text:  # most files need no parsing
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module in _PRETRAIN_MODULES
        and any(alias.name == "pretrain" for alias in node.names)
        for node in ast.walk(tree)
    )


def _recipe(root: str, texts: dict[str, str]) -> str:
    """Return the name of a recipe of Bridge for one of regbot's shapes; '' if there is none.

    A recipe is a function without required parameters. ``root`` is the source root, with a final /, or ''.

    A recipe for 16 H100 is best: the shape's mesh has 16 ranks with EP 16, and the paper GPU is an H100 by default.
    Of several recipes for the same GPUs, the one with the shortest name is used.
    """
    files = [name for name in texts if name.startswith(f"{root}megatron/bridge/") and "recipes/" in name]
    recipes: list[str] = []
    for file in sorted(files):
        recipes += [
            function.name
            for function in _functions(texts[file])
            if _RECIPE.fullmatch(function.name) and not _has_required_parameter(function)
        ]
    return min(recipes, key=lambda recipe: ("_16gpu_" not in recipe, "_h100_" not in recipe, len(recipe)), default="")


def _functions(text: str) -> Iterator[ast.FunctionDef]:
    """Yield the module-level functions of a Python file. Yield none if it cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _has_required_parameter(function: ast.FunctionDef) -> bool:
    """Return whether a call of ``function`` without arguments would fail."""
    parameters = function.args
    required_count = len(parameters.posonlyargs) + len(parameters.args) - len(parameters.defaults)
    has_required_keyword = None in parameters.kw_defaults  # a keyword-only parameter without a default
    return required_count > 0 or has_required_keyword


def _find_used(repository: Repository, texts: dict[str, str]) -> dict[Framework, Stack]:
    """Return the frameworks that the repository requires or imports. The evidence is the file that does so.

    ``texts`` has the repository's Python files by name."""
    stacks: dict[Framework, Stack] = {}
    for file, distribution_name in requirements(repository):
        required = _DISTRIBUTIONS.get(distribution_name)
        if required is not None:
            evidence = f"{file} requires {distribution_name}"
            stacks.setdefault(required, Stack(required, own=False, evidence=evidence))
    for file, text in sorted(texts.items()):
        for module in _IMPORT.findall(text):
            imported = _IMPORTED[module]
            stacks.setdefault(imported, Stack(imported, own=False, evidence=f"{file} imports {module}"))
    if "megatron" in stacks:
        stacks["megatron"] = replace(stacks["megatron"], program=_find_program(repository, "megatron", texts))
    return stacks


# ---- requirements


def requirements(repository: Repository) -> list[tuple[str, str]]:
    """Return ``(file, distribution)`` for each requirement in project metadata and requirements files.

    Project metadata is read only at the root of the repository and in the folders directly in it."""
    required = []
    # For each file name, the function that reads such a file and returns the lines that may be requirements.
    readers = dict.fromkeys(("setup.cfg", "environment.yml"), _read_lines)
    readers |= {"pyproject.toml": _read_pyproject, "setup.py": _read_setup}
    for file in repository.names_ending(*readers, ".txt", ".in"):
        reader = readers.get(PurePosixPath(file).name) if file.count("/") <= 1 else None
        if reader is None and REQUIREMENTS.fullmatch(file):
            reader = _read_lines
        text = repository.read(file) if reader is not None else None
        if reader is not None and text is not None:
            distributions = filter(None, map(distribution, reader(text)))
            required += [(file, name) for name in distributions]
    return required


def distribution(line: str) -> str:
    """Return the normalised name of the distribution that a line requires; '' if the line is no requirement.

    A line may be a list item of environment.yml, such as ``- torchtitan==0.2``. Its hyphen is removed.
    """
    text = line.partition(" #")[0].strip().lstrip("-").strip()
    url_match = _NAME_IN_URL.search(text)
    is_only_url = "://" in text and " @ " not in text  # "NAME @ URL" is a requirement with a name
    if url_match is not None and is_only_url:
        return canonicalize_name(url_match["name"])
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return ""


def _read_lines(text: str) -> list[str]:
    return text.splitlines()


def _read_pyproject(text: str) -> list[str]:
    """Return the requirements in a pyproject.toml: of the project, its extras, its dependency groups, and poetry."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    project, tool = _table(document.get("project")), _table(document.get("tool"))
    poetry = _table(tool.get("poetry"))
    dependency_lists = [project.get("dependencies"), *_table(project.get("optional-dependencies")).values()]
    dependency_lists += _table(document.get("dependency-groups")).values()
    required: list[str] = []
    for dependencies in dependency_lists:
        if isinstance(dependencies, list):
            required += [line for line in dependencies if isinstance(line, str)]
    required += _table(poetry.get("dependencies"))  # poetry maps names to versions
    for group in _table(poetry.get("group")).values():
        required += _table(_table(group).get("dependencies"))
    return required


def _read_setup(text: str) -> list[str]:
    """Return all string constants in a setup.py, because its requirements are among them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _table(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a table of a TOML file; otherwise an empty table."""
    return value if isinstance(value, dict) else {}
