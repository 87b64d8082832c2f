"""What an interpreter sees: where its packages lie, and which version of one package it would import from where.

Run by the interpreter that is asked, not imported: standard library only, Python 3.10 and newer. Imports nothing of
the package itself.

    python probe.py PACKAGE [FOLDER...]

FOLDERs come first on its import path, as those of a checkout do in a launch. Prints one JSON object.
"""

import importlib.metadata
import importlib.util
import inspect
import json
import re
import sys
import sysconfig
from pathlib import Path, PurePosixPath

COMPANIONS = frozenset({"test", "tests", "doc", "docs", "example", "examples", "benchmarks", "scripts", "tools"})
"""Top-level folders that some packages bring by mistake. They clash, and nobody imports them."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def inherits() -> bool:
    """Does this virtual environment see the packages of the interpreter that it was made from?"""
    try:
        text = Path(sys.prefix, "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"(?im)^include-system-site-packages\s*=\s*true\s*$", text) is not None


def import_names(package: str, files: list[PurePosixPath]) -> list[str]:
    """The modules that a package is imported by: the one it shares its name with, else all of its own."""
    names = set()
    for file in files:
        top = file.parts[0] if len(file.parts) > 1 else inspect.getmodulename(file.name) or ""
        if top.isidentifier() and top not in sys.stdlib_module_names and top not in COMPANIONS and top != "__pycache__":
            names.add(top)
    return [name for name in names if canonical(name) == canonical(package)] or sorted(names)


def places(name: str) -> list[str]:
    """The folders and files that ``import name`` would look at, first one first. Nothing is imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    namespace = spec.origin is None and spec.submodule_search_locations is not None
    return list(spec.submodule_search_locations or []) if namespace else [str(spec.origin)]


def libraries_only(files: list[PurePosixPath]) -> bool:
    """Shared libraries and no Python code: other packages load them, by paths of their own."""
    code = any(file.suffix == ".py" and file.name != "__init__.py" for file in files)
    return not code and any(re.fullmatch(r"lib.+\.so(\.\d+)*", file.name) for file in files)


def look(package: str) -> dict[str, object]:
    seen: dict[str, object] = {
        "executable": sys.executable,
        "version": sys.version,
        "prefix": sys.prefix,
        "venv": sys.prefix != sys.base_prefix,
        "inherits": inherits(),
        "site": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
        "scripts": sorted({sysconfig.get_path("scripts"), str(Path(sys.executable).parent)}),
        "path": sys.path,
        "installed": "",
        "names": {},
        "libraries_only": False,
    }
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return seen
    files = [PurePosixPath(file) for file in found.files or []]
    return {
        **seen,
        "installed": found.version or "",
        "names": {name: places(name) for name in import_names(package, files)},
        "libraries_only": libraries_only(files),
    }


if __name__ == "__main__":
    sys.path[:1] = sys.argv[2:]  # instead of the folder of this file
    sys.stdout.write(json.dumps(look(sys.argv[1])))
