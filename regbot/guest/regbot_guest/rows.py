"""What every dispatcher has in common: the rows that it hands over, and the sum that it makes of them at the end."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass
class Rows:
    """Token rows grouped by local expert: ``x`` is ``[rows, hidden]``, ``counts`` int64 ``[local experts]``."""

    x: Tensor
    counts: Tensor


class Dispatcher(Protocol):
    """One forward pass through one MoE layer uses one dispatcher object; it holds what combine needs to undo."""

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Rows:
        """``x [tokens, hidden]``, ``experts`` int64 and ``weights`` float32, both ``[tokens, top_k]``."""

    def combine(self, rows: Tensor) -> Tensor:
        """``rows [rows, hidden]`` in dispatch order -> ``[tokens, hidden]``."""


def weighted_sum(rows: Tensor, token_of_row: Tensor, weight_of_row: Tensor, tokens: int) -> Tensor:
    """Sum of each token's rows, weighted: ``[rows, hidden] -> [tokens, hidden]``."""
    weighted = rows * weight_of_row.to(rows.dtype).unsqueeze(1)
    return torch.zeros(tokens, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, token_of_row, weighted)
