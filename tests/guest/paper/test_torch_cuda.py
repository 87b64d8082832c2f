"""``torch.cuda`` on a paper GPU: what works, and the refusal of everything that it lacks."""

from pathlib import Path
from typing import Any

import pytest

from support.paper_runs import read_answer

REFUSED_OTHERWISE = ("torch.cuda.sparse.", "torch.cuda.graphs.make_graphed_callables")
"""Names whose refusals have other words: sparse tensors, and a graph outside of the counted steps."""


@pytest.fixture(scope="module")
def answer(paper_library: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = read_answer(paper_library, "torch_cuda.py")
    return recorded


def test_every_public_name_of_torch_cuda_works_or_is_refused_by_name(answer: dict[str, Any]) -> None:
    outcomes: dict[str, str] = answer["outcomes"]
    wrong = {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome != "works"
        and not (outcome.startswith("refused: torch.cuda.") and "was called: the paper GPU has no" in outcome)
        and not (outcome.startswith("refused: ") and name.startswith(REFUSED_OTHERWISE))
    }
    assert wrong == {}
    for name in ("memory_snapshot", "utilization", "MemPool", "current_blas_handle", "comm.broadcast", "FloatStorage"):
        assert outcomes[f"torch.cuda.{name}"].startswith(f"refused: torch.cuda.{name} was called"), name
    for name in ("memory_summary", "get_rng_state_all", "nvtx.range_push", "profiler.start", "is_tf32_supported"):
        assert outcomes[f"torch.cuda.{name}"] == "works", name


def test_a_program_that_goes_on_without_sensors_is_traced(answer: dict[str, Any]) -> None:
    names = ["utilization", "temperature", "power_draw", "clock_rate", "device_memory_used", "list_gpu_processes"]
    assert answer["sensors"] == {"missing": names, "refusals": []}
