"""What GitHub says of the commits that two histories share."""

from collections.abc import Iterable

from regbot.forge.client import Forge, RefusedError

MISSING = (404, 422)
"""Statuses of what is not there, or not as it was asked for."""


def within(forge: Forge, commit: str, tip: str) -> bool:
    """Whether ``commit`` is in the history of ``tip``, a commit or branch; one that GitHub does not know is not. Raises
    ForgeError."""
    try:
        return forge.merge_base(tip, commit) == commit
    except RefusedError as error:
        if error.status in MISSING:
            return False
        raise


def bases(forge: Forge, tips: Iterable[str], sha: str) -> list[str]:
    """The merge bases of ``sha`` and each of ``tips``, as far as there are any, each once. Raises ForgeError."""
    found = (_merge_base(forge, tip, sha) for tip in tips)
    return list(dict.fromkeys(base for base in found if base))


def _merge_base(forge: Forge, tip: str, sha: str) -> str | None:
    try:
        return forge.merge_base(tip, sha)
    except RefusedError as error:
        if error.status == 404:
            return None
        raise
