"""Nsight Systems exports made for tests, with the tables and columns of the published schema (2024 to 2025)."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER, jsonText TEXT, jsonTextId INTEGER);
"""
MICROSECOND = 1000
PROCESS = 7

Kernel = tuple[str, int, int]
"""Name, start and end in microseconds."""
Call = str | tuple[str, str]
"""Name, or name and payload."""


def export(
    path: Path,
    calls: Sequence[Call] = (),
    kernels: Iterable[Kernel] = (),
    *,
    process: int = PROCESS,
    device: int = 0,
    graph: bool = False,
    domain: str = "NCCL",
) -> Path:
    """Writes, or adds to, an export: one NVTX range for each call, in order, and the kernels."""
    new = not path.exists()
    with closing(sqlite3.connect(path)) as database:
        if new:
            database.executescript(SCHEMA)
        pid, tid = process << 24, (process << 24) + process
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES (0, 75, ?, ?, 1)",
            (domain, tid),
        )
        for number, call in enumerate(calls):
            name, payload = call if isinstance(call, tuple) else (call, None)
            database.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, jsonText) "
                "VALUES (?, ?, 59, ?, ?, 1, ?)",
                (100 * number, 100 * number + 50, name, tid, payload),
            )
        for name, start, end in kernels:
            identity = abs(hash(name)) % 2**31
            database.execute("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", (identity, name))
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, 7, 1, ?, ?, ?, ?)",
                (start * MICROSECOND, end * MICROSECOND, device, pid, identity, identity, 5 if graph else None),
            )
        database.commit()
    return path
