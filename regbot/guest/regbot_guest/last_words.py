"""What a rank leaves behind where it never comes to its end: its stacks, its last collectives, its module at work.

A run that hangs is killed from outside, and a killed process says nothing. So each rank leaves in the record folder,
while it lives,

    stacks.{rank}   the stacks of all its threads, written shortly before the time limit by a thread of the interpreter
                    that needs no lock of it: also where the process is stuck in C
    last.{rank}     a page of memory that is a file: its latest collectives, and which of them it is inside of

A collective costs a few writes to memory and no system call; ``benchmarks/last_words_cost.py`` measures it. Numbers are
counted by group, as every rank of a group must issue the same collectives of it in the same order. Collectives that
torch issues from C++ (functional ones, DDP's reducer) are not seen.
"""

import contextlib
import faulthandler
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

MAGIC = b"regbot/last@1\n"
SIZE = 8192
HEAD = struct.Struct("<QQQ")
"""Serial number of the latest collective, of the one that the rank is inside of (0: none), since when by its clock."""
HEAD_AT, LOOK_AT, GROUPS_AT, WHERE_AT, GROUP_AT, SLOT_AT = 32, 16, 24, 64, 256, 3328
LOOK = struct.Struct("<Q")
"""When the stacks are written, by the same clock."""
WHERE_BYTES = 192
GROUP = struct.Struct("<32s8s80sQ")
"""A process group: what it is called, its backend, its ranks, and how many collectives of it were issued."""
GROUPS = 24
SLOT = struct.Struct("<QQQQHHI")
"""A collective: serial number, number in its group, when it was issued, bytes, place of its group, of its name, state.
"""
SLOTS = 64
ISSUING, LAUNCHED, WAITED = 1, 2, 3
_COUNT, _STATE = struct.Struct("<Q"), struct.Struct("<I")

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
"""Methods of a process group that issue a collective, torch 2.8 to 2.13: its kind, and the argument whose bytes count.
"""

GLANCE_S = 0.5
"""How long before the stacks the module at work is looked up: that needs the interpreter's lock, and may get none."""


def margin_s(limit_s: float) -> float:
    """How long before its time limit a rank writes its stacks: what a slow file system, or a core that other ranks
    keep busy, needs for it."""
    return min(max(2.0, 0.02 * limit_s), 30.0, limit_s / 4)


class LastWords:
    """Leaves the files in ``folder``, for a launch that is killed after ``limit_s`` seconds.

    Where the folder cannot be written to, nothing is left: a run does not fail for that.
    """

    def __init__(self, folder: Path, rank: int, limit_s: float) -> None:
        self._folder, self._rank = folder, rank
        self._stacks: TextIO | None = None
        self._memory: mmap.mmap | None = None
        self._serial = 0
        self._groups: dict[int, list[int]] = {}
        self._works: dict[int, int] = {}
        with contextlib.suppress(OSError):
            self._stacks = (folder / f"stacks.{rank}").open("w", encoding="utf-8")  # till the end of the process
            self._stacks.write(f"main 0x{threading.main_thread().ident or 0:016x}\n")
            self._stacks.flush()
        self.arm(max(0.1, limit_s - margin_s(limit_s) - seconds_since_launch()))

    def arm(self, delay_s: float) -> None:
        """Write the stacks in ``delay_s`` seconds from now, and no longer when it was said before."""
        self._look = time.monotonic_ns() + int(1e9 * delay_s)
        if self._stacks is not None:
            faulthandler.dump_traceback_later(delay_s, file=self._stacks)
        if self._memory is not None:
            self._announce(self._memory)

    def follow(self, distributed: Any) -> None:
        """From now on note every collective of ``torch.distributed`` that Python issues."""
        try:
            self._memory = _memory(self._folder / f"last.{self._rank}")
        except OSError:
            return
        for name, (kind, volume) in ISSUING_METHODS.items():
            if hasattr(distributed.ProcessGroup, name):
                original = getattr(distributed.ProcessGroup, name)
                setattr(distributed.ProcessGroup, name, self._issuing(original, KINDS.index(kind), volume))
        distributed.Work.wait = self._waiting(distributed.Work.wait)
        self._announce(self._memory)

    def _issuing(self, original: Callable[..., Any], kind: int, volume: int) -> Callable[..., Any]:
        memory, works, known = self._memory, self._works, self._groups
        assert memory is not None
        counted = KINDS[kind] != "send_recv"  # what one rank sends another receives: no common order
        now, slot, head, count, state = time.monotonic_ns, SLOT.pack_into, HEAD.pack_into, _COUNT.pack_into, _STATE

        def noted(group: Any, *args: Any, **kwargs: Any) -> Any:
            serial = self._serial = self._serial + 1
            entry = known.get(id(group)) or self._meet(group)
            place = entry[0]
            number = 0
            if counted:
                number = entry[1] = entry[1] + 1
            size = _bytes(args[volume]) if 0 <= volume < len(args) else 0
            at = SLOT_AT + serial % SLOTS * SLOT.size
            begun = now()
            slot(memory, at, serial, number, begun, size, place, kind, ISSUING)
            count(memory, GROUP_AT + place * GROUP.size + 120, entry[1])
            head(memory, HEAD_AT, serial, serial, begun)
            try:
                work = original(group, *args, **kwargs)
            finally:
                head(memory, HEAD_AT, serial, 0, now())
            works[id(work)] = serial
            state.pack_into(memory, at + 36, LAUNCHED)
            return work

        return noted

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        memory, works = self._memory, self._works
        assert memory is not None
        now, head, state = time.monotonic_ns, HEAD.pack_into, _STATE

        def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
            serial = works.get(id(work), 0)
            head(memory, HEAD_AT, self._serial, serial, now())
            try:
                return original(work, *args, **kwargs)
            finally:
                head(memory, HEAD_AT, self._serial, 0, now())
                if self._serial - serial < SLOTS and serial:
                    state.pack_into(memory, SLOT_AT + serial % SLOTS * SLOT.size + 36, WAITED)

        return waited

    def _meet(self, group: Any) -> list[int]:
        """Put a group that is new into the table. The groups past its end share its last place."""
        assert self._memory is not None
        place = min(len(self._groups), GROUPS - 1)
        name, backend, ranks = _introduce(group)
        GROUP.pack_into(self._memory, GROUP_AT + place * GROUP.size, name, backend, ranks, 0)
        LOOK.pack_into(self._memory, GROUPS_AT, place + 1)
        entry = self._groups[id(group)] = [place, 0]
        return entry

    def _announce(self, memory: mmap.mmap) -> None:
        """Note when the stacks are written, and look up the module at work shortly before."""
        LOOK.pack_into(memory, LOOK_AT, self._look)
        threading.Thread(target=_glance, args=(memory, self._look), name="regbot-glance", daemon=True).start()


def _glance(memory: mmap.mmap, look_ns: int) -> None:
    time.sleep(max(0.0, (look_ns - time.monotonic_ns()) / 1e9 - GLANCE_S))
    with contextlib.suppress(Exception):  # the stack of another thread, in the midst of anything
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        where = module_at_work(frame).encode()[:WHERE_BYTES]
        memory[WHERE_AT : WHERE_AT + len(where)] = where


def seconds_since_launch() -> float:
    """Seconds since the launch began, by the clock of this machine: the start of the launcher where there is one.

    0 where the system does not tell. Wall clocks are not asked: those of two nodes may differ by minutes.
    """
    process = os.getppid() if "LOCAL_RANK" in os.environ else os.getpid()
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def module_at_work(frame: Any) -> str:
    """Path of the innermost module whose code runs in ``frame`` or a caller of it, '' where none is known."""
    module = sys.modules["torch.nn"].Module
    inner = outer = None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if type(owner).__name__ == "FSDPParamGroup" and inner is None and getattr(owner, "_module_fqn", None):
            return str(owner._module_fqn)
        if isinstance(owner, module):
            inner, outer = inner if inner is not None else owner, owner
        frame = frame.f_back
    if outer is None or inner is outer:
        return ""
    return next((path for path, part in outer.named_modules() if part is inner), "")


def _memory(path: Path) -> mmap.mmap:
    """A new file of ``SIZE`` bytes in memory. It is filled first: a page of a file without room would end us."""
    with path.open("w+b") as file:
        file.write(MAGIC.ljust(SIZE, b"\0"))
        file.flush()
        return mmap.mmap(file.fileno(), SIZE)


def _introduce(group: Any) -> tuple[bytes, bytes, bytes]:
    """Name, backend and ranks of a group. The name is what its maker called it, as far as anything did."""
    from torch import distributed

    from regbot_guest.axes import compact

    name = backend = ranks = ""
    with contextlib.suppress(Exception):  # a group that its maker never registered
        name, backend = str(group.group_desc or ""), str(group.name())
        ranks = compact(distributed.get_process_group_ranks(group))
    if name in ("", "undefined"):
        name = str(getattr(group, "group_name", ""))
    return name.encode()[:32], backend.encode()[:8], ranks.encode()[:80]


def _bytes(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in nested lists."""
    try:
        return int(value.nbytes)
    except AttributeError:
        return sum(map(_bytes, value))
