"""The module contract: a user's layer is loaded by name, and a violation of the contract is refused with the reason.

Every layer below is a separate package, and most run in one process. Each breaks the good layer in one place.
"""

from pathlib import Path
from typing import Any

import pytest

from regbot_guest.origin import code_hash
from support.guest_runs import TINY, Shared, answer, ask, counts, run_all, run_guest

GOOD = '''\
"""A layer with a plain all-to-all and its experts in a separate module."""

import torch
import torch.distributed as dist
from torch import nn


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, receive, send, group):
        ctx.args = receive, send, group
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        receive, send, group = ctx.args
        return Rows.apply(grad, send, receive, group), None, None, None


class Layer(nn.Module):
    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.router = nn.Linear(config["hidden"], config["experts"], bias=False, device=device, dtype=dtype)
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def splits(self, x):
        return [x.shape[0] // self.group.size()] * self.group.size()

    def forward(self, x):
        send = receive = self.splits(x)
        rows = self.experts(Rows.apply(x, receive, send, self.group))
        return x + Rows.apply(rows, send, receive, self.group) * self.router(x).sum(-1, keepdim=True)

    def expert_parameters(self):
        return list(self.experts.parameters())


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
'''
SPLITS = "return [x.shape[0] // self.group.size()] * self.group.size()"
BUILD = "return Layer(config, mesh, device, dtype)"
CALL = "send = receive = self.splits(x)"


SINGLE = """\
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
        return out
"""
LISTS = """\
        parts = [x.new_empty(rows, x.shape[1]) for rows in receive]
        dist.all_to_all(parts, [part.contiguous() for part in x.split(send)], group=group)
        return torch.cat(parts)
"""


def broken(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


# Rank 0 keeps all but 3 of its rows, so it receives rows - 3 from every rank.
UNEVEN = broken(SPLITS, "return [x.shape[0] - 3, 3]").replace(
    CALL, "send = self.splits(x)\n        receive = [send[self.group.rank()]] * self.group.size()"
)
LAYERS = {
    "good": GOOD,
    "returns_no_module": GOOD + "\ndef build_layer(*_):\n    return [1]\n",
    "wrong_shape": broken(CALL, CALL + "\n        return x[:3]"),
    "no_list_of_experts": broken("def expert_parameters", "def other_parameters"),
    "mixed_parameters": broken(
        'self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False,',
        'self.experts = nn.Linear(config["hidden"], config["hidden"],',
    ).replace("list(self.experts.parameters())", "[self.experts.weight]"),
    "router_in_another_type": broken(
        BUILD, "layer = Layer(config, mesh, device, dtype)\n    layer.router.double()\n    return layer"
    ),
    "gathers_a_scalar": broken(
        CALL,
        CALL + "\n        dist.all_gather([x.new_zeros(()) for _ in send], x.new_ones(()), group=self.group)",
    ),
    "raises_in_backward": broken("receive, send, group = ctx.args", "raise RuntimeError('no way back')"),
    "exits": "import sys\n\nsys.exit('not without a GPU')\n",
    "needs_another": "import a_package_that_is_not_here\n" + GOOD,
    "unknown_size": broken(CALL, CALL + "\n        x[x > 0].sum()"),
    "compiles_a_module": broken(BUILD, "return torch.compile(Layer(config, mesh, device, dtype))"),
    "compiles_itself": broken(
        BUILD, "layer = Layer(config, mesh, device, dtype)\n    layer.experts.compile()\n    return layer"
    ),
    "compiles_at_import": "from torch import compile, relu\n\nnormed = compile(relu)\n"
    + broken("return x + Rows", "return normed(x) + Rows"),
    "lists": GOOD.replace(SINGLE, LISTS),
    "uneven": UNEVEN,
    "uneven_lists": UNEVEN.replace(SINGLE, LISTS),
    "own_parallelism": GOOD
    + '''

def parallelize(model, mesh):
    """Replicas whose shared gradients are summed one by one over all ranks, experts' over the expert-data group."""
    group, data = mesh["ep"].get_group(), mesh["edp"].get_group()
    experts = {p for block in model.layers for p in block.moe.expert_parameters()}
    for parameter in model.parameters():
        def reduce(p):
            dist.all_reduce(p.grad, group=data)
            if p not in experts:
                dist.all_reduce(p.grad, group=group)
        parameter.register_post_accumulate_grad_hook(reduce)
''',
}  # fmt: skip


def _write(folder: Path, name: str, source: str) -> str:
    package = folder / f"pkg_{name}"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "moe.py").write_text(source)
    return f"pkg_{name}.moe:build_layer"


@pytest.fixture
def traces(shared: Shared) -> Path:
    """Traces of every layer on 4 ranks with EP 2, and of missing entries."""

    def attempt(folder: Path) -> None:
        how: dict[str, Any] = {"geometry": TINY, "world": 4, "ep": 2}
        requests = [ask(folder, name, entry=_write(folder, name, text), **how) for name, text in LAYERS.items()]
        requests += [
            ask(folder, "no_module", entry="pkg_good.mole:build_layer", **how),
            ask(folder, "no_function", entry="pkg_good.moe:build", **how),
            ask(folder, "natural", entry="pkg_uneven.moe:build_layer", routing="natural", **how),
        ]
        run_all(requests)

    return shared("contract", attempt)


def read_refusal(folder: Path, name: str, rank: int = 0) -> dict[str, str]:
    record = answer(folder, name, rank)
    assert "refusal" in record, f"{name} was counted: {counts(record)}"
    assert "ledger" not in record
    refusal: dict[str, str] = record["refusal"]
    return refusal


def test_a_layer_that_keeps_the_contract_is_counted(traces: Path) -> None:
    record = answer(traces, "good")
    assert counts(record, "kind", "axis", "phase", "where") == {
        ("all_to_all", "ep", "forward", "layers.0.moe"): 2,
        ("all_to_all", "ep", "backward", "layers.0.moe"): 2,
        ("all_gather", "dp", "forward", ""): 1,
        ("all_gather", "dp", "forward", "layers.0"): 1,
        ("all_gather", "dp", "backward", "layers.0"): 1,
        ("all_gather", "edp", "forward", "layers.0.moe.experts"): 1,
        ("all_gather", "edp", "backward", "layers.0.moe.experts"): 1,
        ("reduce_scatter", "dp", "backward", ""): 1,
        ("reduce_scatter", "dp", "backward", "layers.0"): 1,
        ("reduce_scatter", "edp", "backward", "layers.0.moe.experts"): 1,
    }
    assert record["code"]["watched"]["pkg_good"].startswith("pkg_good")
    assert {"pkg_good/__init__.py", "pkg_good/moe.py"} <= set(record["code"]["files"])
    assert "pkg_good" not in record["code"]["foreign"]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("no_module", "entry", "there is no module 'pkg_good.mole'"),
        ("no_function", "entry", "has no function 'build'"),
        ("returns_no_module", "entry", "returned list; it must return an nn.Module"),
        ("no_list_of_experts", "entry", "has no expert_parameters()"),
        ("mixed_parameters", "entry", "Linear in layers.0 holds both expert parameters and others"),
        (
            "router_in_another_type",
            "entry",
            "layers.0.moe.router.weight torch.float64: FSDP shards a block in one dtype",
        ),
        ("wrong_shape", "shape", "(16, 32) torch.float32 to (3, 32) torch.float32"),
    ],
)
def test_an_entry_or_output_against_the_contract_is_refused_with_the_reason(
    traces: Path, name: str, kind: str, message: str
) -> None:
    refusal = read_refusal(traces, name)
    assert refusal["kind"] == kind
    assert message in refusal["message"]


def test_a_tensor_without_dimensions_is_gathered_and_counted(traces: Path) -> None:
    record = answer(traces, "gathers_a_scalar")
    assert ("all_gather", "ep", 4 * 2) in {
        (entry["kind"], entry["axis"], entry["bytes"]) for entry in record["ledger"]["entries"]
    }


@pytest.mark.parametrize(
    ("name", "error", "function"),
    [
        ("raises_in_backward", "RuntimeError: no way back", "backward"),
        ("exits", "SystemExit: not without a GPU", "<module>"),
        ("needs_another", "ModuleNotFoundError: No module named 'a_package_that_is_not_here'", "<module>"),
    ],
)
def test_an_error_is_recorded_with_the_line_that_raised_it(traces: Path, name: str, error: str, function: str) -> None:
    refusal = read_refusal(traces, name)
    marks = ("raise ", "sys.exit", "a_package_that")
    lines = enumerate(LAYERS[name].splitlines(), 1)
    line = next(number for number, text in lines if any(mark in text for mark in marks))
    assert (refusal["kind"], refusal["message"]) == ("code", error)
    assert refusal["where"] == f"pkg_{name}/moe.py:{line} in {function}"


def test_code_that_depends_on_data_is_not_traced(traces: Path) -> None:
    refusal = read_refusal(traces, "unknown_size")
    assert refusal["kind"] == "untraceable"
    assert "depends on real data" in refusal["message"]
    assert refusal["where"].startswith("pkg_unknown_size/moe.py:")


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("compiles_")])
def test_a_count_of_code_that_would_be_compiled_is_refused(traces: Path, name: str) -> None:
    refusal = read_refusal(traces, name)
    assert refusal["kind"] == "compiled"
    assert "torch.compile" in refusal["message"]


def test_parallelize_of_the_layer_replaces_the_sharding_of_the_harness(traces: Path) -> None:
    shared = 5 + 6 + 1  # embedding, head, norm and 2 norms; attention with its 2 norms; router
    assert counts(answer(traces, "own_parallelism"), "kind", "axis") == {
        ("all_to_all", "ep"): 4,
        ("all_reduce", "edp"): shared + 1,
        ("all_reduce", "ep"): shared,
    }


# ---- routing


def test_a_layer_that_ignores_balanced_routing_is_refused(traces: Path) -> None:
    for name in ("uneven", "uneven_lists"):
        refusal = read_refusal(traces, name)
        assert refusal["kind"] == "routing"
        assert "config['routing']" in refusal["message"]
    for name in ("natural", "lists"):
        assert counts(answer(traces, name))["all_to_all"] == 4


# ---- the process, and the origin of its code


@pytest.mark.slow
@pytest.mark.parametrize("has_init", [True, False])
def test_the_checkout_precedes_installed_packages_and_one_from_elsewhere_is_foreign(
    tmp_path: Path, has_init: bool
) -> None:
    """If the checkout's package has no __init__.py, an installed package of that name is imported instead."""
    checkout, installed = tmp_path / "checkout", tmp_path / "installed"
    for root in (checkout / "src", installed):
        (root / "pkg").mkdir(parents=True)
        (root / "pkg" / "moe.py").write_text(GOOD)
    (installed / "pkg" / "__init__.py").touch()
    (installed / "regbot_guest").mkdir()
    (installed / "regbot_guest" / "__init__.py").write_text("raise RuntimeError('in front of the guest')")
    if has_init:
        (checkout / "src" / "pkg" / "__init__.py").touch()
        (installed / "pkg" / "moe.py").write_text("raise RuntimeError('the wrong one')")
    where: dict[str, Any] = {"root": str(checkout), "source_roots": ["src"], "entry": "pkg.moe:build_layer"}
    done = run_guest(ask(tmp_path, "own", geometry=TINY, **where), PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    code = answer(tmp_path, "own")["code"]
    assert code["watched"] == ({"pkg": "src/pkg/__init__.py"} if has_init else {})
    assert code["foreign"] == ({} if has_init else {"pkg": str(installed / "pkg" / "__init__.py")})
    assert bool(code["files"]) == has_init


SAME = {
    "comments": ("    return a + 1\n", "    # why\n    return a + 1  # because\n"),
    "layout": ("    return a + 1\n", "    return (\n        a\n        + 1\n    )\n"),
    "no docstring": ('    """One more."""\n', ""),
    "docstring of the module": ('"""Module."""\n', '"""Another text."""\n'),
}
DIFFERENT = {
    "a number": ("a + 1", "a + 2"),
    "a text that is no docstring": ('"x"', '"y"'),
    "the order": ("NAME = 1\nOTHER = 2\n", "OTHER = 2\nNAME = 1\n"),
}
SOURCE = '"""Module."""\nNAME = 1\nOTHER = 2\n\n\ndef more(a):\n    """One more."""\n    return a + 1\n\n\nX = "x"\n'


@pytest.mark.parametrize("change", [*SAME, *DIFFERENT])
def test_the_code_hash_ignores_comments_layout_and_docstrings_only(tmp_path: Path, change: str) -> None:
    old, new = (SAME | DIFFERENT)[change]
    assert SOURCE.count(old) == 1
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SOURCE)
    after.write_text(SOURCE.replace(old, new))
    assert (code_hash(before) == code_hash(after)) == (change in SAME)
