"""Files of a guest are read in a process of its own, which ends at a limit of time and memory."""

import gzip
from pathlib import Path

import pytest

from regbot.ledgers.readers import READERS, Reader, Source, kineto
from regbot.workloads import guest_file
from regbot.workloads.guest_file import GuestFileError, read_ledgers
from support.mutations import samples

ROW = b'{"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": '
MANY_EVENTS = b'{"traceEvents": [' + b",".join([ROW + b"{}}"] * 250_000) + b"]}"
"""Takes several seconds to read."""
LARGE_EVENT = b'{"traceEvents": [' + ROW + b'{"a": [[]' + b",[]" * 2_000_000 + b"]}}]}"
"""Takes some hundred megabytes to read."""


@pytest.mark.parametrize(
    ("content", "limit", "value", "message"),
    [
        (MANY_EVENTS, "READ_LIMIT_S", 1, "not read within 1 s of processor time"),
        (LARGE_EVENT, "READ_LIMIT_BYTES", 2**28, "not read within 120 s of processor time and 0.25 GiB of memory"),
    ],
    ids=["time", "memory"],
)
def test_a_small_file_that_needs_much_to_read_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, limit: str, value: int, message: str
) -> None:
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(content))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(guest_file, limit, value)
    with pytest.raises(GuestFileError, match=message):
        read_ledgers(kineto, [path], 1, 2**25)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
def test_a_file_reads_as_in_the_process_of_regbot(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "recording"
    path.write_bytes(samples(tmp_path)[reader.NAME][0])
    ledger = reader.read(Source(path))
    assert read_ledgers(reader, [path, path], ledger.world_size, 2**20) == [ledger, ledger]
