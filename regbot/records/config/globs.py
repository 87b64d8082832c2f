"""Match paths against the globs of ``regbot.toml``."""

import re
from functools import cache


def matches_glob(pattern: str, path: str) -> bool:
    """Return whether a glob matches a path from the repository's root: ``*`` within one folder, ``**`` across folders,
    ``?`` one character. ``folder/**`` also matches ``folder``, because a pull request could replace it by a link. A
    pull request chooses the path, so no part of it is tried again, as a regular expression would: the time is
    proportional to its length and to the number of wildcards."""
    positions = {0}  # where the part of the path may end that the parts of the glob so far match
    for part in _split_glob(pattern.removesuffix("/**")):
        positions = _match_part(part, path, positions)
    if pattern.endswith("/**"):  # the folder itself, and everything in it
        return any(position == len(path) or path[position] == "/" for position in positions)
    return len(path) in positions


@cache
def _split_glob(pattern: str) -> list[str]:
    """Return literal text and wildcards in turn."""
    return re.split(r"(\*\*/|\*\*|\*|\?)", pattern)


def _match_part(part: str, path: str, positions: set[int]) -> set[int]:
    """Return all ends of a match of ``part``, literal text or a wildcard, that starts at one of ``positions``."""
    match part:
        case "?":
            return {start + 1 for start in positions if path[start : start + 1] not in ("", "/")}
        case "*":
            ends: set[int] = set()
            for end in range(len(path) + 1):
                if end in positions or (end - 1 in ends and path[end - 1] != "/"):
                    ends.add(end)
            return ends
        case "**" | "**/":
            first = min(positions, default=len(path) + 1)
            further = range(first + 1, len(path) + 1)
            return positions | {end for end in further if part == "**" or path[end - 1] == "/"}
    return {start + len(part) for start in positions if path.startswith(part, start)}
