"""Counts of the smoke model on a paper GPU, compared with a derivation by hand and with the CPU program."""

import itertools
from pathlib import Path

import pytest

from support.guest_runs import MIXTRAL, QWEN, Shared, answer, ask, counts, rows, run_all, run_together

SMALL = {QWEN: {"sequence": 64, "experts": 16}, MIXTRAL: {"sequence": 64}}
VARIANTS = ("cpu", "cpu-skewed", "cpu-dense")
MESHES = {"ep": {"world": 2, "ep": 2}, "ep-dp": {"world": 4, "ep": 2}, "alone": {"world": 1, "ep": 1}}
FULL = {
    "qwen3-ep": (QWEN, 48, 16, 16),
    "qwen3-ep-dp": (QWEN, 48, 64, 16),
    "mixtral-ep": (MIXTRAL, 32, 8, 8),
    "mixtral-ep-dp": (MIXTRAL, 32, 16, 8),
}


# ---- full shapes, compared with the derivation in docs/paper-gpu.md


@pytest.fixture
def full(shared: Shared, paper_library: Path) -> Path:
    """Traces of all full shapes on all their meshes, in one process."""

    def trace(folder: Path) -> None:
        requests = [
            ask(folder, name, shape, "full", world=world, ep=ep, dispatcher="alltoall", paper=str(paper_library))
            for name, (shape, _, world, ep) in FULL.items()
        ]
        done = run_together(requests)
        assert done.returncode == 0, done.stderr

    return shared("paper-full", trace)


@pytest.mark.parametrize("name", FULL)
def test_a_full_shape_has_the_derived_collectives(full: Path, name: str) -> None:
    _, layers, world, ep = FULL[name]
    record = answer(full, name)
    dp = {
        ("all_gather", "dp", world): 2 * layers + 1,
        ("reduce_scatter", "dp", world): layers + 1,
    }
    edp = {
        ("all_gather", "edp", world // ep): 2 * layers,
        ("reduce_scatter", "edp", world // ep): layers,
    }
    expected = {("all_to_all", "ep", ep): 5 * layers, **dp, **(edp if world > ep else {})}
    assert counts(record, "kind", "axis", "group_size") == expected
    assert counts(record, "kind", "role")["all_to_all", "control"] == layers
    tokens, top_k, hidden = (record["ledger"]["config"][key] for key in ("sequence", "top_k", "hidden"))
    payloads = [e for e in record["ledger"]["entries"] if (e["kind"], e["role"]) == ("all_to_all", "payload")]
    assert {e["bytes"] // e["count"] for e in payloads} == {tokens * top_k * hidden * 2}, "every row in bfloat16, once"
    assert counts(record, "via") == {"fake": sum(expected.values())}
    assert record["ledger"]["host_reads"] == {f"layers.{layer}.moe": 1 for layer in range(layers)}
    assert record["backends"]["attention"]["executed"] == "scaled_dot_product_flash_attention"
    assert record["backends"]["grouped_gemm"]["executed"] == "sm90_kernel"


# ---- small variants, compared with the CPU program


def _requests(folder: Path, library: Path | None) -> list[Path]:
    cases = [
        *itertools.product((QWEN, MIXTRAL), VARIANTS, MESHES, ("alltoall",), ("",)),
        *itertools.product((QWEN, MIXTRAL), ("cpu",), ("ep", "ep-dp"), ("allgather",), ("",)),
        *itertools.product((QWEN, MIXTRAL), ("cpu",), ("ep",), ("alltoall",), ("natural",)),
        (QWEN, "cpu-moe", "ep-dp", "alltoall", ""),
    ]
    return [
        ask(
            folder,
            f"{shape}.{variant}.{mesh}.{dispatcher}{routing}{'.paper' if library else ''}",
            shape,
            variant,
            geometry=SMALL[shape],
            dispatcher=dispatcher,
            paper=str(library or ""),
            **MESHES[mesh],
            **({"routing": routing} if routing else {}),
        )
        for shape, variant, mesh, dispatcher, routing in cases
    ]


@pytest.fixture
def both(shared: Shared, paper_library: Path) -> Path:
    """Traces of every case on a paper GPU and as a CPU program."""

    def trace(folder: Path) -> None:
        done = run_together(_requests(folder, paper_library))
        assert done.returncode == 0, done.stderr
        run_all(_requests(folder, None))

    return shared("paper-and-cpu", trace)


@pytest.mark.slow
def test_every_variant_has_the_collectives_of_the_cpu_program(both: Path) -> None:
    names = [path.stem for path in sorted(both.glob("*.paper.json"))]
    assert len(names) == 25
    different = {}
    for name in names:
        paper, cpu = (rows(answer(both, case)) for case in (name, name.removesuffix(".paper")))
        if paper != cpu:
            different[name] = sorted(paper.items() ^ cpu.items())
    assert not different
