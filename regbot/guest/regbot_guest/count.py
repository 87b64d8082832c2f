"""Counts one steady step: build the workload in a world, run the steps, count the last step.

The mode ``static`` uses a fake world and fake tensors with shadow values (``shadow_values.py``), so a model of full
size needs no GPU and well below 1 GiB of memory. The mode ``real`` uses the ranks of a launcher.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from regbot_guest.axes import Axes
from regbot_guest.backends import describe_backends
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.contract import ContractError
from regbot_guest.guesses import as_ledger_fields
from regbot_guest.harness import Training, load_plugin, skip_other_chunks
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.observer import Observer, Shadowing
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.shadow_values import ShadowValues
from regbot_guest.stage import timed_stage
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.tally import StepCounter
from regbot_guest.uncounted_collectives import UncountedWatch
from regbot_guest.untraceable import Untraceable
from regbot_guest.world import World, open_requested_world, open_world

UNTRACEABLE = (
    Untraceable,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""Exceptions of a step that cannot be traced without real data."""
FAKE_PATCHES = (
    "tensors without values (FakeTensorMode)",
    "process groups without peers (fake backend)",
    "of every parameter that FSDP cuts up, the own piece only",
)
"""What differs from a real run in a trace with fake tensors. The ledger lists these texts."""


def count_step(request: Request) -> dict[str, Any]:
    """Count the last of ``request.steps`` steps, and return its fields of the raw record.

    Raises ContractError if the step cannot be counted reliably, or one of ``UNTRACEABLE``.
    """
    is_static = request.mode == "static"
    compile_watch, uncounted_watch = CompileWatch(), UncountedWatch()
    seconds_by_stage: dict[str, float] = {}
    if is_static:
        torch.set_num_threads(1)  # tensors with values are small here, and traces of two arms run in parallel
    # Cache the result while no dispatch mode is active.
    runs_grouped_mm(getattr(torch, request.dtype), torch.device("cpu"))
    with (
        compile_watch,
        # On real ranks, sequence numbers reveal collectives that the watch misses. A static trace has no sequence
        # numbers, so the watch must be active when the code under test is imported.
        uncounted_watch if is_static else nullcontext(),
        open_world(request.world, request.ep, fake=True) if is_static else open_requested_world(request) as world,
        ExitStack() as modes,
    ):
        shadows = None
        if is_static:
            fake_mode = modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            shadows = _make_shadow_values(request, fake_mode)
            modes.enter_context(shadows.numpy_from_shadows())  # ``.numpy()`` returns shadow values
        with timed_stage("build", seconds_by_stage), build_context(shadows) if shadows is not None else nullcontext():
            training = Training(request, load_plugin(request.entry), world)
        tracker = modes.enter_context(ModuleTracker(training.model))
        observer = Observer(world.axes, tracker, shadows)
        losses: list[float] = []
        for number in range(request.steps):
            is_last = number == request.steps - 1
            if is_last:
                liveness = plant_collectives(observer, world)
                sequence_numbers_before = read_sequence_numbers()
            observer.new_step(with_fingerprint=is_last)
            # With fake tensors the observer is active in every step, because it supplies the values that code reads.
            # With real tensors it is active only in the counted step.
            with timed_stage(f"step {number + 1}", seconds_by_stage), ExitStack() as counting:
                if is_last and not is_static:
                    counting.enter_context(uncounted_watch)
                if is_last or is_static:
                    counting.enter_context(observer)
                loss = training.step(number, lambda phase: setattr(observer, "phase", phase))
            if not is_static:
                losses.append(loss.item())
        warnings = [f"the loss of step {n + 1} is {loss}" for n, loss in enumerate(losses) if not math.isfinite(loss)]
        if sequence_numbers_before is not None:  # the backend of a fake world keeps no sequence numbers
            liveness.update(measure_sequence_advance(observer, sequence_numbers_before))
        refuse_compiled(compile_watch)
        refuse_unreliable_count(request, uncounted_watch, observer)
        method = dispatch_method(observer, world.device.type, FAKE_PATCHES if is_static else ())
        return {
            "ledger": build_ledger(request, world.axes, observer, liveness, method, config=request.resolved()),
            "loss": [] if warnings else losses,  # a warning means that a loss is not finite
            "backends": describe_backends(request, observer, world.device),
            "phases_s": seconds_by_stage,
            "peak_rss_bytes": peak_resident_bytes(),
            "warnings": warnings,
        }


@contextmanager
def build_context(shadows: ShadowValues) -> Iterator[None]:
    """Constant tensors of layers keep shadow values, and FSDP copies only this rank's chunk of each parameter."""
    with skip_other_chunks(), Shadowing(shadows):
        yield


def _make_shadow_values(request: Request, mode: FakeTensorMode) -> ShadowValues:
    """With natural routing, the router's scores have no values here. Balanced routing is then assumed."""
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, experts: int, top_k: int) -> torch.Tensor:
        return forced_experts(tokens, experts, top_k, routing, request.seed, torch.device("cpu"))

    return ShadowValues(mode, request.geometry.experts, request.geometry.top_k, route)


def plant_collectives(observer: StepCounter, world: World) -> dict[str, Any]:
    """Issue one collective on each group of the world's meshes, and return how many were ``planted`` and ``seen``. A
    world of one rank has no collectives, so an operator takes their place.
    """
    if world.size == 1:
        observer.new_step()
        with observer:
            torch.erfinv(torch.zeros(1, device=world.device))
        observer.read_operators()
        return {"planted": 1, "seen": observer.operators["aten::erfinv"]}
    return plant_on_groups(observer, list_mesh_groups(world), world.device)


def list_mesh_groups(world: World) -> list[dist.ProcessGroup]:
    """Return this rank's groups of the world's meshes, including groups of one rank."""
    return [group for mesh in (world.data, world.expert) if mesh is not None for group in mesh.get_all_groups()]


def plant_on_groups(
    observer: StepCounter, groups: Iterable[dist.ProcessGroup], device: torch.device | None = None
) -> dict[str, Any]:
    """Issue one all-reduce on each group of several ranks. The result is as in ``plant_collectives``."""
    observer.new_step()
    with observer:
        num_planted = issue_on_groups(groups, device)
    return {"planted": num_planted, "seen": observer.tally.total}


def issue_on_groups(groups: Iterable[dist.ProcessGroup], device: torch.device | None) -> int:
    large_groups = [group for group in groups if group.size() > 1]
    for group in large_groups:
        dist.all_reduce(torch.ones(1, device=device), group=group)
    return len(large_groups)


def read_sequence_numbers() -> Any:
    """Return how many collectives the backend has issued in each group, by name. None if it keeps no such numbers."""
    groups: list[Any] = [group for group in dist.distributed_c10d._world.pg_map if group.size() > 1]
    try:
        return {group.group_name: group._get_sequence_number_for_group() for group in groups}
    except RuntimeError:
        return None


def measure_sequence_advance(observer: Observer, before: dict[str, int]) -> dict[str, int]:
    """Return the backend's and the observer's number of collectives since ``before``. They are equal if none was
    missed.
    """
    return {"sequence_advance": sum_advances(before), "sequence_counted": observer.tally.total}


def sum_advances(before: dict[str, int]) -> int:
    """Return by how much the backend's sequence numbers have grown since ``before``, summed over all groups."""
    after = read_sequence_numbers() or {}
    return sum(after[name] - number for name, number in before.items() if name in after)


def refuse_compiled(*compile_watches: CompileWatch) -> None:
    """Raise ContractError if ``torch.compile`` would compile code of the step."""
    if names := {name for watch in compile_watches for name in watch.called_names}:
        raise ContractError(
            "compiled",
            f"{', '.join(sorted(names)[:5])} would be compiled by torch.compile. While regbot counts a step, it would "
            "run eagerly, as another program. Timed runs profile compiled code, so time this workload too, or turn "
            "compilation off for it",
        )


def refuse_uncounted(uncounted_watch: UncountedWatch) -> None:
    """Raise ContractError if the count misses a collective."""
    if uncounted_watch.collectives:
        raise ContractError(
            "liveness",
            f"a collective was issued where it cannot be counted ({uncounted_watch.collectives[0]}); issue it through "
            "torch.distributed, from the thread that calls forward and backward",
        )


def refuse_unreliable_count(request: Request, uncounted_watch: UncountedWatch, observer: StepCounter) -> None:
    """Raise ContractError if the count misses a collective, or if balanced routing was requested and not followed."""
    refuse_uncounted(uncounted_watch)
    if request.routing == "balanced" and request.mlp == "moe":
        for axis, splits in observer.payload_splits:
            is_on_ep = "ep" in axis.split("|")  # the axis may be 'ep|dp'
            are_equal = len(set(splits)) == 1
            if is_on_ep and not are_equal:
                advice = "; honour config['routing'] == 'balanced' in the router" if request.entry else ""
                raise ContractError(
                    "routing",
                    f"balanced routing was requested, but an all-to-all sends {min(splits)} to {max(splits)} rows per "
                    f"rank{advice}",
                )


def dispatch_method(observer: Observer, device: str | None, patches: Sequence[str] = ()) -> "CountMethod":
    guesses = observer.shadows.guesses if observer.shadows is not None else {}
    return CountMethod("dispatch-mode", device, observer.fingerprint.hexdigest(), patches, guesses)


@dataclass(frozen=True)
class CountMethod:
    """``program`` is the fingerprint, or None. ``patches`` is what differs from a real run. ``guesses`` are kinds by
    sentence.
    """

    source: str
    device: str | None
    program: str | None
    patches: Sequence[str] = ()
    guesses: Mapping[str, str] = field(default_factory=dict)


def build_ledger(
    request: Request,
    axes: Axes,
    counter: StepCounter,
    liveness: Mapping[str, Any],
    method: CountMethod,
    *,
    config: Mapping[str, Any],
    software: Mapping[str, str] | None = None,
    warnings: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the ledger of the step that ``counter`` counted, as a JSON document."""
    return {
        "schema": "regbot/ledger@1",
        "source": method.source,
        "device": method.device,
        "gpu": request.gpu if request.paper else None,  # the GPU model that a paper GPU imitates
        "scope": "step",
        "steps": 1,
        "workload": request.workload,
        "variant": request.variant,
        "world_size": dist.get_world_size(),
        "rank": dist.get_rank(),
        "axes": axes.as_record(),
        "entries": counter.tally.entries(),
        "host_reads": dict(counter.host_reads),
        "liveness": dict(liveness),
        "program": method.program,
        "config": dict(config),
        "software": dict(software or {}),
        "patches": list(method.patches),
        **as_ledger_fields(method.guesses),
        "warnings": list_routing_warnings(request) if warnings is None else list(warnings),
    }


def list_routing_warnings(request: Request) -> list[str]:
    is_assumed = request.mode == "static" and request.routing == "natural"
    return ["routing is natural; without values it was taken to be balanced"] if is_assumed else []
