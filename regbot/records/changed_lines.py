"""The hunks of the diff between two commits, to find out which of them touches a source line."""

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Count, Text

MAX_HUNKS = 100_000
Side = Literal["base", "head"]


class Hunk(Record):
    """Lines of one place in both commits. A side without lines begins behind the line before the place."""

    base_line: Count
    base_count: Count
    head_line: Count
    head_count: Count

    def lines(self, side: Side) -> range:
        first, count = (self.base_line, self.base_count) if side == "base" else (self.head_line, self.head_count)
        return range(first, first + count)


class ChangedFile(Record):
    """One file of the diff, also if it was renamed. A path is '' in the commit that lacks the file."""

    base: Text
    head: Text
    hunks: list[Hunk] = Field([], description="in the order of the lines")

    def path(self, side: Side) -> str:
        return self.base if side == "base" else self.head


class ChangedLines(Record):
    """The diff from base to head, without context."""

    files: Annotated[list[ChangedFile], Field(max_length=10_000)]

    @cached_property
    def _files_by_path(self) -> dict[tuple[Side, str], ChangedFile]:
        sides: tuple[Side, Side] = ("base", "head")
        return {(side, file.path(side)): file for file in self.files for side in sides if file.path(side)}

    def find(self, side: Side, path: str, first: int, last: int) -> Iterator[tuple[ChangedFile, Hunk]]:
        """Yield the hunks that touch the lines ``first`` to ``last`` of a file, also those between two of the lines."""
        file = self._files_by_path.get((side, path))
        hunks = file.hunks if file is not None else []
        place = bisect_left(hunks, first, key=lambda hunk: max(hunk.lines(side).start, hunk.lines(side).stop - 1))
        for hunk in hunks[place:]:
            lines = hunk.lines(side)
            if lines.start > last:
                return
            is_before_first = not lines and lines.start == first
            if file is not None and not is_before_first:
                yield file, hunk
