"""Megatron's configuration classes, of which a stand-in has the fields of another revision."""

import sys
import types
from dataclasses import dataclass

import pytest

from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_settings import construct


@dataclass
class TransformerConfig:
    """A revision that has renamed ``moe_router_topk``."""

    num_layers: int
    moe_router_top_k: int = 2


@pytest.fixture
def class_path(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    module = types.ModuleType("renamed_megatron")
    module.__dict__["TransformerConfig"] = TransformerConfig
    monkeypatch.setitem(sys.modules, "renamed_megatron", module)
    return "renamed_megatron", "TransformerConfig"


def test_a_field_that_regbot_sets_and_the_revision_renamed_is_refused_with_the_nearest(
    class_path: tuple[str, str],
) -> None:
    with pytest.raises(ContractError) as refusal:
        construct(class_path, {"num_layers": 2, "moe_router_topk": 8})
    assert refusal.value.kind == "revision"
    assert str(refusal.value) == (
        "regbot does not support this revision: Megatron's TransformerConfig has no field 'moe_router_topk', which "
        "regbot sets; the nearest fields are moe_router_top_k"
    )


def test_known_fields_make_an_object(class_path: tuple[str, str]) -> None:
    made = construct(class_path, {"num_layers": 2, "moe_router_top_k": 8})
    assert (made.num_layers, made.moe_router_top_k) == (2, 8)
