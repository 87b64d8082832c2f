"""Decide which changed files cannot affect a run, by their names and git's file modes alone.

Nothing is searched for a mention of a file, because code can load a file without naming it. Reports of a training
process do not count either: code of a pull request can forge them.
"""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from regbot.records.config.globs import matches_glob

REGULAR, EXECUTABLE, ABSENT = "100644", "100755", "000000"
"""Git's modes of a file, of a file with the executable bit, and of a path that a tree lacks."""
_DOCUMENTATION = {".md", ".rst"}
_LICENCES = {"LICENSE", "LICENSE.txt", "LICENCE", "LICENCE.txt", "COPYING", "NOTICE"}


def is_inert(path: str, modes: Collection[str], globs: Sequence[str]) -> bool:
    """Return whether a change of a file cannot affect a run. ``modes`` are those before and after the change.

    ``globs`` is the setting ``inert`` of the base: files that are inert besides documentation, and after a ``!`` files
    that are not. A link or a submodule is never inert. Executable documentation is a program.
    """
    if not {*modes} <= {REGULAR, EXECUTABLE, ABSENT}:
        return False
    if any(matches_glob(glob[1:], path) for glob in globs if glob.startswith("!")):
        return False
    is_listed = any(matches_glob(glob, path) for glob in globs if not glob.startswith("!"))
    return is_listed or (EXECUTABLE not in modes and _is_documentation(PurePosixPath(path)))


def _is_documentation(file: PurePosixPath) -> bool:
    is_setting_of_github = file.parts[0] == ".github" and file.suffix in (".yml", ".yaml")
    return file.suffix.lower() in _DOCUMENTATION or file.name in _LICENCES or is_setting_of_github
