"""Sets the dispatcher of torchtitan's model, and describes which dispatcher, attention and grouped GEMM ran. If the
requested dispatcher cannot run on this machine, ``alltoall`` runs instead, and the reason is recorded.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regbot_guest.availability import FALLBACK, Resolution, resolve
from regbot_guest.backends import (
    backend_entry,
    count_exchanges,
    describe_attention,
    explain_fallback,
    list_exchanges,
    name_dispatcher,
)
from regbot_guest.contract import ContractError
from regbot_guest.frameworks.torchtitan_shape import find_dispatcher, moe_layers
from regbot_guest.grouped_gemm import describe_grouped_gemm
from regbot_guest.request import Request
from regbot_guest.tally import StepCounter

DISPATCHERS = ("alltoall", "deepep", "hybridep", "minimal_async_ep")
"""torchtitan's dispatchers. Their class names begin with these names, without underscores and in other letters."""
BUFFER_CLASSES = {"deepep": "ElasticBuffer", "hybridep": "HybridEPBuffer"}
"""Class of the library deep_ep that torchtitan 0.3.0 uses, by dispatcher. Other dispatchers do not need deep_ep."""
ATTENTION = re.compile(r"(scaled_dot_product|flex_attention)(?!.*backward)")
ONLY_DISPATCHER = "AllToAll"
"""Dispatcher of revisions whose model configuration names no dispatcher (until April 2026)."""
LIBRARY_OPERATORS = ("deepep::dispatch", "hybridep::dispatch", "minimal_async_ep::dispatch")


@dataclass(frozen=True)
class TorchtitanBackends:
    """What was requested of the backends, to compare it with what the counted step executes."""

    dispatcher: str
    """Requested dispatcher by regbot's name. '' if there is one expert-parallel rank, which exchanges no tokens."""
    resolution: Resolution
    """The dispatcher that runs on this machine, and the reason if it is not the requested one."""
    attention: str
    device: torch.device

    def describe(self, observer: StepCounter) -> dict[str, Mapping[str, str]]:
        backends: dict[str, Mapping[str, str]] = {
            "attention": describe_attention(observer.operators, ATTENTION, self.attention, otherwise="unknown"),
            "grouped_gemm": describe_grouped_gemm(observer.operators, torch.bfloat16, self.device),
        }
        if self.dispatcher:
            backends["dispatcher"] = self._describe_dispatcher(observer)
        return backends

    def _describe_dispatcher(self, observer: StepCounter) -> dict[str, str]:
        # The module path of an expert layer's exchange contains '.moe'. That of an FSDP collective ends at the block.
        exchanges = count_exchanges(observer, BUFFER_CLASSES, lambda key: ".moe" in key.where)
        library_operator = next((name for name in observer.operators if name in LIBRARY_OPERATORS), None)
        evidence = f"payload collectives of expert layers on axis ep: {list_exchanges(exchanges)}"
        if library_operator is not None:
            executed = library_operator.split("::")[0]
            evidence = f"dispatched {library_operator} x{observer.operators[library_operator]}; {evidence}"
        else:
            executed = name_dispatcher(exchanges, BUFFER_CLASSES)
        evidence = f"{explain_fallback(self.dispatcher, self.resolution)}{evidence}"
        return backend_entry(self.dispatcher, self.resolution.resolved, executed, evidence)


def choose_dispatcher(config: Any, request: Request, device: torch.device) -> TorchtitanBackends:
    """Set the requested dispatcher in ``config``, or the one that replaces it on this machine. Raises ContractError."""
    layers = moe_layers(config.model_spec.model)
    owner = find_dispatcher(layers[0])
    class_name = _outer_class_name(owner.token_dispatcher) if owner is not None else ONLY_DISPATCHER
    configured = next(
        (name for name in DISPATCHERS if class_name.lower().startswith(name.replace("_", ""))), class_name
    )
    requested = request.dispatcher or configured
    if request.dispatcher and requested not in DISPATCHERS:
        raise ContractError("config", f"torchtitan has no dispatcher {requested!r}; there are {', '.join(DISPATCHERS)}")
    # A trace never falls back to another dispatcher, because the paper GPU has a stand-in for deep_ep.
    resolution = Resolution(requested) if request.paper else _resolve(requested, device, request.ep)
    if resolution.resolved != configured:
        _set_dispatcher(layers, config.model_spec.model.dim, resolution.resolved)
    attention = getattr(getattr(layers[0], "attention", None), "inner_attention", None)
    return TorchtitanBackends(
        dispatcher=requested if request.ep > 1 else "",
        resolution=resolution,
        attention=_outer_class_name(attention),
        device=device,
    )


def _outer_class_name(section: Any) -> str:
    """Return ``X`` for a section of class ``X.Config``."""
    return type(section).__qualname__.partition(".")[0]


def _resolve(requested: str, device: torch.device, ep: int) -> Resolution:
    if requested in BUFFER_CLASSES:
        return resolve(requested, device, torch.bfloat16, required_buffer=BUFFER_CLASSES[requested], ep=ep)
    if requested == "minimal_async_ep" and device.type != "cuda":
        return Resolution(FALLBACK, reason=f"it runs on GPUs, and this run is on the {device.type.upper()}")
    return Resolution(requested)


def _set_dispatcher(layers: list[Any], width: int, name: str) -> None:
    torchtitan_name = "standard" if name == "alltoall" else name
    builders = importlib.import_module("torchtitan.models.common.config_utils")
    try:
        for layer in layers:
            router = layer.moe.router
            find_dispatcher(layer).token_dispatcher = builders.make_token_dispatcher_config(
                num_experts=router.num_experts, top_k=router.top_k, comm_backend=torchtitan_name, hidden_dim=width
            )
    except (AttributeError, TypeError) as error:
        raise ContractError(
            "config", f"regbot cannot set the dispatcher {name!r} in this torchtitan as in 0.3.0: {error}"
        ) from error
