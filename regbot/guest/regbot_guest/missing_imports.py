"""Packages that the code under test tried to import and that this interpreter lacks. Much code goes on without them, as
another program, or fails later at a line that does not name them.
"""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from regbot_guest.origin import path_in_checkout

CHAIN_LENGTH = 3
MAX_NAMED = 3
_importers: dict[str, list[str]] = {}
"""Package -> the checkout's files that were being imported or called when it was missed, the innermost first."""


class _Finder:
    """Finds nothing. Python asks the last entry of ``sys.meta_path`` for what no other one has found."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, *_: Any) -> None:
        if "." in name or name in _importers:
            return
        files: list[str] = []
        frame: Any = sys._getframe(1)
        while frame is not None and len(files) < CHAIN_LENGTH:
            file = frame.f_code.co_filename
            if "importlib" not in file and (own := path_in_checkout(Path(file), self._root)) not in files:
                if own is None and not files:  # an installed package imports it
                    return
                files += [own] if own is not None else []
            frame = frame.f_back
        _importers[name] = files


def record_missing_imports(root: Path) -> None:
    sys.meta_path.append(_Finder(root))


def describe_missing_imports(users: Collection[str]) -> list[str]:
    """Return a sentence that names the missing packages which files of ``users`` import, themselves or through others.
    Without such packages, return nothing.
    """
    missing = {name: files for name, files in _importers.items() if name not in sys.modules and {*files} & {*users}}
    names = [f"{name} (imported in {files[0]})" for name, files in list(missing.items())[:MAX_NAMED]]
    return [f"not installed: {', '.join(names)}"] if names else []


def list_class_files(model: Any, root: str) -> set[str]:
    """Return the checkout's files that define classes of modules in ``model``."""
    modules = {type(module).__module__ for module in model.modules()}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    return {own for file in files if file and (own := path_in_checkout(Path(file), Path(root))) is not None}
