"""Reader of Nsight Systems sqlite exports: NCCL calls from NVTX ranges, checked against the kernels that ran.

The reader was written from the published schema (``nsys export --type sqlite``, 2021 to 2025), not tested on an export
of a real job. NCCL marks each API call with a range in the NVTX domain "NCCL", which names the collective, as the
kernel does not. Sizes and communicators are in the payloads of the ranges, if the export contains them as JSON. Sends
and receives between ncclGroupStart and ncclGroupEnd are combined into one all-to-all again. Libraries that do not call
NCCL are counted by their kernels."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from regbot.ledgers.readers.groups import UNKNOWN
from regbot.ledgers.readers.nsys.export import UNKNOWN_PROCESS, Export, NsysKernel, get_process, open_database
from regbot.ledgers.readers.nsys.ranges import NvtxCall, NvtxCalls, read_calls
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import STEPS_UNKNOWN, CallTally, Unclassified
from regbot.records.ledger import Ledger
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

NAME = "nsys"
TITLE = "Nsight Systems sqlite export"

MAGIC = b"SQLite format 3\x00"


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
    first_device: int = 0
    nccl: int = 0
    """Number of NCCL kernels."""
    nccl_in_graphs: int = 0
    """Number of NCCL kernels that a CUDA graph launched."""
    calls: list[NvtxCall] = field(default_factory=list)
    unclassified: Unclassified = field(default_factory=Unclassified)

    def add(self, kernel: NsysKernel) -> None:
        communication = kernel.communication
        if communication is None:
            return
        if communication.category == "nccl":
            self.nccl += 1
            self.nccl_in_graphs += kernel.in_graph
        elif key := communication.make_key(UNKNOWN, 0):
            self.calls.append(NvtxCall(key, None))
        elif communication.category == "unknown":
            self.unclassified.add(kernel.name)


def _build_ledger(source: Source, export: Export) -> Ledger:
    ranges = export.ranges()
    kernels_by_process: dict[int, _ProcessKernels] = {}
    for kernel in export.kernels():
        process_kernels = kernels_by_process.setdefault(kernel.process, _ProcessKernels(kernel.device))
        process_kernels.first_device = min(process_kernels.first_device, kernel.device)
        process_kernels.add(kernel)
    processes = {get_process(nvtx_range.thread) for nvtx_range in ranges} or set(kernels_by_process)

    def sort_key(process: int) -> tuple[bool, int, int]:  # processes without kernels come last
        kernels = kernels_by_process.get(process)
        return kernels is None, kernels.first_device if kernels else 0, process

    process = min(processes, key=sort_key, default=UNKNOWN_PROCESS)
    # Perhaps the export does not name the process of its kernels.
    kernels = kernels_by_process.get(process) or kernels_by_process.get(UNKNOWN_PROCESS) or _ProcessKernels()
    nvtx = read_calls([nvtx_range for nvtx_range in ranges if get_process(nvtx_range.thread) == process])
    if not nvtx.calls and kernels.nccl:
        kernels.unclassified.add("NCCL kernels", kernels.nccl)
    calls = [*(call for call in nvtx.calls if call.key.group_size != 1), *kernels.calls]
    if not calls and not kernels.unclassified:
        raise source.error(
            "contains no NCCL call and no communication kernel, so no communication was recorded; profile with "
            "--trace=cuda,nvtx --cuda-graph-trace=node"
        )
    tally = CallTally(source, default_size=nvtx.largest_communicator)
    for key, size_bytes in calls:
        tally.add(key, size_bytes)
    return Ledger(
        source="nsys:nvtx" if nvtx.calls else "nsys:kernels",
        scope="whole",
        steps=1,
        world_size=None,
        entries=tally.entries(),
        unclassified=kernels.unclassified.records(),
        guesses=[STEPS_UNKNOWN, *_list_guesses(calls, kernels)],
        warnings=[*_list_warnings(nvtx, kernels, len(processes))],
    )


def _list_guesses(calls: list[NvtxCall], kernels: _ProcessKernels) -> Iterator[str]:
    unsized = sum(call.bytes is None for call in calls)
    if unsized:
        yield f"the bytes of {unsized:,} calls are unknown and shown as 0: the export has no payload for them"
    if any(not call.key.group_size for call in calls):
        yield "the groups of some calls are unknown; they get the size of the largest known group, and at least 2"
    if kernels.nccl_in_graphs:
        yield (
            f"{kernels.nccl_in_graphs:,} NCCL kernels ran from CUDA graphs. NCCL writes its ranges only at "
            "capture, so replayed collectives are not counted"
        )


def _list_warnings(nvtx: NvtxCalls, kernels: _ProcessKernels, process_count: int) -> Iterator[str]:
    yield (
        "the reader follows the published schema and is not yet checked against a real export; element types are "
        "unknown"
    )
    nccl_calls, nccl_kernels = len(nvtx.calls), kernels.nccl
    if not nccl_calls:
        yield (
            "no NVTX ranges of NCCL: its kernels are not counted, because their names are ambiguous; profile with "
            "--trace=cuda,nvtx"
        )
    if nvtx.exchanges:
        yield (
            f"{nvtx.exchanges:,} groups of sends and receives with two peers or more are counted as one all-to-all each"
        )
    if nccl_calls and nccl_kernels and nccl_kernels != nccl_calls:
        yield (
            f"{nccl_calls:,} NCCL calls, but {nccl_kernels:,} NCCL kernels: grouped calls share a kernel, "
            "and calls in graphs or on copy engines have no kernel of their own"
        )
    if process_count > 1:
        yield f"the export covers {process_count} processes; this ledger is that of the process on the first device"
    yield from kernels.unclassified.warnings()
