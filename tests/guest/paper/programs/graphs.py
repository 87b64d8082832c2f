"""CUDA graphs with torch's own functions: counts of a capture and of its replays."""

import json
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import paper_gpu
from regbot_guest.world import World, open_world

device = paper_gpu()
assert device is not None


def counted(counter: PaperCounter) -> dict[str, Any]:
    return {
        "launches": sorted([*key[:2], count] for key, count in counter.launches().items() if key[0] == "aten::erf"),
        "collectives": sorted([key.phase, n, counter.tally.bytes[key]] for key, n in counter.tally.count.items()),
    }


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
        for phase in ("forward", "backward"):
            counter.phase = phase
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
        "within": captured_within_a_step(world),
        "before": captured_before(),
        "notes": device.notes(),
    }
print(json.dumps(answer))
