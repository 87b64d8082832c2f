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
    """Return the top-level modules of a package. If one of them has the name of the package, return only that one.

    ``files`` are the installed files, relative to the folder of packages.
    """
    ignored_names = {*sys.stdlib_module_names, *COMPANIONS, "__pycache__"}
    names = set()
    for file in files:
        is_in_folder = len(file.parts) > 1
        top_name = file.parts[0] if is_in_folder else inspect.getmodulename(file.name) or ""
        if top_name.isidentifier() and top_name not in ignored_names:
            names.add(top_name)
    same_name = [name for name in names if canonical_name(name) == canonical_name(package)]
    return same_name or sorted(names)


def import_locations(name: str) -> list[str]:
    """Return the locations that ``import name`` would use, without importing anything; [] if there is no such module.

    The location is a file. A namespace package has no file, but one or more folders.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    is_namespace = spec.origin is None and spec.submodule_search_locations is not None
    return list(spec.submodule_search_locations or []) if is_namespace else [str(spec.origin)]


def has_only_libraries(files: list[PurePosixPath]) -> bool:
    """Return whether a package contains shared libraries and no Python code, as the NCCL package does.

    torch loads such a library by its path and does not import the package. So the import path does not decide which
    version of the library is used.
    """
    has_code = any(file.suffix == ".py" and file.name != "__init__.py" for file in files)
    has_libraries = any(re.fullmatch(r"lib.+\.so(\.\d+)*", file.name) for file in files)
    return has_libraries and not has_code


def build_report(package: str) -> dict[str, object]:
    """Return the fields of ``_InterpreterReport`` in ``environments.py``, which explains them."""
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
        "names": {name: import_locations(name) for name in import_names(package, files)},
        "libraries_only": has_only_libraries(files),
    }


if __name__ == "__main__":
    sys.path[:1] = sys.argv[2:]  # replace the folder of this file, which Python puts first
    sys.stdout.write(json.dumps(build_report(sys.argv[1])))
