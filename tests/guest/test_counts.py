"""Counts of the smoke model: derived by hand, from a static trace, and from real ranks in two ways."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import (
    MIXTRAL,
    QWEN,
    Shared,
    answer,
    ask,
    counts,
    rows,
    run_all,
    run_script,
)

pytestmark = pytest.mark.long

SHAPES = (QWEN, MIXTRAL)
DISPATCHERS = ("alltoall", "allgather")
EP = 2
FEWER = {"sequence": 64, "experts": 16}
"""Without a grouped product each local expert runs several operators, so fewer experts make the step faster."""

# ---- static traces and real ranks


def _requests(folder: Path, world: int, mode: str) -> list[Path]:
    """The default shape on 2 ranks, and a smaller one on 4 ranks, which share its cores. The second step counts."""
    same: dict[str, Any] = {"world": world, "ep": EP, "mode": mode, "steps": 2 if mode == "static" else 1}
    fewer = {QWEN: FEWER, MIXTRAL: {"sequence": 64}} if world > 2 else {}
    return [
        ask(folder, f"{shape}.{dispatcher}.{mode}", shape, geometry=fewer.get(shape), dispatcher=dispatcher, **same)
        for shape, dispatcher in itertools.product(SHAPES, DISPATCHERS)
    ] + [ask(folder, f"{QWEN}.skewed.{mode}", QWEN, "cpu-skewed", geometry=fewer.get(QWEN), **same)]


@pytest.fixture(params=[2, 4], ids=["2-ranks", "4-ranks"])
def counted(request: pytest.FixtureRequest, shared: Shared) -> tuple[Path, int]:
    """Results of every request in a fake world and on real ranks."""
    world: int = request.param

    def count(folder: Path) -> None:
        run_script("counted.py", *_requests(folder, world, "timed"), ranks=world)
        run_all(_requests(folder, world, "static"))

    return shared(f"counted{world}", count), world


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_counts_of_real_ranks_equal_the_static_trace(counted: tuple[Path, int], shape: str, dispatcher: str) -> None:
    folder, world = counted
    traced = rows(answer(folder, f"{shape}.{dispatcher}.static"))
    kinds = {key[0] for key in traced}
    assert kinds == {"all_gather", "reduce_scatter"} | ({"all_to_all"} if dispatcher == "alltoall" else set())
    for rank in range(world):
        assert rows(answer(folder, f"{shape}.{dispatcher}.timed", rank)) == traced, f"rank {rank}"


def test_skewed_routing_has_the_traced_counts_on_every_rank_and_the_traced_bytes_on_rank_0(
    counted: tuple[Path, int],
) -> None:
    folder, world = counted
    traced = rows(answer(folder, f"{QWEN}.skewed.static"))
    assert rows(answer(folder, f"{QWEN}.skewed.timed")) == traced
    for rank in range(world):
        real = rows(answer(folder, f"{QWEN}.skewed.timed", rank))
        assert {key: n for key, (n, _) in real.items()} == {key: n for key, (n, _) in traced.items()}, f"rank {rank}"


def test_sequence_numbers_of_the_backend_advance_by_the_count(counted: tuple[Path, int]) -> None:
    folder, world = counted
    for rank in range(world):
        liveness = answer(folder, f"{QWEN}.alltoall.timed", rank)["ledger"]["liveness"]
        assert liveness["sequence_advance"] == liveness["sequence_counted"] > 0
        assert liveness["planted"] == liveness["seen"] == (2 if world == EP else 3)


def test_collectives_of_ddps_reducer_are_counted(counted: tuple[Path, int]) -> None:
    folder, world = counted
    (entry,) = json.loads((folder / "ddp.rank0.json").read_text())
    assert (entry["kind"], entry["count"], entry["bytes"]) == ("all_reduce", 1, (8 * 4 + 4) * 4)
    assert (set(entry["axis"].split("|")), entry["via"]) == ({"dp"} if world != EP else {"ep", "dp"}, "gloo")


# ---- other variants


@pytest.fixture
def variants(shared: Shared) -> Path:
    def trace(folder: Path) -> None:
        mesh: dict[str, Any] = {"world": 4, "ep": 2, "geometry": FEWER}
        run_all(
            [
                ask(folder, "balanced", **mesh),
                ask(folder, "kept", reshard_after_forward=False, **mesh),
            ]
        )

    return shared("variants", trace)


def test_parameters_kept_after_forward_are_gathered_once(variants: Path) -> None:
    layers = 2
    kept, resharded = answer(variants, "kept"), answer(variants, "balanced")
    assert counts(kept)["all_gather"] == 2 * layers + 1  # blocks and experts of each layer, and the root
    assert counts(resharded)["all_gather"] == 4 * layers + 1
    assert counts(kept)["reduce_scatter"] == counts(resharded)["reduce_scatter"] == 2 * layers + 1
