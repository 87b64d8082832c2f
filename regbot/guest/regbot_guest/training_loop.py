"""A training loop on real ranks, as it is timed, counted and profiled, and the phases of its steps.

Phases are detected from outside of the loop. A step begins in the phase ``forward``. During torch's backward call, the
phase is ``backward``. After this call it is ``optimizer``, until the model's forward runs again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from regbot_guest.axes import Axes
from regbot_guest.crash import call_unchanged
from regbot_guest.observer import Observer
from regbot_guest.replaced import replaced
from regbot_guest.request import Scalar
from regbot_guest.tally import StepCounter
from regbot_guest.tokens import RoutedTokens


@dataclass(frozen=True)
class TrainingLoop:
    """A training loop that can take further steps on real ranks: processes that exchange data, unlike fake ranks."""

    models: Sequence[nn.Module]
    """Modules whose calls begin the phase forward."""
    axes: Axes
    groups: Sequence[dist.ProcessGroup]
    step: Callable[[], Any]
    """Runs one whole step and returns the loss, a number or a tensor, or None if the framework has not logged it."""
    backends: Callable[[Observer], Mapping[str, Mapping[str, str]]]
    device: torch.device
    config: Mapping[str, Scalar]
    software: Mapping[str, str] = field(default_factory=dict)
    patches: Sequence[str] = ()
    warnings: Sequence[str] = ()
    routed_tokens: RoutedTokens | None = None


class _TrackedEngine:
    def __init__(self, engine: Any, observer: StepCounter) -> None:
        self._engine, self._observer = engine, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        observer = self._observer
        # Activation checkpointing recomputes a part of the model during backward, and calls backward on this part.
        is_nested_call = observer.phase == "backward"
        observer.phase = "backward"
        try:
            return call_unchanged(self._engine.run_backward, args, kwargs)
        finally:
            observer.phase = "backward" if is_nested_call else "optimizer"


@contextmanager
def track_phases(models: Sequence[nn.Module], observer: StepCounter) -> Iterator[None]:
    """While active, set the observer's phase as steps run. The module's docstring defines the phases."""
    variable: Any = torch.autograd.Variable
    engine = variable._execution_engine

    def begin_forward(*_: Any) -> None:
        # In the phase backward, a forward is a recomputation and belongs to backward.
        if observer.phase == "optimizer":
            observer.phase = "forward"

    hooks = [model.register_forward_pre_hook(begin_forward) for model in models]
    tracked_engine = _TrackedEngine(engine, observer)  # every call of backward looks up the engine in ``variable``
    try:
        with replaced(variable, "_execution_engine", tracked_engine):
            yield
    finally:
        for hook in hooks:
            hook.remove()
