"""Safe reading of the tables in an Nsight Systems sqlite export. Nothing in the file can run code.

The schema varies by version, so columns are looked up by name. Views, virtual tables, generated columns and triggers
are not used, the length of text is limited, a query that takes too long is aborted, and a table cannot have more rows
than the file has room for: the pages of a broken file can refer to each other in circles. The file is opened as
immutable: SQLite applies no journal and takes no lock."""

import re
import sqlite3
from collections.abc import Iterator
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from regbot.ledgers.readers.kernels import Communication, classify
from regbot.ledgers.readers.nsys.ranges import NvtxRange
from regbot.ledgers.readers.source import Source

MAX_ROWS = 20_000_000
"""Largest number of rows that are read from one table. It is enough for a few hundred steps of one rank."""
MAX_MILLION_INSTRUCTIONS = 2_000
"""Limit for SQLite's virtual machine, in millions of instructions. When the limit is reached, reading the file is
aborted."""
MAX_TEXT = 2**20
"""Largest number of bytes of one text or row."""
MIN_ROW_BYTES = 4
"""Smallest size of a row in a file, with its place in its page."""

UNKNOWN_PROCESS = 0
"""Process of a kernel or range if the export does not name the process."""
_THREAD_BITS = 24
"""Number of low bits of a packed id (globalTid, globalPid) that are the thread. The bits above identify the process."""
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RANGES = "NVTX_EVENTS"
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
"""Values of the enum ENUM_NSYS_EVENT_TYPE in the schema."""


def get_process(packed_id: int) -> int:
    return packed_id >> _THREAD_BITS


def open_database(source: Source) -> sqlite3.Connection:
    """Open the database in ``source`` read-only, with limits. Raises sqlite3.Error."""
    database = sqlite3.connect(f"{source.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
    # A negative cache size is in KiB.
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "cache_size=-16384"):
        database.execute(f"PRAGMA {pragma}")
    millions = count(1)
    # SQLite calls this function after every million instructions, and aborts the query when it returns True.
    database.set_progress_handler(lambda: next(millions) > MAX_MILLION_INSTRUCTIONS, 1_000_000)
    return database


class NsysKernel(NamedTuple):
    device: int
    process: int
    """The process in globalPid, or ``UNKNOWN_PROCESS``."""
    communication: Communication | None
    """How the kernel communicates; None for a compute kernel."""
    name: str
    in_graph: bool


class Export:
    """The tables of one export. Raises ReadError if the database is not an Nsight Systems export."""

    def __init__(self, source: Source, database: sqlite3.Connection) -> None:
        self._source, self._database = source, database
        tables = (_KERNELS, _RANGES, "StringIds")
        schema_rows = database.execute("SELECT name, type, sql FROM sqlite_master").fetchmany(10_000)
        self._columns: dict[str, set[str]] = {}
        """Names of the columns by table, for those of the three tables that the database has."""
        for name, kind, sql in schema_rows:
            is_new = name in tables and name not in self._columns
            if is_new and kind == "table" and "VIRTUAL" not in str(sql).upper():
                # Generated columns are not among these.
                column_rows = database.execute(f"PRAGMA table_info({name})")
                self._columns[name] = {str(column_name) for _, column_name, *_ in column_rows}
        if _KERNELS not in self._columns and _RANGES not in self._columns:
            raise source.error(
                "is an SQLite database, but not an Nsight Systems export: it has neither kernels nor NVTX ranges; "
                "nsys export --type sqlite REPORT.nsys-rep writes one"
            )

    def _select(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, if there is one. A column that this version of the schema lacks reads as None."""
        existing = self._columns.get(table)
        if existing is None:
            return
        column_list = ", ".join(f'"{column}"' if column in existing else "NULL" for column in columns)
        for number, row in enumerate(self._database.execute(f'SELECT {column_list} FROM "{table}"')):
            if number >= MAX_ROWS:
                raise self._source.error(f"has more than {MAX_ROWS:,} rows in {table}; record fewer steps")
            self._source.expand(MIN_ROW_BYTES + sum(len(value) for value in row if isinstance(value, (str, bytes))))
            yield row

    @cached_property
    def _strings(self) -> dict[object, str]:
        """Strings of the table StringIds by id. They are read in one pass, because a file can lack the index by id."""
        return {string_id: str(value) for string_id, value in self._select("StringIds", "id", "value")}

    def find_string(self, string_id: object) -> str:
        return self._strings.get(string_id, "") if isinstance(string_id, int) else ""

    def kernels(self) -> Iterator[NsysKernel]:
        columns = ("deviceId", "globalPid", "demangledName", "shortName", "graphNodeId")
        for device, global_pid, demangled_name, short_name, graph_node in self._select(_KERNELS, *columns):
            name = self.find_string(demangled_name) or self.find_string(short_name)
            yield NsysKernel(
                device=device if isinstance(device, int) else 0,
                process=get_process(global_pid) if isinstance(global_pid, int) else UNKNOWN_PROCESS,
                communication=classify(name),
                name=name,
                in_graph=isinstance(graph_node, int) and graph_node != 0,
            )

    def ranges(self) -> list[NvtxRange]:
        """Return the NVTX ranges of NCCL calls. These are the ranges named after NCCL functions. If the export has a
        domain "NCCL" or "RCCL", only ranges in this domain are returned."""
        columns = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "jsonText", "jsonTextId")
        ranges: list[NvtxRange] = []
        nccl_domains: set[object] = set()
        for row in self._select(_RANGES, *columns):
            start, end, event_type, text, text_id, global_tid, domain, json_text, json_text_id = row
            name = text if isinstance(text, str) and text else self.find_string(text_id)
            if event_type == _DOMAIN and name in ("NCCL", "RCCL"):  # this event gives a domain its name
                nccl_domains.add(domain)
            is_span = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end
            is_nccl_range = event_type in (_PUSH_POP, _START_END) and re.match(r"nccl[A-Z]", name)
            if is_nccl_range and is_span:
                payload = json_text if isinstance(json_text, str) else self.find_string(json_text_id)
                thread = global_tid if isinstance(global_tid, int) else 0
                ranges.append(NvtxRange(start, end, thread=thread, name=name, payload=payload, domain=domain))
        return [nvtx_range for nvtx_range in ranges if not nccl_domains or nvtx_range.domain in nccl_domains]
