"""Every dispatcher computes the same loss and gradients as one process with all experts."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from regbot_guest import moe
from regbot_guest.axes import Axes
from regbot_guest.harness import Plugin, Training
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.world import World
from support.guest_runs import MIXTRAL, QWEN, Shared, ask, run_script

pytestmark = pytest.mark.long

SMALLER = {"vocabulary": 256, "sequence": 64, "hidden": 64, "heads": 4, "expert_width": 32}
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "qwen3": (QWEN, SMALLER | {"experts": 32}),
    "mixtral": (MIXTRAL, SMALLER),
    # One expert per rank is fewer than the ranks of the expert-data group, so experts are sharded on another dimension.
    "few": (MIXTRAL, SMALLER | {"experts": 2}),
}
ROUTINGS = ("balanced", "natural", "skewed")
DISPATCHERS = ("alltoall", "allgather")
EP = 2


@pytest.fixture(params=[2, 4], ids=["ep", "ep_dp"])
def world(request: pytest.FixtureRequest) -> int:
    """2 ranks: expert gradients need no reduction. 4 ranks: experts are sharded over an expert-data group of 2."""
    ranks: int = request.param
    return ranks


@pytest.fixture
def steps(world: int, shared: Shared) -> Path:
    def take(folder: Path) -> None:
        cases = itertools.product(SHAPES.items(), ROUTINGS, DISPATCHERS)
        same: dict[str, Any] = {"world": world, "ep": EP, "seed": 1234}
        requests = [
            ask(folder, f"{name}.{how}.{to}", shape, geometry=numbers, routing=how, dispatcher=to, **same)
            for (name, (shape, numbers)), how, to in cases
        ]
        run_script("gradients.py", *requests, ranks=world)

    return shared(f"gradients{world}", take)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_both_dispatchers_have_the_same_loss_and_gradients_as_one_process(
    steps: Path, world: int, shape: str, routing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_dispatcher = {
        dispatcher: [_load(steps, f"{shape}.{routing}.{dispatcher}", rank) for rank in range(world)]
        for dispatcher in DISPATCHERS
    }
    reference = _one_process(steps / f"{shape}.{routing}.alltoall.json", by_dispatcher["alltoall"], monkeypatch)
    assert len(reference["gradients"]) > 20
    for ranks in by_dispatcher.values():
        for rank, got in enumerate(ranks):
            assert got["gradients"].keys() == reference["gradients"].keys()
            assert torch.equal(got["tokens"], by_dispatcher["alltoall"][rank]["tokens"])
            for name, expected in reference["gradients"].items():
                _same(got["gradients"][name], _experts_of(expected, rank) if ".experts." in name else expected, name)
        torch.testing.assert_close(torch.stack([got["loss"] for got in ranks]).mean(), reference["loss"])


def test_ranks_have_different_batches(steps: Path, world: int) -> None:
    batches = [_load(steps, "qwen3.balanced.alltoall", rank)["tokens"] for rank in range(world)]
    assert not any(torch.equal(batch, other) for batch, other in itertools.combinations(batches, 2))


def _one_process(request: Path, ranks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Loss and gradients of the same model with all experts local, on the concatenated batches of the ranks."""
    alone = World(0, 1, torch.device("cpu"), None, None, Axes())

    def tiled(tokens: int, *rest: Any) -> torch.Tensor:  # every rank has the same forced pattern
        return forced_experts(tokens // len(ranks), *rest).repeat(len(ranks), 1)

    monkeypatch.setattr(moe, "forced_experts", tiled)
    training = Training(Request.load(request), Plugin(moe.build_layer), alone)
    logits = training.model(torch.cat([rank["tokens"] for rank in ranks]))
    targets = torch.cat([rank["targets"] for rank in ranks])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return {
        "loss": loss.detach(),
        "gradients": {name: parameter.grad for name, parameter in training.model.named_parameters()},
    }


def _experts_of(all_experts: torch.Tensor, rank: int) -> torch.Tensor:
    """Experts of ``rank``. EP groups are consecutive ranks, and expert e is on rank e // (experts / EP) of each."""
    local = all_experts.shape[0] // EP
    first = rank % EP * local
    return all_experts[first : first + local]


def _same(got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Assert equality up to rounding, relative to the gradient's size. A zero gradient would prove nothing."""
    size = expected.abs().max().item()
    assert size > 0, name
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * size, msg=lambda text: f"{name}: {text}")


def _load(folder: Path, name: str, rank: int) -> dict[str, Any]:
    result: dict[str, Any] = torch.load(folder / f"{name}.rank{rank}.pt", weights_only=True)
    return result
