"""One training step per request on real ranks; each rank saves its batch, loss and gradients.

``gradients.py REQUEST.json...`` writes ``REQUEST.rankN.pt``: loss, tokens, targets, and the gradient of every parameter
by name. Gradients are gathered over FSDP, but experts stay split over expert-parallel ranks.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from regbot_guest.harness import Training, load_plugin
from regbot_guest.request import Request
from regbot_guest.world import open_world


def gather(gradient: Any) -> torch.Tensor:
    full: torch.Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return full.clone()


requests = {path: Request.load(path) for path in map(Path, sys.argv[1:])}
first = next(iter(requests.values()))
with open_world(first.world, first.ep, fake=False) as world:  # all requests have the same mesh
    for path, request in requests.items():
        training = Training(request, load_plugin(request.entry), world)
        gradients: dict[str, torch.Tensor] = {}

        def keep(phase: str, training: Any = training, gradients: Any = gradients) -> None:
            if phase == "optimizer":
                gradients.update(
                    {name: gather(parameter.grad) for name, parameter in training.model.named_parameters()}
                )

        tokens, targets = training._make_batch(0)
        loss = training.step(0, keep)
        torch.save(
            {"loss": loss, "tokens": tokens, "targets": targets, "gradients": gradients},
            path.with_suffix(f".rank{world.rank}.pt"),
        )
