"""DeepEP and HybridEP behind the dispatcher protocol, on two ranks with a stand-in of the published signatures."""

import inspect
import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.published import ELASTIC, HYBRID, LEGACY, OLDER_HYBRID, STAND_IN, Published
from regbot_guest.deepep_installation import REQUIRED_PARAMETERS, list_missing
from regbot_guest.dispatch import LocalDispatcher, new_dispatcher
from regbot_guest.moe import Experts
from support.guest_runs import Shared, run_script

STAND_IN_FILE = Path(__file__).parents[1] / "contracts" / "stand_in" / "deep_ep.py"
CASES = {"mixed": 1e-5, "skewed": 1e-5, "bfloat16": 3e-2}
"""What rows are sent around, and how far results may differ, relative to the largest value."""
LIBRARY = ("elastic", "legacy", "hybridep")
RANKS, EXPERTS = 2, 8


@pytest.fixture
def exchanged(shared: Shared) -> Path:
    def run(folder: Path) -> None:
        run_script("dispatchers.py", folder, ranks=RANKS)

    return shared("dispatchers", run)


def _function(text: str) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def published({text}): ...", scope)  # noqa: S102 (our own data)
    return scope["published"]


def _class(published: Published) -> type:
    """A class with the published signatures and nothing behind them."""
    return type("Published", (), {name: _function(text) for name, text in published.methods.items()})


@pytest.mark.parametrize("name", STAND_IN)
def test_the_stand_in_has_exactly_the_published_signatures(name: str) -> None:
    spec = spec_from_file_location("stand_in", STAND_IN_FILE)  # not as deep_ep, which nothing here is to find imported
    assert spec is not None
    assert spec.loader is not None
    stand_in = module_from_spec(spec)
    spec.loader.exec_module(stand_in)
    for method, published in STAND_IN[name].methods.items():
        has = inspect.signature(inspect.getattr_static(getattr(stand_in, name), method).__wrapped__)
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in has.parameters.values()]
        assert inspect.Signature(plain) == inspect.signature(_function(published)), f"{name}.{method}"


@pytest.mark.parametrize(
    ("name", "published"),
    [("ElasticBuffer", ELASTIC), ("Buffer", LEGACY), ("HybridEPBuffer", HYBRID), ("HybridEPBuffer", OLDER_HYBRID)],
)
def test_published_versions_have_every_parameter_that_is_passed(name: str, published: Published) -> None:
    assert list_missing(_class(published), REQUIRED_PARAMETERS[name]) == []
    assert "combine" in str(list_missing(object, REQUIRED_PARAMETERS[name]))


@pytest.mark.slow
def test_every_call_binds_to_the_published_signature_and_passes_what_the_gate_asks_for(exchanged: Path) -> None:
    passed: dict[tuple[str, str], set[str]] = {}
    for kind, method, given in json.loads((exchanged / "calls.json").read_text()):
        text = STAND_IN[kind].methods[method]
        itself = {"self": None} if text.startswith("self") else {}
        inspect.signature(_function(text)).bind(**itself, **dict.fromkeys(given))
        passed.setdefault((kind, method), set()).update(given)
    needed = {
        (kind, method): set(names) for kind, methods in REQUIRED_PARAMETERS.items() for method, names in methods.items()
    }
    assert passed == needed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["alltoall", "allgather", *LIBRARY])
def test_outputs_and_every_gradient_are_those_of_one_process_with_all_experts(
    exchanged: Path, name: str, case: str
) -> None:
    ranks = [_load(exchanged, f"{name}.{case}.rank{rank}") for rank in range(RANKS)]
    x = torch.cat([rank["x"] for rank in ranks]).requires_grad_()
    weights = torch.cat([rank["weights"] for rank in ranks]).requires_grad_()
    experts = torch.cat([rank["experts"] for rank in ranks])
    config = {"experts": EXPERTS, "hidden": x.shape[1], "expert_width": 8}
    mlp = Experts(config, None, torch.device("cpu"), x.dtype)
    local = new_dispatcher("alltoall", EXPERTS, None)
    assert isinstance(local, LocalDispatcher)
    rows = local.dispatch(x, experts, weights)
    out = local.combine(mlp(rows.x, rows.counts))
    (out * torch.cat([rank["share"] for rank in ranks])).sum().backward()

    _same(torch.cat([rank["out"] for rank in ranks]), out.detach(), CASES[case])
    assert torch.equal(torch.cat([rank["counts"] for rank in ranks]), rows.counts)
    for which, leaf in (("x", x), ("weights", weights)):
        assert leaf.grad is not None
        _same(torch.cat([rank["gradients"][which] for rank in ranks]), leaf.grad, CASES[case])
    for which, parameter in mlp.named_parameters():
        assert parameter.grad is not None
        _same(torch.cat([rank["gradients"][which] for rank in ranks]), parameter.grad, CASES[case])


def _same(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    size = expected.abs().max().item()
    assert size > 0
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * size)


def _load(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    return found
