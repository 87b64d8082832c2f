"""Outputs and gradients of the layer on two ranks equal those on one rank."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from moetrain.moe import build_layer

CONFIG = {"experts": 8, "top_k": 2, "hidden": 32, "expert_width": 48}
RANKS = 2


@pytest.mark.parametrize("routing", ["natural", "balanced", "skewed"])
@pytest.mark.parametrize("tokens", [32, 96])
def test_two_ranks_compute_what_one_does(routing: str, tokens: int, tmp_path: Path) -> None:
    mp.spawn(_rank, args=(_free_port(), routing, tokens, tmp_path), nprocs=RANKS)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]

    halves = [_train(None, routing, _tokens(rank, tokens)) for rank in range(RANKS)]  # the same tokens, one process
    for part, half in zip(parts, halves, strict=True):
        torch.testing.assert_close(part["y"], half["y"])
        torch.testing.assert_close(part["x.grad"], half["x.grad"])
        torch.testing.assert_close(part["router.weight"], half["router.weight"])
    for name in ("experts.w_in", "experts.w_out"):
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), sum(half[name] for half in halves))


def test_balanced_routing_fills_every_expert_alike() -> None:
    layer = build_layer({**CONFIG, "routing": "balanced"}, None, torch.device("cpu"), torch.float32)
    experts = layer.router(_tokens(0, 64)).experts
    assert experts.flatten().bincount().tolist() == [16] * CONFIG["experts"]


def _rank(rank: int, port: int, routing: str, tokens: int, folder: Path) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("edp", "ep"))
    torch.save(_train(mesh, routing, _tokens(rank, tokens)), folder / f"{rank}.pt")
    dist.destroy_process_group()


def _train(mesh: DeviceMesh | None, routing: str, x: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(0)
    layer = build_layer({**CONFIG, "routing": routing}, mesh, torch.device("cpu"), torch.float32)
    x = x.requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": y.detach(), "x.grad": x.grad, **gradients}


def _tokens(rank: int, tokens: int) -> Tensor:
    return torch.randn(tokens, CONFIG["hidden"], generator=torch.Generator().manual_seed(rank))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
