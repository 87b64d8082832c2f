"""One layer's tokens on their ways through a library's own kernels, and telling the counter of each.

DeepEP and HybridEP do not pass torch.distributed, so no dispatch mode sees them. They share what is here: the handle of
the ways taken, which backward takes again, and the announcement after each call. A call is announced when it has
returned, so what is counted was executed. Only the rows are counted; the weights that travel with them are not.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.tally import announce


class Exchange:
    """``library`` is what the calls go to, ``handle`` what its dispatch gave to find the way back. ``experts`` is
    ``[tokens, top_k]``."""

    def __init__(self, via: str, library: Any, group: dist.ProcessGroup, num_experts: int, experts: Tensor) -> None:
        self.via, self.library, self.group = via, library, group
        self.num_experts, self.experts = num_experts, experts.contiguous()
        self.local_experts = num_experts // group.size()
        self.handle: Any = None

    def went_there(self, x: Tensor, routed: bool) -> None:
        """Announce a dispatch of ``x [tokens, hidden]``; ``routed`` where its ways are new."""
        experts = self.experts if routed else None
        announce(self.via, self.group, x.dtype, lambda: self.copies_sent() * _row_bytes(x), experts)

    def went_home(self, rows: Tensor, sent: Callable[[], int]) -> None:
        """Announce a combine; ``sent`` is how many rows travelled, which may be fewer than ``rows`` holds."""
        announce(self.via, self.group, rows.dtype, lambda: sent() * _row_bytes(rows))

    def copies_sent(self) -> int:
        """Rows that a dispatch sends, to this rank itself among them: a token travels once to each rank that holds one
        of its experts. Waits for the device."""
        shape = (self.experts.shape[0], self.group.size())
        reached = torch.zeros(shape, dtype=torch.bool, device=self.experts.device)
        return int(reached.scatter_(1, self.experts // self.local_experts, True).sum())


def _row_bytes(rows: Tensor) -> int:
    return rows.shape[1] * rows.element_size()
