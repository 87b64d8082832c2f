"""Counts of collectives of every kind in a fake world of 4 ranks with EP 2. Prints one JSON object."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.utils.checkpoint import checkpoint

from regbot_guest import collectives, moe
from regbot_guest.axes import Axes
from regbot_guest.collectives import UnknownCollective
from regbot_guest.harness import Plugin, Training
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.observer import Observer
from regbot_guest.request import Geometry, Request
from regbot_guest.world import World, open_world

GEOMETRY = Geometry(
    layers=3, hidden=32, heads=2, kv_heads=1, head_dim=16, qk_norm=False, rope_theta=1e4,
    experts=8, top_k=2, expert_width=16, vocabulary=64, sequence=16, micro_batch=1,
)  # fmt: skip
REQUEST = Request("r", "w", "v", "", ".", GEOMETRY, 4, 2, dtype="float32", dispatcher="alltoall")


def count(world: World, program: Callable[[Observer], None], model: nn.Module | None = None) -> list[dict[str, Any]]:
    with (
        ModuleTracker(model or nn.Module()) as tracker,
        Observer(world.axes, tracker if model is not None else None) as observer,
    ):
        program(observer)
    return observer.tally.entries()


def functional(world: World, observer: Observer) -> None:
    assert world.expert is not None
    group = world.expert["ep"].get_group()
    x = torch.ones(4, 8, requires_grad=True)
    observer.phase = "forward"
    y = funcol.wait_tensor(funcol.all_to_all_single_autograd(x, [2, 2], [2, 2], group))
    z = funcol.all_gather_tensor_autograd(y, 0, group)
    funcol.wait_tensor(funcol.all_reduce(x.detach(), "sum", group))
    observer.phase = "backward"
    z.sum().backward()


def plain(world: World, observer: Observer) -> None:
    assert world.expert is not None
    group = world.expert["ep"].get_group()
    x, big = torch.ones(4), torch.ones(8)
    dist.all_reduce(x, group=group, async_op=True).wait()
    dist.all_gather_into_tensor(big, x, group=group)
    dist.all_gather([torch.ones(4), torch.ones(4)], x, group=group)
    dist.reduce_scatter_tensor(x, big, group=group)
    dist.all_to_all([torch.ones(4), torch.ones(4)], [x, x.clone()], group=group)
    observer.phase = "uneven"
    dist.all_to_all_single(torch.ones(6), x, [3, 3], [2, 2], group=group)
    observer.phase = "unknown"
    dist.broadcast(x, 0, group=group)
    dist.barrier(group=group)


def view_of_much(world: World, observer: Observer) -> None:
    dist.all_reduce(torch.ones(1000)[:10], group=world.data.get_group() if world.data else None)


def point_to_point(world: World, observer: Observer) -> None:
    x = torch.ones(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, x.clone(), 1)]):
        work.wait()
    dist.send(x, 2)


def coalesced(world: World, observer: Observer) -> None:
    assert world.data is not None
    group = world.data.get_group()
    with dist._coalescing_manager(group):
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(torch.ones(8), group=group)


def roles(world: World, observer: Observer) -> None:
    for tensor in (
        torch.ones(2**20, dtype=torch.int64),
        torch.ones(2**21 + 1, dtype=torch.int64),
        torch.ones(100, dtype=torch.bool),
        torch.ones(2**16, dtype=torch.int8),
        torch.ones(2**16 + 1, dtype=torch.int8),
        torch.ones(2**15 + 1, dtype=torch.int16),
        torch.ones(1, dtype=torch.bfloat16),
    ):
        observer.phase = f"{str(tensor.dtype).removeprefix('torch.')}x{tensor.numel()}"
        dist.all_reduce(tensor)


def one_rank(world: World, observer: Observer) -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_group([0]))


def unknown(world: World) -> dict[str, str]:
    """Return the observer's errors for an unknown operator: a new one, and one that is removed from the table."""
    library = torch.library.Library("_c10d_functional", "FRAGMENT")
    library.define("all_to_all_of_the_future(Tensor x, str group_name) -> Tensor")
    library.impl("all_to_all_of_the_future", lambda x, group_name: x.clone(), "CPU")
    errors = {}

    def attempt(name: str, program: Callable[[], Any]) -> None:
        try:
            count(world, lambda _: program())
        except UnknownCollective as error:
            errors[name] = str(error)

    attempt("new", lambda: torch.ops._c10d_functional.all_to_all_of_the_future(torch.ones(1), "g"))
    removed = collectives.COLLECTIVES["c10d"].pop("allreduce_")
    attempt("removed", lambda: dist.all_reduce(torch.ones(1)))
    collectives.COLLECTIVES["c10d"]["allreduce_"] = removed
    return errors


def labels(world: World, groups: dict[str, Any]) -> dict[str, str]:
    return {
        name: count(world, lambda _, group=group: dist.all_reduce(torch.ones(1), group=group))[0]["axis"]
        for name, group in groups.items()
    }


class Recomputed(moe.MoE):
    """The layer under non-reentrant activation checkpointing, as a training script would have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out


def build_recomputed(config: dict[str, Any], mesh: Any, device: Any, dtype: Any) -> nn.Module:
    return Recomputed(config, mesh["ep"].get_group(), device, dtype)


def train(
    world: World, build_layer: Any = moe.build_layer, prepare: Callable[[Training], None] = lambda _: None
) -> list[dict[str, Any]]:
    training = Training(REQUEST, Plugin(build_layer), world)
    prepare(training)
    training.step(0)

    def step(observer: Observer) -> None:
        observer.new_step()
        training.step(1, partial(setattr, observer, "phase"))

    return count(world, step, training.model)


def prefetch_all(training: Training) -> None:
    layers = list(training.model.layers)
    layers[0].set_modules_to_forward_prefetch(layers[1:])


def fingerprints(world: World) -> dict[str, str]:
    """Return fingerprints of programs that differ in one collective, or only in the name of a group."""
    assert world.data is not None
    assert world.expert is not None
    ep, edp, dp = world.expert["ep"].get_group(), world.expert["edp"].get_group(), world.data.get_group()
    other, again = Axes(), dist.new_group([0, 1])
    for name, group in (("dp", dp), ("edp", edp), ("ep", again)):
        other.add(name, group)
    assert again.group_name != ep.group_name

    def hash_of(program: Callable[[], Any], axes: Axes = world.axes) -> str:
        with Observer(axes) as observer:
            program()
        return observer.digest.hexdigest()

    def all_reduce(group: Any, op: Any = dist.ReduceOp.SUM) -> Callable[[], Any]:
        return lambda: dist.all_reduce(torch.ones(4), op=op, group=group)

    def functional_all_reduce(group: Any, op: str = "sum") -> Callable[[], Any]:
        return lambda: funcol.wait_tensor(funcol.all_reduce(torch.ones(4), op, group))

    return {
        "ep": hash_of(all_reduce(ep)),
        "ep again": hash_of(all_reduce(ep)),
        "ep by another name": hash_of(all_reduce(again), other),
        "edp": hash_of(all_reduce(edp)),
        "ep, largest": hash_of(all_reduce(ep, dist.ReduceOp.MAX)),
        "functional ep": hash_of(functional_all_reduce(ep)),
        "functional ep by another name": hash_of(functional_all_reduce(again), other),
        "functional edp": hash_of(functional_all_reduce(edp)),
        "functional ep, largest": hash_of(functional_all_reduce(ep, "max")),
        "other splits": hash_of(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [3, 1], [3, 1], group=ep)),
        "even splits": hash_of(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [2, 2], group=ep)),
    }


results: dict[str, Any] = {}
with open_world(4, 2, fake=True) as world:
    for program in (functional, plain, view_of_much, point_to_point, coalesced, roles, one_rank):
        results[program.__name__] = count(world, partial(program, world))
    results["unknown"] = unknown(world)
    assert world.data is not None
    assert world.expert is not None
    results["labels"] = labels(
        world,
        {
            "ep": world.expert["ep"].get_group(),
            "edp": world.expert["edp"].get_group(),
            "dp": world.data.get_group(),
            "default": None,
            "second over ep": dist.new_group([0, 1]),
            "others": dist.new_group([0, 3]),
            "three": dist.new_group([0, 1, 2]),
        },
    )
    results["step"] = train(world)
    results["prefetched"] = train(world, prepare=prefetch_all)
    results["recomputed"] = train(world, build_recomputed)
    results["fingerprints"] = fingerprints(world)
with open_world(4, 4, fake=True) as world:
    assert world.data is not None
    assert world.expert is not None
    results["labels over the same ranks"] = labels(
        world,
        {
            "ep": world.expert["ep"].get_group(),
            "dp": world.data.get_group(),
            "default": None,
            "third": dist.new_group([0, 1, 2, 3]),
        },
    )
print(json.dumps(results))
