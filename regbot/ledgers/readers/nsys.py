"""Nsight Systems sqlite export: NCCL calls from its NVTX ranges, checked against the kernels that ran.

Built from the published schema (``nsys export --type sqlite``, 2021 to 2025); no export of a real job was at hand. NCCL
marks each call of its interface with a range in the NVTX domain "NCCL"; that names the collective, which the kernel's
name does not. Sizes and communicators are in the ranges' payloads where the export has them as JSON. Sends and receives
inside ncclGroupStart and ncclGroupEnd, as torch and NCCL build an all-to-all, are put together again. Libraries that
call no NCCL (DeepEP, hybrid-ep, symmetric memory) are counted by their kernels. Without NVTX ranges only kernels tell,
and only those whose name allows one collective alone are counted.

An export can cover many processes; the ledger is that of the one on the first device.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from regbot.ledgers.overlap import overlap, union
from regbot.ledgers.readers.nsys_export import Export, Kernel, opened
from regbot.ledgers.readers.nsys_ranges import calls_of
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import STEPS_UNKNOWN, UNKNOWN, Call, entries
from regbot.records.ledger import Entry, Kind, Ledger, Role, Unclassified
from regbot.text import printable

NAME = "nsys"
TITLE = "Nsight Systems sqlite export"

MAGIC = b"SQLite format 3\x00"
MAX_SECONDS = 1e7


def recognises(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(source: Source) -> Ledger:
    """The ledger of the export in ``source``. Raises ReadError."""
    if not source.head.startswith(MAGIC):
        raise source.error("is no SQLite database; nsys export --type sqlite REPORT.nsys-rep writes one")
    if source.packed:
        raise source.error("is packed; unpack it first, SQLite reads it in place")
    try:
        with closing(opened(source)) as database:
            return _read(source, Export(source, database))
    except sqlite3.Error as error:
        raise source.error(f"cannot be read as SQLite: {printable(str(error))[:200]}; export it again") from error
    except (OverflowError, UnicodeDecodeError) as error:  # of numbers, of names in SQLite's own messages
        raise source.error("holds numbers or names that no export holds; export it again") from error


@dataclass
class _Kernels:
    """Kernels of one process, what of them matters."""

    counts: Counter[str] = field(default_factory=Counter)
    unknown: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))
    calls: list[Call] = field(default_factory=list)
    spans: dict[tuple[frozenset[Kind], int], tuple[list[int], list[int]]] = field(
        default_factory=lambda: defaultdict(lambda: ([], []))
    )
    compute: dict[int, tuple[list[int], list[int]]] = field(default_factory=lambda: defaultdict(lambda: ([], [])))
    nccl: Counter[frozenset[Kind]] = field(default_factory=Counter)

    def add(self, kernel: Kernel) -> None:
        use, seconds = kernel.use, (kernel.end - kernel.start) / 1e9
        if use is None:
            starts, ends = self.compute[kernel.device]
        elif use.what == "nccl":
            self.counts["nccl"] += 1
            self.counts["graph"] += kernel.in_graph
            self.nccl[use.may_be] += 1
            starts, ends = self.spans[use.may_be, kernel.device]
        elif use.what in ("payload", "control") and use.kind is not None and use.via is not None:
            part: Role = "control" if use.what == "control" else "payload"
            self.calls.append(Call(use.kind, UNKNOWN, 0, UNKNOWN, "unknown", part, use.via, None))
            starts, ends = self.spans[frozenset((use.kind,)), kernel.device]
        else:
            if use.what == "unknown" and len(self.unknown) < 1000:
                one = self.unknown[printable(kernel.name)[:500]]
                one[0], one[1] = one[0] + 1, one[1] + seconds
            return
        starts.append(kernel.start)
        ends.append(kernel.end)


def _read(source: Source, export: Export) -> Ledger:
    ranges = export.ranges()
    devices: dict[int, int] = {}
    by_process: dict[int, _Kernels] = defaultdict(_Kernels)
    for kernel in export.kernels():
        by_process[kernel.process].add(kernel)
        devices[kernel.process] = min(devices.get(kernel.process, kernel.device), kernel.device)
    processes = {one.thread >> 24 for one in ranges} or set(by_process)
    process = min(processes, key=lambda one: (devices.get(one, 2**31), one), default=0)
    kernels = by_process.get(process, by_process.get(0, _Kernels()))
    told = calls_of([one for one in ranges if one.thread >> 24 == process])
    calls = [*(call for call in told.calls if call.group_size != 1), *kernels.calls]
    unclassified = {name: (int(count), seconds) for name, (count, seconds) in kernels.unknown.items()}
    if not told.calls:
        for kinds, count in kernels.nccl.items():
            single = _single(kinds)
            if single is None:
                label = "NCCL kernels that serve " + " or ".join(sorted(kinds)) if len(kinds) < 8 else "NCCL kernels"
                unclassified[label] = (unclassified.get(label, (0, 0.0))[0] + count, 0.0)
            else:
                calls += [Call(single, UNKNOWN, 0, UNKNOWN, "unknown", "payload", "nccl", None)] * count
    if not calls and not unclassified:
        raise source.error(
            "holds no NCCL call and no communication kernel, so nothing of the kind was recorded; profile with "
            "--trace=cuda,nvtx --cuda-graph-trace=node"
        )
    counted = entries(source, calls, told.largest)
    return Ledger(
        source="nsys:nvtx" if told.calls else "nsys:kernels",
        scope="whole",
        steps=1,
        world_size=None,
        entries=_timed(source, counted, kernels),
        unclassified=[
            Unclassified(name=name, count=count, seconds=min(seconds, MAX_SECONDS) or None)
            for name, (count, seconds) in sorted(unclassified.items())[:1000]
        ],
        guesses=[STEPS_UNKNOWN, *_guesses(calls, kernels)],
        warnings=[*_doubts(told.grouped, told.calls, kernels, len(processes), unclassified)],
    )


def _single(kinds: frozenset[Kind]) -> Kind | None:
    """The collective that a kernel of this name serves, barriers (an all-reduce of nothing) and lists aside."""
    rest = kinds - {"barrier"}
    if len(rest) == 2 and "all_gather" in rest and "broadcast" in rest:
        return "broadcast"
    if len(rest) == 2 and "reduce_scatter" in rest and "reduce" in rest:
        return "reduce"
    return next(iter(rest)) if len(rest) == 1 else None


def _timed(source: Source, counted: list[Entry], kernels: _Kernels) -> list[Entry]:
    """Exposed and hidden seconds, for entries whose kernels can be told from all others by their names."""
    compute = {device: union(*spans) for device, spans in kernels.compute.items()}
    seconds: dict[int, tuple[float, float]] = {}
    for (kinds, device), spans in kernels.spans.items():
        fitting = [index for index, entry in enumerate(counted) if entry.kind in kinds and entry.via != "gloo"]
        if len(fitting) == 1:
            part = overlap(union(*spans), compute.get(device, union([], [])))
            exposed, hidden = seconds.get(fitting[0], (0.0, 0.0))
            seconds[fitting[0]] = (exposed + part.exposed / 1e9, hidden + part.hidden / 1e9)
    if any(max(pair) > MAX_SECONDS for pair in seconds.values()):
        raise source.error("has kernels that run for months; its times are wrong, export it again")
    return [
        entry.model_copy(update={"exposed_s": seconds[index][0], "hidden_s": seconds[index][1]})
        if index in seconds
        else entry
        for index, entry in enumerate(counted)
    ]


def _guesses(calls: list[Call], kernels: _Kernels) -> Iterator[str]:
    unsized = sum(call.bytes is None for call in calls)
    if unsized:
        yield f"bytes are unknown, and shown as 0, of {unsized:,} calls: the export has no payload for them"
    if any(not call.group_size for call in calls):
        yield "the export does not tell the groups of some calls; their size is that of the largest known, at least 2"
    if kernels.counts["graph"]:
        yield (
            f"{kernels.counts['graph']:,} NCCL kernels ran from CUDA graphs, where NCCL's ranges are written at "
            "capture alone: replayed collectives are not counted"
        )


def _doubts(
    grouped: int, told: list[Call], kernels: _Kernels, processes: int, unclassified: dict[str, Any]
) -> Iterator[str]:
    yield "read as the schema is published, not yet checked against a real export; element types are unknown"
    if not told:
        yield (
            "no NVTX ranges of NCCL: collectives are counted by the names of kernels, which tell little; profile with "
            "--trace=cuda,nvtx"
        )
    if grouped:
        yield f"{grouped:,} groups of sends and receives with two peers or more are counted as one all-to-all each"
    expected = sum(call.via == "nccl" for call in told)
    if told and kernels.counts["nccl"] and kernels.counts["nccl"] != expected:
        yield (
            f"{expected:,} NCCL calls, but {kernels.counts['nccl']:,} NCCL kernels: grouped calls share a kernel, "
            "graphs and copy engines have none of their own"
        )
    if processes > 1:
        yield f"the export covers {processes} processes; this is the one on the first device"
    if unclassified:
        names = ", ".join(repr(name[:80]) for name in sorted(unclassified)[:3])
        yield f"communication that could not be classified is in no count: {names}"
