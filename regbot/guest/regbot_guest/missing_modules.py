"""Record the modules that a program imported and Python did not find in a sparse checkout, which lacks files of its
commit.

A program that catches the ImportError runs without the module. The trusted side compares the modules with the files
that the checkout lacks. If a module is among these files, a run of the whole commit could have loaded it.
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
    """The last finder of the import system, which records modules and never finds one.

    Python calls it only for modules that no other finder has found, so it costs nothing in a step.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._modules: dict[str, None] = {}
        """The recorded modules, as an ordered set."""

    @classmethod
    def install(cls, root: Path) -> None:
        """Record missing modules of the checkout at ``root`` from now on."""
        sys.meta_path.append(cls(root))

    @staticmethod
    def list_missing_modules() -> list[str]:
        """Return the modules that were not found, as paths relative to the root and without suffix.

        An example is 'mypkg/kernels' for the module ``mypkg.kernels``.
        """
        finders = [finder for finder in sys.meta_path if isinstance(finder, MissingModules)]
        return [module for finder in finders for module in finder._modules][:MAX_MODULES]

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Record where the module ``fullname`` would lie in the root. Returning None means that it was not found.

        ``path`` has the folders of the module's package. It is None for a module that belongs to no package.
        """
        del target  # Python passes it, and it is not needed
        _, _, name = fullname.rpartition(".")
        searched_folders = sys.path if path is None else path
        for folder in searched_folders:
            module = Path(os.path.realpath(folder or "."), name)  # '' in sys.path is the current folder
            relative = os.path.relpath(module, self._root)
            is_outside_root = relative.startswith(os.pardir)
            if not is_outside_root:
                self._modules[relative] = None
