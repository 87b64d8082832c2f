"""What is known of the node and the software that a configuration will run on. Whatever is not known stays None."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from regbot.records.ledger import Scalar
from regbot.records.run import Run
from regbot.text import printable

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
"""Compute capability by the model in a GPU's name (NVIDIA's table of CUDA GPUs, 2026)."""

WORDS = {
    "framework": "megatron, bridge, torchtitan or maxtext",
    "asked": "the dispatcher that the workload asks for",
    "gpu": "the GPU's name, as the driver gives it",
    "capability_major": "its compute capability before the point",
    "world_size": "ranks of the run",
    "nvlink_domain": "GPUs that share one NVLink domain",
    "torch": "version",
    "transformer_engine": "version",
}
"""Facts that a rule may ask for, beside ``available.DISPATCHER`` and ``env.VARIABLE``."""


@dataclass(frozen=True)
class Facts:
    """Of one node, or of nodes that are alike."""

    framework: str | None = None
    asked: str | None = None
    gpu: str | None = None
    capability: tuple[int, int] | None = None
    world_size: int | None = None
    nvlink_domain: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """By distribution name, ``torch`` and ``transformer_engine`` among them."""
    available: Mapping[str, bool] = field(default_factory=dict)
    """By dispatcher: can it be used here?"""
    environment: Mapping[str, str] | None = None
    """The environment of the run; None where it is not known, so that a variable that is not set can be told."""

    def value(self, name: str) -> Scalar:
        """The fact of that name, None where it is not known."""
        kind, dot, rest = name.partition(".")
        if dot and kind == "available":
            return self.available.get(rest)
        if dot and kind == "env":
            return None if self.environment is None else self.environment.get(rest)
        if name == "capability_major":
            known = self.capability or capability_of(self.gpu)
            return known[0] if known else None
        if name in ("torch", "transformer_engine"):
            return self.versions.get(name)
        known_value: Scalar = getattr(self, name)
        return known_value


def is_fact(name: str) -> bool:
    """Whether a rule may ask for it."""
    kind, dot, rest = name.partition(".")
    return name in WORDS or (kind in ("available", "env") and bool(dot and rest))


def capability_of(gpu: str | None) -> tuple[int, int] | None:
    """Compute capability of a GPU whose name says its model; None for others."""
    found = re.findall(r"[A-Z]+\d+", gpu or "")
    return next((CAPABILITIES[model] for model in found if model in CAPABILITIES), None)


def unknown_hardware(facts: Facts) -> str:
    """Why rules on hardware could not speak, '' where they could. What AMD's GPUs are is known by their name."""
    if (facts.gpu or "").startswith("AMD") or facts.value("capability_major") is not None:
        return ""
    return f"GPU not known{f' ({printable(facts.gpu)})' if facts.gpu else ''}: hardware rules did not apply"


def facts_of(run: Run) -> Facts:
    """What a stored run tells of where it ran and of what it was asked."""
    gpus = run.node.gpus if run.node is not None else []
    software = dict(run.ledger.software) if run.ledger is not None else {}
    if run.environment is not None and run.environment.torch is not None:
        software.setdefault("torch", run.environment.torch)
    dispatcher = run.backends.get("dispatcher")
    return Facts(
        framework=run.adapter if run.adapter in ("megatron", "bridge", "torchtitan", "maxtext") else None,
        asked=dispatcher.requested if dispatcher is not None else None,
        gpu=gpus[0] if len(set(gpus)) == 1 else None,
        world_size=run.ledger.world_size if run.ledger is not None else None,
        versions=software,
    )
