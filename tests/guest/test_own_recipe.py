"""A recipe of Megatron Bridge in Bridge's own program on the paper GPU: what is counted, and what is refused by name.

The program in ``own_recipe/`` is small and has the names of Bridge's. Its layers are those of ``own_program/``.
"""

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
    settings: dict[str, Any] = {
        "root": str(root), "adapter": "megatron", "paper": str(library), "recipe": RECIPE,
        "program": "scripts/training/run_recipe.py", "source_roots": ["src", "3rdparty/Megatron-LM"],
        "watch": ["megatron.bridge", "megatron.core"], "geometry": TINY, "world": WORLD, "ep": EP,
    }  # fmt: skip
    done = run_guest(ask(root.parent, "own", QWEN, **{**settings, **changes}))
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
    keys = ("model.num_layers", "train.micro_batch_size", "train.global_batch_size")
    assert [config[key] for key in keys] == [3, 1, 8]
    assert record["backends"]["dispatcher"]["executed"] == "alltoall"


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages", [{"virtual_pipeline_model_parallel_size": 2}, {"pipeline_model_parallel_layout": "Et|t|t|tL"}]
)
def test_an_interleaved_pipeline_gets_as_many_micro_batches_as_megatron_requires(
    stages: dict[str, Any], checkout: Path, paper_library: Path
) -> None:
    record = trace(checkout, paper_library, config={"pipeline_model_parallel_size": 2, **stages})
    assert count_exchanges(record) == {("all_to_all", "deepep"): 2 * 2 * LAYERS}


def test_the_vocabulary_of_a_tokenizer_without_files_is_that_of_the_recipe(checkout: Path, paper_library: Path) -> None:
    record = trace(checkout, paper_library, recipe="null_tokenizer_pretrain_config")
    assert record["ledger"]["config"]["model.vocab_size"] == 777


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "qwen3_pretrain_x"}, "Recipe 'qwen3_pretrain_x' not found"),
        ({"recipe": "qwen3_30b_a3b_sft_config"}, "is not one for pretraining"),
        ({"recipe": "own_tokenizer_pretrain_config"}, "from the tokenizer a/b; set 'tokenizer.vocab_size'"),
        ({"config": {"pipeline_model_parallel_layout": "${model.x}"}}, "would insert another key's value"),
        ({"ep": 8}, "trace it with --ep 4 and a multiple of"),
        ({"config": {"num_layer": 3}}, "no key model.num_layer; the nearest keys are model.num_layers"),
        ({"config": {"model.expert_model_parallel_size": 2}}, "set it with --ep"),
        ({"routing": "skewed"}, "balanced or natural"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_is_refused_by_name(
    changes: dict[str, Any], message: str, checkout: Path, paper_library: Path
) -> None:
    refusal = trace(checkout, paper_library, **changes)["refusal"]
    assert refusal["kind"] == "config"
    assert message in refusal["message"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("training/train.py", "train_step", "make_step", "no megatron.bridge.training.train.train_step"),
        (
            "recipes/__init__.py",
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
    for path in [checkout / "src/megatron/bridge" / file, checkout / "scripts/training/run_recipe.py"]:
        path.write_text(path.read_text().replace(old, new))
    refusal = trace(checkout, paper_library)["refusal"]
    assert refusal["kind"] == "revision"
    assert "regbot does not support this revision" in refusal["message"]
    assert message in refusal["message"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), ("null", "null"), (True, "true"), ("[moe,mlp]", "[moe,mlp]"), ("it's", "'it" + chr(92) + "'s'")],
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
