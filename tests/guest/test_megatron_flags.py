"""The command line with which Megatron-LM's own script is started: flags of the shape, the mesh and the user."""

from typing import Any

import pytest

from regbot.shapes import load_shape
from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_lm import command_line
from regbot_guest.request import Geometry, Request


def flags(config: dict[str, Any], world: int = 16) -> dict[str, str]:
    """Values by flag; '' for a flag without a value."""
    variant = load_shape("mixtral-8x7b").variant("full")
    request = Request(
        request="x",
        workload="mixtral-8x7b@1/ep",
        variant="full",
        record="raw.json",
        root="checkout",
        geometry=Geometry(**variant.geometry.model_dump()),
        world=world,
        ep=8,
        adapter="megatron",
        program="pretrain_gpt.py",
        config=config,
    )
    values: dict[str, str] = {}
    for word in command_line(request):
        if word.startswith("--"):
            name = word
            values[name] = ""
        else:
            values[name] = f"{values[name]} {word}".strip()
    return values


def test_a_flag_may_be_written_with_dashes_or_with_underscores() -> None:
    keys = ("tensor-model-parallel-size", "tensor_model_parallel_size")
    dashes, underscores = (flags({key: 2, "recompute-granularity": "full"}) for key in keys)
    assert dashes == underscores
    assert dashes["--tensor-model-parallel-size"] == "2"
    assert dashes["--global-batch-size"] == "8", "ranks of one tensor-parallel group work on the same micro-batch"


def test_the_index_of_the_samples_of_a_thousand_ranks_fits_into_memory() -> None:
    """Megatron makes it before the first step. It takes about 45 bytes for each sample of the training."""
    values = flags({}, world=1024)
    assert int(values["--train-iters"]) * int(values["--global-batch-size"]) * 45 < 2**29


def test_a_list_becomes_several_words() -> None:
    assert flags({"recompute_modules": "moe layernorm"})["--recompute-modules"] == "moe layernorm"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num-layers": 2}, r"config\.num-layers cannot be set: it is fixed by the shape"),
        ({"moe-token-dispatcher-type": "flex"}, "set 'dispatcher' of the workload"),
        ({"--num-layers": 2}, r"config\.--num-layers is not a flag"),
        ({"num-layers=2": True}, r"config\.num-layers=2 is not a flag"),
        ({"recompute_method": "block --num-layers 2"}, "contains another flag"),
        ({"context-parallel-size": 2, "context_parallel_size": 4}, "sets --context-parallel-size twice"),
        ({"context-parallel-size": "two"}, "must be a number of ranks, not 'two'"),
        ({"tensor-model-parallel-size": "0"}, "must be a number of ranks, not '0'"),
    ],
)
def test_a_key_that_would_change_the_shape_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message) as refusal:
        flags(config)
    assert refusal.value.kind == "config"
