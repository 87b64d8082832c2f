"""Stand-ins that a repository declares for its compiled extensions: a missing module, an operator, a class."""

from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import TINY, Shared, answer, ask, counts, run_together

LAYER = """\
import moe_cuda
import torch
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, group):
        ctx.group = group
        return moe_cuda.exchange(rows, group, {setting})

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, ctx.group), None


class Layer(nn.Module):
    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def forward(self, x):
        return self.experts(Exchange.apply(x, self.group))

    def expert_parameters(self):
        return list(self.experts.parameters())


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
"""
STAND_INS = """\
import torch
import torch.distributed as dist


def exchange(rows, group, copies):
    out = torch.empty_like(rows)
    dist.all_to_all_single(out, rows, group=group)
    return out


STAND_INS = {"moe_cuda.exchange": exchange}
"""
# An operator of torch.ops, a class in a submodule of a missing package, and a method of a class that exists.
OTHER_LAYER = """\
import torch
from fastlib.norms import FusedNorm
from torch import nn


class Scale:
    def run(self, rows):
        raise OSError("no GPU")


class Layer(nn.Module):
    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.norm = FusedNorm(config["hidden"], device=device, dtype=dtype)
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def forward(self, x):
        return self.experts(torch.ops.fastlib.gather_rows(Scale().run(self.norm(x)), 2))

    def expert_parameters(self):
        return list(self.experts.parameters())


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
"""
OTHER_STAND_INS = """\
import torch

STAND_INS = {
    "other_layer.Scale.run": lambda self, rows: rows * 2,
    "torch.ops.fastlib.gather_rows": lambda rows, dim: rows.clone(),
    "fastlib.norms.FusedNorm": torch.nn.LayerNorm,
}
"""
ENTRY = "layer:build_layer"
CASES: dict[str, dict[str, str]] = {
    "declared": {"entry": ENTRY, "stand_ins_text": STAND_INS},
    "another setting": {"entry": "layer_of_head:build_layer", "stand_ins_text": STAND_INS},
    "other kinds": {"entry": "other_layer:build_layer", "stand_ins_text": OTHER_STAND_INS},
    "undeclared": {"entry": ENTRY, "stand_ins": ""},
    "another function": {"entry": ENTRY, "stand_ins_text": STAND_INS.replace("moe_cuda.exchange", "moe_cuda.permute")},
    "no dict": {"entry": ENTRY, "stand_ins_text": "STAND_INS = 1\n"},
}


@pytest.fixture
def traces(shared: Shared, paper_library: Path) -> Path:
    def trace(folder: Path) -> None:
        (folder / "layer.py").write_text(LAYER.replace("{setting}", "1"))
        (folder / "layer_of_head.py").write_text(LAYER.replace("{setting}", "2"))
        (folder / "other_layer.py").write_text(OTHER_LAYER)
        settings: dict[str, Any] = {"geometry": TINY, "adapter": "module", "paper": str(paper_library)}
        for name, case in CASES.items():  # stand-ins are those of a process
            run_together([ask(folder, name, **{"stand_ins": "tools/stand_ins.py", **settings, **case})])

    return shared("declared-stand-ins", trace)


def test_a_declared_function_counts_with_its_collectives_and_is_listed_as_a_difference(traces: Path) -> None:
    record = answer(traces, "declared")
    assert counts(record, "kind", "axis", "phase")["all_to_all", "ep", "forward"] == 1
    assert counts(record, "kind", "axis", "phase")["all_to_all", "ep", "backward"] == 1
    assert "stand-ins that the repository declares: moe_cuda.exchange" in record["ledger"]["patches"]


def test_the_fingerprint_includes_the_settings_of_a_declared_function(traces: Path) -> None:
    programs = [answer(traces, name)["ledger"]["program"] for name in ("declared", "another setting")]
    assert programs[0] != programs[1]


def test_operators_classes_and_methods_can_be_declared(traces: Path) -> None:
    assert counts(answer(traces, "other kinds"))["reduce_scatter"] == 2


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("undeclared", "code", "No module named 'moe_cuda'; for a compiled extension, declare a stand-in"),
        ("another function", "untraceable", "moe_cuda.exchange was called with tensors of"),
        ("no dict", "config", "tools/stand_ins.py: it must define STAND_INS"),
    ],
)
def test_what_is_not_declared_is_refused_by_name(traces: Path, name: str, kind: str, message: str) -> None:
    refusal = answer(traces, name)["refusal"]
    assert (refusal["kind"], message in refusal["message"]) == (kind, True), refusal
