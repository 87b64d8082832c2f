"""Which experts a token goes to, and how much each of them counts."""

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Routing:
    """Expert numbers (int64) and weights (float32, sum 1) of every token, both of shape ``[tokens, top_k]``."""

    experts: Tensor
    weights: Tensor
    num_experts: int


class Router(nn.Module):
    """Softmax over all experts, in float32. The weights of the ``top_k`` chosen experts are renormalised.

    The policy "natural" chooses the experts with the largest probabilities. The other policies are for benchmarks,
    whose speed must not depend on what the router has learnt. They fix the experts and keep the weights, so that the
    router still gets its gradient. "balanced" sends the same number of tokens to every expert, and "skewed" sends most
    tokens to a few experts.
    """

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        top_k: int,
        *,
        policy: str = "natural",
        seed: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if policy not in ("natural", "balanced", "skewed"):
            raise ValueError(f"there is no routing policy {policy!r}; there are natural, balanced and skewed")
        self.num_experts, self.top_k = num_experts, top_k
        self.policy, self.seed = policy, seed
        self.weight = nn.Parameter(torch.empty(num_experts, hidden, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Routing:
        """``x [tokens, hidden]``."""
        probabilities = F.linear(x.float(), self.weight.float()).softmax(dim=-1)
        if self.policy == "natural":
            chosen, experts = probabilities.topk(self.top_k, dim=-1)
        else:
            experts = self._fixed(x.shape[0], x.device)
            chosen = probabilities.gather(1, experts)
        return Routing(experts, chosen / chosen.sum(dim=-1, keepdim=True), self.num_experts)

    def _fixed(self, tokens: int, device: torch.device) -> Tensor:
        if self.policy == "skewed":
            return torch.tensor(_zipf(tokens, self.num_experts, self.top_k, self.seed), device=device)
        first = torch.arange(tokens, device=device) * self.top_k
        slot = torch.arange(self.top_k, device=device)
        return (first.unsqueeze(1) + slot) % self.num_experts


@lru_cache(maxsize=2)
def _zipf(tokens: int, num_experts: int, top_k: int, seed: int) -> list[list[int]]:
    """``top_k`` different experts for every token. The probability of expert e is proportional to 1 / (e + 1)."""
    draw = random.Random(seed)
    numbers = range(num_experts)
    popularity = list(accumulate(1 / (expert + 1) for expert in numbers))
    rows = []
    for _ in range(tokens):
        row: dict[int, None] = {}
        while len(row) < top_k:
            row.setdefault(draw.choices(numbers, cum_weights=popularity)[0])
        rows.append(list(row))
    return rows
