"""An Nsight Systems sqlite export as rows: opened so that nothing in it can run, read table by table.

The schema varies by version, so columns are looked up by name and those that are missing read as None. Views, virtual
tables and triggers are not used, text is capped, and a query that takes too long is given up. The file is opened as
it lies there: no journal is applied, no lock taken.
"""

import re
import sqlite3
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from regbot.ledgers.readers.kernels import Communication, classify
from regbot.ledgers.readers.nsys_ranges import Range
from regbot.ledgers.readers.source import Source

MAX_ROWS = 20_000_000
"""Kernels and ranges that are looked at: some hundred steps of a rank."""
MAX_MILLIONS = 2_000
"""Million steps of SQLite's machine after which the file is given up."""
MAX_TEXT = 2**20

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RANGES = "NVTX_EVENTS"
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
"""Of ENUM_NSYS_EVENT_TYPE."""


def opened(source: Source) -> sqlite3.Connection:
    """The database, read-only. Raises sqlite3.Error."""
    database = sqlite3.connect(f"{source.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "cache_size=-16384"):
        database.execute(f"PRAGMA {pragma}")
    millions = count(1)
    database.set_progress_handler(lambda: next(millions) > MAX_MILLIONS, 1_000_000)
    return database


class Kernel(NamedTuple):
    """One kernel. Times in nanoseconds; ``process`` is 0 where the version does not tell."""

    start: int
    end: int
    device: int
    process: int
    use: Communication | None
    name: str
    in_graph: bool


class Export:
    """The tables of one export, columns looked up by name because the schema varies by version."""

    def __init__(self, source: Source, database: sqlite3.Connection) -> None:
        self._source, self._database = source, database
        wanted = (_KERNELS, _RANGES, "StringIds")
        rows = database.execute("SELECT name, type, sql FROM sqlite_master").fetchmany(10_000)
        self._columns: dict[str, set[str]] = {}
        for name, kind, sql in rows:
            if name in wanted and kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL"):
                self._columns[name] = {str(row[1]) for row in database.execute(f"PRAGMA table_info({name})")}
        if _KERNELS not in self._columns and _RANGES not in self._columns:
            raise source.error(
                "is an SQLite database, but no Nsight Systems export: it has neither kernels nor NVTX ranges; "
                "nsys export --type sqlite REPORT.nsys-rep writes one"
            )
        self._names: dict[int, str] = {}

    def has(self, table: str) -> bool:
        return table in self._columns

    def _select(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, None for columns that this version does not have."""
        there = self._columns[table]
        listed = ", ".join(f'"{column}"' if column in there else "NULL" for column in columns)
        for number, row in enumerate(self._database.execute(f'SELECT {listed} FROM "{table}"')):
            if number >= MAX_ROWS:
                raise self._source.error(f"has more than {MAX_ROWS:,} rows in {table}; record fewer steps")
            yield row

    def name(self, identity: object) -> str:
        """A string of StringIds."""
        if not isinstance(identity, int) or not self.has("StringIds"):
            return ""
        if identity not in self._names:
            if len(self._names) > 2**20:
                raise self._source.error("has more than a million names; it is no export of a training job")
            row = self._database.execute('SELECT value FROM "StringIds" WHERE id = ?', (identity,)).fetchone()
            self._names[identity] = str(row[0]) if row else ""
        return self._names[identity]

    def kernels(self) -> Iterator[Kernel]:
        if not self.has(_KERNELS):
            return
        columns = ("start", "end", "deviceId", "globalPid", "demangledName", "shortName", "graphNodeId")
        for start, end, device, process, demangled, short, node in self._select(_KERNELS, *columns):
            span = _span(start, end)
            if span is None:
                raise self._source.error("has kernels without times; export it again")
            name = self.name(demangled) or self.name(short)
            owner = process >> 24 if isinstance(process, int) else 0
            graph = isinstance(node, int) and node != 0
            yield Kernel(*span, device if isinstance(device, int) else 0, owner, classify(name), name, graph)

    def ranges(self) -> list[Range]:
        """NCCL's own ranges: those of its domain, or named after its functions where no domain is named so."""
        if not self.has(_RANGES):
            return []
        columns = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "jsonText", "jsonTextId")
        found: list[Range] = []
        domains: set[object] = set()
        for start, end, kind, text, text_id, thread, domain, given, given_id in self._select(_RANGES, *columns):
            name = text if isinstance(text, str) and text else self.name(text_id)
            if kind == _DOMAIN and name in ("NCCL", "RCCL"):
                domains.add(domain)
            span = _span(start, end)
            if kind in (_PUSH_POP, _START_END) and span is not None and re.match(r"nccl[A-Z]", name):
                payload = given if isinstance(given, str) else self.name(given_id)
                found.append(Range(span[0], span[1], thread if isinstance(thread, int) else 0, name, payload, domain))
        return [one for one in found if not domains or one.domain in domains]


def _span(start: object, end: object) -> tuple[int, int] | None:
    """Nanoseconds from start to end; None where the export has no usable pair."""
    if isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < 2**62:
        return start, end
    return None
