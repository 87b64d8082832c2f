"""All readers of recordings: which one takes a file, packed or not, and that no file makes them do anything but
read or refuse."""

import gzip
import os
import zlib
from pathlib import Path

import pytest

from regbot.ledgers.readers import READERS, Reader, ReadError, Source, detect_reader, hlo, read_file
from regbot.ledgers.readers.tally import CallTally, EntryKey
from regbot.records.ledger import Ledger
from support.mutations import outcomes, samples

MUTATIONS = 500
PACKED = [reader for reader in READERS if reader.NAME != "nsys"]


def name_of(reader: Reader) -> str:
    return reader.NAME


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[bytes]]:
    return samples(tmp_path)


@pytest.mark.parametrize("reader", READERS, ids=name_of)
def test_a_file_is_recognised_by_what_it_holds_and_not_by_its_name(
    tmp_path: Path, files: dict[str, list[bytes]], reader: Reader
) -> None:
    path = tmp_path / "recording"
    for sample in files[reader.NAME]:
        path.write_bytes(sample)
        assert [other.NAME for other in READERS if other.recognises(Source(path).head)] == [reader.NAME]
        assert read_file(path) == read_file(path, reader.NAME)


@pytest.mark.parametrize("reader", PACKED, ids=name_of)
def test_a_packed_file_reads_like_the_file(tmp_path: Path, files: dict[str, list[bytes]], reader: Reader) -> None:
    plain, packed, twice = (tmp_path / name for name in ("plain", "packed", "twice"))
    sample = files[reader.NAME][0]
    plain.write_bytes(sample)
    packed.write_bytes(gzip.compress(sample))
    twice.write_bytes(gzip.compress(sample[:100]) + gzip.compress(sample[100:]))
    assert read_file(plain) == read_file(packed) == read_file(twice)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=name_of)
def test_a_decompression_bomb_is_refused(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "bomb.gz"
    pack = zlib.compressobj(wbits=31)
    beginning = b"SQLite format 3\x00" if reader.NAME == "nsys" else b'HloModule m {"profiling_name"'
    path.write_bytes(pack.compress(beginning) + pack.compress(bytes(2**28)) + pack.flush())
    with pytest.raises(ReadError, match=r"bomb\.gz: "):
        read_file(path, reader.NAME)


@pytest.mark.parametrize("reader", READERS, ids=name_of)
@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b"[]", b"null", b"\x00" * 4096, b"\xff\xfe\x00"], ids=repr)
def test_a_file_that_holds_nothing_is_an_error_and_not_an_empty_ledger(
    tmp_path: Path, reader: Reader, content: bytes
) -> None:
    path = tmp_path / "nothing"
    path.write_bytes(content)
    with pytest.raises(ReadError, match="nothing: "):
        read_file(path, reader.NAME)


@pytest.mark.parametrize("reader", READERS, ids=name_of)
def test_deep_nesting_is_refused(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "deep"
    path.write_bytes(b'{"header": ' * 100_000)
    with pytest.raises(ReadError):
        read_file(path, reader.NAME)


def test_a_file_of_no_format_is_refused_with_all_formats(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing that was recorded")
    with pytest.raises(ReadError) as refused:
        detect_reader(Source(path))
    assert all(f"{reader.TITLE} ({reader.NAME})" in str(refused.value) for reader in READERS)


@pytest.mark.parametrize("reader", READERS, ids=name_of)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, reader: Reader) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "gone", "cannot be read"),
        (tmp_path, "not a regular"),
        (tmp_path / "pipe", "not a"),
    ):
        with pytest.raises(ReadError, match=message):
            read_file(path, reader.NAME)


def test_more_than_the_cap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"HloModule m\n" * 1000)
    with pytest.raises(ReadError, match="contains more than 5,000 bytes"):
        hlo.read(Source(path, max_bytes=5000))


@pytest.mark.parametrize("reader", READERS, ids=name_of)
def test_damaged_files_are_read_or_refused_and_nothing_else(
    tmp_path: Path, files: dict[str, list[bytes]], reader: Reader
) -> None:
    read = refused = 0
    for outcome in outcomes(reader, files[reader.NAME], MUTATIONS, "tests", tmp_path):
        if isinstance(outcome, ReadError):
            assert str(outcome).startswith(f"{tmp_path / reader.NAME}.damaged: "), "the message names the file"
            refused += 1
        else:
            assert Ledger.model_validate_json(outcome.to_json()) == outcome
            read += 1
    assert min(read, refused) > MUTATIONS // 50, "damage that is always or never noticed tests nothing"


KEY = EntryKey("all_reduce", "ep", 8, "bfloat16", "unknown", "payload", "nccl")


def test_calls_of_unknown_and_of_equal_known_size_become_one_entry(tmp_path: Path) -> None:
    tally_of_calls = CallTally(Source(tmp_path / "dump.json"), default_size=8)
    tally_of_calls.add(KEY, 10)
    tally_of_calls.add(KEY._replace(group_size=0), 10)
    [entry] = tally_of_calls.entries()
    assert (entry.count, entry.bytes) == (2, 20)
