"""Counting one steady step of a framework that brings its own training loop.

The framework's module builds its trainer and hands over a ``Loop``; everything else is the same for all of them: steps
until steady, one counted step, planted collectives, sequence numbers, and the refusal of what a counter cannot see.
Phases are told from outside: a step begins in forward, ``backward`` is what runs inside torch's backward call, and what
follows it (clipping, the optimizer, its reductions) is ``optimizer`` until the model's forward runs again.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from regbot_guest.axes import Axes
from regbot_guest.compiled import CompileWatch
from regbot_guest.count import planted_on, sequence_advance, sequence_numbers
from regbot_guest.harness import ContractError
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.shadow import ShadowValues
from regbot_guest.stopwatch import peak_resident_bytes
from regbot_guest.unseen import UnseenWatch
from regbot_guest.where import Where

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Loop:
    """A framework's training loop, built and ready. ``step`` runs one whole step and returns its loss, None where
    tensors have no values. ``backends`` may be read from the counted step; ``built`` is the watch that the loop was
    built under, because what is compiled then is called later."""

    models: Sequence[nn.Module]
    axes: Axes
    groups: Sequence[dist.ProcessGroup]
    step: Callable[[], float | None]
    backends: Mapping[str, Mapping[str, str]] | Callable[[Observer], Mapping[str, Mapping[str, str]]]
    config: Mapping[str, Scalar]
    software: Mapping[str, str]
    patches: Sequence[str] = ()
    warnings: Sequence[str] = ()
    expert_axes: Sequence[str] = ("ep",)
    seconds: dict[str, float] = field(default_factory=dict)
    built: CompileWatch | None = None
    device: torch.device | None = None


def count(request: Request, loop: Loop, shadows: ShadowValues | None, steps: int) -> dict[str, Any]:
    """The part of the raw record that ``steps`` steps give, of which the last is counted.

    ``shadows`` answer for values where tensors have none (static mode; then the caller has its FakeTensorMode on), and
    are None on real ranks.
    """
    static = shadows is not None
    compiled, unseen = CompileWatch(), UnseenWatch()
    losses: list[float] = []
    liveness: dict[str, Any] = {}
    before = None
    with compiled, unseen, ExitStack() as modes:
        where = modes.enter_context(Where(*loop.models))
        observer = Observer(loop.axes, where, shadows)
        modes.enter_context(_phases(loop.models, observer))
        for number in range(steps):
            last = number == steps - 1
            if last:
                liveness = planted_on(observer, loop.groups, loop.device)
                before = sequence_numbers()
            observer.new_step(program=last)
            observer.phase = "forward"
            start = time.perf_counter()
            with observer if static or last else nullcontext():
                loss = loop.step()
            loop.seconds[f"step {number + 1}"] = round(time.perf_counter() - start, 3)
            if loss is not None:
                losses.append(loss)
        if before is not None:
            liveness.update(sequence_advance(observer, before))
    _refuse(request, loop, compiled, unseen, observer)
    backends = loop.backends(observer) if callable(loop.backends) else loop.backends
    finite = all(math.isfinite(loss) for loss in losses)
    unsteady = [f"the loss of step {n + 1} is {loss}" for n, loss in enumerate(losses) if not math.isfinite(loss)]
    return {
        "ledger": {
            "schema": "regbot/ledger@1",
            "source": "dispatch-mode",
            "scope": "step",
            "steps": 1,
            "workload": request.workload,
            "variant": request.variant,
            "world_size": dist.get_world_size(),
            "rank": dist.get_rank(),
            "axes": loop.axes.as_record(),
            "entries": observer.tally.entries(),
            "host_reads": dict(observer.host_reads),
            "liveness": liveness,
            "program": observer.fingerprint.hexdigest(),
            "config": dict(loop.config),
            "software": dict(loop.software),
            "patches": list(loop.patches),
            "guesses": sorted(shadows.guessed)[:20] if shadows is not None else [],
            "warnings": list(loop.warnings),
        },
        "loss": losses if finite else [],
        "backends": {name: dict(backend) for name, backend in backends.items()},
        "phases_s": loop.seconds,
        "peak_rss_bytes": peak_resident_bytes(),
        "warnings": unsteady,
    }


@contextmanager
def fake_world(size: int) -> Iterator[FakeTensorMode]:
    """Rank 0 of ``size`` ranks that are not there, and a mode for tensors without values (entered by the caller)."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend 'fake'

    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield FakeTensorMode(allow_non_fake_inputs=True)
    finally:
        dist.destroy_process_group()


@contextmanager
def _phases(models: Sequence[nn.Module], observer: Observer) -> Iterator[None]:
    """Keeps the observer's phase while steps run."""
    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        recomputing = observer.phase == "backward"  # a checkpoint goes backward through what it has computed again
        observer.phase = "backward"
        try:
            return original(*args, **kwargs)
        finally:
            observer.phase = "backward" if recomputing else "optimizer"

    def forward(*_: Any) -> None:
        if observer.phase == "optimizer":  # never while backward recomputes a part of it
            observer.phase = "forward"

    hooks = [model.register_forward_pre_hook(forward) for model in models]
    torch.autograd.backward = backward  # Tensor.backward looks it up here at every call
    try:
        yield
    finally:
        torch.autograd.backward = original
        for hook in hooks:
            hook.remove()


def _refuse(request: Request, loop: Loop, compiled: CompileWatch, unseen: UnseenWatch, observer: Observer) -> None:
    """Raises ContractError where a count would be of another program, or would leave something out."""
    if unseen.issued:
        raise ContractError("liveness", f"a collective was issued where it cannot be counted ({unseen.issued[0]})")
    if called := {*compiled.called, *(loop.built.called if loop.built is not None else ())}:
        raise ContractError(
            "compiled",
            f"{', '.join(sorted(called)[:5])} would be compiled by torch.compile; counted eagerly it "
            "would be another program. Turn compilation off for this workload, or read a profile of a compiled run "
            "with 'regbot ledger read'",
        )
    if request.routing == "balanced":
        for axis, splits in observer.payload_splits:
            if set(axis.split("|")) & set(loop.expert_axes) and len(set(splits)) > 1:
                raise ContractError(
                    "routing",
                    f"balanced routing was asked for, but an all-to-all sends {min(splits)} to {max(splits)} rows per "
                    "rank",
                )
