"""The GPUs that a paper GPU imitates, as code under test sees them."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.cli.ledger import ledger_trace
from regbot.cli.terminal import trace_page
from regbot.records.ledger import DEFAULT_PAPER_GPU, PaperGpu
from regbot_guest.paper.gpus import DEFAULT, GPUS
from support.layers import CONFIG, GOOD_LAYER, write_repository

WANTS_H200 = GOOD_LAYER.replace(
    "        super().__init__()\n",
    "        super().__init__()\n"
    "        if torch.cuda.get_device_name() != 'NVIDIA H200 (paper)' or torch.cuda.mem_get_info()[1] < 140e9:\n"
    "            raise RuntimeError('this layer needs an H200')\n",
    1,
)


def test_both_sides_know_the_same_gpus() -> None:
    assert set(GPUS) == set(get_args(PaperGpu))
    assert get_args(get_type_hints(ledger_trace)["gpu"]) == ("", *get_args(PaperGpu))
    assert DEFAULT == DEFAULT_PAPER_GPU


@pytest.mark.slow
def test_a_trace_is_made_for_the_gpu_of_the_workload_or_of_the_option(tmp_path: Path, paper_library: Path) -> None:
    root = write_repository(tmp_path, WANTS_H200, f'{CONFIG}gpu = "h200"\n')
    run = trace_working_tree(TraceOptions("moe"), root, paper_library.parent)
    assert run.outcome == "ok", run.reason
    assert run.ledger is not None
    assert (run.ledger.gpu, run.ledger.device) == ("h200", "cuda")
    assert "rank 0 of 2 (paper-gpu, h200)" in trace_page(run)
    refused = trace_working_tree(TraceOptions("moe", gpu="a100"), root, paper_library.parent)
    assert (refused.outcome, refused.ledger) != ("ok", None)
    assert "this layer needs an H200" in refused.reason + refused.log_tail
