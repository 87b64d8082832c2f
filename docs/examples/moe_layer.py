"""A small MoE layer behind the module contract, for the examples of docs/bisect.md: balanced routing to one expert."""

import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    """Every rank sends each of its tokens to the rank that has its expert, and nowhere else."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.apply(grad, ctx.group), None


class Gather(torch.autograd.Function):
    """Every rank gets the tokens of all."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Reduce.apply(grad, ctx.group), None


class Reduce(torch.autograd.Function):
    """The sum over all ranks, of which each keeps its own tokens."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Gather.apply(grad, ctx.group), None


class Layer(nn.Module):
    dispatch, combine = AllToAll, AllToAll

    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def forward(self, x):
        return self.combine.apply(nn.functional.silu(self.experts(self.dispatch.apply(x, self.group))), self.group)

    def expert_parameters(self):
        return list(self.experts.parameters())


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
