"""The hunks of the diff between two commits, to find out which of them touches a source line."""

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Count, Text

MAX_CHANGED_FILES = 10_000
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

    files: Annotated[list[ChangedFile], Field(max_length=MAX_CHANGED_FILES)]
    unread: Count = Field(0, description="number of changed files that git could not read, which are left out")

    @cached_property
    def _files_by_path(self) -> dict[tuple[Side, str], ChangedFile]:
        sides: tuple[Side, Side] = ("base", "head")
        return {(side, file.path(side)): file for file in self.files for side in sides if file.path(side)}

    def find(
        self, side: Side, path: str, first: int, last: int, near: int, limit: int
    ) -> list[tuple[ChangedFile, Hunk]]:
        """Return the hunks that touch the lines ``first`` to ``last`` of a file, also those between two of the lines:
        at most ``limit``, the nearest to the line ``near`` first. Other hunks of the file are not visited.
        """
        file = self._files_by_path.get((side, path))
        if file is None:
            return []
        low = bisect_left(file.hunks, first, key=lambda hunk: hunk.lines(side).stop - 1)
        high = bisect_right(file.hunks, last, low, key=lambda hunk: hunk.lines(side).start)
        middle = bisect_left(file.hunks, near, low, high, key=lambda hunk: hunk.lines(side).start)
        hunks = file.hunks[max(low, middle - limit) : min(high, middle + limit)]

        def measure_distance(hunk: Hunk) -> int:
            lines = hunk.lines(side)
            return max(lines.start - near, near - lines.stop + 1, 0)

        return [(file, hunk) for hunk in sorted(hunks, key=measure_distance)[:limit]]
