"""A workload's verdict with the runs of both arms beside it, and its collectives counted the way people read them.

Ledgers are those of the static runs; a timed run is another variant of the shape and stands apart, in ``timed``.

Collectives are folded to one line per kind and mesh axis, with how many each layer issues: 240 says nothing, 5 in each
of 48 layers does. Nothing is decided here; what a line means is the verdict's business.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from regbot.ledgers.rows import Row, rows, template, unit
from regbot.records.ledger import Entry, Kind, Ledger
from regbot.records.run import Run
from regbot.records.session import Session
from regbot.records.verdict import Finding, Status, Throughput, Verdict, WorkloadVerdict, overall
from regbot.report.timed import Timed, timed


@dataclass(frozen=True)
class Tally:
    """One arm's collectives of one kind on one axis. ``layers`` counts them by layer, ``outside`` is the rest."""

    count: int
    bytes: int
    layers: Mapping[str, int]
    outside: int


@dataclass(frozen=True)
class Line:
    """One kind of collective on one axis in both arms. ``reach`` is the number of layers it could stand in."""

    kind: Kind
    axis: str
    group_size: int
    base: Tally
    head: Tally
    reach: int
    changed: bool

    def each(self, tally: Tally) -> str:
        """``5 per layer``, ``2 per layer + 1``, ``4 in layers.17``, ``5 in 47 of 48 layers``; '' if in none."""
        if not tally.layers:
            return ""
        (usual, number), *rest = Counter(tally.layers.values()).most_common()
        if number == self.reach:
            words = f"{usual} per layer"
        elif len(tally.layers) == 1:
            words = f"{usual} in {next(iter(tally.layers))}"
        elif not rest:
            words = f"{usual} in {number} of {self.reach} layers"
        else:
            others = sum(n for _, n in rest)
            words = f"{usual} in {number} layers, other counts in {others}"
        return f"{words} + {tally.outside}" if tally.outside else words


@dataclass(frozen=True)
class Measured:
    """One entry of the verdict. ``base`` and ``head`` are the static runs that count: the last good one, else the last;
    ``runs`` are all static runs."""

    verdict: WorkloadVerdict
    runs: tuple[Run, ...]
    base: Run | None
    head: Run | None
    timed: Timed

    @property
    def name(self) -> str:
        return self.verdict.name

    @property
    def status(self) -> Status:
        return overall([self.verdict])

    @property
    def findings(self) -> list[Finding]:
        return self.verdict.sharding.findings if self.verdict.sharding else []

    @property
    def throughput(self) -> Throughput | None:
        return self.verdict.throughput

    @property
    def failed(self) -> list[Run]:
        """Runs that did not end well, head before base and static before timed, as far as they decided anything."""
        static = [run for run in (self.head, self.base) if run is not None and run.outcome != "ok"]
        last = {run.arm.name: run for run in reversed(self.timed.failed)}
        return [*static, *(last[arm] for arm in ("head", "base") if arm in last)]

    @property
    def foreign(self) -> list[str]:
        """Watched packages that some run imported from outside its worktree."""
        runs = [self.base, self.head, *(timed.run for timed in self.timed.runs)]
        return list(dict.fromkeys(name for run in runs if run and run.code for name in run.code.foreign))

    @property
    def reasons(self) -> list[str]:
        """Why the status is what it is, the section that decided it first."""
        sections = [self.verdict.validity, self.verdict.sharding, self.verdict.throughput]
        found = [section for section in sections if section is not None]
        found.sort(key=lambda section: section.status != self.status)
        return list(dict.fromkeys(reason for section in found for reason in section.reasons))

    @property
    def ledgers(self) -> tuple[Ledger, Ledger] | None:
        """Both ledgers, or None: a ledger that is missing is unknown, never empty."""
        if self.base is None or self.head is None or self.base.ledger is None or self.head.ledger is None:
            return None
        return self.base.ledger, self.head.ledger

    @property
    def judged(self) -> bool:
        """Whether the ledgers were compared, and so may be shown as base and head."""
        sharding = self.verdict.sharding
        return self.ledgers is not None and sharding is not None and sharding.status != "INVALID"

    @cached_property
    def rows(self) -> list[Row]:
        return rows(*self.ledgers) if self.ledgers else []

    @cached_property
    def lines(self) -> list[Line]:
        return lines(*self.ledgers) if self.ledgers else []

    @property
    def changed(self) -> list[Line]:
        return [line for line in self.lines if line.changed]


def measured(verdict: Verdict, session: Session) -> list[Measured]:
    """Every entry of the verdict with its runs."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in session.runs:
        if run.tier == "static":
            runs[run.workload].append(run)
    return [
        Measured(
            verdict=entry,
            runs=tuple(runs[entry.name]),
            base=_decisive(run for run in runs[entry.name] if run.arm.name == "base"),
            head=_decisive(run for run in runs[entry.name] if run.arm.name == "head"),
            timed=timed(session, entry.name),
        )
        for entry in verdict.workloads
    ]


def lines(base: Ledger, head: Ledger) -> list[Line]:
    """One line per kind, axis and group size: the changed ones first, then the largest."""
    groups: dict[tuple[Kind, str, int], tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):
        for entry in ledger.entries:
            groups[entry.kind, entry.axis, entry.group_size][side].append(entry)
    every_layer = {unit(entry.where) for entry in (*base.entries, *head.entries) if in_layer(entry.where)}
    found = []
    for (kind, axis, size), (ours, theirs) in groups.items():
        before, after = tally(ours), tally(theirs)
        reach = len(before.layers.keys() | after.layers.keys()) if before.layers else len(every_layer)
        found.append(Line(kind, axis, size, before, after, reach, _words(ours) != _words(theirs)))
    return sorted(found, key=lambda line: (not line.changed, -line.base.bytes, -line.head.bytes, line.kind, line.axis))


def tally(entries: Iterable[Entry]) -> Tally:
    """``entries`` counted together and by layer."""
    layers: Counter[str] = Counter()
    outside = size = 0
    for entry in entries:
        size += entry.bytes
        if in_layer(entry.where):
            layers[unit(entry.where)] += entry.count
        else:
            outside += entry.count
    return Tally(count=outside + layers.total(), bytes=size, layers=layers, outside=outside)


def in_layer(where: str) -> bool:
    """Whether a module path leads through a numbered layer."""
    return "*" in template(where)


def kind_words(kind: str) -> str:
    """``all_to_all`` -> ``all-to-all``."""
    return kind.replace("_", "-")


def _decisive(runs: Iterable[Run]) -> Run | None:
    attempts = sorted(runs, key=lambda run: (run.outcome == "ok", run.attempt))
    return attempts[-1] if attempts else None


def _words(entries: Iterable[Entry]) -> Counter[tuple[str, ...]]:
    """Everything by which two arms' entries of one line can differ, whatever their order."""
    words: Counter[tuple[str, ...]] = Counter()
    for e in entries:
        words[e.phase, e.role, e.dtype, e.where, "count"] += e.count
        words[e.phase, e.role, e.dtype, e.where, "bytes"] += e.bytes
    return words
