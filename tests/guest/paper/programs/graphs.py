"""CUDA graphs with torch's own functions: counts of each step, compared with the same step without a graph."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import paper_gpu
from regbot_guest.world import World, open_world

device = paper_gpu()
assert device is not None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        dist.all_reduce(torch.ones(2, device="cuda"))
        return torch.erf(self.linear(x))


def counted(counter: PaperCounter) -> dict[str, Any]:
    matrices = {"aten::erf", "aten::addmm", "aten::mm"}
    return {
        "launches": sorted([*key[:2], count] for key, count in counter.launches().items() if key[0] in matrices),
        "collectives": sorted([key.phase, n, counter.tally.bytes[key]] for key, n in counter.tally.count.items()),
    }


def graphed_layer(world: World) -> list[dict[str, Any]]:
    """Only replays count as launches: those of steps 0 and 1, but not the captures in step 0."""
    assert device is not None
    steps = []
    model = nn.Sequential(Layer())
    with ModuleTracker(model) as tracker, PaperCounter(device, world.axes, tracker) as counter:
        for number in range(3):
            counter.new_step()
            x = torch.randn(3, 4, device="cuda", requires_grad=True)
            if number == 0:
                model = torch.cuda.make_graphed_callables(model, (x,), num_warmup_iters=1)
                counter.new_step()
            counter.phase = "forward"
            loss = model(torch.randn(3, 4, device="cuda", requires_grad=True)).sum()
            counter.phase = "backward"
            loss.backward()
            counter.phase = "unknown"
            steps.append(counted(counter))
    return steps


def eager_layer(world: World) -> dict[str, Any]:
    assert device is not None
    model = nn.Sequential(Layer())
    with ModuleTracker(model) as tracker, PaperCounter(device, world.axes, tracker) as counter:
        counter.phase = "forward"
        loss = model(torch.randn(3, 4, device="cuda", requires_grad=True)).sum()
        counter.phase = "backward"
        loss.backward()
        counter.phase = "unknown"
        return counted(counter)


def captured_within_a_step(world: World) -> list[dict[str, Any]]:
    assert device is not None
    x, steps = torch.ones(3, device="cuda"), []
    with PaperCounter(device, world.axes) as counter:
        counter.phase = "forward"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inside = torch.cuda.is_current_stream_capturing()
            torch.erf(x)
            dist.all_reduce(x)
        steps.append({**counted(counter), "capturing": [inside, torch.cuda.is_current_stream_capturing()]})
        for _ in range(2):
            graph.replay()
        steps.append(counted(counter))
        counter.phase = "unknown"
    return steps


def captured_before() -> str:
    assert device is not None
    device.counter = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(3, device="cuda")
    try:
        graph.replay()
    except Exception as error:
        return str(error)
    return "replayed"


with open_world(2, 2, fake=True, device="cuda") as world:
    answer = {
        "eager": eager_layer(world),
        "graphed": graphed_layer(world),
        "within": captured_within_a_step(world),
        "before": captured_before(),
        "notes": device.notes(),
    }
print(json.dumps(answer))
