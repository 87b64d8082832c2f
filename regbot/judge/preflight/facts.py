"""Facts about the node and the software that a configuration will run on. An unknown fact is None."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from regbot.records.ledger import Scalar
from regbot.records.run import Run
from regbot.records.text.printable import printable

CAPABILITIES = {
    "V100": (7, 0),
    "A100": (8, 0),
    "A800": (8, 0),
    "H100": (9, 0),
    "H200": (9, 0),
    "H800": (9, 0),
    "H20": (9, 0),
    "GH200": (9, 0),
    "B200": (10, 0),
    "GB200": (10, 0),
    "B300": (10, 3),
    "GB300": (10, 3),
}
"""Compute capability by GPU model. The model is a part of the GPU's name (NVIDIA's table of CUDA GPUs, 2026)."""

FRAMEWORKS = ("megatron", "bridge", "torchtitan", "maxtext")
FACT_DESCRIPTIONS = {
    "framework": "megatron, bridge, torchtitan or maxtext",
    "requested_dispatcher": "the dispatcher that the workload requests",
    "gpu": "the GPU's name, as the driver gives it",
    "capability_major": "its major compute capability",
    "world_size": "ranks of the run",
    "nvlink_domain": "GPUs that share one NVLink domain",
    "torch": "version",
    "transformer_engine": "version",
}
"""Facts that a rule can test. Rules can also test ``available.DISPATCHER`` and ``env.VARIABLE``."""


@dataclass(frozen=True)
class Facts:
    """Facts about one node, or about several nodes with the same hardware and software. None means unknown."""

    framework: str | None = None
    """One of ``FRAMEWORKS``."""
    requested_dispatcher: str | None = None
    """The dispatcher that the workload requests."""
    gpu: str | None = None
    """The GPU's name, as the driver gives it."""
    capability: tuple[int, int] | None = None
    """Compute capability, as the driver gives it. If it is None, the GPU's name may show it."""
    world_size: int | None = None
    nvlink_domain: int | None = None
    """Number of GPUs that share one NVLink domain."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of installed distributions, by name. ``torch`` and ``transformer_engine`` are among them."""
    available: Mapping[str, bool] = field(default_factory=dict)
    """Whether a dispatcher can be used on this node, by dispatcher name."""
    environment: Mapping[str, str] | None = None
    """Environment variables of the run. None means unknown, and an empty mapping means that no variable is set."""

    def value(self, name: str) -> Scalar:
        """Return the value of the fact ``name``; None if it is unknown. ``name`` is one for which ``is_fact`` is true.

        An environment variable that is not set is None too.
        """
        kind, dot, key = name.partition(".")
        if dot and kind == "available":
            return self.available.get(key)
        if dot and kind == "env":
            return None if self.environment is None else self.environment.get(key)
        if name == "capability_major":
            capability = self.capability or find_capability(self.gpu)
            if capability is None:
                return None
            major, _ = capability
            return major
        if name in ("torch", "transformer_engine"):
            return self.versions.get(name)
        fact: Scalar = getattr(self, name)
        return fact


def is_fact(name: str) -> bool:
    """Whether ``name`` names a fact that a rule may test."""
    kind, _, key = name.partition(".")
    is_available_or_variable = kind in ("available", "env") and bool(key)
    return name in FACT_DESCRIPTIONS or is_available_or_variable


def find_capability(gpu: str | None) -> tuple[int, int] | None:
    """Return the compute capability of a GPU by its name, such as ``NVIDIA H100 80GB HBM3``. Return None if the name
    contains none of the models in ``CAPABILITIES``.
    """
    models = re.findall(r"[A-Z]+\d+", gpu or "")
    return next((CAPABILITIES[model] for model in models if model in CAPABILITIES), None)


def unknown_hardware(facts: Facts) -> str:
    """Return a text that says why rules about hardware did not apply. Return '' if the GPU is known.

    AMD GPUs count as known, because one of the rules tests for them by name."""
    if (facts.gpu or "").startswith("AMD") or facts.value("capability_major") is not None:
        return ""
    return f"GPU not known{f' ({printable(facts.gpu)})' if facts.gpu else ''}: hardware rules did not apply"


def facts_of_run(run: Run) -> Facts:
    """Return the facts in a stored run. Facts that a run does not record are unknown, and so is the GPU of a node with
    different GPUs.
    """
    gpus = run.node.gpus if run.node is not None else []
    versions = dict(run.ledger.software) if run.ledger is not None else {}
    if run.environment is not None and run.environment.torch is not None:
        versions.setdefault("torch", run.environment.torch)
    dispatcher = run.backends.get("dispatcher")
    return Facts(
        framework=run.adapter if run.adapter in FRAMEWORKS else None,
        requested_dispatcher=dispatcher.requested if dispatcher is not None else None,
        gpu=gpus[0] if len(set(gpus)) == 1 else None,
        world_size=run.ledger.world_size if run.ledger is not None else None,
        versions=versions,
    )
