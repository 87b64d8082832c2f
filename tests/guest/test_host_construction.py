"""Layers whose library makes its weights without a device: the harness lets them be made on the paper GPU."""

from pathlib import Path
from typing import Any

import pytest

from regbot.check.static_trace import TraceOptions, trace_working_tree
from support.guest_runs import TINY, answer, ask, counts, run_together
from support.layers import BUILD, GOOD_LAYER

WITH_DEVICE = 'self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)'
PLAIN = 'self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False)'
LAYER = GOOD_LAYER.replace(BUILD, f"{BUILD}.to(device=device, dtype=dtype)").replace(
    WITH_DEVICE, '{weights}\n        assert self.experts.weight.device.type == "cuda"'
)
WEIGHTS = {
    "no device": PLAIN,
    # 1 TB of weights, which no host could hold, and a random order that is drawn on the host.
    "too large for the host": 'self.order = torch.randperm(8, generator=torch.Generator().manual_seed(1)).tolist()\n'
    "        torch.empty(1 << 18, 1 << 20).normal_()\n        " + PLAIN,
}  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_without_a_device_are_made_on_the_paper_gpu(case: str, tmp_path: Path, paper_library: Path) -> None:
    (tmp_path / "layer.py").write_text(LAYER.replace("{weights}", WEIGHTS[case]))
    settings: dict[str, Any] = {"geometry": TINY, "adapter": "module", "paper": str(paper_library)}
    run_together([ask(tmp_path, "trace", entry="layer:build_layer", **settings)])
    assert counts(answer(tmp_path, "trace"))["reduce_scatter"] == 2


SLOW = """\
import time


def build_layer(config, mesh, device, dtype):
    time.sleep(7)
    raise RuntimeError("slow")
"""


@pytest.mark.slow
def test_a_slow_trace_says_which_line_is_running(tmp_path: Path, paper_library: Path) -> None:
    (tmp_path / "layer.py").write_text(SLOW)
    (tmp_path / "regbot.toml").write_text(
        'version = 1\n[workloads.moe]\nadapter = "module"\nentry = "layer:build_layer"\nshapes = ["mixtral-8x7b"]\n'
    )
    messages: list[str] = []
    run = trace_working_tree(
        TraceOptions("moe", device="cuda"),
        tmp_path,
        paper_library.parent,
        lambda progress: messages.append(progress.text),
    )
    assert run.reason.startswith("RuntimeError: slow")
    assert messages.count("mixtral-8x7b@1/ep: running layer.py:5 in build_layer") == 1
