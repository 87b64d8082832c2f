from dataclasses import dataclass

import torch

DATASETS = {"c4_test": "tests/assets/c4_test"}


@dataclass(kw_only=True, slots=True)
class Loader:
    dataset: str = "c4"

    def build(self, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size):
        assert self.dataset in DATASETS, f"{self.dataset} would be downloaded"
        while True:
            yield torch.zeros(local_batch_size, seq_len, dtype=torch.int64)
