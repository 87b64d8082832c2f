"""Read what the ranks of a hung run recorded: stacks and latest collectives. ``regbot_guest.hang_recorder`` writes
them.

Code under test can write to the folder of these files. Files are therefore read with a size limit, and all text is made
printable. An invalid file is treated as missing.
"""

import os
import re
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from regbot.records.files import RecordError, parse_json
from regbot.records.hang import Collective, CollectiveState, Frame, Hang, RankHang
from regbot.records.run import Run
from regbot.text.clip import clip, clip_message
from regbot.text.printable import printable
from regbot.workloads.hang_text import describe_launched, describe_waiting

MAX_STACKS_BYTES = 2**20
MAX_FLIGHT_BYTES = 2**16
MAX_RANKS = 4096
KEPT_FRAMES, KEPT_COLLECTIVES = 8, 3
"""Largest number of frames and of collectives that the record keeps for each rank."""

# The layout of ``last.{rank}``, as in ``regbot_guest.hang_recorder``.
MAGIC = b"regbot/last@1\n"
FILE_BYTES = 8192
DUMP_TIME_OFFSET, GROUP_COUNT_OFFSET, HEADER_OFFSET, MODULE_OFFSET = 16, 24, 32, 64
GROUP_TABLE_OFFSET, SLOT_TABLE_OFFSET = 256, 3328
UINT64, HEADER = struct.Struct("<Q"), struct.Struct("<QQQ")
GROUP, SLOT = struct.Struct("<32s8s80sQ"), struct.Struct("<QQQQHHI")
MODULE_BYTES, MAX_GROUPS, NUM_SLOTS = 192, 24, 64
KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "gather", "scatter",
         "send_recv", "barrier")  # fmt: skip
FLIGHT_KINDS = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all",
                "reducescatter": "reduce_scatter"}  # fmt: skip
"""Kinds of collectives by the first letters of their names in torch's Flight Recorder, without underscores."""
FLIGHT_STATES: dict[str, CollectiveState] = {"scheduled": "launched", "started": "started", "completed": "ended"}
"""State of a collective, by the name of the state in torch's Flight Recorder."""
STATES: dict[int, CollectiveState] = {1: "issuing", 2: "launched", 3: "ended"}
"""State of a collective, by the number that ``regbot_guest.hang_recorder`` writes for it."""

_MAIN = re.compile(r"main (0x[0-9a-f]{16})")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{4,16})[^:]*:?$")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_OWN_FILES = re.compile(r"(^|/)regbot_guest/")
_OWN_MODEL_FILES = re.compile(r"(^|/)regbot_guest/(moe|model|dispatch|exchange|deepep|hybridep|routing|rows)\.py$")
"""Files of regbot that can be code under test: the smoke model and its dispatchers."""
_PLUMBING_FILES = re.compile(
    r"^<|(^|/)(runpy|threading)\.py$|torch/distributed/((run|launcher|elastic)\b|c10d_logger\.py)|torch/_tensor\.py"
    r"|torch/(nn/modules/module|autograd/(__init__|function|graph)|utils/_contextlib)\.py$"
)
"""Files whose frames are in every stack and carry no information."""
PACKAGES = "packages: "
"""Prefix of file paths in installed packages. It replaces the folder that matches ``_INSTALLED_PREFIX``."""
_INSTALLED_PREFIX = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+/")
_JOINING = "init_process_group"
"""The torch function in which a rank waits for the other ranks to join."""
_ENGINE = "_engine_run_backward"
"""The torch function that runs the backward pass in torch's own threads, if tensors are on a GPU."""


@dataclass(frozen=True)
class Stacks:
    """Stacks of one rank, innermost frame first.

    ``main`` is the stack of the main thread, and ``others`` has the stacks of the other threads. ``answered`` says
    whether the rank wrote its stacks. If it did not, ``main`` is empty.
    """

    answered: bool
    main: tuple[Frame, ...] = ()
    others: tuple[tuple[Frame, ...], ...] = ()


@dataclass(frozen=True)
class CollectiveNotes:
    """The latest collectives that one rank recorded. ``inside`` is the collective that the rank is calling."""

    recent: tuple[Collective, ...] = ()
    inside: Collective | None = None
    inside_s: float | None = None
    issued: tuple[tuple[str, int], ...] = ()
    module: str = ""


def add_hang_report(run: Run, folder: Path, ranks: int, root: Path) -> Run:
    """Return ``run`` with a hang report if it hung. Otherwise return it unchanged.

    ``folder`` is the record folder of the run, and ``root`` is its checkout.
    """
    if run.outcome != "hung":
        return run
    report = read_hang(folder, ranks, run.allocation.hosts if run.allocation is not None else [], root)
    reason = f"{run.reason}. Last recorded state of its ranks: {report.text}" if report.text else run.reason
    return run.model_copy(update={"hang": report, "reason": clip_message(reason)})


def read_hang(folder: Path, ranks: int, hosts: Sequence[str], root: Path) -> Hang:
    """Build the hang report. ``hosts`` are in the order of their ranks, and every host has the same number of ranks."""
    ranks_per_host = max(1, -(-ranks // len(hosts))) if hosts else 1
    reports = [
        _read_rank(folder, rank, hosts[min(rank // ranks_per_host, len(hosts) - 1)] if hosts else "", root)
        for rank in range(min(ranks, MAX_RANKS))
    ]
    clipped = [rank.model_copy(update={"recent": rank.recent[:KEPT_COLLECTIVES]}) for rank in reports]
    sentences = filter(None, (describe_waiting(reports), describe_launched(reports)))
    return Hang(ranks=clipped, text=clip("; ".join(sentences), 2000))


def _read_rank(folder: Path, rank: int, host: str, root: Path) -> RankHang:
    text = _read(folder / f"stacks.{rank}", MAX_STACKS_BYTES)
    page = _read(folder / f"last.{rank}", FILE_BYTES)
    stacks, notes = read_stacks(text.decode("utf-8", "replace"), root), read_notes(page)
    frames = [frame for frame in _working_frames(stacks, root) if not _is_hidden(frame, root)]
    return RankHang(
        rank=rank,
        host=host,
        started=bool(text or page),
        answered=stacks.answered,
        inside=notes.inside,
        inside_s=notes.inside_s,
        recent=list(notes.recent),
        flight=read_flight(_read(folder / f"flight.{rank}", MAX_FLIGHT_BYTES)),
        issued=dict(notes.issued),
        joining=any(frame.function == _JOINING for frame in stacks.main),
        module=notes.module,
        frames=frames[:KEPT_FRAMES],
        code_frame=next(filter(_is_under_test, frames), None),
    )


def _working_frames(stacks: Stacks, root: Path) -> Sequence[Frame]:
    """Return the frames that show what a rank does.

    These are the frames of its main thread. If the main thread waits for the backward pass, the frames of the thread
    that runs the backward pass come first.
    """
    if stacks.main and stacks.main[0].function == _ENGINE:
        threads = (
            (thread, any(_is_under_test(frame) and not _is_hidden(frame, root) for frame in thread))
            for thread in stacks.others
        )
        worker: Sequence[Frame] = next((thread for thread, is_under_test in threads if is_under_test), ())
        return [*worker, *stacks.main]
    return stacks.main


def _is_hidden(frame: Frame, root: Path) -> bool:
    """Whether the report leaves a frame out, because it is in regbot's own code or in ``_PLUMBING_FILES``."""
    is_smoke = (root / "regbot_guest").is_dir()  # the checkout contains regbot's smoke model
    if _OWN_FILES.search(frame.file) or frame.file.endswith("regbot/guest/__main__.py"):
        return not (is_smoke and _OWN_MODEL_FILES.search(frame.file))
    if is_smoke and frame.file == "__main__.py":
        return True
    return bool(_PLUMBING_FILES.search(frame.file))


def _is_under_test(frame: Frame) -> bool:
    """Whether a frame is in a file of the checkout. Only these files have relative paths."""
    return not frame.file.startswith(("/", "<", PACKAGES))


def read_stacks(text: str, root: Path) -> Stacks:
    """Parse the file that ``faulthandler`` wrote. Its first line names the main thread."""
    lines = text.splitlines()
    main_line = _MAIN.fullmatch(lines[0]) if lines else None
    threads: list[tuple[int, list[Frame]]] = []
    for line in lines[1:]:
        if head := _THREAD.match(line):
            threads.append((int(head[1], 16), []))
        elif threads and (frame := _FRAME.fullmatch(line)):
            threads[-1][1].append(_parse_frame(frame[1], frame[2], frame[3], root))
    main = int(main_line[1], 16) if main_line else None
    main_frames = next((frames for thread, frames in threads if thread == main), threads[-1][1] if threads else [])
    return Stacks(
        bool(threads), tuple(main_frames), tuple(tuple(frames) for _, frames in threads if frames is not main_frames)
    )


def _parse_frame(file: str, line: str, function: str, root: Path) -> Frame:
    path = os.path.normpath(file)
    for folder in (str(root), os.path.realpath(root)):
        if path.startswith(f"{folder}/"):
            path = path[len(folder) + 1 :]
            break
    else:
        path = _INSTALLED_PREFIX.sub(PACKAGES, path)
    number = int(line) if line.isdigit() and len(line) < 9 else 0
    return Frame(file=printable(path)[-300:], line=number, function=clip(printable(function), 200))


def read_notes(page: bytes) -> CollectiveNotes:
    """Parse the page that one rank recorded. An invalid page is treated as empty."""
    if len(page) != FILE_BYTES or not page.startswith(MAGIC):
        return CollectiveNotes()
    serial, inside, entered_ns = HEADER.unpack_from(page, HEADER_OFFSET)
    (dump_ns,), (group_count,) = (
        UINT64.unpack_from(page, DUMP_TIME_OFFSET),
        UINT64.unpack_from(page, GROUP_COUNT_OFFSET),
    )
    groups = [
        _parse_group(page, GROUP_TABLE_OFFSET + position * GROUP.size)
        for position in range(min(group_count, MAX_GROUPS))
    ]
    slots = [SLOT.unpack_from(page, SLOT_TABLE_OFFSET + position * SLOT.size) for position in range(NUM_SLOTS)]
    slots = sorted((slot for slot in slots if 0 < slot[0] <= min(serial, 2**53)), reverse=True)
    collectives = {slot[0]: _parse_collective(slot, groups) for slot in slots}
    waiting_in = collectives.get(inside) if inside else None
    return CollectiveNotes(
        recent=tuple(collective for collective in collectives.values() if collective is not None),
        inside=waiting_in,
        inside_s=max(0.0, min((dump_ns - entered_ns) / 1e9, 1e7)) if waiting_in is not None else None,
        issued=tuple((group.name, group.issued) for group in groups),
        module=_decode_text(page[MODULE_OFFSET : MODULE_OFFSET + MODULE_BYTES]),
    )


def read_flight(data: bytes) -> Collective | None:
    """Return the latest collective in the file that one rank wrote from torch's Flight Recorder, or None."""
    try:
        calls = parse_json(data, "a Flight Recorder's calls")
        call = calls[0]
        backend, _, name = str(call["name"]).partition(":")
        plain_name = name.replace("_", "")
        kinds = [kind for prefix, kind in FLIGHT_KINDS.items() if plain_name.startswith(prefix)]
        return Collective(
            kind=kinds[0] if kinds else clip(printable(name.partition(" ")[0]), 40),
            group=clip(printable(str(call["group"])), 80),
            number=call["number"],
            state=FLIGHT_STATES[call["state"]],
            backend=clip(printable(backend), 20),
        )
    except (RecordError, ValidationError, LookupError, TypeError):  # missing, or written by the code under test
        return None


@dataclass(frozen=True)
class _Group:
    name: str
    backend: str
    ranks: tuple[int, ...]
    issued: int


def _parse_group(page: bytes, offset: int) -> _Group:
    name, backend, ranks, issued = GROUP.unpack_from(page, offset)
    members = _decode_text(ranks)
    return _Group(f"{_decode_text(name)} [{members}]", _decode_text(backend), _parse_ranks(members), min(issued, 2**53))


def _parse_collective(slot: tuple[int, ...], groups: Sequence[_Group]) -> Collective | None:
    _, number, _, size, group_index, kind, state = slot
    if group_index >= len(groups) or kind >= len(KINDS) or state not in STATES:
        return None
    group = groups[group_index]
    return Collective(
        kind=KINDS[kind],
        group=group.name,
        ranks=list(group.ranks),
        number=min(number, 2**53),
        state=STATES[state],
        bytes=min(size, 2**53),
        backend=group.backend,
    )


def _parse_ranks(members: str) -> tuple[int, ...]:
    """Expand ``0-3``, ``0-8:4`` or ``0,2,5`` to rank numbers. Return no ranks for other text and truncated text."""
    if match := re.fullmatch(r"(\d{1,5})-(\d{1,5})(?::(\d{1,5}))?", members):
        step = int(match[3] or 1)
        return tuple(range(int(match[1]), int(match[2]) + 1, step))[:MAX_RANKS] if step else ()
    if re.fullmatch(r"\d{1,5}(,\d{1,5})*", members) and len(members) < 80:
        return tuple(int(rank) for rank in members.split(","))
    return ()


def _decode_text(data: bytes) -> str:
    return printable(data.partition(b"\0")[0].decode("utf-8", "replace"))


def _read(path: Path, limit: int) -> bytes:
    """Return the first ``limit`` bytes of a regular file; b"" if the file cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
