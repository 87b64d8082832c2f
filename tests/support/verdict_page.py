"""The page of a verdict as a reader sees it: the dots of its plots and the cells of its tables; and the throughput
section."""

from html.parser import HTMLParser

from regbot.records.verdict import Throughput, Verdict


class Page(HTMLParser):
    """The dots and the tables of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.dots: list[dict[str, str | None]] = []
        """The runs of the plots in session order."""
        self._tables: list[list[list[str]]] = []
        """The cells of each table, the first row being its header."""
        self._is_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "g" and "data-run" in attributes:
            self.dots.append(attributes)
        elif tag == "table":
            self._tables.append([])
        elif tag == "tr":
            self._tables[-1].append([])
        elif tag in ("td", "th"):
            self._tables[-1][-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self._tables[-1][-1][-1] += data

    def rows(self, first: str, last: str) -> list[list[str]]:
        """Return the rows of all tables whose header begins with ``first`` and ends with ``last``."""
        tables = [table for table in self._tables if (table[0][0], table[0][-1]) == (first, last)]
        return [row for table in tables for row in table[1:]]

    @property
    def runs(self) -> list[list[str]]:
        """The cells of every timed run: run, arm, block, outcome, median step, mean step, counts as."""
        return self.rows("run", "counts as")


def section_of(verdict: Verdict) -> Throughput:
    section = verdict.workloads[0].throughput
    assert section is not None
    return section
