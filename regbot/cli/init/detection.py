"""Find what regbot can trace in a repository: a function ``build_layer``, or a training framework.

Only file names and texts are read, and nothing is executed, because a cloned repository can contain anything. The names
come from git, so ignored files (environments, build output) are left out. The result is a proposal: whether it can be
traced shows only a trace.
"""

import ast
import configparser
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

import tomllib
from packaging.requirements import InvalidRequirement, Requirement

from regbot.records.config import BRIDGE_PROGRAM, MEGATRON_PROGRAM
from regbot.records.text.printable import printable
from regbot.workloads.checkout.git import CheckoutError, git, try_git
from regbot.workloads.framework_needs import FRAMEWORK_NEEDS, FrameworkNeeds, package_names

MAX_FILES = 200_000
MAX_FILE_BYTES = 1_000_000
"""A larger file is generated code or data."""
MAX_PYTHON_BYTES = 200_000_000

FUNCTION_NAME = "build_layer"
PARAMETER_COUNT = 4
"""``build_layer`` is called with config, mesh, device and dtype."""
_SECONDARY = re.compile(
    r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?|scripts?|tools|third_party|3rdparty|vendor)/"
)
"""Matches files that are probably not used for training. They come last."""

FrameworkName = Literal["torchtitan", "megatron", "megatron-bridge", "maxtext"]

_MARKERS: Mapping[FrameworkName, tuple[str, ...]] = {
    "megatron-bridge": ("megatron/bridge/__init__.py",),  # before megatron, because it may include Megatron-core
    "torchtitan": ("torchtitan/trainer.py", "torchtitan/train.py"),
    "maxtext": ("maxtext/configs/base.yml",),
    "megatron": ("megatron/core/__init__.py",),
}
"""Files of each framework's source, relative to its source root."""
_PRETRAIN = re.compile(
    r"^from[ \t]+megatron\.training(?:\.training)?[ \t]+import[ \t]*(?:\([^)]*\bpretrain\b|[^(\n]*\bpretrain\b)",
    re.MULTILINE,
)
"""Matches the import of Megatron's function ``pretrain`` in a training script without comments."""
_RECIPE = re.compile(
    r"^def[ \t]+(qwen3_30b_a3b\w*pretrain\w*|mixtral_8x7b\w*pretrain\w*)\((?:\s*\)|\*\*)", re.MULTILINE
)
"""Matches a recipe of Megatron Bridge for one of regbot's shapes, if it has no required parameter."""


@dataclass(frozen=True)
class Layer:
    """A function that can be called with the arguments of the contract in docs/module.md."""

    file: str
    root: str
    """Folder that contains the function's package, "." for the root of the repository."""
    entry: str
    """The value of the key ``entry``, such as ``mypkg.moe:build_layer``."""


@dataclass(frozen=True)
class Framework:
    """A training framework that the repository contains, or that a script of it runs."""

    name: FrameworkName
    evidence: str
    is_own: bool = True
    """Whether the repository contains the framework's source."""
    root: str = "."
    """Folder with the framework's packages, "." for the root of the repository."""
    program: str = ""
    """Training script that the adapter can run; '' if there is none."""
    recipe: str = ""
    """Recipe of Megatron Bridge; '' for other frameworks."""

    @property
    def needs(self) -> FrameworkNeeds | None:
        """What an environment for its traces needs; None if the repository does not contain its source."""
        return FRAMEWORK_NEEDS.get(self.name) if self.is_own else None

    def hosted_packages(self, repository: "Repository") -> list[str]:
        """Return arguments of pip for the hosted job. It checks the repository out into the folder ``code``.

        If the repository has a requirements.txt, this file gives the versions.
        """
        if self.needs is None:
            return []
        if "requirements.txt" in repository.name_set:
            return ["-r", "code/requirements.txt", *package_names(self.needs.packages)]
        return list(self.needs.packages)


@dataclass(frozen=True)
class Repository:
    """A work tree. ``names`` has the relative paths of all files that git does not ignore, tracked or not."""

    root: Path
    names: tuple[str, ...]

    @cached_property
    def name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    def names_ending(self, *suffixes: str) -> list[str]:
        """Return the files whose name ends with one of ``suffixes``. Files in fewer folders come first."""
        return sorted(
            (name for name in self.names if name.endswith(suffixes)), key=lambda name: (name.count("/"), name)
        )

    @cached_property
    def python_texts(self) -> dict[str, str]:
        """Texts of the Python files by name, of those in fewer folders first, up to MAX_PYTHON_BYTES."""
        texts: dict[str, str] = {}
        remaining_bytes = MAX_PYTHON_BYTES
        for name in self.names_ending(".py"):
            text = read_text(self.root, name)
            if text is not None and remaining_bytes > 0:
                texts[name] = text
                remaining_bytes -= len(text)
        return texts


def open_repository(folder: Path) -> Repository:
    """Open the repository that contains ``folder``. Raises CheckoutError if no repository contains it."""
    work_tree = try_git(folder, "rev-parse", "--is-inside-work-tree", "--show-toplevel")
    # The first line says whether the folder is in a work tree. The second line is the root of the work tree.
    is_inside, _, top_level = work_tree.out.partition("\n")
    if work_tree.code != 0 or is_inside != "true" or not top_level:
        reason = work_tree.error_line if work_tree.code != 0 else "it has no work tree"
        raise CheckoutError(
            f"{folder.resolve()}: regbot cannot be installed there: {reason}",
            "give a checkout with --repo DIR, or run 'git init' first",
        )
    root = Path(top_level.removesuffix("\n"))
    listing = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    names = [name for name in listing.split("\0") if name and printable(name) == name]
    return Repository(root, tuple(names[:MAX_FILES]))


def read_text(root: Path, name: str) -> str | None:
    """Return the text of the file ``root``/``name``; None if it cannot be read.

    It must be a regular UTF-8 file of at most MAX_FILE_BYTES. No part of its path below ``root`` may be a link.
    """
    path = root / name
    if find_link(root, name) is not None or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        return None
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def find_link(root: Path, name: str) -> str | None:
    """Return the first part of the path ``name`` below ``root`` that is a symbolic link; None if there is no link."""
    path = PurePosixPath(name)
    parts = [*reversed(path.parents), path]
    return next((str(part) for part in parts if (root / part).is_symlink()), None)


def find_layer(repository: Repository) -> Layer | None:
    """Return the best function ``build_layer``; None if there is none."""
    files = [
        file
        for file, text in repository.python_texts.items()
        if FUNCTION_NAME in text
        and _defines_layer(text)
        and all(map(str.isidentifier, _module_of(repository, file)[1]))
    ]
    if not files:
        return None
    file = min(files, key=lambda file: (bool(_SECONDARY.search(file)), file.count("/"), file))
    root, parts = _module_of(repository, file)
    return Layer(file, root, f"{'.'.join(parts)}:{FUNCTION_NAME}")


def _defines_layer(text: str) -> bool:
    """Return whether a module defines ``build_layer`` so that the contract's four arguments can be given to it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns about the user's code, such as invalid escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION_NAME:
            positional_count = len(node.args.posonlyargs) + len(node.args.args)
            required_count = positional_count - len(node.args.defaults)
            has_required_keyword = None in node.args.kw_defaults
            return required_count <= PARAMETER_COUNT <= positional_count and not has_required_keyword
    return False


def _module_of(repository: Repository, file: str) -> tuple[str, list[str]]:
    """Return the source root of a Python file, and the parts of its module's name.

    The source root is the parent of the outermost package that contains the file. If the file is in no package, it is
    the innermost folder ``src`` above the file, or else the root of the repository.
    """
    path = PurePosixPath(file)
    packages = [folder for folder in path.parents if f"{folder}/__init__.py" in repository.name_set]
    sources = [folder for folder in path.parents if folder.name == "src"]
    if packages:
        root = packages[-1].parent
    else:
        root = sources[0] if sources else PurePosixPath()
    return str(root), list(path.relative_to(root).with_suffix("").parts)


def declared_packages(repository: Repository) -> list[str]:
    """Return the names of the packages that the repository declares as its requirements, without torch and numpy.

    ``setup.py`` is not read: not all of its texts are packages, and a job that installs a wrong one runs foreign code.
    """
    lines = (read_text(repository.root, "requirements.txt") or "").splitlines()
    setup = configparser.ConfigParser(interpolation=None)
    try:
        pyproject = tomllib.loads(read_text(repository.root, "pyproject.toml") or "")
        setup.read_string(read_text(repository.root, "setup.cfg") or "")
    except (tomllib.TOMLDecodeError, configparser.Error):
        pyproject = {}
    lines += setup.get("options", "install_requires", fallback="").splitlines()
    lines += pyproject.get("project", {}).get("dependencies", [])
    lines += pyproject.get("tool", {}).get("poetry", {}).get("dependencies", {})
    names = []
    for line in lines:
        with suppress(InvalidRequirement):  # an option of pip, a comment or an empty line
            names.append(Requirement(line.partition(" #")[0]).name.lower())
    return [name for name in dict.fromkeys(names) if name not in ("torch", "numpy", "python")]


def find_framework(repository: Repository) -> Framework | None:
    """Return the training framework that the repository contains or that a script of it runs; None without one."""
    own = [framework for name in _MARKERS if (framework := _find_own(repository, name))]
    if own:
        return own[0]
    script = _find_megatron_script(repository)
    return Framework("megatron", f"{script} runs it", is_own=False, program=script) if script else None


def _find_own(repository: Repository, name: FrameworkName) -> Framework | None:
    """Return the framework if the repository contains its source. Of several copies, the outermost is used."""
    for file in repository.names_ending(*_MARKERS[name]):
        root = file.removesuffix(next(marker for marker in _MARKERS[name] if file.endswith(marker)))
        if root and not root.endswith("/"):
            continue  # only the end of a folder's name matches, as in nottorchtitan/train.py
        framework = Framework(name, f"{file} is in the repository", root=root.rstrip("/") or ".")
        if name == "megatron":
            return Framework(name, framework.evidence, root=framework.root, program=_find_megatron_script(repository))
        if name != "megatron-bridge":
            return framework
        # Bridge is traced through its own script and a recipe. Without them, Megatron-core is traced.
        recipe = _find_recipe(repository, root)
        if recipe and BRIDGE_PROGRAM in repository.name_set:
            return Framework(name, framework.evidence, root=framework.root, program=BRIDGE_PROGRAM, recipe=recipe)
    return None


def _find_megatron_script(repository: Repository) -> str:
    """Return the training script that regbot can run unmodified; '' if there is none.

    ``pretrain_gpt.py`` at the root comes first, then the script with the fewest parent folders. Tests are left out, and
    scripts of a copy of Megatron in a subfolder come last.
    """
    texts = ((name, text) for name, text in repository.python_texts.items() if "megatron.training" in text)
    scripts = [name for name, text in texts if _PRETRAIN.search(re.sub(r"#.*", "", text))]
    scripts += [name for name in repository.names if PurePosixPath(name).name == MEGATRON_PROGRAM]

    def is_in_a_copy(name: str) -> bool:
        folders = [folder for folder in PurePosixPath(name).parents if str(folder) != "."]
        return any(f"{folder}/megatron/core/__init__.py" in repository.name_set for folder in folders)

    return min(
        (name for name in scripts if not re.search(r"(?:^|/)(?:tests/|test_)", name)),
        key=lambda name: (is_in_a_copy(name), name != MEGATRON_PROGRAM, name.count("/"), name),
        default="",
    )


def _find_recipe(repository: Repository, root: str) -> str:
    """Return a recipe of Bridge for one of regbot's shapes; '' if there is none. ``root`` is '' or ends with a slash.

    A recipe for 16 H100 is best: the shape's mesh has 16 ranks with EP 16, and the paper GPU is an H100 by default. Of
    several recipes for the same GPUs, the one with the shortest name is used.
    """

    def list_recipes() -> Iterator[str]:
        for file, text in repository.python_texts.items():
            if file.startswith(f"{root}megatron/bridge/") and "recipes/" in file:
                yield from _RECIPE.findall(text)

    def rank(recipe: str) -> tuple[bool, bool, int, str]:
        return "_16gpu_" not in recipe, "_h100_" not in recipe, len(recipe), recipe

    return min(list_recipes(), key=rank, default="")
