"""Stand-ins that a repository declares for its compiled extensions: a missing module, an operator, a class."""

from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import TINY, Shared, answer, ask, counts, run_together
from support.layers import EXCHANGE, GOOD_LAYER, RESULT

LAYER = "import moe_cuda\n" + GOOD_LAYER.replace(EXCHANGE, "        return moe_cuda.exchange(x, group, {setting})\n")
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
NORM = 'self.norm = FusedNorm(config["hidden"], device=device, dtype=dtype)\n        self.group ='
SCALE = """\
from fastlib.norms import FusedNorm


class Scale:
    def run(self, rows):
        raise OSError("no GPU")


"""
OTHER_LAYER = SCALE + GOOD_LAYER.replace("self.group =", NORM).replace(
    RESULT, "return self.experts(torch.ops.fastlib.gather_rows(Scale().run(self.norm(x)), 2))"
)
OTHER_STAND_INS = """\
import torch

STAND_INS = {
    "other_layer.Scale.run": lambda self, rows: rows * 2,
    "torch.ops.fastlib.gather_rows": lambda rows, dim: rows.clone(),
    "fastlib.norms.FusedNorm": torch.nn.LayerNorm,
}
"""
# A package that imports the users of its own modules, as DeepSpeed's does when it looks for a CUDA toolkit.
TOOLKIT = {
    "__init__.py": "from toolkit import user\n",
    "builder.py": "def installed_version():\n    raise RuntimeError('no toolkit')\n",
    "user.py": "from toolkit.builder import installed_version\n\nVERSION = installed_version()\n",
}
TOOLKIT_STAND_INS = 'STAND_INS = {"toolkit.builder.installed_version": lambda: (12, 8)}\n'
# The calls of fastmoe's functions.py and linear.py, for the declarations in the docs.
FASTMOE_LAYER = """\
import fmoe_cuda
import torch
from torch import nn


class Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate, weight, bias, ranks):
        counts = torch.zeros(ranks, device=x.device, dtype=torch.int32)
        fmoe_cuda.expert_count(gate, counts)
        counts = counts.long()
        received = fmoe_cuda.expert_exchange(counts, 1, ranks)
        ends = counts.cumsum(0).int()
        pos = torch.empty(ends[-1].item(), device=x.device, dtype=torch.long)
        fmoe_cuda.assign_pos(ends, gate, pos)
        rows = fmoe_cuda.global_scatter(x[pos], counts.cpu(), received.cpu(), int(received.sum()), ranks)
        rows = fmoe_cuda.linear_forward(rows, received, weight, bias)
        ctx.save_for_backward(rows, counts.cpu(), received.cpu(), weight, bias, pos)
        return fmoe_cuda.global_gather(rows, counts.cpu(), received.cpu(), pos.shape[0], ranks)

    @staticmethod
    def backward(ctx, grad):
        rows, counts, received, weight, bias, pos = ctx.saved_tensors
        grad = fmoe_cuda.global_scatter(grad.contiguous(), counts, received, rows.shape[0], len(counts))
        grad, *of_weights = fmoe_cuda.linear_backward(grad, rows, received, weight, bias)
        grad = fmoe_cuda.global_gather(grad, counts, received, pos.shape[0], len(counts))
        return grad, None, *of_weights, None


class Layer(nn.Module):
    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.group, hidden = mesh["ep"].get_group(), config["hidden"]
        self.gate = nn.Linear(hidden, config["experts"], device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(1, hidden, hidden, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, hidden, device=device, dtype=dtype))

    def forward(self, x):
        fmoe_cuda.ensure_nccl(self.group, x)
        gate = self.gate(x).topk(1).indices // (self.gate.out_features // self.group.size())
        return Experts.apply(x, gate.flatten(), self.weight, self.bias, self.group.size())

    def expert_parameters(self):
        return []


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
"""
FASTMOE_STAND_INS = (Path(__file__).parents[2] / "docs" / "examples" / "fastmoe_stand_ins.py").read_text()
ENTRY = "layer:build_layer"
CASES: dict[str, dict[str, str]] = {
    "declared": {"entry": ENTRY, "stand_ins_text": STAND_INS},
    "another setting": {"entry": "layer_of_head:build_layer", "stand_ins_text": STAND_INS},
    "other kinds": {"entry": "other_layer:build_layer", "stand_ins_text": OTHER_STAND_INS},
    "fastmoe": {"entry": "fastmoe_layer:build_layer", "stand_ins_text": FASTMOE_STAND_INS},
    "users first": {"entry": "toolkit_layer:build_layer", "stand_ins_text": TOOLKIT_STAND_INS},
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
        (folder / "fastmoe_layer.py").write_text(FASTMOE_LAYER)
        (folder / "toolkit_layer.py").write_text("import toolkit\n" + GOOD_LAYER)
        (folder / "toolkit").mkdir()
        for file, text in TOOLKIT.items():
            (folder / "toolkit" / file).write_text(text)
        settings: dict[str, Any] = {"geometry": TINY, "adapter": "module", "paper": str(paper_library)}
        for name, case in CASES.items():  # stand-ins are those of a process
            run_together([ask(folder, name, **{"stand_ins": "tools/stand_ins.py", **settings, **case})])

    return shared("declared-stand-ins", trace)


def test_a_declared_function_counts_with_its_collectives_and_is_listed_as_a_difference(traces: Path) -> None:
    record = answer(traces, "declared")
    assert counts(record, "kind", "axis", "phase")["all_to_all", "ep", "forward"] == 2
    assert counts(record, "kind", "axis", "phase")["all_to_all", "ep", "backward"] == 2
    assert "stand-in that the repository declares: moe_cuda.exchange" in record["ledger"]["patches"]


def test_the_fingerprint_includes_the_settings_of_a_declared_function(traces: Path) -> None:
    programs = [answer(traces, name)["ledger"]["fingerprint"] for name in ("declared", "another setting")]
    assert programs[0] != programs[1]


def test_operators_classes_and_methods_can_be_declared(traces: Path) -> None:
    assert counts(answer(traces, "other kinds"))["reduce_scatter"] == 2


def test_a_function_is_replaced_before_its_package_imports_the_users(traces: Path) -> None:
    assert counts(answer(traces, "users first"))["all_to_all"] == 4


def test_the_declarations_for_fastmoe_in_the_docs_count_its_exchanges(traces: Path) -> None:
    all_to_all = {key[1:]: n for key, n in counts(answer(traces, "fastmoe"), "kind", "phase", "role").items()
                  if key[0] == "all_to_all"}  # fmt: skip
    assert all_to_all == {("forward", "control"): 1, ("forward", "payload"): 2, ("backward", "payload"): 2}


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


def test_an_imported_library_is_a_warning_because_the_other_arm_may_not_import_it(
    tmp_path: Path, paper_library: Path
) -> None:
    (tmp_path / "layer.py").write_text(f"import deep_ep\n{GOOD_LAYER}")
    settings: dict[str, Any] = {"geometry": TINY, "adapter": "module", "paper": str(paper_library)}
    run_together([ask(tmp_path, "trace", entry=ENTRY, **settings)])
    ledger = answer(tmp_path, "trace")["ledger"]
    assert ledger["warnings"] == ["deep_ep is a stand-in whose functions give shapes"]
    assert not any("stand-in" in patch for patch in ledger["patches"])
