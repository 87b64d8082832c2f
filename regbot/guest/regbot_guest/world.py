"""Worlds: the ranks that a workload runs on, real or fake, with one process group per mesh axis.

In a fake world only rank 0 exists, and collectives return at once. Every axis has its own process group, even if two
axes span the same ranks, so the group of a collective identifies its axis.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from regbot_guest.axes import Axes
from regbot_guest.contract import ContractError
from regbot_guest.request import Request

TIMEOUT_MARGIN_S = 60.0
"""Seconds by which the timeout of a group exceeds the run's limit, so that regbot ends a hung run, with a report,
before NCCL does.
"""


@dataclass(frozen=True)
class World:
    """``data`` is the mesh of all ranks with the axis ``dp``, ``expert`` the mesh ``edp`` x ``ep`` over the same ranks.
    Both are None if there is only one rank.
    """

    rank: int
    size: int
    device: torch.device
    data: DeviceMesh | None
    expert: DeviceMesh | None
    axes: Axes


@contextmanager
def open_world(
    size: int, ep: int, fake: bool, device: str = "cpu", limit_s: float = 0.0, share_gpu: bool = False
) -> Iterator[World]:
    """Open a world of ``size`` ranks. Groups of ``ep`` consecutive ranks are the expert-parallel groups. A real world
    takes rank and address from the launcher's environment. ``limit_s`` 0 means unknown. Raises ContractError.
    """
    if fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend 'fake'

        # As with NCCL, groups of a GPU accept only GPU tensors. So object collectives use the GPU too.
        backend = "cuda:fake" if device == "cuda" else "fake"
        dist.init_process_group(backend, rank=0, world_size=size, store=FakeStore())
        try:
            own_device = torch.device("cuda", 0) if device == "cuda" else torch.device(device)
            yield _create_groups(rank=0, size=size, ep=ep, device=own_device, timeout=None)
        finally:
            dist.destroy_process_group()
        return
    own_device = choose_device(size, device, share_gpu)
    with join_ranks(own_device, limit_s, share_gpu) as timeout:
        yield _create_groups(dist.get_rank(), size, ep, own_device, timeout)


def open_requested_world(request: Request) -> AbstractContextManager[World]:
    settings: dict[str, Any] = {"device": request.device, "limit_s": request.limit_s, "share_gpu": request.share_gpu}
    return open_world(request.world, request.ep, fake=False, **settings)


def choose_device(size: int, kind: str, share_gpu: bool = False) -> torch.device:
    """Return the device of this rank. With ``share_gpu`` all ranks of a node use its first GPU. Raises ContractError if
    the launcher started another number of ranks, or if torch sees too few GPUs.
    """
    started_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if started_ranks != size:
        raise ContractError("config", f"the launcher started {started_ranks} ranks, but the request needs {size}")
    if kind == "cpu":
        return torch.device("cpu")
    needed_gpus = 1 if share_gpu else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    visible_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if visible_gpus < needed_gpus:
        reason = _explain_missing_gpus()
        raise ContractError(
            "device", f"the run needs {needed_gpus} GPUs on this node, but torch sees {visible_gpus}{reason}"
        )
    return torch.device("cuda", 0 if share_gpu else int(os.environ.get("LOCAL_RANK", "0")))


def _explain_missing_gpus() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f": torch {torch.__version__} is a build for CPUs; install one for GPUs"
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in os.environ:
            return f": {name}={os.environ[name]!r} hides the others"
    return "; 'nvidia-smi' on this node lists the GPUs that the driver knows"


@contextmanager
def join_ranks(device: torch.device, limit_s: float, share_gpu: bool = False) -> Iterator[timedelta | None]:
    """Join all ranks that a launcher has started. Yields the timeout for smaller groups; None is torch's default. Ranks
    that share a GPU use gloo, because NCCL refuses two ranks on one GPU.

    If the block raises, the group is not destroyed, which would wait for the other ranks. The caller has to end the
    process.
    """
    timeout = timedelta(seconds=limit_s + TIMEOUT_MARGIN_S) if limit_s else None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if device.type == "cuda" and not share_gpu:
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    yield timeout
    dist.destroy_process_group()


def _create_groups(rank: int, size: int, ep: int, device: torch.device, timeout: timedelta | None) -> World:
    axes = Axes()
    ranks = torch.arange(size).view(size // ep, ep)  # a row has the ranks of an ep group, a column of an edp group

    def create_groups_of_axis(axis: str, ranks_by_group: torch.Tensor) -> Any:
        """Each row of ``ranks_by_group`` has the ranks of one group. Every rank must create every group, except in a
        fake world.
        """
        own_group = None
        for group_ranks in ranks_by_group.tolist():
            if dist.get_backend() == "fake" and rank not in group_ranks:
                continue
            new_group = dist.new_group(group_ranks, timeout=timeout, group_desc=axis)
            own_group = new_group if rank in group_ranks else own_group
        axes.add(axis, own_group)  # type: ignore[arg-type]
        return own_group

    ep_group = create_groups_of_axis("ep", ranks)
    edp_group = create_groups_of_axis("edp", ranks.t())
    dp_group = create_groups_of_axis("dp", ranks.view(1, size))
    if size == 1:
        return World(rank, size, device, data=None, expert=None, axes=axes)
    return World(
        rank,
        size,
        device,
        data=DeviceMesh.from_group(dp_group, device.type, mesh=ranks.flatten(), mesh_dim_names=("dp",)),
        expert=DeviceMesh.from_group([edp_group, ep_group], device.type, mesh=ranks, mesh_dim_names=("edp", "ep")),
        axes=axes,
    )
