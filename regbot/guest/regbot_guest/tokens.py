"""Tokens per expert, read from what the ranks tell each other in the counted step.

Before rows can travel, ranks exchange how many go where: either one integer per expert, or the experts of every token.
Both are seen by the counter as control exchanges on the expert axis. A layer that exchanges neither leaves its tokens
unknown, which is said and is not zero.
"""

from torch import Tensor

_INTEGERS = ("torch.int64", "torch.int32", "torch.uint8", "torch.int16")


class RoutedTokens:
    """What this rank sends to each expert in one step. Each module path is read once: a recomputed layer sends twice
    and routes once."""

    def __init__(self, experts: int, top_k: int, tokens: int) -> None:
        self.experts, self.top_k, self.tokens = experts, top_k, tokens
        self.by_module: dict[str, list[int]] = {}

    def note(self, where: str, sent: Tensor) -> None:
        """Take in the input of one control exchange."""
        if where in self.by_module or str(sent.dtype) not in _INTEGERS:
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
        if min(counts) >= 0:
            self.by_module[where] = counts

    @property
    def per_expert(self) -> list[int]:
        """Rows sent to each expert, all layers together; [] where nothing is known."""
        return [sum(column) for column in zip(*self.by_module.values(), strict=True)]

    @property
    def dropped(self) -> "int | None":
        """Rows that were asked for and not sent; None where nothing is known."""
        if not self.by_module:
            return None
        return max(0, len(self.by_module) * self.tokens * self.top_k - sum(self.per_expert))

    def imbalance(self) -> str:
        """In words where the balanced routing that was asked for is not what happened; '' where it is, or is unknown.

        Dropped tokens are another matter and told apart: experts that all got less, and equally so, are balanced.
        """
        even = self.tokens * self.top_k % self.experts == 0
        for where, counts in self.by_module.items():
            if max(counts) - min(counts) > (0 if even else 1) and sum(counts) == self.tokens * self.top_k:
                return f"{where or 'the layer'} sends {min(counts)} to {max(counts)} tokens to an expert"
        return ""
