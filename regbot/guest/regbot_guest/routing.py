"""Which experts a token goes to when routing is forced: a benchmark must not depend on what the router has learnt."""

import random
from functools import lru_cache

import torch
from torch import Tensor

ZIPF_EXPONENT = 1.0
"""Expert e of the skewed variant is asked for in proportion to 1 / (e + 1); popularity follows the expert's number."""


def forced_experts(tokens: int, experts: int, top_k: int, routing: str, seed: int, device: torch.device) -> Tensor:
    """Expert numbers, int64 of shape ``[tokens, top_k]``, distinct within a row.

    ``balanced``: consecutive experts, so that every expert gets tokens * top_k / experts rows (exactly, where that
    divides). ``skewed``: drawn without replacement by Zipf popularity from a fixed seed. The same on every rank.
    """
    if routing == "balanced":
        return (torch.arange(tokens * top_k, device=device) % experts).view(tokens, top_k)
    if routing == "skewed":
        return torch.tensor(_zipf(tokens, experts, top_k, seed), device=device)
    raise ValueError(f"routing {routing!r} cannot be forced; use 'balanced' or 'skewed'")


@lru_cache(maxsize=4)
def _zipf(tokens: int, experts: int, top_k: int, seed: int) -> tuple[tuple[int, ...], ...]:
    draw = random.Random(seed)
    weights = [1.0 / (expert + 1) ** ZIPF_EXPONENT for expert in range(experts)]

    def row() -> tuple[int, ...]:
        # Efraimidis and Spirakis 2006: the k largest u^(1/w) are a weighted sample without replacement.
        keys = [draw.random() ** (1.0 / weight) for weight in weights]
        return tuple(sorted(range(experts), key=keys.__getitem__, reverse=True)[:top_k])

    return tuple(row() for _ in range(tokens))
