"""Random chains of operators agree on the CPU and on the paper GPU: metadata, aliases, values, what is known."""

from pathlib import Path
from typing import Any

import pytest

from paper.paper_runs import read_answer

QUICK, LONG = 300, 10_000
A_PROCESS = 2_500
"""Chains of one process, so that none takes longer than the limit of ``read_answer``."""


def failures(library: Path, first: int, count: int) -> list[Any]:
    answer = read_answer(library, "chains.py", first, count)
    assert answer["chains"] == count
    assert answer["leaked"] == 0
    found: list[Any] = answer["failures"]
    return found


def test_random_chains_agree_on_both_devices(paper_library: Path) -> None:
    assert failures(paper_library, 0, QUICK) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG, A_PROCESS))
def test_ten_thousand_random_chains_agree_on_both_devices(paper_library: Path, first: int) -> None:
    assert failures(paper_library, first, A_PROCESS) == []
