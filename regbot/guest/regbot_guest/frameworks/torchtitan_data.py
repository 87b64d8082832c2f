"""Stand-ins for the tokenizer and the dataset, which are not in the repository and would have to be downloaded.

Token numbers are arithmetic: different on every rank, the same in every launch, known also where tensors have no
values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]

STRIDE = 2_654_435_761
"""Knuth's multiplicative hash: neighbouring positions get tokens far apart."""


@dataclass
class NoTokenizer:
    """In place of a tokenizer's configuration: the data needs none."""

    def build(self, **_: Any) -> None:
        return None


@dataclass
class Numbers:
    """In place of a dataset's configuration: batches of token numbers below ``vocabulary``."""

    vocabulary: int

    def build(self, *, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any) -> "Batches":
        return Batches(self.vocabulary, dp_rank, seq_len, local_batch_size)


@dataclass
class Batches:
    """Iterates over the same two batches for ever, in the form of torchtitan's loaders; a row is one document."""

    vocabulary: int
    rank: int
    sequence: int
    batch: int

    def __iter__(self) -> Iterator[Batch]:
        number = 0
        while True:
            yield self._made(number % 2)
            number += 1

    def _made(self, number: int) -> Batch:
        size = self.batch * (self.sequence + 1)
        first = (2 * self.rank + number) * size
        drawn = (torch.arange(first, first + size, dtype=torch.int64) * STRIDE) % self.vocabulary
        tokens = drawn.view(self.batch, self.sequence + 1)
        positions = torch.arange(self.sequence).repeat(self.batch, 1)
        return {"input": tokens[:, :-1].contiguous(), "positions": positions}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        return None
