"""Record the modules that were looked for and not found in a sparse checkout.

A program that catches the ImportError runs without the module. The trusted side compares the names with the files that
the checkout lacks.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

MAX_MODULES = 1000
"""Maximum number of modules in a record. The first ones are kept."""


class MissingModules(MetaPathFinder):
    """The last finder of the import system, which finds nothing. Python asks it only for modules that no other finder
    has found, so it costs nothing in a step.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._modules: dict[str, None] = {}

    @classmethod
    def install(cls, root: Path) -> None:
        sys.meta_path.append(cls(root))

    @staticmethod
    def list_installed() -> list[str]:
        """Return the modules that were not found, as paths relative to the root, without an ending."""
        finders = [finder for finder in sys.meta_path if isinstance(finder, MissingModules)]
        return [module for finder in finders for module in finder._modules][:MAX_MODULES]

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Record where ``fullname`` would lie in the root. ``path`` has the folders of its package, or is None at top
        level.
        """
        del target
        for folder in sys.path if path is None else path:
            module = Path(os.path.realpath(folder or "."), fullname.rpartition(".")[2])
            relative = os.path.relpath(module, self._root)
            if not relative.startswith(os.pardir):
                self._modules[relative] = None
