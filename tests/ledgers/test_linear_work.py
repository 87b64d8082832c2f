"""Readers and comparisons take work and memory in proportion to their input, whatever the input contains.

If a family of inputs doubles, the work may become 2.3 times as large: twice, and a logarithm for sorting.
"""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from regbot.ledgers.patterns import compare_ledgers
from regbot.ledgers.readers import READERS, source
from regbot.records.config import ShardingThresholds, WireBandwidths
from regbot.workloads import guest_file
from regbot.workloads.guest_file import GuestFileError, run_program
from regbot.workloads.logs import FORMATS
from support.comparison_families import PAIRS, Pair
from support.reader_families import (
    FAMILIES,
    LONG_TEXTS,
    Make,
    groups_in_each_line,
    nested,
    one_long_kernel_name,
    read_any,
    recorded_on_axes_of_a_large_group,
    rows_with_strides,
)
from support.work import Work, measure_work

MAX_RATIO = 2.3
SMALL = Work(lines=5000, allocated=2**19)
"""Less work than this is not compared: buffers, and containers that grow in steps."""
MAX_LINES_PER_BYTE = 20
LONG = 100_000


def check_doubling(prepare: Callable[[int], Callable[[], object]], size: int) -> Work:
    """Compare the work for inputs of ``size`` and of twice the size, and return the latter. The work for the smallest
    input is not counted.
    """
    prepare(1)()  # fills caches
    least, once, twice = (measure_work(prepare(number)) for number in (1, size, 2 * size))
    for fixed, small, large, negligible in zip(least, once, twice, SMALL, strict=True):
        assert large - fixed <= max(MAX_RATIO * (small - fixed), negligible), f"{least}, {once}, {twice}"
    return Work(twice.lines - least.lines, twice.allocated - least.allocated)


@pytest.mark.parametrize("family", FAMILIES, ids=": ".join)
def test_a_reader_takes_twice_the_work_for_twice_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: tuple[str, str]
) -> None:
    (reader, _), (make, size) = family, FAMILIES[family]
    monkeypatch.setattr(source, "FREE_ELEMENTS", 2**12)

    def prepare(number: int) -> Callable[[], object]:
        path = tmp_path / f"file {number}"
        path.write_bytes(make(number))
        return lambda: read_any(reader, path)

    work, content = check_doubling(prepare, size), make(2 * size)
    unpacked = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    assert work.lines < MAX_LINES_PER_BYTE * max(len(unpacked), len(content))


def test_every_reader_has_families() -> None:
    assert {reader for reader, _ in FAMILIES} == {reader.NAME for reader in (*READERS, *FORMATS)}


@pytest.mark.parametrize(("make", "size"), PAIRS.values(), ids=PAIRS)
def test_a_comparison_takes_twice_the_work_for_twice_the_ledgers(make: Callable[[int], Pair], size: int) -> None:
    def prepare(number: int) -> Callable[[], object]:
        base, head = make(number)
        return lambda: compare_ledgers(base, head, ShardingThresholds(), WireBandwidths())

    check_doubling(prepare, size)


@pytest.mark.slow
@pytest.mark.parametrize("family", LONG_TEXTS, ids=": ".join)
def test_a_long_text_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: tuple[str, str]) -> None:
    """A search that begins again at each part of the text takes minutes."""
    (reader, _), path = family, tmp_path / "file"
    path.write_bytes(LONG_TEXTS[family](LONG))
    monkeypatch.setattr(guest_file, "READ_LIMIT_S", 15)
    refusal = ""
    try:
        run_program(reader, [(path, "file")], 2**30, {})
    except GuestFileError as error:
        refusal = str(error)
    assert "not read within" not in refusal


def test_arguments_nested_600_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(nested(600))
    assert "nested too deeply, in more than 64 levels" in read_any("kineto", tmp_path / "trace")


@pytest.mark.parametrize(
    ("reader", "make"),
    [
        ("kineto", rows_with_strides),
        ("hlo", groups_in_each_line),
        ("flight-recorder", recorded_on_axes_of_a_large_group),
    ],
)
def test_ranks_that_a_file_only_stands_for_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, make: Make
) -> None:
    monkeypatch.setattr(source, "FREE_ELEMENTS", 1000)
    (tmp_path / "few").write_bytes(make(2))
    (tmp_path / "many").write_bytes(make(200))
    assert read_any(reader, tmp_path / "few") == ""
    assert "stands for more than" in read_any(reader, tmp_path / "many")


PAGE_BYTES = 4096


def page_of_references(child: int) -> bytes:
    """A page of a table in SQLite's format that refers 500 times to another page."""
    cells = [struct.pack(">IBB", child, 0x80 | number >> 7, number & 0x7F) for number in range(500)]
    start = PAGE_BYTES - 6 * len(cells)
    header = struct.pack(">BHHHBI", 5, 0, len(cells), start, 0, child)
    pointers = b"".join(struct.pack(">H", start + 6 * number) for number in range(len(cells)))
    return (header + pointers).ljust(start, b"\0") + b"".join(cells)


def test_a_table_whose_pages_refer_to_each_other_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pages stand for 15 million rows."""
    data = one_long_kernel_name(60)
    pages = [data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES)]
    kernels = pages[2]  # all rows of the table
    pages[2:] = [page_of_references(child=5), pages[3], page_of_references(child=6), kernels]
    content = bytearray(b"".join(pages))
    content[28:32] = struct.pack(">I", len(pages))
    (tmp_path / "export.sqlite").write_bytes(content)
    monkeypatch.setattr(source, "FREE_ELEMENTS", 2**16)
    assert "stands for more than" in read_any("nsys", tmp_path / "export.sqlite")
