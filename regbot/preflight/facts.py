"""Facts about the node and the software that a configuration will run on. An unknown fact is None."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from regbot.records.ledger import Scalar
from regbot.records.run import Run
from regbot.text.printable import printable

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
    """Facts about one node, or about several nodes with the same hardware and software."""

    framework: str | None = None
    requested_dispatcher: str | None = None
    gpu: str | None = None
    capability: tuple[int, int] | None = None
    world_size: int | None = None
    nvlink_domain: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of installed distributions, by name. ``torch`` and ``transformer_engine`` are among them."""
    available: Mapping[str, bool] = field(default_factory=dict)
    """Whether a dispatcher can be used on this node, by dispatcher name."""
    environment: Mapping[str, str] | None = None
    """Environment variables of the run. None means unknown, and an empty mapping means that no variable is set."""

    def value(self, name: str) -> Scalar:
        """Return the value of the fact ``name``; None if it is unknown."""
        kind, dot, key = name.partition(".")
        if dot and kind == "available":
            return self.available.get(key)
        if dot and kind == "env":
            return None if self.environment is None else self.environment.get(key)
        if name == "capability_major":
            capability = self.capability or find_capability(self.gpu)
            return capability[0] if capability else None
        if name in ("torch", "transformer_engine"):
            return self.versions.get(name)
        fact: Scalar = getattr(self, name)
        return fact


def is_fact(name: str) -> bool:
    """Whether ``name`` names a fact that a rule may test."""
    kind, dot, key = name.partition(".")
    return name in FACT_DESCRIPTIONS or (kind in ("available", "env") and bool(dot and key))


def find_capability(gpu: str | None) -> tuple[int, int] | None:
    """Return the compute capability of the GPU model that a GPU's name contains; None if the model is not known."""
    models = re.findall(r"[A-Z]+\d+", gpu or "")
    return next((CAPABILITIES[model] for model in models if model in CAPABILITIES), None)


def unknown_hardware(facts: Facts) -> str:
    """Return a text that says why rules about hardware did not apply; '' if the GPU is known. AMD GPUs count as
    known."""
    if (facts.gpu or "").startswith("AMD") or facts.value("capability_major") is not None:
        return ""
    return f"GPU not known{f' ({printable(facts.gpu)})' if facts.gpu else ''}: hardware rules did not apply"


def facts_of_run(run: Run) -> Facts:
    """Return the facts in a stored run: its GPU, its software versions and its requested dispatcher."""
    gpus = run.node.gpus if run.node is not None else []
    software = dict(run.ledger.software) if run.ledger is not None else {}
    if run.environment is not None and run.environment.torch is not None:
        software.setdefault("torch", run.environment.torch)
    dispatcher = run.backends.get("dispatcher")
    return Facts(
        framework=run.adapter if run.adapter in ("megatron", "bridge", "torchtitan", "maxtext") else None,
        requested_dispatcher=dispatcher.requested if dispatcher is not None else None,
        gpu=gpus[0] if len(set(gpus)) == 1 else None,
        world_size=run.ledger.world_size if run.ledger is not None else None,
        versions=software,
    )
