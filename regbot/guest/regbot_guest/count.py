"""Counting one steady step: build the workload in a world, step until steady, count the last step.

``static``: a fake world and tensors without values, so the full model shape needs no GPU and well below 1 GiB.
``real``: the same on the ranks of a launcher, with values; it is what the static count is checked against.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
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

from regbot_guest.backends import backends
from regbot_guest.compiled import CompileWatch
from regbot_guest.harness import ContractError, Training, load_plugin, own_chunk_only
from regbot_guest.moe import runs_grouped_mm
from regbot_guest.observer import Observer, Shadowing
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.shadow import ShadowValues
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.tally import StepCounter
from regbot_guest.unseen import UnseenWatch
from regbot_guest.untraceable import Untraceable
from regbot_guest.where import Where
from regbot_guest.world import World, open_world

UNTRACEABLE = (
    Untraceable,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
FAKE_PATCHES = (
    "tensors without values (FakeTensorMode)",
    "process groups without peers (fake backend)",
    "of every parameter that FSDP cuts up, the own piece only",
)


def count_step(request: Request) -> dict[str, Any]:
    """The part of the raw record that the step itself gives: ledger, loss, backends, warnings."""
    static = request.mode == "static"
    compiled, unseen = CompileWatch(), UnseenWatch()
    seconds: dict[str, float] = {}
    if static:
        torch.set_num_threads(1)  # shadows are small; two traces beside each other are not to fight for cores
    runs_grouped_mm(getattr(torch, request.dtype), torch.device("cpu"))  # tried before any mode is on
    with compiled, unseen, open_world(request.world, request.ep, fake=static) as world, ExitStack() as modes:
        fake = modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True)) if static else None
        shadows = _shadows(request, fake) if fake is not None else None
        modes.enter_context(shadows.readable() if shadows is not None else nullcontext())
        with stage("build", seconds), building(shadows) if shadows is not None else nullcontext():
            training = Training(request, load_plugin(request.entry), world)
        where = modes.enter_context(Where(training.model))
        observer = Observer(world.axes, where, shadows)
        losses: list[float] = []
        for number in range(request.steps):
            last = number == request.steps - 1
            if last:
                liveness = plant(observer, world)
                before = sequence_numbers()
            observer.new_step(program=last)
            # Without values the mode is needed in every step, to answer for them; with values only in the counted one.
            with stage(f"step {number + 1}", seconds), observer if static or last else nullcontext():
                loss = training.step(number, lambda phase: setattr(observer, "phase", phase))
            if not static:
                losses.append(loss.item())
        warnings = [f"the loss of step {n + 1} is {loss}" for n, loss in enumerate(losses) if not math.isfinite(loss)]
        if before is not None:
            liveness.update(sequence_advance(observer, before))
        refuse_compiled(compiled)
        refuse_what_cannot_be_believed(request, unseen, observer)
        return {
            "ledger": ledger(request, world, observer, liveness, counted_by(observer, world, static)),
            "loss": [] if warnings else losses,
            "backends": backends(request, observer, world.device),
            "phases_s": seconds,
            "peak_rss_bytes": peak_resident_bytes(),
            "warnings": warnings,
        }


@contextmanager
def building(shadows: ShadowValues) -> Iterator[None]:
    """While the model is built: keep shadows of what layers write down then, and skip what only real ranks need."""
    with own_chunk_only(), Shadowing(shadows):
        yield


def _shadows(request: Request, mode: FakeTensorMode) -> ShadowValues:
    """Where routing is natural there are no values to route by, and balance is assumed; the ledger says so."""
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, experts: int, top_k: int) -> torch.Tensor:
        return forced_experts(tokens, experts, top_k, routing, request.seed, torch.device("cpu"))

    return ShadowValues(mode, request.geometry.experts, request.geometry.top_k, route)


def plant(observer: StepCounter, world: World) -> dict[str, Any]:
    """One collective that must be seen, on every group of more than one rank."""
    groups = [group for mesh in (world.data, world.expert) if mesh is not None for group in mesh.get_all_groups()]
    return planted_on(observer, groups, world.device)


def planted_on(
    observer: StepCounter, groups: Iterable[dist.ProcessGroup], device: torch.device | None = None
) -> dict[str, Any]:
    """The same on the ``groups`` given; those of one rank issue nothing and are left out."""
    observer.new_step()
    planted = 0
    with observer:
        for group in groups:
            if group.size() > 1:
                dist.all_reduce(torch.ones(1, device=device), group=group)
                planted += 1
    return {"planted": planted, "seen": observer.tally.total}


def _groups() -> dict[str, Any]:
    return {group.group_name: group for group in dist.distributed_c10d._world.pg_map if group.size() > 1}


def sequence_numbers() -> Any:
    """The backend's own count of collectives per group, None where it keeps none (a fake group does not)."""
    try:
        return {name: group._get_sequence_number_for_group() for name, group in _groups().items()}
    except RuntimeError:
        return None


def sequence_advance(observer: Observer, before: dict[str, int]) -> dict[str, int]:
    after = sequence_numbers() or {}
    return {
        "sequence_advance": sum(after[name] - number for name, number in before.items() if name in after),
        "sequence_counted": observer.tally.total,
    }


def refuse_compiled(compiled: CompileWatch) -> None:
    """Raises ContractError where code would be compiled: under a dispatch mode it is another program."""
    if compiled.called:
        raise ContractError(
            "compiled",
            f"{compiled.names()} would be compiled by torch.compile; counted eagerly it would be another program. Turn "
            "compilation off for this workload, or count a profile of a compiled run",
        )


def refuse_what_cannot_be_believed(request: Request, unseen: UnseenWatch, observer: StepCounter) -> None:
    """Raises ContractError where a count would leave something out, or is not of the routing asked for."""
    if unseen.issued:
        raise ContractError(
            "liveness",
            f"a collective was issued where it cannot be counted ({unseen.issued[0]}); issue it through "
            "torch.distributed, from the thread that calls forward and backward",
        )
    if request.routing == "balanced" and request.mlp == "moe":
        for axis, splits in observer.payload_splits:
            if "ep" in axis.split("|") and len(set(splits)) > 1:
                raise ContractError(
                    "routing",
                    f"balanced routing was asked for, but an all-to-all sends {min(splits)} to {max(splits)} rows per "
                    "rank; honour config['routing'] == 'balanced' in the router",
                )


def counted_by(observer: Observer, world: World, static: bool) -> "Counted":
    """How a step under the dispatch mode was counted."""
    guesses = sorted(observer.shadows.guessed) if observer.shadows is not None else ()
    patches = FAKE_PATCHES if static else ()
    return Counted("dispatch-mode", world.device.type, observer.fingerprint.hexdigest(), patches, guesses)


@dataclass(frozen=True)
class Counted:
    """How a step was counted. ``source`` and ``device`` say by what; ``program`` is the fingerprint."""

    source: str
    device: str
    program: str | None
    patches: Sequence[str] = ()
    guesses: Sequence[str] = ()


def ledger(
    request: Request, world: World, counter: StepCounter, liveness: dict[str, Any], counted: Counted
) -> dict[str, Any]:
    """The ledger of the step that ``counter`` has seen, as JSON."""
    warnings = []
    if request.mode == "static" and request.routing == "natural":
        warnings.append("routing is natural, and without values it was taken to be balanced")
    return {
        "schema": "regbot/ledger@1",
        "source": counted.source,
        "device": counted.device,
        "scope": "step",
        "steps": 1,
        "workload": request.workload,
        "variant": request.variant,
        "world_size": world.size,
        "rank": world.rank,
        "axes": world.axes.as_record(),
        "entries": counter.tally.entries(),
        "host_reads": dict(counter.host_reads),
        "liveness": liveness,
        "program": counted.program,
        "config": request.resolved(),
        "patches": list(counted.patches),
        "guesses": list(counted.guesses)[:20],
        "warnings": warnings,
    }


@contextmanager
def stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Put the seconds that the block takes into ``seconds[name]``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = round(time.perf_counter() - start, 3)
