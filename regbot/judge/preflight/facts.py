"""The resolved configuration that rules are applied to, and facts about the node and the software that it will run on.
Both are read from a file: a Run record, a Ledger record, or a JSON dump.

A nested dump is flattened to dotted keys (``model.moe_token_dispatcher_type``). A list becomes a text with its members,
separated by blanks. Other values are kept unchanged.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger, Scalar
from regbot.records.run import Run
from regbot.records.text.clip import clip
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
        return {**self.versions, "gpu": self.gpu, "requested_dispatcher": self.requested_dispatcher}.get(name)


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


@dataclass(frozen=True)
class Dump:
    """The configuration and the facts that were read from one file."""

    config: Mapping[str, Scalar]
    facts: Facts
    workload: str = ""
    """Name of the workload if the file is a record; '' for other files."""


def read_dump(path: Path) -> Dump:
    """Read the configuration in the file ``path``. Raises RecordError if the file has no configuration."""
    data = read_capped(path.resolve() if path.is_symlink() else path)
    document = parse_json(data, str(path))
    schema = document.get("schema", "") if isinstance(document, dict) else None
    what = f"{path}: is not a JSON object" if schema is None else f"{path}: is a {clip(str(schema), 80)!r}"
    if schema == "regbot/run@1":
        run = parse_record(data, Run, str(path))
        if run.ledger is None or not run.ledger.config:
            why = f" ({run.outcome}: {run.reason})" if run.reason else ""
            raise RecordError(f"{path}: the run has no resolved configuration{why}")
        return Dump(run.ledger.config, facts_of_run(run), run.workload)
    if schema == "regbot/ledger@1":
        ledger = parse_record(data, Ledger, str(path))
        return Dump(ledger.config, Facts(versions=ledger.software), ledger.workload or "")
    if not isinstance(document, dict) or str(schema).startswith("regbot/"):
        raise RecordError(what, "give a Run or Ledger record, or a dump of a configuration")
    return Dump(dict(_leaves("", document)), Facts())


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list):
        yield prefix, " ".join(str(member) for member in value)
    else:
        yield prefix, value
