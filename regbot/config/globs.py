"""Match paths against the globs of ``regbot.toml``."""

import re
from functools import cache


def matches_glob(pattern: str, path: str) -> bool:
    """Return whether a glob matches a path from the repository's root.

    ``*`` matches within one folder, ``**`` across folders, and ``?`` one character of a name. ``folder/**`` also
    matches the path ``folder``, because a pull request could replace the folder by a link.
    """
    return _compile_glob(pattern).fullmatch(path) is not None


@cache
def _compile_glob(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.removesuffix("/**"))  # literal text and wildcards in turn
    expression = "".join(_WILDCARDS.get(part, re.escape(part)) for part in parts)
    if pattern.endswith("/**"):
        expression += "(?:/.*)?"  # the folder itself, and everything in it
    return re.compile(expression, re.DOTALL)


_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
"""Wildcards of a glob, and the regular expression for each."""
