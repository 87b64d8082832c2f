"""Report which packages this interpreter sees, which version of one package it would import, and from where.

The interpreter under test runs this file; regbot does not import it. The file uses the standard library only, supports
Python 3.10 and newer, and imports nothing from the package that it reports on.

    python probe.py PACKAGE [FOLDER...]

The FOLDERs are put first on the import path, like those of a checkout in a launch. The program prints one JSON object.
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
"""Top-level folders that some packages install by mistake. Several packages install the same names, and nothing imports
them.
"""


def canonical_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sees_base_packages() -> bool:
    """Return whether this virtual environment sees the packages of its base interpreter."""
    try:
        text = Path(sys.prefix, "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"(?im)^include-system-site-packages\s*=\s*true\s*$", text) is not None


def import_names(package: str, files: list[PurePosixPath]) -> list[str]:
    """Return the modules of a package. If one module has the name of the package, return only that one."""
    names = set()
    for file in files:
        top = file.parts[0] if len(file.parts) > 1 else inspect.getmodulename(file.name) or ""
        if top.isidentifier() and top not in sys.stdlib_module_names and top not in COMPANIONS and top != "__pycache__":
            names.add(top)
    return [name for name in names if canonical_name(name) == canonical_name(package)] or sorted(names)


def import_places(name: str) -> list[str]:
    """Return the folders or the file that ``import name`` would use, in order. Nothing is imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    namespace = spec.origin is None and spec.submodule_search_locations is not None
    return list(spec.submodule_search_locations or []) if namespace else [str(spec.origin)]


def has_only_libraries(files: list[PurePosixPath]) -> bool:
    """Return whether a package contains only shared libraries. Packages that need such libraries load them by their
    path, and do not import the package.
    """
    code = any(file.suffix == ".py" and file.name != "__init__.py" for file in files)
    return not code and any(re.fullmatch(r"lib.+\.so(\.\d+)*", file.name) for file in files)


def build_report(package: str) -> dict[str, object]:
    report: dict[str, object] = {
        "executable": sys.executable,
        "version": sys.version,
        "prefix": sys.prefix,
        "venv": sys.prefix != sys.base_prefix,
        "inherits": sees_base_packages(),
        "site": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
        "scripts": sorted({sysconfig.get_path("scripts"), str(Path(sys.executable).parent)}),
        "path": sys.path,
        "installed": "",
        "names": {},
        "libraries_only": False,
    }
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return report
    files = [PurePosixPath(file) for file in distribution.files or []]
    return {
        **report,
        "installed": distribution.version or "",
        "names": {name: import_places(name) for name in import_names(package, files)},
        "libraries_only": has_only_libraries(files),
    }


if __name__ == "__main__":
    sys.path[:1] = sys.argv[2:]  # replace the folder of this file, which Python puts first
    sys.stdout.write(json.dumps(build_report(sys.argv[1])))
