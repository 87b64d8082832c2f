"""Token exchanges of one layer through a library's own kernels, which are announced to the counter.

DeepEP and HybridEP bypass torch.distributed, so a dispatch mode does not see their exchanges. Both dispatchers use this
module for two things: it keeps the handle of the routes, which backward uses again, and it announces each exchange. An
exchange is announced only after the call has returned, so every counted exchange was executed. The counted bytes
include the rows, but not the weights that travel with the rows.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.tally import announce


class Exchange:
    """The dispatch and combine calls of one layer in one step.

    ``via`` is the name of the library in the ledger. ``library`` is the object that executes the calls. ``handle`` is
    the part of a dispatch's result that combine needs; it is None before the dispatch. ``experts`` are the experts of
    this rank's tokens, ``[tokens, top_k]``. ``local_experts`` is the number of experts of each rank.
    """

    def __init__(self, via: str, library: Any, group: dist.ProcessGroup, num_experts: int, experts: Tensor) -> None:
        self.via, self.library, self.group = via, library, group
        self.num_experts, self.experts = num_experts, experts.contiguous()
        self.local_experts = num_experts // group.size()
        self.handle: Any = None

    def announce_dispatch(self, x: Tensor, has_new_routes: bool) -> None:
        """Announce a dispatch of ``x [tokens, hidden]``. ``has_new_routes`` is False if the dispatch reuses the routes
        of a handle. The counter then gets no experts, because it already has those of the first dispatch.
        """
        experts = self.experts if has_new_routes else None
        announce(self.via, self.group, x.dtype, lambda: self.count_sent_rows() * _bytes_per_row(x), experts)

    def announce_combine(self, rows: Tensor, count_sent_rows: Callable[[], int]) -> None:
        """Announce a combine of ``rows [rows, hidden]``. ``count_sent_rows`` returns the number of rows that were sent.

        The library may send fewer rows than ``rows`` has, because it may first sum the rows of a token on this rank.
        """
        announce(self.via, self.group, rows.dtype, lambda: count_sent_rows() * _bytes_per_row(rows))

    def count_sent_rows(self) -> int:
        """Return the number of rows that a dispatch sends, including rows that stay on this rank. Waits for the device.

        A token is sent once to each rank that holds one of the token's experts.
        """
        shape = (self.experts.shape[0], self.group.size())
        is_sent = torch.zeros(shape, dtype=torch.bool, device=self.experts.device)
        return int(is_sent.scatter_(1, self.experts // self.local_experts, True).sum())


def _bytes_per_row(rows: Tensor) -> int:
    return rows.shape[1] * rows.element_size()
