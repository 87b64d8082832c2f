"""Fixtures of ``benchmarks/first_hour.py`` from a GPU, and what doctor says about missing ones."""

import gzip
import json
from pathlib import Path

import pytest
from gpu_hour.stages import STAGES

from regbot.cli.doctor.diagnosis import EMPTY_GPU_TABLES, examine

FIXTURES = sorted(Path(__file__).parent.glob("*.json.gz"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_what_a_gpu_showed_agrees_with_what_was_expected(path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["settings"]["device"] == "cuda"
    assert document["settings"]["size"] == "smoke"
    assert [row for row in document["rows"] if row["agrees"] is False] == []


def test_doctor_lists_the_stages_without_a_fixture() -> None:
    recorded = {path.name.partition(".")[0] for path in FIXTURES}
    assert list(EMPTY_GPU_TABLES) == [name for name in STAGES if name not in recorded]
    (check,) = [check for check in examine().checks if check.name == "measured on a GPU"]
    assert check.ok is not bool(EMPTY_GPU_TABLES)
    assert all(name in check.detail for name in EMPTY_GPU_TABLES)
