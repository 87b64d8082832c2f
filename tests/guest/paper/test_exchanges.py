"""Collectives on a paper GPU have the same counts, bytes and known values as on real ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import Shared, run_script
from support.paper_runs import PROGRAMS, run_program

NAMES = ("plain", "uneven", "objects", "functional")


@pytest.fixture(params=[2, 4], ids=["2-ranks", "4-ranks"])
def answers(request: pytest.FixtureRequest, shared: Shared, paper_library: Path) -> list[dict[str, Any]]:
    """The answers of the paper GPU and then of every real rank."""
    ranks: int = request.param

    def exchange(folder: Path) -> None:
        done = run_program(paper_library, "exchanges.py", folder, ranks)
        assert done.returncode == 0, done.stderr
        run_script(str(PROGRAMS / "exchanges.py"), folder, ranks, ranks=ranks)

    folder = shared(f"exchanges{ranks}", exchange)
    names = ["paper", *(f"rank{rank}" for rank in range(ranks))]
    return [json.loads((folder / f"{name}.json").read_text()) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_real_ranks_exchange_and_receive_the_same(answers: list[dict[str, Any]], name: str) -> None:
    paper, *real = (answer[name] for answer in answers)
    assert paper["counted"]
    for rank, answer in enumerate(real):
        assert answer == paper, f"rank {rank}"
