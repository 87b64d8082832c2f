"""Counts one steady step of regbot's own model, or of a user's layer in it, without a GPU and without other ranks.

The step runs on a paper GPU, or as a CPU program: on fake tensors with shadow values (``shadow_values.py``).
"""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regbot_guest.backends import describe_backends
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.count import (
    build_ledger,
    list_mesh_groups,
    list_routing_warnings,
    plant_collectives,
    refuse_compiled,
    refuse_unreliable_count,
)
from regbot_guest.harness import Training, load_plugin, skip_other_chunks
from regbot_guest.missing_imports import describe_missing_imports, list_class_files
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.observer import Observer
from regbot_guest.paper import libraries
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries import triton
from regbot_guest.request import Request
from regbot_guest.routing import make_expert_choice
from regbot_guest.shadow_values import ShadowValues
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.untraceable import Untraceable
from regbot_guest.world import open_world

PAPER_PATCHES = ("a paper GPU in place of one: kernels compute shapes", "process groups without peers (fake backend)")
FAKE_PATCHES = ("tensors without values (FakeTensorMode)", "process groups without peers (fake backend)")
SHARDING_PATCH = "of every parameter that FSDP cuts up, the own piece only"
"""What differs from a real run. The ledger lists these texts."""


def count_step(request: Request, device: Device | None) -> dict[str, Any]:
    """Run ``request.steps`` steps and count the last one. Return its fields of the raw record. Without a ``device`` a
    CPU program is traced. Raises ContractError if the count is not reliable, or one of ``UNTRACEABLE``.
    """
    torch.set_num_threads(1)  # traces of two arms run in parallel
    runs_grouped_mm(getattr(torch, request.dtype), torch.device("cpu"))  # cached while no dispatch mode is active
    # The paper GPU counts the collectives of every thread, so other threads need no watch.
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch(watch_other_threads=device is None)
    choose_experts = make_expert_choice(request)
    shadows: ShadowValues | None = None
    building: AbstractContextManager[Any] = nullcontext()
    with (
        compile_watch,
        uncounted_watch,
        open_world(request.world, request.ep, fake=True, device="cpu" if device is None else "cuda") as world,
        ExitStack() as stack,
    ):
        if device is not None:
            device.begin_program()
            if request.entry is not None:  # regbot's own layer needs no stand-ins
                libraries.install(device, request.stand_ins, request.stand_ins_text)
            device.set_expert_choice(request.geometry.experts, choose_experts)
        else:
            triton.refuse_launches()
            fake_mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            shadows = ShadowValues(fake_mode, request.geometry.experts, choose_experts)
            stack.enter_context(shadows.patched_torch())
            building = Observer(world.axes, shadows=shadows)  # constant tensors of layers keep shadow values
        with building, skip_other_chunks():
            training = Training(request, load_plugin(request.entry), world)
        tracker = stack.enter_context(ModuleTracker(training.model))
        counter: PaperCounter | Observer
        if device is not None:
            counter = PaperCounter(device, world.axes, tracker)
        else:
            counter = Observer(world.axes, tracker, shadows)
        for number in range(request.steps):
            is_last = number == request.steps - 1
            if is_last:
                liveness = plant_collectives(counter, list_mesh_groups(world), world.device)
            counter.new_step(with_fingerprint=is_last)
            with counter:
                training.step(number, lambda phase: setattr(counter, "phase", phase))
        counter.read_operators()
        if device is None:
            refuse_compiled(compile_watch)
        elif device.refusals:  # checked without an exception too, because the code under test may have caught it
            raise Untraceable(device.refusals[0])
        refuse_unreliable_count(request, uncounted_watch, counter)
        return {
            "ledger": build_ledger(
                request,
                counter,
                liveness,
                device=world.device.type,
                config=request.resolved(),
                patches=[
                    *(FAKE_PATCHES if device is None else (*PAPER_PATCHES, *libraries.describe_declared())),
                    SHARDING_PATCH,
                ],
                guesses=compile_watch.guesses() | counter.guesses(),
                # No patches, because these must be the same in both arms, and a layer may begin to use a library.
                warnings=[
                    *list_routing_warnings(request),
                    *libraries.describe_imported(),
                    *describe_missing_imports(list_class_files(training.model, request.root)),
                ],
            ),
            "backends": describe_backends(request, counter, world.device),
            "peak_rss_bytes": peak_resident_bytes(),
        }
