"""Forced routing: gives each token fixed experts, so that a benchmark does not depend on a trained router."""

import random
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from regbot_guest.request import Request

ZIPF_EXPONENT = 1.0
"""Exponent of the Zipf weights in skewed routing. Expert e is drawn with weight 1 / (e + 1) ** ZIPF_EXPONENT."""


def forced_experts(tokens: int, experts: int, top_k: int, routing: str, seed: int, device: torch.device) -> Tensor:
    """Return expert indices, int64 ``[tokens, top_k]``, distinct within a row and the same on every rank.

    ``balanced`` assigns consecutive experts: with top-2, token 0 has the experts 0 and 1, and token 1 has 2 and 3.
    ``skewed`` draws each token's experts without replacement, with Zipf weights. Raises ValueError for any other
    ``routing``.
    """
    if routing == "balanced":
        return (torch.arange(tokens * top_k, device=device) % experts).view(tokens, top_k)
    if routing == "skewed":
        return torch.tensor(_zipf(tokens, experts, top_k, seed), device=device)
    raise ValueError(f"routing {routing!r} cannot be forced; use 'balanced' or 'skewed'")


@lru_cache(maxsize=4)
def _zipf(tokens: int, experts: int, top_k: int, seed: int) -> tuple[tuple[int, ...], ...]:
    generator = random.Random(seed)
    weights = [1.0 / (expert + 1) ** ZIPF_EXPONENT for expert in range(experts)]

    def row() -> tuple[int, ...]:  # the experts of one token
        # Efraimidis and Spirakis 2006: the k largest u^(1/w) are a weighted sample without replacement.
        keys = [generator.random() ** (1.0 / weight) for weight in weights]
        return tuple(sorted(range(experts), key=keys.__getitem__, reverse=True)[:top_k])

    return tuple(row() for _ in range(tokens))


def order_experts(chosen: Tensor, experts: int) -> Tensor:
    """Return all experts for every token, ``[tokens, experts]``, the ``chosen [tokens, top_k]`` first."""
    tokens, top_k = chosen.shape
    is_not_chosen = torch.ones(tokens, experts, dtype=torch.bool).scatter_(1, chosen, False)
    other_experts = is_not_chosen.nonzero()[:, 1].view(tokens, experts - top_k)
    return torch.cat([chosen, other_experts], dim=1)


def make_expert_choice(request: Request) -> Callable[[str, Tensor, Tensor], Tensor]:
    """Return ``choose(operator, scores, indices)`` for a trace, where the router's scores are unknown. It returns the
    values of ``indices`` by the requested routing (natural routing counts as balanced), or an empty tensor if the
    operator chooses no experts.
    """
    geometry = request.geometry
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, top_k: int) -> Tensor:
        return forced_experts(tokens, geometry.experts, top_k, routing, request.seed, torch.device("cpu"))

    def choose(operator: str, scores: Tensor, indices: Tensor) -> Tensor:
        # The operator chooses experts only if the indices belong to the last dimension of the scores.
        tokens = scores.numel() // geometry.experts
        if operator == "aten::argmax" and indices.shape == scores.shape[:-1]:
            return route(tokens, 1).flatten()
        if operator == "aten::topk" and indices.shape[:-1] == scores.shape[:-1]:
            return route(tokens, indices.shape[-1])
        if operator == "aten::sort" and indices.shape == scores.shape:
            return order_experts(route(tokens, geometry.top_k), geometry.experts)
        return torch.empty(0, dtype=torch.int64)

    return choose
