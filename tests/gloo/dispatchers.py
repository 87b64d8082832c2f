"""Run every dispatcher on the same tokens, on real ranks with the stand-in for deep_ep: ``dispatchers.py FOLDER``.

Each rank writes ``DISPATCHER.CASE.rankN.pt``: inputs, output and the gradients of tokens, weights and expert
parameters. Rank 0 writes ``calls.json``: the parameters of every call to the library.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from regbot_guest.dispatch import new_dispatcher
from regbot_guest.moe import Experts
from regbot_guest.world import open_world

TOKENS, HIDDEN, EXPERTS, TOP_K, RANKS = 12, 16, 8, 3, 2
CONFIG = {"experts": EXPERTS, "hidden": HIDDEN, "expert_width": 8}
DISPATCHERS = {
    "alltoall": ("alltoall", ""),
    "allgather": ("allgather", ""),
    "elastic": ("deepep", "ElasticBuffer"),
    "legacy": ("deepep", "Buffer"),
    "hybridep": ("hybridep", ""),
}
CPU = torch.device("cpu")
STAND_IN = Path(__file__).parents[1] / "contracts" / "stand_in"


def distinct(case: str, generator: torch.Generator) -> Tensor:
    """Return distinct experts for each token. ``skewed``: all are on rank 0, so that rank 1 receives nothing."""
    num_experts = EXPERTS if case != "skewed" else EXPERTS // RANKS
    return torch.stack([torch.randperm(num_experts, generator=generator)[:TOP_K] for _ in range(TOKENS)])


def main(folder: Path) -> None:
    with open_world(RANKS, RANKS, fake=False) as world:
        assert world.expert is not None
        group = world.expert["ep"].get_group()
        for case, dtype in (("mixed", torch.float32), ("skewed", torch.float32), ("bfloat16", torch.bfloat16)):
            for name, (dispatcher, buffer) in DISPATCHERS.items():
                generator = torch.Generator().manual_seed(world.rank)
                experts = distinct(case, generator)
                x = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
                weights = torch.rand(TOKENS, TOP_K, generator=generator).requires_grad_()
                share = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype)
                mlp = Experts(CONFIG, group, CPU, dtype)
                for _ in range(2):  # twice, so that the buffer is reused
                    x.grad = weights.grad = None
                    mlp.zero_grad()
                    instance = new_dispatcher(dispatcher, EXPERTS, group, buffer)
                    rows = instance.dispatch(x, experts, weights)
                    out = instance.combine(mlp(rows.x, rows.counts))
                    (out * share).sum().backward()
                gradients = {"x": x.grad, "weights": weights.grad, **{n: p.grad for n, p in mlp.named_parameters()}}
                inputs = {"x": x.detach(), "weights": weights.detach(), "experts": experts, "share": share}
                torch.save(
                    {**inputs, "out": out.detach(), "counts": rows.counts, "gradients": gradients},
                    folder / f"{name}.{case}.rank{world.rank}.pt",
                )
    if world.rank == 0:
        (folder / "calls.json").write_text(json.dumps(sorted(importlib.import_module("deep_ep").CALLS)))


if __name__ == "__main__":
    sys.path.insert(0, str(STAND_IN))
    main(Path(sys.argv[1]))
