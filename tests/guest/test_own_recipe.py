"""A recipe of Megatron Bridge in Bridge's own program on the paper GPU: what is counted, and what is refused by name.

The program in ``own_recipe/`` is small and has the names of Bridge's. Its layers are those of ``own_program/``.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from regbot_guest.frameworks.megatron_bridge import format_value
from support.guest_runs import QWEN, TINY, answer, ask, run_guest

SOURCES = Path(__file__).parent
WORLD, EP, LAYERS = 16, 4, 2
RECIPE = "qwen3_30b_a3b_pretrain_config"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    shutil.copytree(SOURCES / "own_recipe", root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCES / "own_program/megatron/training/model.py", root / "src/megatron/bridge/training/model.py")
    return root


def trace(root: Path, library: Path, **changes: Any) -> dict[str, Any]:
    """Return the record of one trace of the recipe in ``root``."""
    request = ask(root.parent, "own", QWEN, "cpu", TINY, WORLD, EP)
    document = {
        **json.loads(request.read_text()), "root": str(root), "adapter": "megatron", "paper": str(library),
        "program": "scripts/training/run_recipe.py", "recipe": RECIPE, "routing": "balanced", "dispatcher": "",
        "source_roots": ["src", "3rdparty/Megatron-LM"], "watch": ["megatron.bridge", "megatron.core"], **changes,
    }  # fmt: skip
    request.write_text(json.dumps(document))
    done = run_guest(request)
    assert (root.parent / "own.rank0.json").exists(), done.stderr[-3000:]
    return answer(root.parent, "own")


def count_exchanges(record: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Return the payload calls on the axis of the experts, by kind and library."""
    assert "refusal" not in record, record["refusal"]
    counts: dict[tuple[str, str], int] = {}
    for entry in record["ledger"]["entries"]:
        if entry["axis"] == "ep" and entry["role"] == "payload":
            key = (entry["kind"], entry["via"])
            counts[key] = counts.get(key, 0) + entry["count"]
    return counts


def test_a_recipe_keeps_its_numbers_and_its_dispatcher(checkout: Path, paper_library: Path) -> None:
    record = trace(checkout, paper_library)
    # Dispatch and combine in forward; the small model sends no gradients through the library.
    assert count_exchanges(record) == {("all_to_all", "deepep"): 2 * LAYERS}
    ledger = record["ledger"]
    assert (ledger["config"]["model.num_moe_experts"], ledger["config"]["train.micro_batch_size"]) == (16, 2)
    assert ledger["config"]["tokenizer.tokenizer_type"] == "NullTokenizer"
    assert "checkpoint.save" in ledger["config"]
    dispatcher = record["backends"]["dispatcher"]
    assert (dispatcher["requested"], dispatcher["resolved"], dispatcher["executed"]) == ("deepep",) * 3
    assert ledger["software"]["megatron-bridge"] == "0.7.0"
    assert ledger["software"]["megatron-core"] == "0.20.0"
    assert ledger["config"]["model.vocab_size"] == 151_669  # the tokens of the recipe's tokenizer
    assert any("(16 sequences in all; the recipe's global batch has 64)" in text for text in ledger["warnings"])
    assert set(record["code"]["watched"]) == {"megatron.bridge", "megatron.core"}
    assert record["code"]["foreign"] == {}


def test_the_workload_overrides_keys_of_the_recipe(checkout: Path, paper_library: Path) -> None:
    record = trace(
        checkout, paper_library, dispatcher="alltoall", config={"num_layers": 3, "train.micro_batch_size": 1}
    )
    # Nobody needs the gradient of the first layer's input.
    assert count_exchanges(record) == {("all_to_all", "fake"): 4 * 3 - 1}
    config = record["ledger"]["config"]
    assert (config["model.num_layers"], config["train.micro_batch_size"], config["train.global_batch_size"]) == (
        3,
        1,
        8,
    )
    assert record["backends"]["dispatcher"]["executed"] == "alltoall"


@pytest.mark.parametrize(
    ("pipeline", "micro_batches"),
    [
        ({"virtual_pipeline_model_parallel_size": 2}, 2),
        ({"pipeline_model_parallel_layout": "Et|t|t|tL"}, 2),
    ],
    ids=["virtual", "layout"],
)
def test_an_interleaved_pipeline_gets_as_many_micro_batches_as_megatron_requires(
    pipeline: dict[str, Any], micro_batches: int, checkout: Path, paper_library: Path
) -> None:
    record = trace(checkout, paper_library, config={"pipeline_model_parallel_size": 2, **pipeline})
    assert count_exchanges(record) == {("all_to_all", "deepep"): micro_batches * 2 * LAYERS}


@pytest.mark.parametrize(
    ("recipe", "config", "tokens"),
    [
        ("null_tokenizer_pretrain_config", {}, 777),
        ("own_tokenizer_pretrain_config", {"tokenizer.vocab_size": 999}, 999),
    ],
)
def test_the_vocabulary_is_that_of_the_recipes_tokenizer(
    recipe: str, config: dict[str, Any], tokens: int, checkout: Path, paper_library: Path
) -> None:
    record = trace(checkout, paper_library, recipe=recipe, config=config)
    assert "refusal" not in record, record["refusal"]
    assert record["ledger"]["config"]["model.vocab_size"] == tokens


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"recipe": "qwen3_pretrain_x"}, "config", "Recipe 'qwen3_pretrain_x' not found"),
        ({"recipe": "qwen3_30b_a3b_sft_config"}, "config", "is not one for pretraining"),
        ({"recipe": "own_tokenizer_pretrain_config"}, "config", "from the tokenizer a/b; set 'tokenizer.vocab_size'"),
        ({"config": {"pipeline_model_parallel_layout": "${model.x}"}}, "config", "would insert another key's value"),
        ({"ep": 8}, "config", "trace it with --ep 4 and a multiple of 2 ranks"),
        ({"config": {"num_layer": 3}}, "config", "no key model.num_layer; the nearest keys are model.num_layers"),
        ({"config": {"model.expert_model_parallel_size": 2}}, "config", "set it with --ep"),
        ({"config": {"+model.x": 3}}, "config", "is not a key of a recipe"),
        ({"routing": "skewed"}, "config", "balanced or natural"),
        ({"program": "scripts/run.py"}, "config", "the checkout has no scripts/run.py"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_is_refused_by_name(
    changes: dict[str, Any], kind: str, message: str, checkout: Path, paper_library: Path
) -> None:
    refusal = trace(checkout, paper_library, **changes)["refusal"]
    assert refusal["kind"] == kind
    assert message in refusal["message"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "src/megatron/bridge/training/train.py",
            "train_step",
            "make_step",
            "no megatron.bridge.training.train.train_step",
        ),
        (
            "src/megatron/bridge/recipes/__init__.py",
            "num_workers",
            "worker_num",
            "no key dataset.num_workers, which regbot sets; the nearest keys are dataset.worker_num",
        ),
    ],
    ids=["step", "key"],
)
def test_a_revision_with_other_names_is_named_and_not_blamed(
    file: str, old: str, new: str, message: str, checkout: Path, paper_library: Path
) -> None:
    for path in [checkout / file, checkout / "scripts/training/run_recipe.py"]:
        path.write_text(path.read_text().replace(old, new))
    refusal = trace(checkout, paper_library)["refusal"]
    assert refusal["kind"] == "revision"
    assert "regbot does not support this revision" in refusal["message"]
    assert message in refusal["message"]


def test_a_crash_over_a_key_that_regbot_sets_names_it(checkout: Path, paper_library: Path) -> None:
    path = checkout / "src/megatron/bridge/training/train.py"
    error = "raise ValueError('train.global_batch_size must be at least 64')"
    path.write_text(path.read_text().replace('    dist.init_process_group("nccl")\n', f"    {error}\n"))
    refusal = trace(checkout, paper_library)["refusal"]
    assert refusal["crash"]["keys"] == ["train.global_batch_size"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("null", "null"),
        (True, "true"),
        ("[moe,mlp]", "[moe,mlp]"),
        ("it's", "'it" + chr(92) + "'s'"),
    ],
)
def test_values_are_written_in_the_grammar_of_hydra(value: Any, text: str) -> None:
    """Checked with the parser of hydra-core 1.3."""
    assert format_value(value) == text


def test_a_package_of_the_namespace_from_elsewhere_is_named(checkout: Path, paper_library: Path) -> None:
    """The checkout has no Megatron-core: its submodule was not fetched."""
    elsewhere = checkout.parent / "elsewhere"
    shutil.move(checkout / "3rdparty/Megatron-LM", elsewhere)
    record = trace(checkout, paper_library, source_roots=["src", str(elsewhere)])
    assert set(record["code"]["watched"]) == {"megatron.bridge"}
    assert set(record["code"]["foreign"]) == {"megatron.core"}
