"""Evidence about hung runs: each rank records its stacks, its latest collectives and its current module.

A hung run is killed from outside, and a killed process cannot report anything. So each rank writes three files to the
folder of the record while it runs:

    stacks.{rank}   stacks of all threads, written shortly before the time limit. The interpreter's writer thread does
                    not need the GIL, so this also works while the process is stuck in C
    last.{rank}     a memory-mapped file with the latest collectives, and with the collective in which the rank is now
    flight.{rank}   the latest collectives of torch's Flight Recorder as JSON, written shortly before the stacks. A rank
                    that holds the GIL does not write it

Recording a collective takes a few writes to memory and no system call. ``benchmarks/hang_recorder_cost.py`` measures
the cost. Collectives are numbered separately in each group, because all ranks of a group must issue the same
collectives in the same order. Collectives that torch issues from C++ (functional collectives, the reducer of DDP) are
only in ``flight.{rank}``.
"""

import contextlib
import faulthandler
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from regbot_guest import flight_recorder

MAGIC = b"regbot/last@1\n"
FILE_BYTES = 8192
"""Size of ``last.{rank}``. The constants below describe its layout."""
DUMP_TIME_OFFSET, GROUP_COUNT_OFFSET, HEADER_OFFSET, MODULE_OFFSET = 16, 24, 32, 64
GROUP_TABLE_OFFSET, SLOT_TABLE_OFFSET = 256, 3328
"""Byte offsets of the parts of ``last.{rank}``.

The dump time is the time at which the stacks are written, in nanoseconds of ``time.monotonic_ns``. The group count is
the number of used entries in the group table. The module is the path of the current module, as text.
"""
UINT64 = struct.Struct("<Q")
"""Format of the dump time and of the group count."""
HEADER = struct.Struct("<QQQ")
"""Serial number of the latest collective, serial number of the collective in which the rank is now (0 if there is
none), and the time at which this state began, in nanoseconds of ``time.monotonic_ns``.
"""
MODULE_BYTES = 192
"""Longest path of a module. A longer path is cut."""
GROUP = struct.Struct("<32s8s80sQ")
"""Entry of the group table: a group's name, backend and ranks, and the number of collectives issued in the group,
without sends and receives.
"""
MAX_GROUPS = 24
"""Number of entries of the group table. All further groups share the last entry."""
SLOT = struct.Struct("<QQQQHHI")
"""Entry of the slot table, called a slot. It has a collective's serial number, its number within its group, its time of
issue, its bytes, the index of its group, the index of its kind, and its state.
"""
NUM_SLOTS = 64
"""Number of latest collectives in the slot table. The collective with serial number n has the slot n % NUM_SLOTS."""
ISSUING, LAUNCHED, WAITED = 1, 2, 3
"""States of a collective: the call that issues it has begun, this call has returned, and a wait for it has returned."""
_COUNT, _STATE = struct.Struct("<Q"), struct.Struct("<I")
"""Formats of the last fields of ``GROUP``, the number of issued collectives, and of ``SLOT``, the state."""
_COUNT_OFFSET, _STATE_OFFSET = GROUP.size - _COUNT.size, SLOT.size - _STATE.size

KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "gather", "scatter",
         "send_recv", "barrier")  # fmt: skip
ISSUING_METHODS = {
    "allgather": ("all_gather", 0), "_allgather_base": ("all_gather", 0), "allgather_coalesced": ("all_gather", 0),
    "allgather_into_tensor_coalesced": ("all_gather", 0), "all_gather_single": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0), "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1), "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1), "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "allreduce": ("all_reduce", 0), "allreduce_coalesced": ("all_reduce", 0), "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1), "all_to_all_single": ("all_to_all", 1), "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0), "gather": ("gather", 1), "scatter": ("scatter", 0), "send": ("send_recv", 0),
    "recv": ("send_recv", 0), "recv_anysource": ("send_recv", 0), "barrier": ("barrier", -1),
}  # fmt: skip
"""Methods of a process group that issue a collective, in torch 2.8 to 2.13. The value has the kind of the collective,
and the index of the argument whose bytes are counted (-1 for none).
"""

MODULE_LOOKUP_S = 0.5
"""The current module and the Flight Recorder are read this many seconds before the stacks are written. This needs the
GIL, so in a hung process it may never run.
"""


def margin_s(limit_s: float) -> float:
    """Return how many seconds before the time limit ``limit_s`` a rank writes its stacks. The margin allows for a slow
    file system or a busy core.

    It is 2% of the limit, between 2 s and 30 s. For a limit below 8 s, it is a quarter of the limit.
    """
    return min(max(2.0, 0.02 * limit_s), 30.0, limit_s / 4)


class _GroupCounter:
    """Index of a process group in the group table, and the number of collectives that were issued in the group, without
    sends and receives.
    """

    __slots__ = ("index", "num_issued")

    def __init__(self, index: int) -> None:
        self.index, self.num_issued = index, 0


class HangRecorder:
    """Writes the three files of a rank to ``folder``. The launch is killed ``limit_s`` seconds after its start.

    If the folder is not writable, nothing is recorded, and the run continues.
    """

    def __init__(self, folder: Path, rank: int, limit_s: float) -> None:
        self._folder, self._rank = folder, rank
        self._stacks: TextIO | None = None
        self._memory: mmap.mmap | None = None
        """The mapped file ``last.{rank}``. None before ``record_collectives`` is called."""
        self._serial = 0
        """Serial number of the latest collective. The first collective has number 1."""
        self._groups: dict[int, _GroupCounter] = {}
        """By the id of the process group."""
        self._works: dict[int, int] = {}
        """Serial number of a collective, by the id of its ``Work``, the object of torch on which code waits for it."""
        with contextlib.suppress(OSError):
            self._stacks = (folder / f"stacks.{rank}").open("w", encoding="utf-8")  # stays open until the process ends
            # The stacks name a thread only by its id, so the first line tells which thread is the main one.
            self._stacks.write(f"main 0x{threading.main_thread().ident or 0:016x}\n")
            self._stacks.flush()
        self.schedule_dump(max(0.1, limit_s - margin_s(limit_s) - seconds_since_launch()))

    def schedule_dump(self, delay_s: float) -> None:
        """Write the stacks ``delay_s`` seconds from now. If collectives are recorded, write the current module and the
        calls of the Flight Recorder shortly before. This cancels an earlier schedule.
        """
        self._dump_at_ns = time.monotonic_ns() + int(1e9 * delay_s)
        if self._stacks is not None:
            faulthandler.dump_traceback_later(delay_s, file=self._stacks)
        if self._memory is not None:
            self._schedule_last_records(self._memory)

    def record_collectives(self, distributed: Any) -> None:
        """From now on, record every collective of ``torch.distributed`` that is issued from Python."""
        try:
            self._memory = _map_file(self._folder / f"last.{self._rank}")
        except OSError:
            return
        flight_recorder.switch_on(sys.modules.get("torch._C._distributed_c10d"))
        for name, (kind, counted_argument) in ISSUING_METHODS.items():
            if hasattr(distributed.ProcessGroup, name):
                original = getattr(distributed.ProcessGroup, name)
                setattr(
                    distributed.ProcessGroup, name, self._record_issue(original, KINDS.index(kind), counted_argument)
                )
        distributed.Work.wait = self._record_wait(distributed.Work.wait)
        self._schedule_last_records(self._memory)

    def _record_issue(self, original: Callable[..., Any], kind: int, counted_argument: int) -> Callable[..., Any]:
        """Return a replacement for a method of process groups, which records each call and then calls ``original``.

        ``kind`` is an index in ``KINDS``. ``counted_argument`` is the index of the argument whose bytes are counted, or
        -1 for none.
        """
        memory, works, groups = self._memory, self._works, self._groups
        assert memory is not None
        is_ordered = KINDS[kind] != "send_recv"  # the order of sends and receives may differ between ranks
        # Names of the function's own scope, because looking up attributes would slow each collective.
        now_ns, write_slot, write_header, write_count, state_struct = (
            time.monotonic_ns,
            SLOT.pack_into,
            HEADER.pack_into,
            _COUNT.pack_into,
            _STATE,
        )

        def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
            serial = self._serial = self._serial + 1
            counter = groups.get(id(group)) or self._add_group(group)
            group_index = counter.index
            number_in_group = 0  # no number, for sends and receives
            if is_ordered:
                number_in_group = counter.num_issued = counter.num_issued + 1
            size = _count_bytes(args[counted_argument]) if 0 <= counted_argument < len(args) else 0
            offset = SLOT_TABLE_OFFSET + serial % NUM_SLOTS * SLOT.size
            issued_ns = now_ns()
            write_slot(memory, offset, serial, number_in_group, issued_ns, size, group_index, kind, ISSUING)
            write_count(memory, GROUP_TABLE_OFFSET + group_index * GROUP.size + _COUNT_OFFSET, counter.num_issued)
            # The header has the latest collective, the collective in which the rank is now, and since when.
            write_header(memory, HEADER_OFFSET, serial, serial, issued_ns)
            try:
                work = original(group, *args, **kwargs)
            finally:
                write_header(memory, HEADER_OFFSET, serial, 0, now_ns())  # 0: the rank is in no collective
            works[id(work)] = serial
            state_struct.pack_into(memory, offset + _STATE_OFFSET, LAUNCHED)
            return work

        return wrapper

    def _record_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for ``Work.wait``, which records each call and then calls ``original``."""
        memory, works = self._memory, self._works
        assert memory is not None
        now_ns, write_header, state_struct = time.monotonic_ns, HEADER.pack_into, _STATE

        def wrapper(work: Any, *args: Any, **kwargs: Any) -> Any:
            serial = works.get(id(work), 0)  # 0 if the collective was not recorded
            # The header has the latest collective, the collective in which the rank is now, and since when.
            write_header(memory, HEADER_OFFSET, self._serial, serial, now_ns())
            try:
                return original(work, *args, **kwargs)
            finally:
                write_header(memory, HEADER_OFFSET, self._serial, 0, now_ns())  # 0: the rank is in no collective
                is_in_slot_table = serial > 0 and self._serial - serial < NUM_SLOTS
                if is_in_slot_table:
                    state_struct.pack_into(
                        memory, SLOT_TABLE_OFFSET + serial % NUM_SLOTS * SLOT.size + _STATE_OFFSET, WAITED
                    )

        return wrapper

    def _add_group(self, group: Any) -> _GroupCounter:
        """Add a new group to the table and return its counter.

        If the table is full, the group shares the last entry and overwrites its contents.
        """
        assert self._memory is not None
        index = min(len(self._groups), MAX_GROUPS - 1)
        name, backend, ranks = _describe_group(group)
        GROUP.pack_into(self._memory, GROUP_TABLE_OFFSET + index * GROUP.size, name, backend, ranks, 0)
        UINT64.pack_into(self._memory, GROUP_COUNT_OFFSET, index + 1)
        counter = self._groups[id(group)] = _GroupCounter(index)
        return counter

    def _schedule_last_records(self, memory: mmap.mmap) -> None:
        """Record the time at which the stacks will be written. Start a thread that records the current
        module and the calls of the Flight Recorder shortly before this time.
        """
        UINT64.pack_into(memory, DUMP_TIME_OFFSET, self._dump_at_ns)
        threading.Thread(
            target=self._record_before_dump, args=(memory, self._dump_at_ns), name="regbot-hang-recorder", daemon=True
        ).start()

    def _record_before_dump(self, memory: mmap.mmap, dump_at_ns: int) -> None:
        """Wait until shortly before the stacks are written. Then record the current module and the latest collectives
        of torch's Flight Recorder.
        """
        time.sleep(max(0.0, (dump_at_ns - time.monotonic_ns()) / 1e9 - MODULE_LOOKUP_S))
        if dump_at_ns != self._dump_at_ns:
            return  # a later call of schedule_dump has changed the time
        _record_module(memory)
        with contextlib.suppress(Exception):  # torch's format may differ, or the disk may be full
            calls = flight_recorder.read_latest_calls(sys.modules.get("torch._C._distributed_c10d"))
            (self._folder / f"flight.{self._rank}").write_text(json.dumps(calls), encoding="utf-8")


def _record_module(memory: mmap.mmap) -> None:
    """Write the path of the module that the main thread is running to ``memory``."""
    with contextlib.suppress(Exception):  # the main thread may be in any state
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        module_path = current_module(frame).encode()[:MODULE_BYTES]
        memory[MODULE_OFFSET : MODULE_OFFSET + len(module_path)] = module_path


def seconds_since_launch() -> float:
    """Return the seconds since the launcher started, or since this process started if there is no launcher.

    Return 0 if the system does not report the start. The time is read from this machine's boot clock, because the wall
    clocks of two nodes may differ by minutes.
    """
    has_launcher = "LOCAL_RANK" in os.environ  # a launcher sets it, and is the parent process
    pid = os.getppid() if has_launcher else os.getpid()
    try:
        _, _, fields_after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
        start_ticks = int(fields_after_name.split()[19])  # field 22 of the file, see man proc_pid_stat
        start_s = start_ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def current_module(frame: Any) -> str:
    """Return the path of the innermost module whose code runs in ``frame`` or in one of its callers.

    The path is relative to the outermost of these modules. Return '' for the outermost module itself, and if the path
    is unknown. In FSDP's own code, return the path of the module whose parameters FSDP moves.
    """
    module_class = sys.modules["torch.nn"].Module
    innermost = outermost = None
    while frame is not None:
        owner = frame.f_locals.get("self")
        is_fsdp_group = type(owner).__name__ == "FSDPParamGroup"
        if is_fsdp_group and innermost is None and getattr(owner, "_module_fqn", None):
            return str(owner._module_fqn)
        if isinstance(owner, module_class):
            if innermost is None:
                innermost = owner
            outermost = owner
        frame = frame.f_back
    if outermost is None or innermost is outermost:
        return ""
    return next((path for path, candidate in outermost.named_modules() if candidate is innermost), "")


def _map_file(path: Path) -> mmap.mmap:
    """Map a new file into memory. All bytes are written first, so that a full disk cannot cause a SIGBUS later."""
    with path.open("w+b") as file:
        file.write(MAGIC.ljust(FILE_BYTES, b"\0"))
        file.flush()
        return mmap.mmap(file.fileno(), FILE_BYTES)


def _describe_group(group: Any) -> tuple[bytes, bytes, bytes]:
    """Return the name, the backend and the ranks of a group, cut to the sizes of the fields in the group table.

    The name is the group's description if there is one. The ranks are text such as ``0-7``.
    """
    from torch import distributed

    from regbot_guest.axes import compact

    name = backend = ranks = ""
    with contextlib.suppress(Exception):  # the group may not be registered
        name, backend = str(group.group_desc or ""), str(group.name())  # name() is the backend's
        ranks = compact(distributed.get_process_group_ranks(group))
    if name in ("", "undefined"):
        name = str(getattr(group, "group_name", ""))
    return name.encode()[:32], backend.encode()[:8], ranks.encode()[:80]


def _count_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or the total bytes of all tensors in nested lists."""
    try:
        return int(value.nbytes)
    except AttributeError:
        return sum(map(_count_bytes, value))
