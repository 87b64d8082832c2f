"""The form of the git pathspecs in ``paths`` of a workload, and of the folders in ``sparse``. This module does not call
git.

A pathspec is relative to the root of the repository. Git's magic words are allowed, except ``attr``: git reads
attributes from ``.gitattributes`` files of a checkout, and changes are listed from two commits without a checkout.
"""

import re
from pathlib import PurePosixPath

MAGIC_WORDS = ("top", "literal", "icase", "glob", "exclude")
_LONG_MAGIC = re.compile(r":\(([^()]*)\)(.*)", re.DOTALL)
_SHORT_MAGIC = re.compile(r":([/!^]*):?(.*)", re.DOTALL)


def find_pathspec_fault(pathspec: str) -> str:
    """Return what is wrong with a pathspec and how to fix it; '' if git accepts it."""
    match = _LONG_MAGIC.fullmatch(pathspec)
    words = [word.strip() for word in match[1].split(",")] if match else []
    if unknown := [word for word in words if word not in MAGIC_WORDS]:
        return f"{pathspec!r} has the magic word {unknown[0]!r}; git's words that can be used are {_list_words()}"
    if {"glob", "literal"} <= set(words):
        return f"{pathspec!r} is both glob and literal; remove one of the two words"
    short = None if match else _SHORT_MAGIC.fullmatch(pathspec)
    if short is not None and not match and not short[1]:
        return f"{pathspec!r} begins with a colon that git would take for magic; write ':(literal){pathspec}'"
    magic = match or short
    pattern = magic[2] if magic else pathspec
    if not pattern.strip():
        return f"{pathspec!r} names no path; write a file or folder, such as 'training/'"
    if not pattern.isprintable():
        return f"{pathspec!r} has a character that cannot be printed; remove it"
    if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts:
        return f"{pathspec!r} leaves the repository; write a path relative to its root, such as 'training/'"
    return ""


def find_folder_fault(folder: str) -> str:
    """Return what is wrong with a folder of a sparse checkout and how to fix it; '' if nothing is."""
    path = PurePosixPath(folder)
    if not folder.isprintable():
        return f"{folder!r} has a character that cannot be printed; remove it"
    if path.is_absolute() or ".." in path.parts:
        return f"{folder!r} leaves the repository; write a folder relative to its root, such as 'training'"
    if not path.parts:
        return f"{folder!r} is the whole repository; remove sparse to check out all files"
    if set(folder) & set("*?[]\\") or folder.startswith((":", "!")):
        return f"{folder!r} is a pattern; write a folder, such as 'training'. Its files and subfolders belong to it"
    return ""


def _list_words() -> str:
    return ", ".join(MAGIC_WORDS)
