"""Collectives of every kind, on a paper GPU as rank 0 or on real gloo ranks, with their counts and results.

``exchanges.py FOLDER RANKS``: each real rank writes ``FOLDER/rank<N>.json``, the paper GPU ``FOLDER/paper.json``. All
ranks have the same values, as the paper GPU assumes.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from regbot_guest.observer import Observer
from regbot_guest.paper.device import paper_gpu
from regbot_guest.world import World, open_world

folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
device = paper_gpu()
place = "cuda" if device is not None else "cpu"


def numbers(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), device=place).reshape(shape)


def plain(world: World) -> list[Tensor]:
    x, size = numbers(4), world.size
    total = x.clone()
    dist.all_reduce(total)
    most = x.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX, async_op=True).wait()
    gathered = torch.zeros(4 * size, dtype=torch.int64, device=place)
    dist.all_gather_into_tensor(gathered, x)
    listed = [torch.zeros_like(x) for _ in range(size)]
    dist.all_gather(listed, x)
    shares = torch.zeros(4, dtype=torch.int64, device=place)
    dist.reduce_scatter(shares, [x + 1] * size)
    exchanged = torch.zeros(4 * size, dtype=torch.int64, device=place)
    dist.all_to_all_single(exchanged, numbers(4).repeat(size))
    sent = x.clone()
    dist.broadcast(sent, src=0)
    dist.barrier()
    return [total, most, gathered, *listed, shares, exchanged, sent]


def uneven(world: World) -> list[Tensor]:
    """Each rank sends two rows to every rank, so this rank receives two equal rows from each."""
    rows = torch.zeros(2 * world.size, 3, dtype=torch.int64, device=place)
    dist.all_to_all_single(rows, torch.ones(2 * world.size, 3, dtype=torch.int64, device=place), [2] * world.size)
    return [rows]


def objects(world: World) -> list[Any]:
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, {"tokens": 7})
    told = [{"seed": 3}]
    dist.broadcast_object_list(told, src=0)
    return [everyone, told]


def functional(world: World) -> list[Tensor]:
    group = dist.group.WORLD
    x = numbers(4)
    return [
        funcol.wait_tensor(funcol.all_reduce(x, "sum", group)),
        funcol.wait_tensor(funcol.all_gather_tensor(x, 0, group)),
        funcol.wait_tensor(funcol.reduce_scatter_tensor(x.repeat(world.size), "sum", 0, group)),
        funcol.wait_tensor(funcol.broadcast(x, 0, group)),
        *map(funcol.wait_tensor, funcol.all_reduce_coalesced([x, x + 1], "sum", group)),
    ]


PROGRAMS: dict[str, Callable[[World], list[Any]]] = {
    "plain": plain,
    "uneven": uneven,
    "objects": objects,
    "functional": functional,
}


def run(world: World, program: Callable[[World], list[Any]]) -> dict[str, Any]:
    if device is None:
        with Observer(world.axes) as counter:
            results = program(world)
    else:
        from regbot_guest.paper.counter import PaperCounter

        with PaperCounter(device, world.axes) as counter:
            results = program(world)
    rows = [[row[f] for f in ("kind", "axis", "group_size", "dtype", "role", "count", "bytes")]
            for row in counter.tally.entries()]  # fmt: skip
    return {
        "counted": sorted(rows),
        "results": [result.tolist() if isinstance(result, Tensor) else result for result in results],
    }


with open_world(ranks, ranks, fake=device is not None, device=place) as world:
    answer = {name: run(world, program) for name, program in PROGRAMS.items()}
name = "paper" if device is not None else f"rank{world.rank}"
(folder / f"{name}.json").write_text(json.dumps(answer))
