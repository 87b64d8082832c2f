"""Exchange tokens between ranks, so that every token reaches its experts.

An exchange takes this rank's tokens and their routing, has every expert compute the rows that were sent to it, and
returns one row per token: the weighted sum over its experts. All exchanges compute the same function.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from moetrain.collectives import all_gather, all_to_all, reduce_scatter
from moetrain.router import Routing

Compute = Callable[[Tensor, list[int]], Tensor]
"""``(rows [n, hidden], counts per local expert) -> [n, hidden]``, rows grouped by expert."""

Exchange = Callable[[Tensor, Routing, Compute], Tensor]

FEW_TOKENS = 64
"""Number of tokens per rank below which gathering all tokens on every rank is faster than an all-to-all."""


def choose_exchange(group: dist.ProcessGroup | None, tokens: int) -> Exchange:
    """The fastest exchange for ``tokens`` tokens per rank and experts that are divided over ``group``."""
    if group is None or group.size() == 1:
        return exchange_locally
    if tokens < FEW_TOKENS:
        return partial(exchange_by_gather, group=group)
    return partial(exchange_by_all_to_all, group=group)


def exchange_locally(x: Tensor, routing: Routing, compute: Compute) -> Tensor:
    """Exchange without communication, because all experts are on this rank."""
    order, counts = _by_expert(routing)
    rows = compute(x[order // routing.experts.shape[1]], counts.tolist())
    return _combine(rows, order, routing)


def exchange_by_all_to_all(x: Tensor, routing: Routing, compute: Compute, group: dist.ProcessGroup) -> Tensor:
    """Every row travels to the rank of its expert and back again."""
    ranks = group.size()
    order, counts = _by_expert(routing)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    sent = counts.view(ranks, -1).sum(1).tolist()
    blocks = arriving.view(ranks, -1)  # [source rank, local expert]
    received = blocks.sum(1).tolist()

    rows = all_to_all(x[order // routing.experts.shape[1]], sent, received, group)
    rows = _transpose_blocks(rows, blocks)
    rows = compute(rows, blocks.sum(0).tolist())
    rows = _transpose_blocks(rows, blocks.t())
    rows = all_to_all(rows, received, sent, group)
    return _combine(rows, order, routing)


def exchange_by_gather(x: Tensor, routing: Routing, compute: Compute, group: dist.ProcessGroup) -> Tensor:
    """Every rank gathers all tokens, computes them with its own experts, and reduce-scatters the sums."""
    x = all_gather(x, group)
    weights = all_gather(routing.weights, group)
    experts = all_gather(routing.experts, group)

    order, counts = _by_expert(Routing(experts, weights, routing.num_experts))
    per_rank = counts.view(group.size(), -1)
    mine = order.split(per_rank.sum(1).tolist())[group.rank()]
    token = mine // experts.shape[1]
    rows = compute(x[token], per_rank[group.rank()].tolist())
    rows = rows * weights.flatten()[mine].unsqueeze(1).to(rows.dtype)
    return reduce_scatter(torch.zeros_like(x).index_add(0, token, rows), group)


def _by_expert(routing: Routing) -> tuple[Tensor, Tensor]:
    """Return the (token, slot) pairs sorted by expert, and the number of pairs of every expert."""
    experts = routing.experts.flatten()
    return experts.argsort(stable=True), experts.bincount(minlength=routing.num_experts)


def _combine(rows: Tensor, order: Tensor, routing: Routing) -> Tensor:
    """``rows [tokens * top_k, hidden]`` in ``order`` -> the weighted sum of each token's rows."""
    by_token = torch.empty_like(rows).index_copy(0, order, rows).view(*routing.experts.shape, -1)
    return (by_token * routing.weights.unsqueeze(-1).to(rows.dtype)).sum(1)


def _transpose_blocks(rows: Tensor, sizes: Tensor) -> Tensor:
    """Sort blocks of rows from (0, 0), (0, 1), ... to (0, 0), (1, 0), ... Block (i, j) has ``sizes[i, j]`` rows."""
    blocks = iter(rows.split(sizes.flatten().tolist()))
    grid = [[next(blocks) for _ in range(sizes.shape[1])] for _ in range(sizes.shape[0])]
    return torch.cat([block for column in zip(*grid, strict=True) for block in column])
