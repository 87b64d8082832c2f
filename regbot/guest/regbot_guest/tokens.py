"""Tokens per expert, read from the control exchanges of the counted step on the expert axis: either one row count per
expert or the experts of every token. If a layer exchanges neither, they are unknown, which is not zero.
"""

from torch import Tensor

_INTEGERS = ("torch.int64", "torch.int32", "torch.uint8", "torch.int16")


class RoutedTokens:
    """Number of rows that this rank sends to each expert in one step. Only the first exchange of each module path is
    used: a recomputed layer exchanges twice, but its tokens are routed once.
    """

    def __init__(self, experts: int, top_k: int, tokens: int) -> None:
        self.experts, self.top_k, self.tokens = experts, top_k, tokens
        self.by_module: dict[str, list[int]] = {}
        """Rows per expert, by the path of the module that exchanged them."""

    def add(self, module: str, sent: Tensor) -> None:
        """Read the rows per expert from ``sent``, the input of a control exchange. Other contents are ignored."""
        if module in self.by_module or str(sent.dtype) not in _INTEGERS:
            return
        values = sent.detach().flatten().tolist()
        if len(values) == self.experts:
            counts = values
        elif len(values) == self.tokens * self.top_k and min(values) >= 0 and max(values) < self.experts:
            counts = [0] * self.experts
            for expert in values:
                counts[expert] += 1
        else:
            return
        if min(counts) >= 0:  # negative integers are not counts
            self.by_module[module] = counts

    @property
    def per_expert(self) -> list[int]:
        """Rows sent to each expert, summed over all layers. The list is empty if they are unknown."""
        return [sum(column) for column in zip(*self.by_module.values(), strict=True)]

    @property
    def dropped(self) -> "int | None":
        """Number of rows that were routed but not sent, summed over all layers. None if it is unknown."""
        if not self.by_module:
            return None
        return max(0, len(self.by_module) * self.tokens * self.top_k - sum(self.per_expert))

    def imbalance(self) -> str:
        """Describe the first layer whose routing is not balanced, or return ''. ``dropped`` reports layers that dropped
        tokens.
        """
        routed_rows = self.tokens * self.top_k
        # With balanced routing, the counts of two experts differ by one row at most, and only if there is a remainder.
        allowed_difference = 0 if routed_rows % self.experts == 0 else 1
        for module, counts in self.by_module.items():
            has_dropped_rows = sum(counts) != routed_rows
            if max(counts) - min(counts) > allowed_difference and not has_dropped_rows:
                return f"{module or 'the layer'} sends {min(counts)} to {max(counts)} tokens to an expert"
        return ""
