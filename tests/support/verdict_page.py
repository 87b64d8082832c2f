"""The page of a verdict as a reader sees it: dots and tables of timed runs; and the throughput section."""

from collections import defaultdict
from html.parser import HTMLParser

from regbot.records.verdict import Throughput, Verdict


class Page(HTMLParser):
    """The dots of the first plot, and the cells of the tables of timed runs and of ranks."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.dots: list[dict[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.run_ranks: dict[int, list[list[str]]] = defaultdict(list)
        """Rows of the ranks inside each row of ``rows``, by the number of that row."""
        self.arm_ranks: list[list[str]] = []
        """Rows of the table of ranks over all runs."""
        self.tables: list[str] = []
        self.feed(page)

    @property
    def table(self) -> list[list[str]] | None:
        """The table at the current place of the page."""
        if self.tables == ["runs timed"]:
            return self.rows
        if self.tables == ["runs timed", "ranks"]:
            return self.run_ranks[len(self.rows) - 1]
        return self.arm_ranks if self.tables == ["ranks"] else None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "g" and "data-run" in attributes:
            self.dots.append(attributes)
        if tag == "table":
            self.tables.append(attributes.get("class") or "")
        if self.table is not None and tag == "tr":
            self.table.append([])
        if self.table is not None and (tag == "td" or attributes.get("scope") == "row"):
            self.table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.tables.pop()

    def handle_data(self, data: str) -> None:
        if self.table and self.table[-1]:
            self.table[-1][-1] += data.strip("\n")

    @property
    def runs(self) -> list[list[str]]:
        """The cells of every run; the ends of logs are rows of their own."""
        return [row for row in self.rows if len(row) > 1]


def section_of(verdict: Verdict) -> Throughput:
    section = verdict.workloads[0].throughput
    assert section is not None
    return section
