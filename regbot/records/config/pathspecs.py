"""Check git pathspecs, without git. The magic word ``attr`` is refused: for it git
needs the ``.gitattributes`` of a checkout, and regbot lists changes between commits without one."""

import re
from pathlib import PurePosixPath

MAGIC_WORDS = ("top", "literal", "icase", "glob", "exclude")
_LONG_MAGIC = re.compile(r":\((?P<words>[^()]*)\)(?P<pattern>.*)", re.DOTALL)
"""Matches a pathspec with magic words, such as ``:(top,glob)src/**``."""
_SHORT_MAGIC = re.compile(r":(?P<signs>[/!^]*):?(?P<pattern>.*)", re.DOTALL)
"""Matches a pathspec with magic signs, such as ``:!docs``. The signs ! and ^ mean exclude, and / means top."""


def find_pathspec_fault(pathspec: str) -> str:
    """Return what is wrong with a pathspec and how to fix it; '' if nothing is. Magic is what git reads after a colon
    at the beginning: words in parentheses, or signs."""
    long_magic = _LONG_MAGIC.fullmatch(pathspec)
    words = [word.strip() for word in long_magic["words"].split(",")] if long_magic else []
    if unknown := [word for word in words if word not in MAGIC_WORDS]:
        usable = ", ".join(MAGIC_WORDS)
        return f"{pathspec!r} has the magic word {unknown[0]!r}; git's words that can be used are {usable}"
    if {"glob", "literal"} <= set(words):
        return f"{pathspec!r} is both glob and literal; remove one of the two words"
    short_magic = _SHORT_MAGIC.fullmatch(pathspec) if long_magic is None else None
    if short_magic is not None and not short_magic["signs"]:
        return f"{pathspec!r} begins with a colon that git would take for magic; write ':(literal){pathspec}'"
    magic = long_magic or short_magic
    pattern = magic["pattern"] if magic else pathspec
    if not pattern.strip():
        return f"{pathspec!r} names no path; write a file or folder, such as 'training/'"
    if not pattern.isprintable():
        return f"{pathspec!r} has a character that cannot be printed; remove it"
    if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts:
        return f"{pathspec!r} leaves the repository; write a path relative to its root, such as 'training/'"
    return ""
