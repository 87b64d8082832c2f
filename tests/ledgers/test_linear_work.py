"""Readers and comparisons take work and memory in proportion to their input, whatever the input contains.

If a family of inputs doubles, the work may become 2.3 times as large: twice, and a logarithm for sorting.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from regbot.ledgers.patterns import compare_ledgers
from regbot.ledgers.readers import source
from regbot.records.config import ShardingThresholds, WireBandwidths
from support.comparison_families import PAIRS, Pair
from support.reader_families import (
    FAMILIES,
    Make,
    groups_in_each_line,
    nested,
    read_any,
    rows_with_strides,
)
from support.work import Work, measure_work

MAX_RATIO = 2.3
SMALL = Work(lines=5000, allocated=2**19)
"""Less work than this is not compared: buffers, and containers that grow in steps."""
MAX_LINES_PER_BYTE = 20


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


@pytest.mark.parametrize(("make", "size"), PAIRS.values(), ids=PAIRS)
def test_a_comparison_takes_twice_the_work_for_twice_the_ledgers(make: Callable[[int], Pair], size: int) -> None:
    def prepare(number: int) -> Callable[[], object]:
        base, head = make(number)
        return lambda: compare_ledgers(base, head, ShardingThresholds(), WireBandwidths())

    check_doubling(prepare, size)


def test_arguments_nested_600_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(nested(600))
    assert "nested too deeply, in more than 64 levels" in read_any("kineto", tmp_path / "trace")


@pytest.mark.parametrize(
    ("reader", "make"),
    [
        ("kineto", rows_with_strides),
        ("hlo", groups_in_each_line),
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
