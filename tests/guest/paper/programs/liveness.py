"""Operators and collectives planted in every phase, also on autograd's thread: their counted phases and modules."""

import json
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import paper_gpu
from regbot_guest.world import open_world

device = paper_gpu()
assert device is not None
threads: set[str] = set()


class Planted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(torch.ones(2, device="cuda"))
        y = torch.erf(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        threads.add("main" if threading.current_thread() is threading.main_thread() else "autograd")
        dist.all_reduce(torch.ones(3, device="cuda"))
        (y,) = ctx.saved_tensors
        return torch.erfc(grads[0] + y)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        return Planted.apply(self.linear(x))


class Model(nn.Module):
    def __init__(self, recompute: "bool | None") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        return x


def optimize(model: nn.Module) -> None:
    dist.all_reduce(torch.ones(5, device="cuda"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.erfinv(parameter))


def step(model: Model, counter: PaperCounter) -> None:
    with counter:
        counter.new_step()
        counter.phase = "forward"
        loss = model(torch.randn(3, 4, device="cuda", requires_grad=True)).sum()
        counter.phase = "backward"
        loss.backward()
        counter.phase = "optimizer"
        optimize(model)
        counter.phase = "unknown"


def counted_collectives(counter: PaperCounter) -> list[list[Any]]:
    return sorted([key.phase, key.where, count, counter.tally.bytes[key]] for key, count in counter.tally.count.items())


def count_on_paper(recompute: "bool | None") -> dict[str, Any]:
    assert device is not None
    with open_world(2, 2, fake=True, device="cuda") as world:
        model = Model(recompute)
        with ModuleTracker(model) as tracker:
            counter = PaperCounter(device, world.axes, tracker)
            step(model, counter)
        planted = {"aten::erf", "aten::erfc", "aten::erfinv"}
        return {
            "launches": [[*key, count] for key, count in sorted(counter.launches().items()) if key[0] in planted],
            "collectives": counted_collectives(counter),
        }


modes = (None, False, True)
answer = {
    "paper": {str(recompute): count_on_paper(recompute) for recompute in modes},
    "threads": sorted(threads),
}
print(json.dumps(answer))
