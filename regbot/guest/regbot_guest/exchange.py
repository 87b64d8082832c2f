"""Token exchanges through a library's own kernels, which a dispatch mode does not see.

Each exchange is announced to the counter after the call has returned, so every counted exchange was executed. The
counted bytes include the rows, but not the weights that travel with the rows.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.tally import announce


class Exchange:
    """The dispatch and combine calls of one layer in one step. ``handle`` is the part of a dispatch's result that
    combine needs. ``experts`` are those of this rank's tokens, ``[tokens, top_k]``.
    """

    def __init__(self, via: str, library: Any, group: dist.ProcessGroup, num_experts: int, experts: Tensor) -> None:
        self.via, self.library, self.group = via, library, group
        self.num_experts, self.experts = num_experts, experts.contiguous()
        self.local_experts = num_experts // group.size()
        self.handle: Any = None

    def announce_dispatch(self, x: Tensor, has_new_routes: bool) -> None:
        """``x`` is ``[tokens, hidden]``. A dispatch that reuses the routes of a handle announces no experts again."""
        experts = self.experts if has_new_routes else None
        announce(self.via, self.group, x.dtype, lambda: self.count_sent_rows() * _bytes_per_row(x), experts)

    def announce_combine(self, rows: Tensor, count_sent_rows: Callable[[], int]) -> None:
        """``count_sent_rows`` may return fewer rows than there are: the library may first sum the rows of a token."""
        announce(self.via, self.group, rows.dtype, lambda: count_sent_rows() * _bytes_per_row(rows))

    def count_sent_rows(self) -> int:
        """Return the number of rows that a dispatch sends, one for each token and rank with one of its experts.
        Includes rows that stay on this rank. Waits for the device.
        """
        shape = (self.experts.shape[0], self.group.size())
        is_sent = torch.zeros(shape, dtype=torch.bool, device=self.experts.device)
        return int(is_sent.scatter_(1, self.experts // self.local_experts, True).sum())


def _bytes_per_row(rows: Tensor) -> int:
    return rows.shape[1] * rows.element_size()
