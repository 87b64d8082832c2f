"""Two ledgers side by side: one row per kind of collective and module template (``layers.*.moe``), which combines the
modules of all layers that differ only in layer numbers."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.verdict import Volume

MAX_MODULES = 5
"""Largest number of module templates in a finding. A template is a path such as ``layers.*.moe``."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


class Signature(NamedTuple):
    """Properties of a collective except the module that issues it. Collectives with equal signatures are compared."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role

    @classmethod
    def create(cls, entry: Entry, axis: str) -> "Signature":
        """Return the signature of ``entry`` on ``axis``, the label under which its axis is compared."""
        return cls(entry.kind, axis, entry.group_size, entry.dtype, entry.phase, entry.role)

    @property
    def group(self) -> tuple[str, int]:
        return self.axis, self.group_size


@dataclass(frozen=True)
class Row:
    """Collectives with equal properties and the same module template, in both arms. ``layers`` is the number of modules
    with this template that issue the collectives, at least 1."""

    signature: Signature
    template: str
    module: str
    """The module that issues the collectives. If several modules do, it is their template."""
    layers: int
    base: Volume
    head: Volume
    static_count: int = 0
    """Number of such collectives in the text of head's compiled program. It is 0 for all other sources."""
    exposed_s: float = 0.0
    """Seconds of these collectives in head during which no compute ran. It is 0 if the source has no times."""
    hidden_s: float = 0.0
    """Seconds of these collectives in head during which compute ran. It is 0 if the source has no times."""

    @property
    def changed(self) -> bool:
        return self.base != self.head


def template(module: str) -> str:
    """Return the module path with '*' in place of layer numbers: ``layers.3.moe`` becomes ``layers.*.moe``."""
    return _NUMBER.sub("*", module)


def find_unit(module: str) -> str:
    """Return the unit of a module: the layer that contains it, or the module itself if it is outside of the layers.
    ``layers.3.moe.router`` is in ``layers.3``."""
    match = _NUMBER.search(module)
    return module[: match.end()] if match else module


def sum_entries(entries: Iterable[Entry | Volume]) -> Volume:
    total_count = total_bytes = 0
    for entry in entries:
        total_count += entry.count
        total_bytes += entry.bytes
    return Volume(count=total_count, bytes=total_bytes)


def build_rows(base: Ledger, head: Ledger) -> list[Row]:
    """Return all rows of both ledgers. Payload comes before control. Within each role, rows with the most bytes come
    first."""
    entries_by_key: dict[tuple[Signature, str], tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):  # index 0 has the entries of base, index 1 those of head
        for entry in ledger.entries:
            signature = Signature.create(entry, entry.axis)
            entries_by_key[signature, template(entry.where)][side].append(entry)
    rows = []
    for (signature, module_template), (base_entries, head_entries) in entries_by_key.items():
        modules = sorted({entry.where for entry in (*base_entries, *head_entries)})
        row = Row(
            signature=signature,
            template=module_template,
            module=modules[0] if len(modules) == 1 else module_template,
            layers=len(modules),
            base=sum_entries(base_entries),
            head=sum_entries(head_entries),
            static_count=sum(entry.static_count or 0 for entry in head_entries),
            exposed_s=sum(entry.exposed_s or 0.0 for entry in head_entries),
            hidden_s=sum(entry.hidden_s or 0.0 for entry in head_entries),
        )
        rows.append(row)
    return sorted(
        rows, key=lambda row: (row.signature.role == "control", -max(row.base.bytes, row.head.bytes), row.template)
    )


def sum_by_kind(ledger: Ledger, matches: Callable[[Entry], bool] = lambda _: True) -> dict[Kind, Volume]:
    """Return the calls and bytes per kind, summed over the entries for which ``matches`` returns True."""
    entries_by_kind: dict[Kind, list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        if matches(entry):
            entries_by_kind[entry.kind].append(entry)
    return {kind: sum_entries(entries) for kind, entries in sorted(entries_by_kind.items())}
