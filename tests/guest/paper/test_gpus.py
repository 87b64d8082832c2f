"""The GPUs that a paper GPU imitates, as code under test sees them."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.cli.ledger import ledger_trace
from regbot.cli.terminal import trace_page
from regbot.records.ledger import DEFAULT_PAPER_GPU, GPU_MEMORY_BYTES, PaperGpu
from regbot_guest.paper.gpus import DEFAULT, GPUS
from support.layers import CONFIG, GOOD_LAYER, write_repository
from support.ledger_builder import smoke_arm, smoke_run
from support.program_builder import program_of, with_program

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
    assert {name: model.memory_bytes for name, model in GPUS.items()} == GPU_MEMORY_BYTES


@pytest.mark.parametrize(
    ("gpu", "peak_bytes", "excess"),
    [("h200", 100 * 10**9, None), ("h100", 100 * 10**9, "85.0 GB of one H100"), (None, 86 * 10**9, "one H100"),
     ("h100", 80 * 10**9, None), ("b200", 192 * 10**9, "191.5 GB of one B200")],
)  # fmt: skip
def test_a_peak_above_the_memory_of_the_gpu_is_said_where_it_is_printed(
    gpu: PaperGpu | None, peak_bytes: int, excess: str | None
) -> None:
    ledger = with_program(program_of(peak_bytes=peak_bytes), gpu=gpu)
    run = smoke_run(smoke_arm("head"), ledger)
    [line] = [line for line in trace_page(run).splitlines() if line.startswith("peak memory: ")]
    assert ("MORE than" in line) == (excess is not None)
    assert excess is None or excess in line


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
