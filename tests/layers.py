"""A small user's repository with a MoE layer behind the module contract, to be spoilt by tests."""

from pathlib import Path

from regbot.config import Workload
from regbot.shapes import load_shape
from regbot.workloads import Task, single_task

GOOD_LAYER = '''\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, ctx.group), None


class Layer(nn.Module):
    """Top-1 of balanced routing: token t goes to expert t % experts; enough to be a MoE layer."""

    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def forward(self, x):
        return Exchange.apply(F.silu(self.experts(Exchange.apply(x, self.group))), self.group)

    def expert_parameters(self):
        return list(self.experts.parameters())


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
'''

CONFIG = """\
version = 1
[workloads.moe]
adapter = "module"
entry = "userpkg.moe:build_layer"
shapes = ["mixtral-8x7b"]
variant = "cpu"
meshes = ["ep"]
timeout_min = 1
"""


def write_repository(root: Path, layer: str = GOOD_LAYER, config: str = CONFIG) -> Path:
    """``root`` with ``userpkg/moe.py`` and ``regbot.toml``."""
    (root / "userpkg").mkdir(parents=True, exist_ok=True)
    (root / "userpkg" / "__init__.py").write_text("")
    (root / "userpkg" / "moe.py").write_text(layer)
    (root / "regbot.toml").write_text(config)
    return root


def layer_task(entry: str = "userpkg.moe:build_layer", timeout_min: float = 1.0, python: str = "") -> Task:
    """The task that traces this repository's layer: Mixtral's cpu variant on two ranks."""
    workload = Workload(
        adapter="module", entry=entry, shapes=["mixtral-8x7b"], variant="cpu", timeout_min=timeout_min, python=python
    )
    return single_task("moe", workload, load_shape("mixtral-8x7b"), "ep")
