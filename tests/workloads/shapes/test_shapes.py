"""The numbers of a shape never change, and its derived numbers agree with the published models."""

import pytest
from pydantic import ValidationError

from regbot.records.meshes import Parallelism
from regbot.workloads.shapes import ShapeError, load_shape


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
    geometry = load_shape(f"{name}@1").variant(size).geometry
    assert numbers == (
        geometry.layers, geometry.hidden, geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.qk_norm,
        geometry.experts, geometry.top_k, geometry.expert_width, geometry.vocabulary, geometry.sequence,
        geometry.micro_batch,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # In billions, from the model cards. Their active weights include the embedding.
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("mixtral-8x7b", 46.7, 12.9),
    ],
)
def test_parameters_agree_with_the_published_models(name: str, total: float, active: float) -> None:
    full = load_shape(name).sizes["full"]
    embedding = full.vocabulary * full.hidden
    assert full.parameters / 1e9 == pytest.approx(total, abs=0.06)
    assert (full.active_parameters + embedding) / 1e9 == pytest.approx(active, abs=0.1)


def test_flops_are_six_per_active_weight_and_the_causal_half_of_attention() -> None:
    geometry = load_shape("mixtral-8x7b").sizes["full"]
    attention = 3 * 2 * 2 * geometry.heads * geometry.head_dim * geometry.sequence * geometry.layers / 2
    assert geometry.flops_per_token == 6 * geometry.active_parameters + attention
    assert geometry.flops_per_step == geometry.flops_per_token * 4096


def test_a_variant_name_selects_a_size_and_a_control() -> None:
    shape = load_shape("mixtral-8x7b")
    assert shape.variant("skewed").routing == "skewed"
    assert shape.variant("skewed").size == "full"
    assert shape.variant("cpu-dense").mlp == "dense"
    assert shape.variant("cpu").dtype == "float32"
    assert shape.variant("full").dtype == "bfloat16"


@pytest.mark.parametrize("name", ["qwen4", "qwen3-30b-a3b@2", "../etc/passwd", ""])
def test_an_unknown_shape_is_refused_with_the_list_of_shapes(name: str) -> None:
    with pytest.raises(ShapeError, match=r"the shapes are qwen3-30b-a3b|is at version 1"):
        load_shape(name)


@pytest.mark.parametrize(("world", "ep"), [(12, 8), (0, None), (96, 48), (24, None)])
def test_a_world_that_does_not_divide_is_refused(world: int, ep: int | None) -> None:
    with pytest.raises(ShapeError, match="divide"):
        load_shape("qwen3-30b-a3b").parallelism("full", world, ep)


def test_both_meshes_cover_the_same_ranks() -> None:
    mesh = Parallelism(tp=2, cp=1, dp=4, pp=2, etp=1, ep=4, edp=2)
    assert mesh.world_size == 16
    with pytest.raises(ValidationError, match="do not cover the same ranks"):
        Parallelism(tp=2, dp=4, etp=1, ep=4, edp=1)
