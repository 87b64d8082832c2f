"""What ran of everything that torchtitan, or this machine, may replace: dispatcher, attention, grouped product.

The dispatcher is a field of the model's configuration. What is asked for and cannot run here becomes ``alltoall`` with
the reason, as everywhere in regbot; which one ran is read from the counted step.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regbot_guest.availability import FALLBACK, Resolution, resolve
from regbot_guest.harness import ContractError
from regbot_guest.observer import Observer
from regbot_guest.request import Request

OWN_WORDS = {"alltoall": "standard", "deepep": "deepep", "hybridep": "hybridep", "minimal_async_ep": "minimal_async_ep"}
"""A dispatcher by regbot's word: torchtitan's."""
CLASSES = {"AllToAll": "alltoall", "DeepEP": "deepep", "HybridEP": "hybridep", "MinimalAsyncEP": "minimal_async_ep"}
"""Beginning of the dispatcher's class: regbot's word."""
BUFFERS = {"deepep": "ElasticBuffer", "hybridep": "HybridEPBuffer"}
"""The class of deep_ep that torchtitan 0.3.0 calls."""
OPERATORS = ("deepep::dispatch", "hybridep::dispatch", "minimal_async_ep::dispatch")
"""Operators of libraries that exchange tokens past torch.distributed."""


@dataclass(frozen=True)
class Backends:
    """What was asked for, and what it became on this machine."""

    dispatcher: str
    resolution: Resolution
    attention: str

    def seen(self, observer: Observer) -> dict[str, Mapping[str, str]]:
        """By backend: requested, resolved, executed and the evidence, after the counted step."""
        found: dict[str, Mapping[str, str]] = {}
        found |= {"attention": self._attention(observer.operators), "grouped_gemm": _grouped_gemm(observer.operators)}
        if self.dispatcher:
            found["dispatcher"] = self._dispatcher(observer)
        return found

    def _attention(self, ran: Mapping[str, int]) -> dict[str, str]:
        fused = [name for name in ran if "scaled_dot_product" in name and "backward" not in name]
        executed = fused[0].split("::")[1].strip("_") if fused else "unknown"
        evidence = f"dispatched {fused[0]} x{ran[fused[0]]}" if fused else "no fused attention operator seen"
        return _told(self.attention, "sdpa", executed, evidence)

    def _dispatcher(self, observer: Observer) -> dict[str, str]:
        # FSDP's collectives stand under a block, those of an expert layer under its parts.
        kinds: dict[str, int] = {}
        for key, times in observer.tally.count.items():
            if key.role == "payload" and "ep" in key.axis.split("|") and ".moe" in key.where:
                kinds[key.kind] = kinds.get(key.kind, 0) + times
        library = next((name for name in observer.operators if name in OPERATORS), "")
        evidence = f"payload collectives of expert layers on axis ep: {_listed(kinds)}"
        if library:
            executed = library.split("::")[0]
            evidence = f"dispatched {library} x{observer.operators[library]}; {evidence}"
        else:
            executed = next((word for kind, word in _BY_KIND.items() if kinds.get(kind)), "none")
        if self.resolution.why:
            evidence = (
                f"{self.dispatcher} is not usable here, {self.resolution.resolved} ran in its place: "
                f"{self.resolution.why}; {evidence}"
            )
        return _told(self.dispatcher, self.resolution.resolved, executed, evidence[:4000])


_BY_KIND = {"all_to_all": "alltoall", "all_gather": "allgather"}


def choose_dispatcher(config: Any, request: Request, device: torch.device) -> Backends:
    """Set the dispatcher that was asked for, or the one that stands in for it here. Raises ContractError."""
    layers = [layer for layer in config.model_spec.model.layers if getattr(layer, "moe", None) is not None]
    found = type(layers[0].moe.routed_experts.token_dispatcher).__qualname__
    configured = next((word for start, word in CLASSES.items() if found.startswith(start)), found.partition(".")[0])
    asked = request.dispatcher or configured
    if request.dispatcher and asked not in OWN_WORDS:
        raise ContractError("config", f"torchtitan has no dispatcher {asked!r}; there are {', '.join(OWN_WORDS)}")
    resolution = _resolved(asked, device)
    if resolution.resolved != configured:
        _set_dispatcher(layers, config.model_spec.model.dim, OWN_WORDS[resolution.resolved])
    attention = getattr(getattr(layers[0], "attention", None), "inner_attention", None)
    return Backends(asked if request.ep > 1 else "", resolution, type(attention).__qualname__.partition(".")[0])


def _resolved(asked: str, device: torch.device) -> Resolution:
    if asked in BUFFERS:
        return resolve(asked, device, torch.bfloat16, BUFFERS[asked])
    if asked == "minimal_async_ep" and device.type != "cuda":
        return Resolution(FALLBACK, "", f"it runs on GPUs, and this run is on the {device.type.upper()}")
    return Resolution(asked)


def _set_dispatcher(layers: list[Any], width: int, word: str) -> None:
    builders = importlib.import_module("torchtitan.models.common.config_utils")
    try:
        for layer in layers:
            router = layer.moe.router
            layer.moe.routed_experts.token_dispatcher = builders.make_token_dispatcher_config(
                num_experts=router.num_experts, top_k=router.top_k, comm_backend=word, hidden_dim=width
            )
    except (AttributeError, TypeError) as error:
        raise ContractError(
            "config", f"this torchtitan does not make the dispatcher {word!r} the way 0.3.0 does: {error}"
        ) from error


def _grouped_gemm(ran: Mapping[str, int]) -> dict[str, str]:
    grouped = sum(n for name, n in ran.items() if name.split("::")[1].strip("_").startswith("grouped_mm"))
    return _told("grouped_mm", "grouped_mm", "grouped_mm" if grouped else "loop", f"dispatched grouped_mm x{grouped}")


def _listed(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{times} {kind}" for kind, times in sorted(kinds.items())) or "none"


def _told(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}
