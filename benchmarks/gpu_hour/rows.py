"""Rows of the tables of expected and seen values."""

from collections.abc import Sequence
from dataclasses import dataclass

from regbot.records.text.clip import clip
from regbot.records.text.table import columns

MAX_CHARACTERS = 200
"""Characters of a value in a table. Fixtures keep all of them."""


@dataclass(frozen=True)
class Row:
    """One line of a table. ``agrees`` is None if nothing is expected, so that the value is only shown."""

    what: str
    expected: str
    seen: str
    agrees: bool | None

    @property
    def mark(self) -> str:
        return {True: "ok", False: "DIFFERS", None: ""}[self.agrees]


def format_rows(rows: Sequence[Row]) -> str:
    """Return the table of a stage as text."""
    header = ("", "value", "expected", "seen")
    texts = [(row.mark, row.what, row.expected, clip(row.seen, MAX_CHARACTERS)) for row in rows]
    return "\n".join(columns([header, *texts]))
