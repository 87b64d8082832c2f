"""Counting one steady step of the smoke model, or of a module in it, on a paper GPU."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from regbot_guest.backends import backends
from regbot_guest.compiled import CompileWatch
from regbot_guest.count import Counted, ledger, plant, refuse_what_cannot_be_believed, stage
from regbot_guest.harness import Training, load_plugin, own_chunk_only
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.unseen import UnseenWatch
from regbot_guest.untraceable import Untraceable
from regbot_guest.where import Where
from regbot_guest.world import open_world

PATCHES = (
    "a paper GPU in place of one: kernels compute shapes",
    "process groups without peers (fake backend)",
    "of every parameter that FSDP cuts up, the own piece only",
)


def count_step(request: Request, device: Device) -> dict[str, Any]:
    """The part of the raw record that the step itself gives: ledger, backends, warnings."""
    torch.set_num_threads(1)  # traces run beside each other and are not to fight for cores
    compiled, unseen = CompileWatch(), UnseenWatch(other_threads=False)
    seconds: dict[str, float] = {}
    device.begin_program()
    device.route_among(request.geometry.experts, expert_choice(request))
    with compiled, unseen, open_world(request.world, request.ep, fake=True, device="cuda") as world, ExitStack() as on:
        with stage("build", seconds), own_chunk_only():
            training = Training(request, load_plugin(request.entry), world)
        where = on.enter_context(Where(training.model))
        counter = PaperCounter(device, world.axes, where)
        for number in range(request.steps):
            last = number == request.steps - 1
            if last:
                liveness = plant(counter, world)
            counter.new_step(program=last)
            device.reset_peak()
            with stage(f"step {number + 1}", seconds), counter:
                training.step(number, lambda phase: setattr(counter, "phase", phase))
        peak = device.peak_bytes
        counter.read_operators()
        if device.refusals:  # also where the code under test has caught what was raised
            raise Untraceable(device.refusals[0])
        refuse_what_cannot_be_believed(request, unseen, counter)
        eager = [f"{compiled.names()} would be compiled by torch.compile, and ran eagerly"] if compiled.called else []
        counted = Counted("paper-gpu", "cuda", device.fingerprint(), PATCHES, [*eager, *device.notes()])
        return {
            "ledger": ledger(request, world, counter, liveness, counted),
            "loss": [],
            "backends": backends(request, counter, world.device),
            "phases_s": seconds,
            "peak_rss_bytes": peak_resident_bytes(),
            "peak_device_bytes": peak,
            "warnings": [],
        }


def expert_choice(request: Request) -> Any:
    """The function that chooses experts where unknown scores decide. Natural routing is taken to be balanced."""
    geometry = request.geometry
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, top_k: int) -> Tensor:
        return forced_experts(tokens, geometry.experts, top_k, routing, request.seed, torch.device("cpu"))

    def choose(operator: str, scores: Tensor, indices: Tensor) -> Tensor:
        tokens = scores.numel() // geometry.experts
        if operator == "aten::argmax" and indices.shape == scores.shape[:-1]:
            return route(tokens, 1).flatten()
        if operator == "aten::topk" and indices.shape[:-1] == scores.shape[:-1]:
            return route(tokens, indices.shape[-1])
        if operator == "aten::sort" and indices.shape == scores.shape:
            return _ranking(route(tokens, geometry.top_k), geometry.experts)
        return torch.empty(0, dtype=torch.int64)

    return choose


def _ranking(chosen: Tensor, experts: int) -> Tensor:
    """All experts for every token, those that routing chooses first: ``[tokens, experts]``."""
    tokens, top_k = chosen.shape
    rest = torch.ones(tokens, experts, dtype=torch.bool).scatter_(1, chosen, False)
    return torch.cat([chosen, rest.nonzero()[:, 1].view(tokens, experts - top_k)], dim=1)
