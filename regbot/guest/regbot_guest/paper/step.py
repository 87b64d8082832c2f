"""Counts one steady step on a paper GPU: of the smoke model, which is regbot's own, or of a user's layer in it."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from regbot_guest.backends import describe_backends
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.count import CountMethod, build_ledger, plant_collectives, refuse_unreliable_count
from regbot_guest.harness import Training, load_plugin, skip_other_chunks
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts, order_experts
from regbot_guest.stage import timed_stage
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.untraceable import Untraceable
from regbot_guest.world import open_world

PAPER_PATCHES = ("a paper GPU in place of one: kernels compute shapes", "process groups without peers (fake backend)")
PATCHES = (
    *PAPER_PATCHES,
    "of every parameter that FSDP cuts up, the own piece only",
)
"""What differs from a run on a real GPU. The ledger lists these texts."""


def count_step(request: Request, device: Device) -> dict[str, Any]:
    """Run ``request.steps`` steps and count the last one. Return its fields of the raw record. Raises Untraceable if
    the paper GPU refused something, and ContractError if the count is not reliable.
    """
    torch.set_num_threads(1)  # traces of two arms run in parallel
    # The paper GPU counts the collectives of every thread, so other threads need no watch.
    # CompileWatch lets code under torch.compile run eagerly. UncountedWatch records collectives that cannot be counted.
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch(watch_other_threads=False)
    seconds: dict[str, float] = {}
    device.begin_program()
    device.set_expert_choice(request.geometry.experts, make_expert_choice(request))
    with (
        compile_watch,
        uncounted_watch,
        open_world(request.world, request.ep, fake=True, device="cuda") as world,
        ExitStack() as stack,
    ):
        with timed_stage("build", seconds), skip_other_chunks():  # FSDP creates only this rank's pieces
            training = Training(request, load_plugin(request.entry), world)
        tracker = stack.enter_context(ModuleTracker(training.model))
        counter = PaperCounter(device, world.axes, tracker)
        for number in range(request.steps):
            is_last = number == request.steps - 1
            if is_last:
                liveness = plant_collectives(counter, world)
            counter.new_step(with_fingerprint=is_last)
            device.reset_peak()
            with timed_stage(f"step {number + 1}", seconds), counter:
                training.step(number, lambda phase: setattr(counter, "phase", phase))
        peak_bytes = device.peak_bytes
        counter.read_operators()
        if device.refusals:  # checked even if there was no exception, because the code under test may have caught it
            raise Untraceable(device.refusals[0])
        refuse_unreliable_count(request, uncounted_watch, counter)
        method = CountMethod(
            source="paper-gpu",
            device="cuda",
            program=device.fingerprint(),
            patches=PATCHES,
            guesses=compile_watch.guesses() | device.notes(),
        )
        return {
            "ledger": build_ledger(request, world.axes, counter, liveness, method, config=request.resolved()),
            "loss": [],  # a paper GPU has no values
            "backends": describe_backends(request, counter, world.device),
            "phases_s": seconds,
            "peak_rss_bytes": peak_resident_bytes(),
            "peak_device_bytes": peak_bytes,
            "warnings": [],
        }


def make_expert_choice(request: Request) -> Any:
    """Return ``choose`` for ``Device.set_expert_choice``, with the requested routing; natural routing counts as
    balanced.
    """
    geometry = request.geometry
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, top_k: int) -> Tensor:
        return forced_experts(tokens, geometry.experts, top_k, routing, request.seed, torch.device("cpu"))

    def choose(operator: str, scores: Tensor, indices: Tensor) -> Tensor:
        # The operator chooses experts only if the indices belong to the last dimension of the scores.
        tokens = scores.numel() // geometry.experts
        if operator == "aten::argmax" and indices.shape == scores.shape[:-1]:
            return route(tokens, 1).flatten()
        if operator == "aten::topk" and indices.shape[:-1] == scores.shape[:-1]:
            return route(tokens, indices.shape[-1])
        if operator == "aten::sort" and indices.shape == scores.shape:
            return order_experts(route(tokens, geometry.top_k), geometry.experts)
        return torch.empty(0, dtype=torch.int64)

    return choose
