"""Record the modules that a program imported and Python did not find in a sparse checkout. A program may catch the
ImportError and run without a module that a run of the whole commit would have loaded.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

MAX_MODULES = 1000
"""Maximum number of modules in a record. The modules that were imported first are kept."""


class MissingModules(MetaPathFinder):
    """The last finder of the import system, which records modules and never finds one."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._modules: dict[str, None] = {}

    @classmethod
    def install(cls, root: Path) -> None:
        sys.meta_path.append(cls(root))

    @staticmethod
    def list_missing_modules() -> list[str]:
        """Return paths relative to the root and without suffix, such as 'mypkg/kernels' for ``mypkg.kernels``."""
        finders = [finder for finder in sys.meta_path if isinstance(finder, MissingModules)]
        return [module for finder in finders for module in finder._modules][:MAX_MODULES]

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Record where the module would lie in the root. ``path`` has the folders of its package, or is None."""
        del target  # Python passes it, and it is not needed
        _, _, name = fullname.rpartition(".")
        searched_folders = sys.path if path is None else path
        for folder in searched_folders:
            module = Path(os.path.realpath(folder or "."), name)  # '' in sys.path is the current folder
            relative = os.path.relpath(module, self._root)
            is_outside_root = relative.startswith(os.pardir)
            if not is_outside_root:
                self._modules[relative] = None
