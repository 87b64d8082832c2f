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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.ledgers.overlap import Overlap, overlap, union
from regbot.ledgers.readers.nsys_export import UNKNOWN_PROCESS, Export, NsysKernel, get_process, open_database
from regbot.ledgers.readers.nsys_ranges import NvtxCalls, read_calls
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import STEPS_UNKNOWN, UNKNOWN, CallSum, sum_calls
from regbot.records.ledger import CollectiveBackend, Entry, Kind, Ledger, Role, UnclassifiedCommunication
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable

NAME = "nsys"
TITLE = "Nsight Systems sqlite export"

MAGIC = b"SQLite format 3\x00"
MAX_SECONDS = 1e7
"""Largest plausible time of all kernels of an entry, about four months."""
MAX_UNKNOWN_NAMES = 1000
"""Largest number of names of unknown communication kernels that are kept."""


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


class _UnclassifiedSum(NamedTuple):
    """Number of launches of the kernels with one name, and the sum of their seconds, or 0 if that is not known."""

    launches: int = 0
    seconds: float = 0.0

    def plus(self, launches: int, seconds: float) -> "_UnclassifiedSum":
        return _UnclassifiedSum(self.launches + launches, self.seconds + seconds)


class _KernelSpans(NamedTuple):
    """Starts and ends of many kernels, in nanoseconds."""

    starts: list[int]
    ends: list[int]


def _new_spans() -> _KernelSpans:
    return _KernelSpans([], [])


@dataclass
class _ProcessKernels:
    """Sums over the kernels of one process."""

    nccl: Counter[frozenset[Kind]] = field(default_factory=Counter)
    """Number of NCCL kernels, by the kinds of collectives that a kernel with this name can run."""
    nccl_in_graphs: int = 0
    """Number of NCCL kernels that a CUDA graph launched."""
    calls: list[CallSum] = field(default_factory=list)
    """Calls of libraries other than NCCL. Each payload or control kernel counts as one call."""
    unknown: dict[str, _UnclassifiedSum] = field(default_factory=lambda: defaultdict(_UnclassifiedSum))
    """Kernels by name, where the name suggests communication but is in no table."""
    communication: dict[tuple[frozenset[Kind], int], _KernelSpans] = field(
        default_factory=lambda: defaultdict(_new_spans)
    )
    """Times of communication kernels, by possible kinds and device."""
    compute: dict[int, _KernelSpans] = field(default_factory=lambda: defaultdict(_new_spans))
    """Times of compute kernels, by device."""

    def add(self, kernel: NsysKernel) -> None:
        """Add one kernel. A barrier (category 'sync') is dropped. An unknown kernel is only counted in ``unknown``."""
        communication, seconds = kernel.communication, (kernel.end - kernel.start) / 1e9
        if communication is None:  # a compute kernel
            spans = self.compute[kernel.device]
        elif communication.category == "nccl":
            self.nccl[communication.possible_kinds] += 1
            self.nccl_in_graphs += kernel.in_graph
            spans = self.communication[communication.possible_kinds, kernel.device]
        elif (
            communication.category in ("payload", "control")
            and communication.kind is not None
            and communication.via is not None
        ):
            role: Role = "control" if communication.category == "control" else "payload"
            self.calls.append(_make_unsized_call(communication.kind, role, communication.via))
            spans = self.communication[frozenset((communication.kind,)), kernel.device]
        else:
            if communication.category == "unknown" and len(self.unknown) < MAX_UNKNOWN_NAMES:
                self.unknown[kernel.name] = self.unknown[kernel.name].plus(1, seconds)
            return
        spans.starts.append(kernel.start)
        spans.ends.append(kernel.end)


def _make_unsized_call(kind: Kind, role: Role, via: CollectiveBackend) -> CallSum:
    """Return one call of which only the kernel is known, so its group, dtype and bytes are unknown."""
    return CallSum(kind, axis=UNKNOWN, group_size=0, dtype=UNKNOWN, phase="unknown", role=role, via=via, bytes=None)


def _build_ledger(source: Source, export: Export) -> Ledger:
    """Return the ledger of the process on the first device. Raises ReadError if it recorded no communication."""
    ranges = export.ranges()
    first_devices: dict[int, int] = {}  # lowest device number of each process that ran kernels
    kernels_by_process: dict[int, _ProcessKernels] = defaultdict(_ProcessKernels)
    for kernel in export.kernels():
        kernels_by_process[kernel.process].add(kernel)
        first_devices[kernel.process] = min(first_devices.get(kernel.process, kernel.device), kernel.device)
    processes = {get_process(nvtx_range.thread) for nvtx_range in ranges} or set(kernels_by_process)
    process = _find_first_process(processes, first_devices)
    if process in kernels_by_process:
        kernels = kernels_by_process[process]
    else:  # perhaps the export does not name the process of its kernels
        kernels = kernels_by_process.get(UNKNOWN_PROCESS, _ProcessKernels())
    nvtx_calls = read_calls([nvtx_range for nvtx_range in ranges if get_process(nvtx_range.thread) == process])
    calls = [*(call for call in nvtx_calls.calls if call.group_size != 1), *kernels.calls]
    unclassified: dict[str, _UnclassifiedSum] = defaultdict(_UnclassifiedSum)
    for name, (launches, seconds) in kernels.unknown.items():
        label = clip_label(printable(name))
        unclassified[label] = unclassified[label].plus(launches, seconds)
    if not nvtx_calls.calls:
        _count_nccl_kernels(kernels.nccl, calls, unclassified)
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
        warnings=[*_list_warnings(nvtx_calls, kernels, len(processes), unclassified)],
    )


def _find_first_process(processes: set[int], first_devices: Mapping[int, int]) -> int:
    """Return the process with the lowest device. Processes without kernels come last. Return ``UNKNOWN_PROCESS`` if
    there are no processes.
    """

    def sort_key(process: int) -> tuple[bool, int, int]:
        has_no_kernels = process not in first_devices
        return has_no_kernels, first_devices.get(process, 0), process

    return min(processes, key=sort_key, default=UNKNOWN_PROCESS)


def _count_nccl_kernels(
    kernels: Mapping[frozenset[Kind], int], calls: list[CallSum], unclassified: dict[str, _UnclassifiedSum]
) -> None:
    """Add NCCL kernels to ``calls`` if their name allows only one collective, else to ``unclassified``.

    ``kernels`` has the number of kernels by possible kinds.
    """
    for kinds, count in kernels.items():
        only_kind = _find_only_kind(kinds)
        if only_kind is not None:
            calls += [_make_unsized_call(only_kind, "payload", "nccl")] * count
            continue
        is_generic = len(kinds) >= 8  # a kernel with the name 'Generic' can run any collective
        name = "NCCL kernels" if is_generic else "NCCL kernels that serve " + " or ".join(sorted(kinds))
        launches_before = unclassified.get(name, _UnclassifiedSum()).launches
        unclassified[name] = _UnclassifiedSum(launches_before + count, seconds=0.0)


def _find_only_kind(kinds: frozenset[Kind]) -> Kind | None:
    """Return the only collective that a kernel can run, or None if there are several.

    Two uncommon uses of a kernel are ignored: barriers, which are all-reduces without data, and collectives on lists of
    uneven tensors, which NCCL runs as broadcasts or reductions.
    """
    candidates = kinds - {"barrier"}
    if candidates == {"all_gather", "broadcast"}:
        return "broadcast"
    if candidates == {"reduce_scatter", "reduce"}:
        return "reduce"
    return next(iter(candidates)) if len(candidates) == 1 else None


def _add_times(source: Source, entries: list[Entry], kernels: _ProcessKernels) -> list[Entry]:
    """Return the entries, with exposed and hidden seconds where kernels can be assigned.

    A kernel name allows several kinds of collectives. So kernels are assigned to an entry only if no other entry has
    one of these kinds.
    """
    compute = {device: union(*spans) for device, spans in kernels.compute.items()}
    no_compute = union([], [])
    indices_by_kind: dict[Kind, list[int]] = defaultdict(list)
    for index, entry in enumerate(entries):
        if entry.via != "gloo":  # collectives of gloo run no kernels
            indices_by_kind[entry.kind].append(index)
    times_by_index: dict[int, Overlap] = {}  # seconds, by the index of the entry
    for (kinds, device), spans in kernels.communication.items():
        indices = [index for kind in kinds for index in indices_by_kind[kind][:2]]  # two are already too many
        if len(indices) == 1:
            on_device = overlap(union(*spans), compute.get(device, no_compute))
            times = times_by_index.get(indices[0], Overlap(exposed=0.0, hidden=0.0))
            times_by_index[indices[0]] = Overlap(
                exposed=times.exposed + on_device.exposed / 1e9, hidden=times.hidden + on_device.hidden / 1e9
            )
    # ``max`` gives the larger of exposed and hidden seconds.
    if any(max(times) > MAX_SECONDS for times in times_by_index.values()):
        raise source.error("has kernels that run for months; its times are wrong, export it again")
    timed_entries = list(entries)
    for index, times in times_by_index.items():
        timed_entries[index] = entries[index].model_copy(update={"exposed_s": times.exposed, "hidden_s": times.hidden})
    return timed_entries


def _list_guesses(calls: list[CallSum], kernels: _ProcessKernels) -> Iterator[str]:
    """Yield one sentence for each property of calls that is unknown, and for calls that are not counted."""
    unsized = sum(call.bytes is None for call in calls)
    if unsized:
        yield f"the bytes of {unsized:,} calls are unknown and shown as 0: the export has no payload for them"
    if any(not call.group_size for call in calls):
        yield "the groups of some calls are unknown; they get the size of the largest known group, and at least 2"
    if kernels.nccl_in_graphs:
        yield (
            f"{kernels.nccl_in_graphs:,} NCCL kernels ran from CUDA graphs. NCCL writes its ranges only at "
            "capture, so replayed collectives are not counted"
        )


def _list_warnings(
    nvtx_calls: NvtxCalls, kernels: _ProcessKernels, process_count: int, unclassified_names: Iterable[str]
) -> Iterator[str]:
    """Yield one sentence for each thing that is uncertain or not counted. ``process_count`` is the number of processes
    in the export.
    """
    calls, exchanges = nvtx_calls.calls, nvtx_calls.exchanges
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
    nccl_calls, nccl_kernels = sum(call.via == "nccl" for call in calls), kernels.nccl.total()
    if calls and nccl_kernels and nccl_kernels != nccl_calls:
        yield (
            f"{nccl_calls:,} NCCL calls, but {nccl_kernels:,} NCCL kernels: grouped calls share a kernel, "
            "and calls in graphs or on copy engines have no kernel of their own"
        )
    if process_count > 1:
        yield f"the export covers {process_count} processes; this ledger is that of the process on the first device"
    if names := ", ".join(repr(clip(name, 80)) for name in sorted(unclassified_names)[:3]):
        yield f"communication that could not be classified is not counted: {names}"
