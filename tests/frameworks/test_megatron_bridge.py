"""Recipes of Megatron Bridge in its own program on the paper GPU.

Set REGBOT_BRIDGE to a checkout of Bridge whose submodule 3rdparty/Megatron-LM is present, and REGBOT_BRIDGE_PYTHON to a
Python 3.12 with what ``FRAMEWORK_NEEDS`` lists. The counts are those of the main branch of 22 August 2026.
"""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.paper import library_for
from support.guest_runs import GUEST, QWEN, answer, ask

CHECKOUT, PYTHON = os.environ.get("REGBOT_BRIDGE", ""), os.environ.get("REGBOT_BRIDGE_PYTHON", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not (CHECKOUT and PYTHON), reason="REGBOT_BRIDGE and REGBOT_BRIDGE_PYTHON name no Megatron Bridge"
    ),
]


def trace(folder: Path, recipe: str, world: int, ep: int, **changes: Any) -> dict[str, Any]:
    library = library_for(PYTHON, folder / "cache", folder / "spare").path
    request = ask(folder, "bridge", QWEN, "full", world=world, ep=ep)
    document = {
        **json.loads(request.read_text()), "root": CHECKOUT, "adapter": "megatron", "paper": str(library),
        "program": "scripts/training/run_recipe.py", "recipe": recipe, "routing": "balanced", "dispatcher": "",
        "source_roots": ["src", "3rdparty/Megatron-LM"], "watch": ["megatron.bridge", "megatron.core"], **changes,
    }  # fmt: skip
    request.write_text(json.dumps(document))
    done = subprocess.run([PYTHON, str(GUEST), str(request)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return answer(folder, "bridge")


def count_payload(record: dict[str, Any], axis: str) -> dict[str, int]:
    """Return the payload calls on an axis, by library, or by kind if torch.distributed makes them."""
    counts: Counter[str] = Counter()
    for entry in record["ledger"]["entries"]:
        if entry["axis"] == axis and entry["role"] == "payload":
            counts[entry["via"] if entry["via"] in ("deepep", "hybridep") else entry["kind"]] += entry["count"]
    return dict(counts)


def test_the_recipe_for_16_gpus_dispatches_by_hybridep(tmp_path: Path) -> None:
    record = trace(tmp_path, "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config", world=16, ep=16)
    assert count_payload(record, "ep") == {"hybridep": 4 * 48}  # dispatch and combine, in forward and in backward
    assert record["backends"]["dispatcher"]["executed"] == "hybridep"


def test_the_recipe_for_8_gpus_dispatches_again_in_recompute(tmp_path: Path) -> None:
    record = trace(tmp_path, "qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config", world=8, ep=4)
    assert count_payload(record, "ep") == {"deepep": 6 * 24}  # the first of two stages
    # Tensor parallelism with sequence parallelism: attention and embedding; the experts have TP 1.
    assert count_payload(record, "tp") == {"all_gather": 4 * 24 + 1, "reduce_scatter": 3 * 24 + 1, "all_reduce": 1}


def test_the_recipe_for_256_gpus_has_a_pipeline_and_context_parallelism(tmp_path: Path) -> None:
    record = trace(tmp_path, "qwen3_235b_a22b_pretrain_config", world=256, ep=8)
    assert count_payload(record, "ep") == {"deepep": 4 * 5}  # the first of 16 stages has 5 of 94 layers
    assert count_payload(record, "cp") == {"send_recv": 6 * 5}


def test_an_interleaved_pipeline_with_overlap_is_traced(tmp_path: Path) -> None:
    record = trace(tmp_path, "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config", world=256, ep=32)
    # Rows and probabilities go apart, and rows come back: three exchanges in each direction; 11 layers, 8 micro-batches
    assert count_payload(record, "ep") == {"all_to_all": 6 * 11 * 8}


def test_a_dispatcher_that_is_silently_off_is_seen(tmp_path: Path) -> None:
    """With the flex backend switched off, the recipe for 8 GPUs falls back to alltoall."""
    record = trace(tmp_path, "qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config", world=8, ep=4, dispatcher="alltoall")
    assert count_payload(record, "ep") == {"all_to_all": 9 * 24}
