"""Megatron-LM's own step with and without Transformer Engine: the same matrix products and the same exchanges.

Set REGBOT_MEGATRON_LM to a checkout of Megatron-LM, and REGBOT_MEGATRON_PYTHON to a Python 3.12 with what
``FRAMEWORK_NEEDS`` lists.
"""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.paper import library_for
from regbot.workloads.shapes import load_shape
from support.guest_runs import GUEST, MIXTRAL, answer, ask

CHECKOUT, PYTHON = os.environ.get("REGBOT_MEGATRON_LM", ""), os.environ.get("REGBOT_MEGATRON_PYTHON", "")
PROGRAM = Path(__file__).parent / "programs" / "count_flops.py"
LAYERS, RANKS = 2, 8
LOCAL = {"transformer_impl": "local", "no_persist_layer_norm": True, "no_masked_softmax_fusion": True}

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not (CHECKOUT and PYTHON), reason="REGBOT_MEGATRON_LM and REGBOT_MEGATRON_PYTHON name no Megatron-LM"
    ),
]


def trace(folder: Path, config: dict[str, Any]) -> tuple[dict[str, int], Counter[tuple[str, str]]]:
    """Return the FLOPs of a step by operator, and its payload calls by kind and axis."""
    folder.mkdir()
    library = library_for(PYTHON, folder / "cache", folder / "spare").path
    request = ask(folder, "step", MIXTRAL, "full", {"layers": LAYERS}, RANKS, RANKS)
    document = {
        **json.loads(request.read_text()), "root": CHECKOUT, "adapter": "megatron", "paper": str(library),
        "program": "pretrain_gpt.py", "routing": "balanced", "dispatcher": "alltoall", "source_roots": ["."],
        "watch": ["megatron.core"], "config": config,
    }  # fmt: skip
    request.write_text(json.dumps(document))
    flops = folder / "flops.json"
    done = subprocess.run([PYTHON, str(PROGRAM), str(GUEST), str(request), str(flops)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    calls: Counter[tuple[str, str]] = Counter()
    for entry in answer(folder, "step")["ledger"]["entries"]:
        if entry["role"] == "payload":
            calls[entry["kind"], entry["axis"]] += entry["count"]
    return json.loads(flops.read_text()), calls


def test_transformer_engine_changes_neither_the_matrix_products_nor_the_exchanges(tmp_path: Path) -> None:
    engine_flops, engine_calls = trace(tmp_path / "engine", {})
    local_flops, local_calls = trace(tmp_path / "local", LOCAL)
    assert engine_calls == local_calls
    assert engine_flops["aten.mm"] == local_flops["aten.mm"]

    numbers = load_shape(MIXTRAL).sizes["full"]
    tokens = numbers.sequence * numbers.micro_batch
    attention = numbers.hidden * numbers.head_dim * (2 * numbers.heads + 2 * numbers.kv_heads)  # Q and output, K and V
    experts = numbers.top_k * 3 * numbers.hidden * numbers.expert_width  # SwiGLU has three matrices
    router = numbers.hidden * numbers.experts
    output = numbers.hidden * numbers.vocabulary
    weights = LAYERS * (attention + experts + router) + output
    # Forward has two operations for each weight and token. Backward has the gradients of weights and of inputs.
    assert engine_flops["aten.mm"] == 3 * 2 * weights * tokens

    # Transformer Engine fuses attention in a kernel without a matrix product of torch. Without it, attention is one
    # product of queries and keys and one with the values, and two gradients of each.
    scores = LAYERS * 2 * numbers.heads * tokens * numbers.sequence * numbers.head_dim
    assert {name: flops for name, flops in local_flops.items() if name != "aten.mm"} == {
        "aten.baddbmm": scores,
        "aten.bmm": 5 * scores,
    }
    assert set(engine_flops) == {"aten.mm"}
