"""Worlds: the ranks that a workload runs on, real or fake, with one process group per mesh axis.

A fake world has one process, rank 0, and any number of ranks that are not there: its collectives return at once, which
is all that counting needs. Every axis gets a process group of its own, even where two axes span the same ranks, so that
a collective can be told by the group it was given.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from regbot_guest.axes import Axes


@dataclass(frozen=True)
class World:
    """``data``: mesh of all ranks, axis ``dp``. ``expert``: mesh ``edp`` x ``ep`` over the same ranks."""

    rank: int
    size: int
    device: torch.device
    data: DeviceMesh | None
    expert: DeviceMesh | None
    axes: Axes


@contextmanager
def open_world(size: int, ep: int, fake: bool, device: str = "cpu") -> Iterator[World]:
    """A world of ``size`` ranks with expert-parallel groups of ``ep`` consecutive ranks. A fake one is on ``device``.

    A real one takes rank and address from the environment that a launcher such as torchrun sets, and raises
    ValueError where that has another number of ranks.
    """
    rank, place = _join_fake(size, device) if fake else _join_real(size)
    try:
        yield _with_axes(rank, size, ep, place)
    finally:
        dist.destroy_process_group()


def _join_fake(size: int, device: str) -> "tuple[int, torch.device]":
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend 'fake'

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    return 0, torch.device("cuda", 0) if device == "cuda" else torch.device(device)


def _join_real(size: int) -> "tuple[int, torch.device]":
    if int(os.environ.get("WORLD_SIZE", "1")) != size:
        raise ValueError(f"the launcher started {os.environ.get('WORLD_SIZE')} ranks, the request needs {size}")
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) and torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return dist.get_rank(), device


def _with_axes(rank: int, size: int, ep: int, device: torch.device) -> World:
    axes = Axes()
    ranks = torch.arange(size).view(size // ep, ep)  # [expert data, expert]

    def group(axis: str, members: torch.Tensor) -> Any:
        """Make all groups of an axis (every rank must take part in each) and keep this rank's."""
        mine = None
        for row in members.tolist():
            if dist.get_backend() == "fake" and rank not in row:
                continue
            made = dist.new_group(row, group_desc=axis)
            mine = made if rank in row else mine
        axes.add(axis, mine)  # type: ignore[arg-type]
        return mine

    expert, expert_data, data = group("ep", ranks), group("edp", ranks.t()), group("dp", ranks.view(1, size))
    if size == 1:
        return World(rank, size, device, None, None, axes)
    return World(
        rank,
        size,
        device,
        DeviceMesh.from_group(data, device.type, mesh=ranks.flatten(), mesh_dim_names=("dp",)),
        DeviceMesh.from_group([expert_data, expert], device.type, mesh=ranks, mesh_dim_names=("edp", "ep")),
        axes,
    )
