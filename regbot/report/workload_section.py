"""The verdict on one workload, with the runs of both arms and the collectives by kind and mesh axis.

This module only selects runs and adds up counts. The judge decides which runs count and whether a change matters.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from regbot.judge.profiled_steps import choose_run
from regbot.ledgers.rows import Row, build_rows, find_unit, template
from regbot.records.ledger import Entry, Kind, Ledger, Program
from regbot.records.run import Run
from regbot.records.session import Session, TimedPlan
from regbot.records.verdict import (
    Finding,
    RunVerdict,
    Status,
    Throughput,
    Verdict,
    WorkloadVerdict,
    compute_overall_status,
)
from regbot.report.markdown import Name, Words

MAX_MISSING_LAYERS = 3
"""Largest number of layers that are named because they lost their collectives. If more layers did, none is named."""


@dataclass(frozen=True)
class CollectiveCounts:
    """Counts of one arm's collectives of one kind on one axis, in one step."""

    count: int
    bytes: int
    layers: Mapping[str, int]
    """Name of a layer -> count in the layer. Layers without such a collective are absent."""
    outside: int
    """Count outside of layers."""


@dataclass(frozen=True)
class CollectiveLine:
    """One kind of collective on one axis in both arms."""

    kind: Kind
    axis: str
    group_size: int
    base: CollectiveCounts
    head: CollectiveCounts
    reach: int
    """Number of layers that issue such a collective in either arm. If base issues it in no layer, it is the number of
    all layers."""
    changed: bool
    """Whether the arms differ in count or bytes of any phase, role, dtype and module."""

    def describe_count(self, tally: CollectiveCounts) -> Words:
        """Return one arm's count per layer: ``5 per layer``, ``2 per layer + 1`` (1 outside of layers), ``4 in
        layers.17`` or ``5 in 47 of 48 layers``; () if no layer issues such a collective."""
        if not tally.layers:
            return ()
        # The most frequent count of a layer, and the number of layers with this count.
        (usual_count, layer_count), *other_counts = Counter(tally.layers.values()).most_common()
        if layer_count == self.reach:
            words: Words = (f"{usual_count} per layer",)
        elif len(tally.layers) == 1:
            words = (f"{usual_count} in ", Name(next(iter(tally.layers))))
        elif not other_counts:
            words = (f"{usual_count} in {layer_count} of {self.reach} layers",)
        else:
            other_layers = sum(layers for _, layers in other_counts)
            words = (f"{usual_count} in {layer_count} layers, other counts in {other_layers}",)
        return (*words, f" + {tally.outside}") if tally.outside else words

    def list_missing_layers(self) -> list[str]:
        """Return the layers in which base has such collectives and head has none; [] if there are more than
        ``MAX_MISSING_LAYERS``, if no layer of base kept them, or if a count changed elsewhere."""
        missing = sorted(self.base.layers.keys() - self.head.layers.keys())
        kept = {layer: count for layer, count in self.base.layers.items() if layer in self.head.layers}
        is_only_change = kept == dict(self.head.layers) and self.base.outside == self.head.outside
        return missing if kept and is_only_change and len(missing) <= MAX_MISSING_LAYERS else []


@dataclass(frozen=True)
class TimedRun:
    """One timed run and the verdict on it."""

    run: Run
    verdict: RunVerdict

    @property
    def block(self) -> int:
        """Number of the block; 0 for a warm launch and for a run without a position in the session."""
        return self.run.position.block if self.run.position else 0

    @property
    def role_words(self) -> str:
        return "compared with stored runs" if self.verdict.role == "stored" else self.verdict.role


@dataclass(frozen=True)
class WorkloadSection:
    """One entry of the verdict with its runs: a workload on a mesh.

    ``base`` and ``head`` are the runs whose ledgers count; None without such a run. Usually this is the last static run
    of the arm with the outcome ok, or the last static run if none is ok. If the judge compared profiles of timed runs,
    it is a timed run.
    """

    verdict: WorkloadVerdict
    runs: tuple[Run, ...]
    """All static runs."""
    base: Run | None
    head: Run | None
    timed: tuple[TimedRun, ...]
    """All timed runs with a verdict, in session order."""
    plan: TimedPlan | None
    """What was planned to be timed; None if nothing was."""

    @property
    def name(self) -> str:
        return self.verdict.name

    @property
    def status(self) -> Status:
        return compute_overall_status([self.verdict])

    @property
    def findings(self) -> list[Finding]:
        return self.verdict.findings

    @property
    def throughput(self) -> Throughput | None:
        return self.verdict.throughput

    @property
    def failed(self) -> list[Run]:
        """The failed runs that affect the verdict: at most one static run and one timed run of each arm. Static runs
        come before timed runs, and head comes before base."""
        static = [run for run in (self.head, self.base) if run is not None and run.outcome != "ok"]
        last_timed = {timed.run.arm.name: timed.run for timed in self.timed if timed.run.outcome != "ok"}
        return [*static, *(last_timed[arm] for arm in ("head", "base") if arm in last_timed)]

    @property
    def has_foreign_code(self) -> bool:
        """Whether a run imported a package from outside its worktree that must come from there."""
        runs = [self.base, self.head, *(timed.run for timed in self.timed)]
        return any(run.code.foreign for run in runs if run and run.code)

    @property
    def reasons(self) -> list[str]:
        """The reasons for the status of the workload. The reasons of the section that decided the status come first."""
        verdict = self.verdict
        sections = [verdict.validity, verdict.sharding, verdict.program, verdict.throughput]
        known_sections = [section for section in sections if section is not None]
        known_sections.sort(key=lambda section: section.status != self.status)  # False, the decisive one, sorts first
        return list(dict.fromkeys(reason for section in known_sections for reason in section.reasons))

    @property
    def ledgers(self) -> tuple[Ledger, Ledger] | None:
        """The ledgers of base and head; None if one of them is missing. A missing ledger is unknown, not empty."""
        if self.base is None or self.head is None or self.base.ledger is None or self.head.ledger is None:
            return None
        return self.base.ledger, self.head.ledger

    @property
    def changed_files(self) -> list[str]:
        """The files of the checkout that both arms loaded with different content, or that only one arm loaded."""
        files = [run.code.files if run is not None and run.code is not None else {} for run in (self.base, self.head)]
        return sorted({path for path, _ in files[0].items() ^ files[1].items()}) if all(files) else []

    @property
    def programs(self) -> tuple[Program, Program] | None:
        """The Programs of base and head; None if one of them was not observed."""
        programs = [ledger.program for ledger in self.ledgers or () if ledger.program is not None]
        return (programs[0], programs[1]) if self.judged and len(programs) == 2 else None

    @property
    def judged(self) -> bool:
        """Whether the ledgers were compared, so that they may be shown as base and head."""
        sharding = self.verdict.sharding
        return self.ledgers is not None and sharding is not None and sharding.status != "INVALID"

    @property
    def has_other_operators(self) -> bool:
        """Whether the device programs of the arms are known and differ."""
        base, head = (ledger.fingerprint for ledger in self.ledgers) if self.ledgers else (None, None)
        return base is not None and head is not None and base != head

    @cached_property
    def rows(self) -> list[Row]:
        """The collectives of both arms by phase, role, dtype and module; [] without ledgers."""
        return build_rows(*self.ledgers) if self.ledgers else []

    @cached_property
    def lines(self) -> list[CollectiveLine]:
        """The collectives of both arms by kind and axis; [] without ledgers."""
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
    sections = []
    for entry in verdict.workloads:
        timed_runs = session.timed_runs(entry.name)
        if entry.sharding is not None and entry.sharding.tier == "timed":  # the judge compared profiles of timed runs
            base, head = choose_run(timed_runs, "base"), choose_run(timed_runs, "head")
        else:
            base, head = (_select_static_run(runs[entry.name], arm) for arm in ("base", "head"))
        verdicts = entry.throughput.runs if entry.throughput is not None else []
        sections.append(
            WorkloadSection(
                verdict=entry,
                runs=tuple(runs[entry.name]),
                base=base,
                head=head,
                timed=tuple(TimedRun(run, verdict) for run, verdict in zip(timed_runs, verdicts, strict=False)),
                plan=next((plan for plan in session.header.timed if plan.entry == entry.name), None),
            )
        )
    return sections


def fold_collectives(base: Ledger, head: Ledger) -> list[CollectiveLine]:
    """Return one line per kind, axis and group size. Changed lines come before unchanged lines, and lines with more
    bytes in base come before lines with fewer."""
    groups: dict[tuple[Kind, str, int], tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for arm, ledger in enumerate((base, head)):
        for entry in ledger.entries:
            groups[entry.kind, entry.axis, entry.group_size][arm].append(entry)
    all_layers = {find_unit(entry.where) for entry in (*base.entries, *head.entries) if _is_in_layer(entry)}
    folded = []
    for (kind, axis, group_size), (base_entries, head_entries) in groups.items():
        base_tally, head_tally = _tally_entries(base_entries), _tally_entries(head_entries)
        layers = base_tally.layers.keys() | head_tally.layers.keys() if base_tally.layers else all_layers
        folded.append(
            CollectiveLine(
                kind=kind,
                axis=axis,
                group_size=group_size,
                base=base_tally,
                head=head_tally,
                reach=len(layers),
                changed=_compute_totals(base_entries) != _compute_totals(head_entries),
            )
        )
    return sorted(folded, key=lambda line: (not line.changed, -line.base.bytes, -line.head.bytes, line.kind, line.axis))


def kind_words(kind: str) -> str:
    """Return ``all_to_all`` as ``all-to-all``."""
    return kind.replace("_", "-")


def _tally_entries(entries: Iterable[Entry]) -> CollectiveCounts:
    layers: Counter[str] = Counter()
    outside = size = 0
    for entry in entries:
        size += entry.bytes
        if _is_in_layer(entry):
            layers[find_unit(entry.where)] += entry.count
        else:
            outside += entry.count
    return CollectiveCounts(count=outside + layers.total(), bytes=size, layers=layers, outside=outside)


def _is_in_layer(entry: Entry) -> bool:
    return "*" in template(entry.where)


def _select_static_run(runs: Sequence[Run], arm: str) -> Run | None:
    attempts = [run for run in runs if run.arm.name == arm]
    attempts.sort(key=lambda run: (run.outcome == "ok", run.attempt))  # the last is the last good run, if any
    return attempts[-1] if attempts else None


def _compute_totals(entries: Iterable[Entry]) -> Counter[tuple[str, ...]]:
    """Return the total count and bytes of ``entries`` by phase, role, dtype and module."""
    totals: Counter[tuple[str, ...]] = Counter()
    for entry in entries:
        totals[entry.phase, entry.role, entry.dtype, entry.where, "count"] += entry.count
        totals[entry.phase, entry.role, entry.dtype, entry.where, "bytes"] += entry.bytes
    return totals
