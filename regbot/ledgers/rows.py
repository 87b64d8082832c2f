"""Two ledgers side by side: one row for every word they differ or agree on, layers folded together.

A ledger names the module that issued each collective, layer by layer. People read "5 in each of 48 layers", so rows
carry the module's *template* (``layers.*.moe``) and the number of layers behind it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.verdict import Volume

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass(frozen=True)
class Row:
    """One kind of collective of both arms. ``layers`` is how many modules share the template, at least 1."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    template: str
    layers: int
    base: Volume
    head: Volume
    static_count: int = 0
    """Lines in a compiled program, of the head; 0 where the source is none."""
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    """Of the head; 0 where the source has no times."""

    @property
    def changed(self) -> bool:
        return self.base != self.head


def template(where: str) -> str:
    """``layers.3.moe`` -> ``layers.*.moe``."""
    return _NUMBER.sub("*", where)


def unit(where: str) -> str:
    """The layer that a module belongs to: ``layers.3.moe.router`` -> ``layers.3``; the module itself outside layers."""
    found = _NUMBER.search(where)
    return where[: found.end()] if found else where


def total(entries: Iterable[Entry]) -> Volume:
    """Count and bytes of all ``entries`` together."""
    count = size = 0
    for entry in entries:
        count, size = count + entry.count, size + entry.bytes
    return Volume(count=count, bytes=size)


def rows(base: Ledger, head: Ledger) -> list[Row]:
    """All rows of both ledgers, largest payload first."""
    groups: dict[tuple[Kind, str, int, str, Phase, Role, str], tuple[list[Entry], list[Entry]]]
    groups = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):
        for e in ledger.entries:
            groups[e.kind, e.axis, e.group_size, e.dtype, e.phase, e.role, template(e.where)][side].append(e)
    found = [
        Row(
            *key,
            layers=len({e.where for e in (*ours, *theirs)}),
            base=total(ours),
            head=total(theirs),
            static_count=sum(e.static_count or 0 for e in theirs),
            exposed_s=sum(e.exposed_s or 0.0 for e in theirs),
            hidden_s=sum(e.hidden_s or 0.0 for e in theirs),
        )
        for key, (ours, theirs) in groups.items()
    ]
    return sorted(found, key=lambda row: (row.role == "control", -max(row.base.bytes, row.head.bytes), row.template))


def by_kind(ledger: Ledger, wanted: Callable[[Entry], bool] = lambda _: True) -> dict[Kind, Volume]:
    """Count and bytes per kind of the entries that are ``wanted``."""
    kinds: dict[Kind, list[Entry]] = defaultdict(list)
    for entry in ledger.entries:
        if wanted(entry):
            kinds[entry.kind].append(entry)
    return {kind: total(entries) for kind, entries in sorted(kinds.items())}
