"""Reader of Nsight Systems sqlite exports: NCCL calls from NVTX ranges, checked against the kernels that ran.

The reader was written from the published schema (``nsys export --type sqlite``, 2021 to 2025). It was not tested on an
export of a real job. NCCL marks each API call with a range in the NVTX domain "NCCL". The range names the collective,
while the name of the kernel does not. Sizes and communicators are in the payloads of the ranges, if the export contains
the payloads as JSON. torch and NCCL build an all-to-all from sends and receives between ncclGroupStart and
ncclGroupEnd. The reader combines these sends and receives into one all-to-all again.

Libraries that do not call NCCL (DeepEP, hybrid-ep, symmetric memory) are counted by their kernels. If there are no NVTX
ranges, an NCCL kernel is counted if its name allows only one collective.

An export can cover many processes. The ledger contains only the process on the first device.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from regbot.ledgers.overlap import overlap, union
from regbot.ledgers.readers.nsys_export import THREAD_BITS, Export, NsysKernel, open_database
from regbot.ledgers.readers.nsys_ranges import read_calls
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import STEPS_UNKNOWN, UNKNOWN, CallSum, sum_calls
from regbot.records.ledger import Entry, Kind, Ledger, Role, UnclassifiedCommunication
from regbot.text.clip import clip, clip_label
from regbot.text.printable import printable

NAME = "nsys"
TITLE = "Nsight Systems sqlite export"

MAGIC = b"SQLite format 3\x00"
MAX_SECONDS = 1e7


def recognises(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(source: Source) -> Ledger:
    """Return the ledger of the export in ``source``. Raises ReadError."""
    if not source.head.startswith(MAGIC):
        raise source.error("is not an SQLite database; nsys export --type sqlite REPORT.nsys-rep writes one")
    if source.is_gzip:
        raise source.error("is compressed; decompress it first, because SQLite reads the file in place")
    try:
        with closing(open_database(source)) as database:
            return _build_ledger(source, Export(source, database))
    except sqlite3.Error as error:
        raise source.error(f"cannot be read as SQLite: {clip(printable(str(error)), 200)}; export it again") from error
    except (OverflowError, UnicodeDecodeError) as error:  # numbers out of range, or names in SQLite's own messages
        raise source.error("contains numbers or names that are not valid in an export; export it again") from error


@dataclass
class _ProcessKernels:
    """Sums over the kernels of one process. Times are in nanoseconds, except in ``unknown``.

    ``counts`` are the numbers of NCCL kernels, in all ('nccl') and from CUDA graphs ('graph'). ``unknown`` maps the
    name of an unknown communication kernel to the number of its launches and their seconds. ``calls`` are the calls of
    libraries other than NCCL. ``spans`` has the starts and ends of communication kernels by possible kinds and device.
    ``compute`` has the starts and ends of compute kernels by device. ``nccl`` counts NCCL kernels by possible kinds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unknown: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))
    calls: list[CallSum] = field(default_factory=list)
    spans: dict[tuple[frozenset[Kind], int], tuple[list[int], list[int]]] = field(
        default_factory=lambda: defaultdict(lambda: ([], []))
    )
    compute: dict[int, tuple[list[int], list[int]]] = field(default_factory=lambda: defaultdict(lambda: ([], [])))
    nccl: Counter[frozenset[Kind]] = field(default_factory=Counter)

    def add(self, kernel: NsysKernel) -> None:
        communication, seconds = kernel.communication, (kernel.end - kernel.start) / 1e9
        if communication is None:
            starts, ends = self.compute[kernel.device]
        elif communication.category == "nccl":
            self.counts["nccl"] += 1
            self.counts["graph"] += kernel.in_graph
            self.nccl[communication.possible_kinds] += 1
            starts, ends = self.spans[communication.possible_kinds, kernel.device]
        elif (
            communication.category in ("payload", "control")
            and communication.kind is not None
            and communication.via is not None
        ):
            role: Role = "control" if communication.category == "control" else "payload"
            self.calls.append(
                CallSum(
                    communication.kind,
                    axis=UNKNOWN,
                    group_size=0,
                    dtype=UNKNOWN,
                    phase="unknown",
                    role=role,
                    via=communication.via,
                    bytes=None,
                )
            )
            starts, ends = self.spans[frozenset((communication.kind,)), kernel.device]
        else:
            if communication.category == "unknown" and len(self.unknown) < 1000:
                unknown_sum = self.unknown[clip_label(printable(kernel.name))]
                unknown_sum[0], unknown_sum[1] = unknown_sum[0] + 1, unknown_sum[1] + seconds
            return
        starts.append(kernel.start)
        ends.append(kernel.end)


def _build_ledger(source: Source, export: Export) -> Ledger:
    ranges = export.ranges()
    devices: dict[int, int] = {}
    by_process: dict[int, _ProcessKernels] = defaultdict(_ProcessKernels)
    for kernel in export.kernels():
        by_process[kernel.process].add(kernel)
        devices[kernel.process] = min(devices.get(kernel.process, kernel.device), kernel.device)
    processes = {nvtx_range.thread >> THREAD_BITS for nvtx_range in ranges} or set(by_process)
    process = min(processes, key=lambda candidate: (devices.get(candidate, 2**31), candidate), default=0)
    kernels = by_process.get(process, by_process.get(0, _ProcessKernels()))
    nvtx_calls = read_calls([nvtx_range for nvtx_range in ranges if nvtx_range.thread >> THREAD_BITS == process])
    calls = [*(call for call in nvtx_calls.calls if call.group_size != 1), *kernels.calls]
    unclassified = {name: (int(count), seconds) for name, (count, seconds) in kernels.unknown.items()}
    if not nvtx_calls.calls:
        for kinds, count in kernels.nccl.items():
            only_kind = _find_only_kind(kinds)
            if only_kind is None:
                label = "NCCL kernels that serve " + " or ".join(sorted(kinds)) if len(kinds) < 8 else "NCCL kernels"
                unclassified[label] = (unclassified.get(label, (0, 0.0))[0] + count, 0.0)
            else:
                call = CallSum(
                    only_kind,
                    axis=UNKNOWN,
                    group_size=0,
                    dtype=UNKNOWN,
                    phase="unknown",
                    role="payload",
                    via="nccl",
                    bytes=None,
                )
                calls += [call] * count
    if not calls and not unclassified:
        raise source.error(
            "contains no NCCL call and no communication kernel, so no communication was recorded; profile with "
            "--trace=cuda,nvtx --cuda-graph-trace=node"
        )
    entries = sum_calls(source, calls, nvtx_calls.largest_communicator)
    return Ledger(
        source="nsys:nvtx" if nvtx_calls.calls else "nsys:kernels",
        scope="whole",
        steps=1,
        world_size=None,
        entries=_add_times(source, entries, kernels),
        unclassified=[
            UnclassifiedCommunication(name=name, count=count, seconds=min(seconds, MAX_SECONDS) or None)
            for name, (count, seconds) in sorted(unclassified.items())[:1000]
        ],
        guesses=[STEPS_UNKNOWN, *_list_guesses(calls, kernels)],
        warnings=[*_list_warnings(nvtx_calls.exchanges, nvtx_calls.calls, kernels, len(processes), unclassified)],
    )


def _find_only_kind(kinds: frozenset[Kind]) -> Kind | None:
    """Return the only collective that a kernel can run, or None if there are several.

    Two uncommon uses of a kernel are ignored: barriers, which are all-reduces without data, and collectives on lists of
    uneven tensors.
    """
    candidates = kinds - {"barrier"}
    if len(candidates) == 2 and "all_gather" in candidates and "broadcast" in candidates:
        return "broadcast"
    if len(candidates) == 2 and "reduce_scatter" in candidates and "reduce" in candidates:
        return "reduce"
    return next(iter(candidates)) if len(candidates) == 1 else None


def _add_times(source: Source, entries: list[Entry], kernels: _ProcessKernels) -> list[Entry]:
    """Return the entries. An entry gets exposed and hidden seconds if it is the only one that its kernels can belong
    to."""
    compute = {device: union(*spans) for device, spans in kernels.compute.items()}
    no_spans = union([], [])
    seconds: dict[int, tuple[float, float]] = {}
    for (kinds, device), spans in kernels.spans.items():
        matching = [index for index, entry in enumerate(entries) if entry.kind in kinds and entry.via != "gloo"]
        if len(matching) == 1:
            device_overlap = overlap(union(*spans), compute.get(device, no_spans))
            exposed, hidden = seconds.get(matching[0], (0.0, 0.0))
            seconds[matching[0]] = (exposed + device_overlap.exposed / 1e9, hidden + device_overlap.hidden / 1e9)
    if any(max(times) > MAX_SECONDS for times in seconds.values()):
        raise source.error("has kernels that run for months; its times are wrong, export it again")
    return [
        entry.model_copy(update={"exposed_s": seconds[index][0], "hidden_s": seconds[index][1]})
        if index in seconds
        else entry
        for index, entry in enumerate(entries)
    ]


def _list_guesses(calls: list[CallSum], kernels: _ProcessKernels) -> Iterator[str]:
    unsized = sum(call.bytes is None for call in calls)
    if unsized:
        yield f"the bytes of {unsized:,} calls are unknown and shown as 0: the export has no payload for them"
    if any(not call.group_size for call in calls):
        yield "the groups of some calls are unknown; they get the size of the largest known group, and at least 2"
    if kernels.counts["graph"]:
        yield (
            f"{kernels.counts['graph']:,} NCCL kernels ran from CUDA graphs. NCCL writes its ranges only at "
            "capture, so replayed collectives are not counted"
        )


def _list_warnings(
    exchanges: int, calls: list[CallSum], kernels: _ProcessKernels, processes: int, unclassified: dict[str, Any]
) -> Iterator[str]:
    yield (
        "the reader follows the published schema and is not yet checked against a real export; element types are "
        "unknown"
    )
    if not calls:
        yield (
            "no NVTX ranges of NCCL: collectives are counted by kernel names, which are often ambiguous; profile with "
            "--trace=cuda,nvtx"
        )
    if exchanges:
        yield f"{exchanges:,} groups of sends and receives with two peers or more are counted as one all-to-all each"
    nccl_calls = sum(call.via == "nccl" for call in calls)
    if calls and kernels.counts["nccl"] and kernels.counts["nccl"] != nccl_calls:
        yield (
            f"{nccl_calls:,} NCCL calls, but {kernels.counts['nccl']:,} NCCL kernels: grouped calls share a kernel, "
            "and calls in graphs or on copy engines have no kernel of their own"
        )
    if processes > 1:
        yield f"the export covers {processes} processes; this ledger is that of the process on the first device"
    if unclassified:
        names = ", ".join(repr(clip(name, 80)) for name in sorted(unclassified)[:3])
        yield f"communication that could not be classified is not counted: {names}"
