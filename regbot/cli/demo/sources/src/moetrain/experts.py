"""The experts that live on this rank."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):
    """One SwiGLU MLP per expert.

    ``numbers`` are the global numbers of these experts. Every expert is initialised from its own seed, so that the
    model does not depend on how its experts are divided over ranks.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        hidden: int,
        width: int,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.numbers, self.seed = numbers, seed
        # Gate and up projection are one matrix. The first half of its rows is the gate.
        self.w_in = nn.Parameter(torch.empty(len(numbers), 2 * width, hidden, device=device, dtype=dtype))
        self.w_out = nn.Parameter(torch.empty(len(numbers), hidden, width, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        generator = torch.Generator(device=self.w_in.device)
        for place, number in enumerate(self.numbers):
            generator.manual_seed(self.seed * 100_003 + number)
            self.w_in[place].normal_(std=0.02, generator=generator)
            self.w_out[place].normal_(std=0.02, generator=generator)

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """``rows [sum(counts), hidden]``, grouped by expert; ``counts[e]`` of them belong to the e-th expert here."""
        return torch.cat([self._mlp(place, block) for place, block in enumerate(rows.split(counts))])

    def _mlp(self, place: int, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.w_in[place]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.w_out[place])
