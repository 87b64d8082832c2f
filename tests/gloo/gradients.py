"""One training step per request on real ranks; each rank saves its batch, loss and gradients.

``gradients.py REQUEST.json...`` writes ``REQUEST.rankN.pt``: loss, tokens, targets, and every parameter's gradient by
name, whole over FSDP, so that only the expert-parallel split is left.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from regbot_guest.harness import Training, load_plugin
from regbot_guest.request import Request
from regbot_guest.world import open_world


def whole(gradient: Any) -> torch.Tensor:
    found: torch.Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found.clone()


requests = {path: Request.load(path) for path in map(Path, sys.argv[1:])}
first = next(iter(requests.values()))
with open_world(first.world, first.ep, fake=False) as world:  # one for all: they differ in other things
    for path, request in requests.items():
        training = Training(request, load_plugin(request.entry), world)
        gradients: dict[str, torch.Tensor] = {}

        def keep(phase: str, training: Any = training, gradients: Any = gradients) -> None:
            if phase == "optimizer":
                gradients.update({name: whole(p.grad) for name, p in training.model.named_parameters()})

        tokens, targets = training._batch(0)
        loss = training.step(0, keep)
        torch.save(
            {"loss": loss, "tokens": tokens, "targets": targets, "gradients": gradients},
            path.with_suffix(f".rank{world.rank}.pt"),
        )
