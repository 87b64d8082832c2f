"""The verdict on one workload, with the runs of both arms and the collectives by kind and mesh axis.

The ledgers come from the static runs, unless the judge compared profiles of timed runs. Timed runs are kept separately
in ``timed``, because they use another variant of the shape.

The collectives are folded to one line per kind and mesh axis. A line shows the count per layer, because "5 in each of
48 layers" says more than 240. Whether a change matters is decided by the verdict, not here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from regbot.judge.profiled_steps import choose_run
from regbot.ledgers.rows import Row, build_rows, find_unit, template
from regbot.records.ledger import Entry, Kind, Ledger
from regbot.records.run import Run
from regbot.records.session import Session
from regbot.records.verdict import Finding, Status, Throughput, Verdict, WorkloadVerdict, compute_overall_status
from regbot.report.timed_runs import TimedRuns, select_timed_runs

MAX_MISSING_LAYERS = 3
"""Largest number of layers that are named because their collectives are gone. If more are affected, the number of the
other layers is given."""


@dataclass(frozen=True)
class CollectiveCounts:
    """Counts of one arm's collectives of one kind on one axis. ``layers``: counts by layer. ``outside``: count outside
    of layers."""

    count: int
    bytes: int
    layers: Mapping[str, int]
    outside: int


@dataclass(frozen=True)
class CollectiveLine:
    """One kind of collective on one axis in both arms. ``reach``: number of layers that could issue such a
    collective."""

    kind: Kind
    axis: str
    group_size: int
    base: CollectiveCounts
    head: CollectiveCounts
    reach: int
    changed: bool

    def describe_count(self, tally: CollectiveCounts) -> str:
        """Return the count as ``5 per layer``, ``2 per layer + 1``, ``4 in layers.17`` or ``5 in 47 of 48 layers``.

        Return '' if no layer issues such a collective.
        """
        if not tally.layers:
            return ""
        (usual_count, layer_count), *other_counts = Counter(tally.layers.values()).most_common()
        if layer_count == self.reach:
            words = f"{usual_count} per layer"
        elif len(tally.layers) == 1:
            words = f"{usual_count} in {next(iter(tally.layers))}"
        elif not other_counts:
            words = f"{usual_count} in {layer_count} of {self.reach} layers"
        else:
            other_layers = sum(layers for _, layers in other_counts)
            words = f"{usual_count} in {layer_count} layers, other counts in {other_layers}"
        return f"{words} + {tally.outside}" if tally.outside else words

    def list_missing_layers(self) -> list[str]:
        """Return the layers in which head has none of base's collectives, if these few layers are the only change.

        Return [] for every other change.
        """
        missing = sorted(set(self.base.layers) - set(self.head.layers))
        kept = {layer: count for layer, count in self.base.layers.items() if layer not in missing}
        is_only_change = kept == dict(self.head.layers) and self.base.outside == self.head.outside
        return missing if kept and is_only_change and len(missing) <= MAX_MISSING_LAYERS else []


@dataclass(frozen=True)
class WorkloadSection:
    """One entry of the verdict with its runs. ``runs``: all static runs of the entry.

    ``base`` and ``head``: the run whose ledger counts for each arm. It is the last static run with the outcome ok, or
    the last static run if there is none. If the judge compared profiles of timed runs, it is a timed run.
    """

    verdict: WorkloadVerdict
    runs: tuple[Run, ...]
    base: Run | None
    head: Run | None
    timed: TimedRuns

    @property
    def name(self) -> str:
        return self.verdict.name

    @property
    def status(self) -> Status:
        return compute_overall_status([self.verdict])

    @property
    def findings(self) -> list[Finding]:
        return self.verdict.sharding.findings if self.verdict.sharding else []

    @property
    def throughput(self) -> Throughput | None:
        return self.verdict.throughput

    @property
    def failed(self) -> list[Run]:
        """The failed runs that affect the verdict. Static runs come before timed runs, and head comes before base."""
        static = [run for run in (self.head, self.base) if run is not None and run.outcome != "ok"]
        last_failed = {run.arm.name: run for run in reversed(self.timed.failed)}
        return [*static, *(last_failed[arm] for arm in ("head", "base") if arm in last_failed)]

    @property
    def foreign(self) -> list[str]:
        """Watched packages that a run imported from outside its worktree."""
        runs = [self.base, self.head, *(timed_run.run for timed_run in self.timed.runs)]
        return list(dict.fromkeys(name for run in runs if run and run.code for name in run.code.foreign))

    @property
    def reasons(self) -> list[str]:
        """The reasons for the status of the workload. The reasons of the section that decided the status come first."""
        sections = [self.verdict.validity, self.verdict.sharding, self.verdict.throughput]
        known_sections = [section for section in sections if section is not None]
        known_sections.sort(key=lambda section: section.status != self.status)
        return list(dict.fromkeys(reason for section in known_sections for reason in section.reasons))

    @property
    def ledgers(self) -> tuple[Ledger, Ledger] | None:
        """The ledgers of base and head, None if one of them is missing. A missing ledger is unknown, not empty."""
        if self.base is None or self.head is None or self.base.ledger is None or self.head.ledger is None:
            return None
        return self.base.ledger, self.head.ledger

    @property
    def judged(self) -> bool:
        """Whether the ledgers were compared, so that they may be shown as base and head."""
        sharding = self.verdict.sharding
        return self.ledgers is not None and sharding is not None and sharding.status != "INVALID"

    @property
    def has_other_operators(self) -> bool:
        """Whether the device programs of the arms are known and differ."""
        base, head = (ledger.program for ledger in self.ledgers) if self.ledgers else (None, None)
        return base is not None and head is not None and base != head

    @cached_property
    def rows(self) -> list[Row]:
        return build_rows(*self.ledgers) if self.ledgers else []

    @cached_property
    def lines(self) -> list[CollectiveLine]:
        return fold_collectives(*self.ledgers) if self.ledgers else []

    @property
    def changed(self) -> list[CollectiveLine]:
        return [line for line in self.lines if line.changed]


def build_workload_sections(verdict: Verdict, session: Session) -> list[WorkloadSection]:
    """Return a section for every entry of the verdict, with the runs of the entry."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in session.runs:
        if run.tier == "static":
            runs[run.workload].append(run)
    return [
        WorkloadSection(
            verdict=entry,
            runs=tuple(runs[entry.name]),
            base=_select_run(entry, session, runs[entry.name], "base"),
            head=_select_run(entry, session, runs[entry.name], "head"),
            timed=select_timed_runs(session, entry.name, entry.throughput),
        )
        for entry in verdict.workloads
    ]


def fold_collectives(base: Ledger, head: Ledger) -> list[CollectiveLine]:
    """Return one line per kind, axis and group size. Changed lines come before unchanged ones, and lines with more
    bytes in base come before lines with fewer."""
    groups: dict[tuple[Kind, str, int], tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):
        for entry in ledger.entries:
            groups[entry.kind, entry.axis, entry.group_size][side].append(entry)
    every_layer = {find_unit(entry.where) for entry in (*base.entries, *head.entries) if in_layer(entry.where)}
    folded = []
    for (kind, axis, size), (base_entries, head_entries) in groups.items():
        base_tally, head_tally = tally_entries(base_entries), tally_entries(head_entries)
        reach = len(base_tally.layers.keys() | head_tally.layers.keys()) if base_tally.layers else len(every_layer)
        folded.append(
            CollectiveLine(
                kind,
                axis,
                size,
                base_tally,
                head_tally,
                reach,
                _compute_totals(base_entries) != _compute_totals(head_entries),
            )
        )
    return sorted(folded, key=lambda line: (not line.changed, -line.base.bytes, -line.head.bytes, line.kind, line.axis))


def tally_entries(entries: Iterable[Entry]) -> CollectiveCounts:
    """Count ``entries`` in total and by layer."""
    layers: Counter[str] = Counter()
    outside = size = 0
    for entry in entries:
        size += entry.bytes
        if in_layer(entry.where):
            layers[find_unit(entry.where)] += entry.count
        else:
            outside += entry.count
    return CollectiveCounts(count=outside + layers.total(), bytes=size, layers=layers, outside=outside)


def in_layer(where: str) -> bool:
    """Whether a module path contains a numbered layer."""
    return "*" in template(where)


def kind_words(kind: str) -> str:
    """Return ``all_to_all`` as ``all-to-all``."""
    return kind.replace("_", "-")


def _select_run(entry: WorkloadVerdict, session: Session, static_runs: Sequence[Run], arm: str) -> Run | None:
    if entry.sharding is not None and entry.sharding.tier == "timed":
        return choose_run(session.timed_runs(entry.name), arm)
    attempts = [run for run in static_runs if run.arm.name == arm]
    attempts.sort(key=lambda run: (run.outcome == "ok", run.attempt))
    return attempts[-1] if attempts else None


def _compute_totals(entries: Iterable[Entry]) -> Counter[tuple[str, ...]]:
    """Return the total count and bytes of ``entries`` by phase, role, dtype and module. If these totals differ between
    the arms, the line has changed."""
    totals: Counter[tuple[str, ...]] = Counter()
    for entry in entries:
        totals[entry.phase, entry.role, entry.dtype, entry.where, "count"] += entry.count
        totals[entry.phase, entry.role, entry.dtype, entry.where, "bytes"] += entry.bytes
    return totals
