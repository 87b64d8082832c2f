"""Cut long text. An ellipsis marks the cut, so that readers see that something is missing."""

LABEL_CHARACTERS = 500
"""Largest length of a name, title or other label in a record."""
MESSAGE_CHARACTERS = 4000
"""Largest length of a sentence or paragraph in a record."""
COMMIT_CHARACTERS = 12
"""Number of digits of a shortened commit hash. 12 digits are unique even in very large repositories."""


def clip(text: str, characters: int) -> str:
    """Return ``text`` cut to at most ``characters`` characters. The ellipsis of a cut counts as one of them."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def clip_ends(text: str, characters: int) -> str:
    """Return ``text`` cut in the middle: the beginning of an error says what failed, and its end what to do."""
    if len(text) <= characters:
        return text
    half = (characters - 1) // 2
    return f"{text[: characters - 1 - half]}…{text[-half:]}"


def clip_label(text: str) -> str:
    """Return ``text`` cut to ``LABEL_CHARACTERS``."""
    return clip(text, LABEL_CHARACTERS)


def clip_message(text: str) -> str:
    """Return ``text`` cut to ``MESSAGE_CHARACTERS``."""
    return clip(text, MESSAGE_CHARACTERS)


def clip_line(text: str, characters: int) -> str:
    """Return ``text`` on one line of at most ``characters``, with single spaces. Only its beginning is split into
    words, because a text from a pull request may be very long."""
    beginning = text[: 4 * characters]
    return clip(" ".join(beginning.split()), characters)


def short_commit(commit: str) -> str:
    """Return the first ``COMMIT_CHARACTERS`` digits of a commit hash."""
    return commit[:COMMIT_CHARACTERS]
