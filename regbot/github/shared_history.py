"""Ancestry and merge bases of commits, as GitHub reports them."""

from collections.abc import Iterable

from regbot.github.client import UNKNOWN_OBJECT, Forge, RefusedError

MISSING_STATUSES = (404, 422)
"""HTTP statuses that GitHub sends for an object that does not exist, or for a request that does not fit the object."""


def is_ancestor(forge: Forge, commit: str, tip: str) -> bool:
    """Return whether ``commit`` is in the history of ``tip``, a commit or branch; False for an unknown commit.

    Raises ForgeError.
    """
    try:
        return forge.merge_base(tip, commit) == commit
    except RefusedError as error:
        if error.status in MISSING_STATUSES:
            return False
        raise


def find_merge_bases(forge: Forge, tips: Iterable[str], sha: str) -> list[str]:
    """Return the merge bases of ``sha`` with ``tips``, without duplicates. A tip without a merge base is left out.
    Raises ForgeError."""
    bases = (_find_merge_base(forge, tip, sha) for tip in tips)
    return list(dict.fromkeys(base for base in bases if base))


def _find_merge_base(forge: Forge, tip: str, sha: str) -> str | None:
    try:
        return forge.merge_base(tip, sha)
    except RefusedError as error:
        if error.status == UNKNOWN_OBJECT:
            return None
        raise
