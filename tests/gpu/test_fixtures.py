"""Fixtures of ``benchmarks/first_hour.py`` from a GPU, and what doctor and the documentation say about missing ones."""

import gzip
import json
import re
from pathlib import Path

import pytest
from gpu_hour.stages import STAGES

from regbot.cli.doctor.diagnosis import EMPTY_GPU_TABLES, examine

FIXTURES = sorted(Path(__file__).parent.glob("*.json.gz"))
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "operator.md"
NOTHING_HAS_RUN = "No part of regbot has run on a GPU yet"
"""Sentence of the pages that holds until the first fixture is there."""


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_what_a_gpu_showed_agrees_with_what_was_expected(path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["settings"]["device"] == "cuda"
    assert document["settings"]["size"] == "smoke"
    assert [row for row in document["rows"] if row["agrees"] is False] == []


def test_doctor_and_the_documentation_list_the_stages_without_a_fixture() -> None:
    recorded = {path.name.partition(".")[0] for path in FIXTURES}
    missing = [name for name in STAGES if name not in recorded]
    assert list(EMPTY_GPU_TABLES) == missing
    rows = [line.split("|")[1:4] for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    empty = [name.strip(" `") for name, _, state in rows if state.strip() == "empty"]
    assert empty == missing


def test_the_limits_in_the_readme_list_the_stages_without_a_fixture() -> None:
    limits = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it does not do\n")[2].partition("\n## ")[0]
    )
    (item,) = [item for item in limits.split("\n- ") if "docs/operator.md#on-a-gpu" in item]
    named = [word for word in re.findall(r"`([a-z]+)`", item) if word in STAGES]
    assert named == [name for name in STAGES if name in EMPTY_GPU_TABLES]
    for page in (item, DOCS.read_text(encoding="utf-8")):
        assert (NOTHING_HAS_RUN in page) is (not FIXTURES), "the page says what the fixtures show"


def test_doctor_says_what_has_not_met_a_gpu() -> None:
    (check,) = [check for check in examine().checks if check.name == "measured on a GPU"]
    assert check.ok is not bool(EMPTY_GPU_TABLES)
    assert all(name in check.detail for name in EMPTY_GPU_TABLES)
