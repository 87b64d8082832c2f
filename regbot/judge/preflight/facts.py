"""Facts about the node and the software that a configuration will run on. An unknown fact is None."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from regbot.records.ledger import Scalar
from regbot.records.run import Run
from regbot.records.text.printable import printable

CAPABILITIES = {
    **dict.fromkeys(("V100",), 7),
    **dict.fromkeys(("A100", "A800"), 8),
    **dict.fromkeys(("H100", "H200", "H800", "H20", "GH200"), 9),
    **dict.fromkeys(("B200", "GB200", "B300", "GB300"), 10),
}
"""Major compute capability by GPU model. The model is a part of the GPU's name (NVIDIA's table of CUDA GPUs, 2026)."""


@dataclass(frozen=True)
class Facts:
    """Facts about one node, or about several nodes with the same hardware and software. None means unknown."""

    requested_dispatcher: str | None = None
    gpu: str | None = None
    """The GPU's name, as the driver gives it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of installed distributions, by name. ``torch`` and ``transformer_engine`` are among them."""

    def value(self, name: str) -> Scalar:
        """Return the value of the fact ``name``, as rules name it; None if it is unknown."""
        if name == "capability_major":
            models = re.findall(r"[A-Z]+\d+", self.gpu or "")
            return next((CAPABILITIES[model] for model in models if model in CAPABILITIES), None)
        if name in ("gpu", "requested_dispatcher"):
            fact: Scalar = getattr(self, name)
            return fact
        return self.versions.get(name)


def unknown_hardware(facts: Facts) -> str:
    """Return a text that says why rules about hardware did not apply. Return '' if the GPU is known.

    AMD GPUs count as known, because one of the rules tests for them by name."""
    if (facts.gpu or "").startswith("AMD") or facts.value("capability_major") is not None:
        return ""
    return f"GPU not known{f' ({printable(facts.gpu)})' if facts.gpu else ''}: hardware rules did not apply"


def facts_of_run(run: Run) -> Facts:
    """Return the facts in a stored run. The GPU of a node with different GPUs is unknown."""
    gpus = run.node.gpus if run.node is not None else []
    versions = dict(run.ledger.software) if run.ledger is not None else {}
    if run.environment is not None and run.environment.torch is not None:
        versions.setdefault("torch", run.environment.torch)
    dispatcher = run.backends.get("dispatcher")
    return Facts(
        requested_dispatcher=dispatcher.requested if dispatcher is not None else None,
        gpu=gpus[0] if len(set(gpus)) == 1 else None,
        versions=versions,
    )
