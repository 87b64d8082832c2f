"""Shapes: their numbers are frozen, their derived numbers agree with what is published."""

import pytest
from pydantic import ValidationError

from regbot.shapes import Parallelism, ShapeError, load_shape, shape_names


def test_the_two_shapes_of_every_check_come_first() -> None:
    assert shape_names()[:2] == ["qwen3-30b-a3b", "mixtral-8x7b"]
    assert {"mixtral-8x22b", "qwen3-235b-a22b"} <= set(shape_names())


@pytest.mark.parametrize(
    ("name", "size", "numbers"),
    [
        ("qwen3-30b-a3b", "full", (48, 2048, 32, 4, 128, True, 128, 8, 768, 151936, 4096, 1)),
        ("qwen3-30b-a3b", "smoke", (8, 2048, 32, 4, 128, True, 128, 8, 768, 151936, 4096, 1)),
        ("qwen3-30b-a3b", "cpu", (2, 128, 8, 1, 16, True, 128, 8, 64, 2048, 256, 2)),
        ("mixtral-8x7b", "full", (32, 4096, 32, 8, 128, False, 8, 2, 14336, 32000, 4096, 1)),
        ("mixtral-8x7b", "smoke", (4, 4096, 32, 8, 128, False, 8, 2, 14336, 32000, 4096, 1)),
        ("mixtral-8x7b", "cpu", (2, 128, 8, 2, 16, False, 8, 2, 448, 2048, 256, 2)),
        ("mixtral-8x22b", "full", (56, 6144, 48, 8, 128, False, 8, 2, 16384, 32768, 4096, 1)),
        ("qwen3-235b-a22b", "full", (94, 4096, 64, 4, 128, True, 128, 8, 1536, 151936, 4096, 1)),
    ],
)
def test_version_1_of_a_shape_never_changes(name: str, size: str, numbers: tuple[int, ...]) -> None:
    g = load_shape(f"{name}@1").variant(size).geometry
    assert numbers == (
        g.layers, g.hidden, g.heads, g.kv_heads, g.head_dim, g.qk_norm, g.experts, g.top_k, g.expert_width,
        g.vocabulary, g.sequence, g.micro_batch,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size", "mesh", "world", "ep"),
    [
        ("qwen3-30b-a3b", "full", "ep", 16, 16),
        ("qwen3-30b-a3b", "full", "ep-dp", 64, 16),
        ("qwen3-30b-a3b", "smoke", "ep", 8, 8),
        ("qwen3-30b-a3b", "cpu", "ep", 2, 2),
        ("mixtral-8x7b", "full", "ep", 8, 8),
        ("mixtral-8x7b", "full", "ep-dp", 16, 8),
        ("mixtral-8x7b", "smoke", "ep", 8, 8),
        ("mixtral-8x7b", "cpu", "ep", 2, 2),
    ],
)
def test_every_shape_has_its_two_meshes(name: str, size: str, mesh: str, world: int, ep: int) -> None:
    meshes = load_shape(name).meshes[size]  # type: ignore[index]
    found = meshes[mesh]  # type: ignore[index]
    assert (found.world_size, found.ep, found.name) == (world, ep, mesh)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # In billions, as the model cards say; active weights there include the embedding.
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("mixtral-8x7b", 46.7, 12.9),
        ("mixtral-8x22b", 140.6, 39.1),
        ("qwen3-235b-a22b", 235.1, 22.2),
    ],
)
def test_parameters_agree_with_the_published_models(name: str, total: float, active: float) -> None:
    full = load_shape(name).sizes["full"]
    embedding = full.vocabulary * full.hidden
    assert full.parameters / 1e9 == pytest.approx(total, abs=0.06)
    assert (full.active_parameters + embedding) / 1e9 == pytest.approx(active, abs=0.1)


def test_flops_are_six_per_active_weight_and_the_causal_half_of_attention() -> None:
    g = load_shape("mixtral-8x7b").sizes["full"]
    attention = 3 * 2 * 2 * g.heads * g.head_dim * g.sequence * g.layers / 2
    assert g.flops_per_token == 6 * g.active_parameters + attention
    assert g.flops_per_step == g.flops_per_token * 4096


def test_variants_are_a_size_and_a_control() -> None:
    shape = load_shape("mixtral-8x7b")
    assert shape.variant("skewed").routing == "skewed"
    assert shape.variant("skewed").size == "full"
    assert shape.variant("cpu-dense").mlp == "dense"
    assert shape.variant("cpu").dtype == "float32"
    assert shape.variant("full").dtype == "bfloat16"
    assert shape.sizes["full"].dense_width == 28672


@pytest.mark.parametrize("name", ["fat", "cpu-fat", "full-skewed-dense", ""])
def test_an_unknown_variant_lists_what_there_is(name: str) -> None:
    with pytest.raises(ShapeError, match="there are full, full-skewed"):
        load_shape("mixtral-8x7b").variant(name)


def test_a_static_shape_has_no_cpu_variant() -> None:
    with pytest.raises(ShapeError, match="no variant 'cpu'"):
        load_shape("mixtral-8x22b").variant("cpu")


@pytest.mark.parametrize("name", ["qwen4", "qwen3-30b-a3b@2", "../etc/passwd", ""])
def test_an_unknown_shape_lists_what_there_is(name: str) -> None:
    with pytest.raises(ShapeError, match=r"there are qwen3-30b-a3b|is at version 1"):
        load_shape(name)


def test_a_world_without_ep_gets_the_capped_one() -> None:
    qwen, mixtral = load_shape("qwen3-30b-a3b"), load_shape("mixtral-8x7b")
    assert qwen.parallelism("full", 1024).ep == 16
    assert qwen.parallelism("full", 4).ep == 4
    assert mixtral.parallelism("full", 256).ep == 8


@pytest.mark.parametrize(("world", "ep"), [(12, 8), (0, None), (96, 48), (24, None)])
def test_a_world_that_does_not_divide_is_refused(world: int, ep: int | None) -> None:
    with pytest.raises(ShapeError, match="divide"):
        load_shape("qwen3-30b-a3b").parallelism("full", world, ep)


def test_both_meshes_cover_the_same_ranks() -> None:
    mesh = Parallelism(tp=2, cp=1, dp=4, pp=2, etp=1, ep=4, edp=2)
    assert mesh.world_size == 16
    with pytest.raises(ValidationError, match="do not cover the same ranks"):
        Parallelism(tp=2, dp=4, etp=1, ep=4, edp=1)
