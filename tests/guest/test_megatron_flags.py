"""The command line with which Megatron-LM's own script is started: flags of the shape, the mesh and the user."""

from types import SimpleNamespace
from typing import Any

import pytest

from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_command import make_command_line
from regbot_guest.frameworks.megatron_lm import describe_dispatcher
from regbot_guest.tally import Key
from support.guest_runs import make_request

MEGATRON = {"adapter": "megatron", "program": "pretrain_gpt.py"}


def flags(config: dict[str, Any], world: int = 16) -> dict[str, str]:
    """Values by flag; '' for a flag without a value."""
    values: dict[str, str] = {}
    for word in make_command_line(make_request(**MEGATRON, config=config, world=world)).words:
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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num-layers": 2}, r"config\.num-layers cannot be set: it is fixed by the shape"),
        ({"moe-token-dispatcher-type": "flex"}, "set 'dispatcher' of the workload"),
        ({"ddp.overlap_grad_reduce": True}, "is not a flag"),
        ({"recompute_method": "block --num-layers 2"}, "contains another flag"),
        ({"context-parallel-size": "two"}, "config: context_parallel_size must be a positive number, not 'two'"),
    ],
)
def test_a_key_that_would_change_the_shape_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message) as refusal:
        flags(config)
    assert refusal.value.kind == "config"


@pytest.mark.parametrize(
    ("where", "phase", "axis", "executed"),
    [
        ("layers.3.mlp", "forward", "ep", "alltoall"),
        ("", "backward", "tp_ep", "alltoall"),
        ("", "optimizer", "ep", "none"),
        ("layers.3.mlp", "forward", "dep", "none"),
    ],
)
def test_the_dispatcher_is_the_exchange_of_expert_layers(where: str, phase: str, axis: str, executed: str) -> None:
    """A schedule that overlaps layers calls their parts outside of the modules, so that ``where`` is empty."""
    key = Key("all_to_all", axis, 8, "bfloat16", phase, "payload", where, "fake", "")
    counter: Any = SimpleNamespace(tally=SimpleNamespace(count={key: 4}))
    backends = describe_dispatcher(make_request(**MEGATRON), counter, {"moe_token_dispatcher_type": "alltoall"})
    assert backends["dispatcher"]["executed"] == executed
