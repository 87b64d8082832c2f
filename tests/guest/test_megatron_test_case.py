"""Test cases of Megatron-LM: what is read from their YAML, and the command line that it makes."""

from pathlib import Path
from typing import Any

import pytest

from regbot.records.config import BRIDGE_PROGRAM, MEGATRON_PROGRAM, Workload
from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_command import CommandLine, make_command_line
from regbot_guest.frameworks.megatron_test_case import MegatronTestCase, read_test_case
from support.guest_runs import make_request

FILE = "model_config.yaml"
SIZES = "  --num-experts: 8\n  --moe-router-topk: 2\n  --expert-model-parallel-size: 4\n"


def read(folder: Path, flags: str, before: str = "") -> MegatronTestCase:
    (folder / FILE).write_text(f"{before}MODEL_ARGS:\n{flags}", encoding="utf-8")
    return read_test_case(folder, FILE)


def command(test_case: MegatronTestCase, world: int = 16, ep: int = 4, **config: Any) -> CommandLine:
    mesh = {"world": world, "ep": ep, "config": config}
    request = make_request(adapter="megatron", program="pretrain_gpt.py", recipe=FILE, **mesh)
    return make_command_line(request, test_case)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--bf16: true", ["--bf16"]),
        ("--flag: false", ["--flag", "false"]),
        ("--seed: 010", ["--seed", "010"]),
        ('--num-layers: "4"', ["--num-layers", "4"]),
        ("--recompute-modules: [moe_act layernorm]", ["--recompute-modules", "moe_act", "layernorm"]),
        ('--recompute-modules: "[moe_act layernorm]"', ["--recompute-modules", "moe_act", "layernorm"]),
        ("--empty:", []),
        ("--data-path: my-data", []),
        ("--save: ${CHECKPOINT_SAVE_PATH}", []),
    ],
)
def test_a_value_reaches_the_script_as_megatrons_own_runner_passes_it(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    test_case = read(tmp_path, f"{SIZES}  {text}\n", "ENV_VARS:\n  NVTE: off\n  OCTAL: 010\n")
    assert test_case.variables == {"NVTE": "off", "OCTAL": "010"}
    others = command(read(tmp_path, SIZES)).words
    line = command(test_case).words
    at = next((number for number, word in enumerate(line) if words and word == words[0]), 0)
    assert line[at : at + len(words)] == words
    assert len(line) == len(others) + len(words)
    assert test_case.warnings == []


def test_the_step_is_as_small_as_possible_and_the_own_values_are_recorded(tmp_path: Path) -> None:
    flags = f"{SIZES}  --micro-batch-size: 2\n  --global-batch-size: 64\n  --tokenizer-type: GPT2BPETokenizer\n"
    line = command(read(tmp_path, flags))
    assert line.flags["global_batch_size"] == 2 * 16
    assert line.replaced_flags() == {"global_batch_size": "64", "tokenizer_type": "GPT2BPETokenizer"}
    (warning,) = line.warnings
    assert warning.startswith(
        "the traced step has 1 micro-batch on each rank (32 sequences in all; the recipe's global batch has 64)"
    )
    assert {"global_batch_size", "tokenizer_type", "vocab_size", "mock_data"} <= {*line.regbot_flags}
    assert not {"num_experts", "micro_batch_size", "lr", "moe_grouped_gemm"} & {*line.regbot_flags}


@pytest.mark.parametrize(
    ("stages", "sequences"),
    [
        ("--num-layers: 8", 4),
        ("--num-virtual-stages-per-pipeline-rank: 2", 16),
        ("--num-virtual-stages-per-pipeline-rank: 2\n  --microbatch-group-size-per-virtual-pipeline-stage: 6", 24),
    ],
)
def test_an_interleaved_pipeline_has_a_micro_batch_for_each_stage(tmp_path: Path, stages: str, sequences: int) -> None:
    flags = f"{SIZES}  --pipeline-model-parallel-size: 4\n  {stages}\n  --global-batch-size: {sequences}\n"
    line = command(read(tmp_path, flags))
    assert line.flags["global_batch_size"] == sequences
    assert line.warnings == []


def test_a_flag_that_cannot_be_traced_is_left_out_with_a_warning(tmp_path: Path) -> None:
    flags = f"{SIZES}  --log-num-zeros-in-grad: true\n  --te-precision-config-file: ${{CONFIG}}/x.yaml\n"
    line = command(read(tmp_path, flags))
    assert line.warnings == [
        "log_num_zeros_in_grad of the recipe is left out, because its value depends on real data",
        "te_precision_config_file of the recipe is left out, because its value names a file",
    ]
    assert line.replaced_flags().keys() == {"log_num_zeros_in_grad", "te_precision_config_file"}


@pytest.mark.parametrize("recipe", ["", "a.YAML", "qwen3_30b_a3b_pretrain_config"])
def test_both_sides_tell_a_file_of_flags_from_a_recipe_of_bridge(recipe: str) -> None:
    workload = Workload(adapter="megatron", recipe=recipe, shapes=["mixtral-8x7b"], timed=[])
    assert make_request(adapter="megatron", recipe=recipe).runs_bridge == workload.runs_bridge
    assert workload.training_script == (BRIDGE_PROGRAM if workload.runs_bridge else MEGATRON_PROGRAM)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("a: 1\n", "is not a test case of Megatron-LM (KeyError: 'MODEL_ARGS')"),
        ("MODEL_ARGS:\n  --a: [{b: 1}]\n", "is not a test case of Megatron-LM"),
        ("MODEL_ARGS:\n  --a: [b, --evil]\n", "the value of --a contains another flag"),
        ("MODEL_ARGS: [\n", "is not a test case of Megatron-LM"),
    ],
)
def test_a_file_that_is_no_test_case_is_refused_with_its_name(tmp_path: Path, document: str, message: str) -> None:
    (tmp_path / FILE).write_text(document, encoding="utf-8")
    with pytest.raises(ContractError) as refusal:
        read_test_case(tmp_path, FILE)
    assert refusal.value.kind == "config"
    assert f"recipe '{FILE}'" in str(refusal.value)
    assert message in str(refusal.value)


@pytest.mark.parametrize("recipe", ["missing.yaml", "../outside.yaml"])
def test_a_file_that_is_not_in_the_checkout_is_refused(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "outside.yaml").write_text("MODEL_ARGS:\n")
    (tmp_path / "checkout").mkdir()
    with pytest.raises(ContractError, match="there is no such file in the checkout"):
        read_test_case(tmp_path / "checkout", recipe)


@pytest.mark.parametrize(
    ("flags", "world", "ep", "message"),
    [
        (SIZES, 16, 8, "has EP 4, and 1 ranks work on one micro-batch, but 16 ranks with EP 8 were requested"),
        (f"{SIZES}  --tensor-model-parallel-size: 3\n", 16, 4, "trace it with --ep 4 and a multiple of 3 ranks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_file(
    tmp_path: Path, flags: str, world: int, ep: int, message: str
) -> None:
    with pytest.raises(ContractError) as refusal:
        command(read(tmp_path, flags), world, ep)
    assert str(refusal.value).startswith(f"recipe '{FILE}'")
    assert message in str(refusal.value)
