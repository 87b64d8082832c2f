"""The module contract: a layer of one's own is plugged in by name, and what does not keep the contract is told so.

Every layer below is a package of its own and most are tried in one process; each spoils the good one in one place.
"""

from pathlib import Path
from typing import Any

import pytest

from conftest import Shared
from guest_runs import TINY, answer, ask, counts, run_all, run_guest
from regbot_guest.origin import code_hash

GOOD = '''\
"""A layer with a plain all-to-all, its experts in a module of their own."""

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
FUNCTIONAL = """\
        return funcol.wait_tensor(funcol.all_to_all_single(x.contiguous(), receive, send, group))
"""


def spoilt(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


# Rank 0 keeps all but 3 of its rows, and so receives rows - 3 from every rank.
UNEVEN = spoilt(SPLITS, "return [x.shape[0] - 3, 3]").replace(
    CALL, "send = self.splits(x)\n        receive = [send[self.group.rank()]] * self.group.size()"
)
LAYERS = {
    "good": GOOD,
    "not_a_function": GOOD + "\nbuild_layer = 3\n",
    "returns_no_module": GOOD + "\ndef build_layer(*_):\n    return [1]\n",
    "wrong_shape": spoilt(CALL, CALL + "\n        return x[:3]"),
    "wrong_dtype": spoilt("return x + Rows", "return x.double() + Rows"),
    "a_tuple": spoilt("keepdim=True)", "keepdim=True), None"),
    "no_list_of_experts": spoilt("def expert_parameters", "def other_parameters"),
    "mixed_parameters": spoilt(
        'self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False,',
        'self.experts = nn.Linear(config["hidden"], config["hidden"],',
    ).replace("list(self.experts.parameters())", "[self.experts.weight]"),
    "raises": spoilt(CALL, CALL + "\n        raise RuntimeError('no such kernel')"),
    "raises_in_backward": spoilt("receive, send, group = ctx.args", "raise RuntimeError('no way back')"),
    "exits": "import sys\n\nsys.exit('not without a GPU')\n",
    "needs_another": "import a_package_that_is_not_here\n" + GOOD,
    "reads_data": spoilt(CALL, CALL + "\n        x.argmax().item()"),
    "unknown_size": spoilt(CALL, CALL + "\n        x[x > 0].sum()"),
    "compiles_a_function": GOOD.replace("def splits", "@torch.compile\n    def splits"),
    "compiles_with_options": GOOD.replace("def splits", "@torch.compile(dynamic=True)\n    def splits"),
    "compiles_a_module": spoilt(BUILD, "return torch.compile(Layer(config, mesh, device, dtype))"),
    "compiles_itself": spoilt(
        BUILD, "layer = Layer(config, mesh, device, dtype)\n    layer.experts.compile()\n    return layer"
    ),
    "compiles_at_import": "from torch import compile, relu\n\nnormed = compile(relu)\n"
    + spoilt("return x + Rows", "return normed(x) + Rows"),
    "compiles_what_is_not_called": GOOD + "\n\n@torch.compile\ndef unused(x):\n    return x\n",
    "lists": GOOD.replace(SINGLE, LISTS),
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
    "own_wrapper": GOOD
    + '''

class Wrapper(nn.Module):
    def __init__(self, model, mesh):
        super().__init__()
        self.model, self.group = model, mesh["ep"].get_group()

    def forward(self, tokens):
        dist.barrier(group=self.group)
        return self.model(tokens)


def parallelize(model, mesh):
    return Wrapper(model, mesh)
''',
}  # fmt: skip


def _write(folder: Path, name: str, source: str) -> str:
    package = folder / f"pkg_{name}"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "moe.py").write_text(source)
    return f"pkg_{name}.moe:build_layer"


@pytest.fixture
def tried(shared: Shared) -> Path:
    """Every layer traced on 4 ranks with EP 2, and entries that are not there."""

    def attempt(folder: Path) -> None:
        how: dict[str, Any] = {"geometry": TINY, "world": 4, "ep": 2}
        requests = [ask(folder, name, entry=_write(folder, name, text), **how) for name, text in LAYERS.items()]
        requests += [
            ask(folder, "no_module", entry="pkg_good.mole:build_layer", **how),
            ask(folder, "no_package", entry="pkg_elsewhere.moe:build_layer", **how),
            ask(folder, "no_function", entry="pkg_good.moe:build", **how),
        ]
        run_all(requests)

    return shared("contract", attempt)


def refusal(folder: Path, name: str, rank: int = 0) -> dict[str, str]:
    record = answer(folder, name, rank)
    assert "refusal" in record, f"{name} was counted: {counts(record)}"
    assert "ledger" not in record
    found: dict[str, str] = record["refusal"]
    return found


def test_a_layer_that_keeps_the_contract_is_counted(tried: Path) -> None:
    record = answer(tried, "good")
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
    ("name", "message"),
    [
        ("no_module", "there is no module 'pkg_good.mole'"),
        ("no_package", "there is no module 'pkg_elsewhere'"),
        ("no_function", "has no function 'build'"),
        ("not_a_function", "has no function 'build_layer'"),
        ("returns_no_module", "returned list; it must return an nn.Module"),
        ("no_list_of_experts", "has no expert_parameters()"),
        ("mixed_parameters", "Linear in layers.0 holds expert parameters beside others"),
    ],
)
def test_an_entry_that_cannot_be_used_is_told_why(tried: Path, name: str, message: str) -> None:
    told = refusal(tried, name)
    assert told["kind"] == "entry"
    assert message in told["message"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_shape", "(16, 32) torch.float32 to (3, 32) torch.float32"),
        ("wrong_dtype", "(16, 32) torch.float32 to (16, 32) torch.float64"),
        ("a_tuple", "to tuple"),
    ],
)
def test_what_comes_out_must_be_like_what_went_in(tried: Path, name: str, message: str) -> None:
    told = refusal(tried, name)
    assert told["kind"] == "shape"
    assert message in told["message"]


@pytest.mark.parametrize(
    ("name", "error", "function"),
    [
        ("raises", "RuntimeError: no such kernel", "forward"),
        ("raises_in_backward", "RuntimeError: no way back", "backward"),
        ("exits", "SystemExit: not without a GPU", "<module>"),
        ("needs_another", "ModuleNotFoundError: No module named 'a_package_that_is_not_here'", "<module>"),
    ],
)
def test_an_error_is_told_with_the_line_that_raised_it(tried: Path, name: str, error: str, function: str) -> None:
    told = refusal(tried, name)
    marks = ("raise ", "sys.exit", "a_package_that")
    lines = enumerate(LAYERS[name].splitlines(), 1)
    line = next(number for number, text in lines if any(mark in text for mark in marks))
    assert (told["kind"], told["message"]) == ("code", error)
    assert told["where"] == f"pkg_{name}/moe.py:{line} in {function}"


@pytest.mark.parametrize("name", ["reads_data", "unknown_size"])
def test_code_that_depends_on_data_is_not_traced(tried: Path, name: str) -> None:
    told = refusal(tried, name)
    assert told["kind"] == "untraceable"
    assert "depends on real data" in told["message"]
    assert told["where"].startswith(f"pkg_{name}/moe.py:")


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("compiles_") and "not_called" not in name])
def test_a_count_of_code_that_would_be_compiled_is_refused(tried: Path, name: str) -> None:
    told = refusal(tried, name)
    assert told["kind"] == "compiled"
    assert "torch.compile" in told["message"]


def test_compiled_code_that_the_step_never_calls_does_no_harm(tried: Path) -> None:
    assert counts(answer(tried, "compiles_what_is_not_called")) == counts(answer(tried, "good"))


def test_a_layers_own_parallelism_replaces_the_harnesss(tried: Path) -> None:
    shared = 5 + 6 + 1  # embedding, head, norm and 2 norms; attention with its 2 norms; router
    assert counts(answer(tried, "own_parallelism"), "kind", "axis") == {
        ("all_to_all", "ep"): 4,
        ("all_reduce", "edp"): shared + 1,
        ("all_reduce", "ep"): shared,
    }


def test_a_model_returned_by_the_layers_own_parallelism_is_the_one_that_trains(tried: Path) -> None:
    assert counts(answer(tried, "own_wrapper")) == {"all_to_all": 4, "barrier": 1}


# ---- routing, which needs values


@pytest.fixture
def routed(shared: Shared) -> Path:
    """Layers on two real ranks that send as many rows to each, and layers that do not."""

    def attempt(folder: Path) -> None:
        imported = "import torch.distributed._functional_collectives as funcol\n"
        layers = {"even": GOOD, "uneven": UNEVEN}
        layers |= {f"{name}_functional": imported + text.replace(SINGLE, FUNCTIONAL) for name, text in layers.items()}
        how: dict[str, Any] = {"geometry": TINY, "mode": "real"}
        requests = [ask(folder, name, entry=_write(folder, name, text), **how) for name, text in layers.items()]
        requests.append(ask(folder, "natural", entry="pkg_uneven.moe:build_layer", routing="natural", **how))
        run_all(requests, ranks=2)

    return shared("routed", attempt)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uneven", "uneven_functional"])
def test_a_layer_that_ignores_balanced_routing_is_refused(routed: Path, name: str) -> None:
    for rank in range(2):
        told = refusal(routed, name, rank)
        assert told["kind"] == "routing"
        assert "config['routing']" in told["message"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "even_functional", "natural"])
def test_a_layer_that_routes_as_asked_is_counted(routed: Path, name: str) -> None:
    assert counts(answer(routed, name))["all_to_all"] == 4


def test_uneven_parts_in_lists_are_noticed_too(tried: Path) -> None:
    """Traced, because gloo cannot exchange them."""
    assert counts(answer(tried, "lists"))["all_to_all"] == 4
    assert refusal(tried, "uneven_lists")["kind"] == "routing"


# ---- the process, and whose code it ran


def test_a_refusal_is_an_exit_code_and_a_line_of_its_own(tmp_path: Path) -> None:
    request = ask(tmp_path, "told", geometry=TINY, entry="not_here.moe:build_layer")
    done = run_guest(request)
    assert done.returncode == 10
    assert (
        done.stderr.strip().splitlines()[-1].startswith("entry: entry 'not_here.moe:build_layer': there is no module")
    )
    assert answer(tmp_path, "told")["environment"]["torch"]


@pytest.mark.slow
def test_a_package_installed_elsewhere_is_foreign_though_the_checkout_has_one_too(tmp_path: Path) -> None:
    """The checkout's package has no __init__.py, so an installed one of that name wins, wherever it is on the path."""
    checkout, installed = tmp_path / "checkout", tmp_path / "installed"
    for root, init in ((checkout, False), (installed, True)):
        package = root / "pkg"
        package.mkdir(parents=True)
        (package / "moe.py").write_text(GOOD)
        if init:
            (package / "__init__.py").touch()
    done = run_guest(
        ask(tmp_path, "foreign", geometry=TINY, entry="pkg.moe:build_layer", root=str(checkout)),
        PYTHONPATH=str(installed),
    )
    assert done.returncode == 0, done.stderr
    code = answer(tmp_path, "foreign")["code"]
    assert code["foreign"] == {"pkg": str(installed / "pkg" / "__init__.py")}
    assert code["watched"] == {}
    assert code["files"] == {}


@pytest.mark.slow
def test_the_checkout_comes_before_what_is_installed(tmp_path: Path) -> None:
    checkout, installed = tmp_path / "checkout", tmp_path / "installed"
    for root in (checkout / "src", installed):
        (root / "pkg").mkdir(parents=True)
        (root / "pkg" / "__init__.py").touch()
    (checkout / "src" / "pkg" / "moe.py").write_text(GOOD)
    (installed / "pkg" / "moe.py").write_text("raise RuntimeError('the wrong one')")
    (installed / "regbot_guest").mkdir()
    (installed / "regbot_guest" / "__init__.py").write_text("raise RuntimeError('in front of the guest')")
    where: dict[str, Any] = {"root": str(checkout), "source_roots": ["src"], "entry": "pkg.moe:build_layer"}
    done = run_guest(ask(tmp_path, "own", geometry=TINY, **where), PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    code = answer(tmp_path, "own")["code"]
    assert code["foreign"] == {}
    assert code["watched"] == {"pkg": "src/pkg/__init__.py"}


SAME = {
    "comments": ("    return a + 1\n", "    # why\n    return a + 1  # because\n"),
    "layout": ("    return a + 1\n", "    return (\n        a\n        + 1\n    )\n"),
    "a docstring": ('    """One more."""\n', '    """Another text,\n\n    longer.\n    """\n'),
    "no docstring": ('    """One more."""\n', ""),
    "docstring of the module": ('"""Module."""\n', ""),
    "quotes": ('"x"', "'x'"),
}
DIFFERENT = {
    "a number": ("a + 1", "a + 2"),
    "a name": ("def more", "def less"),
    "a default": ("(a)", "(a=0)"),
    "a text that is no docstring": ('"x"', '"y"'),
    "the order": ("NAME = 1\nOTHER = 2\n", "OTHER = 2\nNAME = 1\n"),
    "a decorator": ("def more", "@print\ndef more"),
}
SOURCE = '"""Module."""\nNAME = 1\nOTHER = 2\n\n\ndef more(a):\n    """One more."""\n    return a + 1\n\n\nX = "x"\n'


@pytest.mark.parametrize("change", [*SAME, *DIFFERENT])
def test_the_hash_of_code_is_that_of_what_it_does(tmp_path: Path, change: str) -> None:
    old, new = (SAME | DIFFERENT)[change]
    assert SOURCE.count(old) == 1
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SOURCE)
    after.write_text(SOURCE.replace(old, new))
    assert (code_hash(before) == code_hash(after)) == (change in SAME)


def test_what_is_no_python_is_hashed_by_its_bytes(tmp_path: Path) -> None:
    library, other = tmp_path / "one.so", tmp_path / "other.so"
    library.write_bytes(b"\x7fELF\0\1")
    other.write_bytes(b"\x7fELF\0\2")
    assert code_hash(library) != code_hash(other)
