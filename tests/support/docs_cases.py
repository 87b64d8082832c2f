"""Shared by the tests of compare docs and others."""

OMITTED = "..."


def missing(shown: str, printed: str) -> str:
    """The first shown line that does not stand where the page says: after the one before, anywhere behind ``...``."""
    lines, at, anywhere = printed.splitlines(), 0, False
    for line in shown.splitlines():
        if line == OMITTED:
            anywhere = True
            continue
        found = next((i for i in range(at, len(lines) if anywhere else at + 1) if lines[i : i + 1] == [line]), None)
        if found is None:
            return line or "(an empty line)"
        at, anywhere = found + 1, False
    return ""
