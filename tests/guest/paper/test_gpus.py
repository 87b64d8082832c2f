"""The GPUs that a paper GPU imitates, as code under test sees them."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from regbot.check.static_trace import TraceOptions, trace_working_tree
from regbot.cli.ledger import ledger_trace
from regbot.cli.terminal import trace_page
from regbot.records.config import ConfigError
from regbot.records.ledger import DEFAULT_PAPER_GPU, PaperGpu
from regbot_guest.paper.gpus import DEFAULT, GPUS
from support.layers import CONFIG, GOOD_LAYER, write_repository
from support.paper_runs import read_answer

KIB, MIB = 1 << 10, 1 << 20
ROWS: dict[str, dict[str, Any]] = {
    "h100": {"name": "NVIDIA H100 80GB HBM3 (paper)", "memory": 85_031_124_992, "capability": [9, 0],
             "multiprocessors": 132, "shared": [228 * KIB, 227 * KIB], "l2": 50 * MIB, "warp": 32,
             "architectures": [["sm_90"], ""]},
    "h200": {"name": "NVIDIA H200 (paper)", "memory": 150_110_011_392, "capability": [9, 0],
             "multiprocessors": 132, "shared": [228 * KIB, 227 * KIB], "l2": 50 * MIB, "warp": 32,
             "architectures": [["sm_90"], ""]},
    "b200": {"name": "NVIDIA B200 (paper)", "memory": 191_500_000_000, "capability": [10, 0],
             "multiprocessors": 148, "shared": [228 * KIB, 227 * KIB], "l2": 126 * MIB, "warp": 32,
             "architectures": [["sm_100"], ""]},
    "a100": {"name": "NVIDIA A100-SXM4-80GB (paper)", "memory": 85_097_971_712, "capability": [8, 0],
             "multiprocessors": 108, "shared": [164 * KIB, 163 * KIB], "l2": 40 * MIB, "warp": 32,
             "architectures": [["sm_80"], ""]},
    "mi300x": {"name": "AMD Instinct MI300X (paper)", "memory": 206_141_652_992, "capability": [9, 4],
               "multiprocessors": 304, "shared": [64 * KIB, 64 * KIB], "l2": 4 * MIB, "warp": 64,
               "architectures": [["gfx942"], "gfx942"]},
}  # fmt: skip
WANTS_H200 = GOOD_LAYER.replace(
    "        super().__init__()\n",
    "        super().__init__()\n"
    "        if torch.cuda.get_device_name() != 'NVIDIA H200 (paper)' or torch.cuda.mem_get_info()[1] < 140e9:\n"
    "            raise RuntimeError('this layer needs an H200')\n",
    1,
)


def test_every_gpu_that_can_be_chosen_has_a_row() -> None:
    assert set(GPUS) == set(ROWS) == set(get_args(PaperGpu))
    assert get_args(get_type_hints(ledger_trace)["gpu"]) == ("", *get_args(PaperGpu))
    assert DEFAULT == DEFAULT_PAPER_GPU


@pytest.mark.parametrize(
    "gpu", ["mi300x", *(pytest.param(gpu, marks=pytest.mark.slow) for gpu in ("h100", "h200", "b200", "a100"))]
)
def test_code_sees_the_properties_of_the_chosen_gpu(paper_library: Path, gpu: str) -> None:
    row = ROWS[gpu]
    expected = {**row, "memory": [row["memory"]] * 2, "capability": row["capability"] * 2, "gpus": 8}
    assert read_answer(paper_library, "properties.py", PAPER_GPU=gpu) == expected


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


def test_a_gpu_is_refused_where_a_cpu_program_is_traced(tmp_path: Path) -> None:
    root = write_repository(tmp_path)
    with pytest.raises(ConfigError, match="--gpu h200: mixtral-8x7b@1/ep is not traced on a paper GPU"):
        trace_working_tree(TraceOptions("moe", device="cpu", gpu="h200"), root, tmp_path)
    with pytest.raises(ConfigError, match="a CPU program is not traced on a paper GPU"):
        trace_working_tree(TraceOptions("mixtral-8x7b", device="cpu", gpu="h200"), root, tmp_path)
