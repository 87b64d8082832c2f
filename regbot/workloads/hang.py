"""Read what the ranks of a hung run recorded: stacks and latest collectives. ``regbot_guest.hang_recorder`` writes
three files for each rank:

- ``stacks.RANK``: the stacks of its threads,
- ``last.RANK``: the *page*, a memory-mapped file with tables of its process groups and of its latest collectives,
- ``flight.RANK``: the latest collectives as recorded by torch's Flight Recorder.

Code under test can write to the folder of these files. Files are therefore read with a size limit, and all text is made
printable. An invalid file is treated as missing.
"""

import math
import os
import re
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
MAX_TEXT = 2000
"""Largest number of characters of the report's text."""

# The layout of ``last.{rank}``, as in ``regbot_guest.hang_recorder``.
MAGIC = b"regbot/last@1\n"
FILE_BYTES = 8192
DUMP_TIME_OFFSET, GROUP_COUNT_OFFSET, HEADER_OFFSET, MODULE_OFFSET = 16, 24, 32, 64
GROUP_TABLE_OFFSET, SLOT_TABLE_OFFSET = 256, 3328
UINT64, HEADER = struct.Struct("<Q"), struct.Struct("<QQQ")
GROUP, SLOT = struct.Struct("<32s8s80sQ"), struct.Struct("<QQQQHHI")
MODULE_BYTES, MAX_GROUPS, NUM_SLOTS = 192, 24, 64
MEMBERS_BYTES = 80
"""Size of the field of a group's ranks."""
KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "gather", "scatter",
         "send_recv", "barrier")  # fmt: skip
FLIGHT_KINDS = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all",
                "reducescatter": "reduce_scatter"}  # fmt: skip
"""Kinds of collectives by the beginning of their names in torch's Flight Recorder, without underscores. For example,
``_allgather_base`` and ``all_gather_into_tensor`` are ``all_gather``.
"""
FLIGHT_STATES: dict[str, CollectiveState] = {"scheduled": "launched", "started": "started", "completed": "ended"}
"""State of a collective, by the name of the state in torch's Flight Recorder."""
STATES: dict[int, CollectiveState] = {1: "issuing", 2: "launched", 3: "ended"}
"""State of a collective, by the number that ``regbot_guest.hang_recorder`` writes for it."""

MAX_NUMBER = 2**53
"""Largest number that the record allows. Larger numbers can only come from a page that code under test has written."""
MAX_WAIT_S = 1e7

_MAIN_THREAD = re.compile(r"main (0x[0-9a-f]{16})")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{4,16})[^:]*:?$")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
"""Lines of ``stacks.{rank}``: the first line, the line before the frames of a thread, and the line of a frame."""
_OWN_FILES = re.compile(r"(^|/)regbot_guest/")
"""Files of regbot's guest code."""
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
_JOIN_FUNCTION = "init_process_group"
"""The torch function in which a rank waits for the other ranks to join."""
_BACKWARD_FUNCTION = "_engine_run_backward"
"""The torch function that runs the backward pass in torch's own threads, if tensors are on a GPU."""


@dataclass(frozen=True)
class Stacks:
    """Stacks of one rank, innermost frame first."""

    answered: bool
    """Whether the rank wrote its stacks at the time limit."""
    main: tuple[Frame, ...] = ()
    """Stack of the main thread; empty if the rank did not write its stacks."""
    others: tuple[tuple[Frame, ...], ...] = ()
    """Stacks of the other threads."""


@dataclass(frozen=True)
class CollectiveNotes:
    """The latest collectives that one rank recorded."""

    recent: tuple[Collective, ...] = ()
    """Newest first."""
    inside: Collective | None = None
    """The collective that the rank was calling at the time limit; None if it was calling none."""
    inside_s: float | None = None
    """Seconds since the beginning of this call; None if the rank was calling none."""
    issued: tuple[tuple[str, int], ...] = ()
    """Names of groups, and the number of collectives that the rank has issued in each."""
    module: str = ""
    """Path of the module that the rank was in; '' if it is unknown."""


def add_hang_report(run: Run, folder: Path, ranks: int, root: Path) -> Run:
    """Return ``run`` with a hang report if it hung. Otherwise return it unchanged.

    ``folder`` is the record folder of the run, ``ranks`` the number of its ranks, and ``root`` its checkout.
    """
    if run.outcome != "hung":
        return run
    report = read_hang(folder, ranks, run.allocation.hosts if run.allocation is not None else [], root)
    reason = f"{run.reason}. Last recorded state of its ranks: {report.text}" if report.text else run.reason
    return run.model_copy(update={"hang": report, "reason": clip_message(reason)})


def read_hang(folder: Path, ranks: int, hosts: Sequence[str], root: Path) -> Hang:
    """Build the hang report of a run with the number ``ranks`` of ranks, from its record folder ``folder``.

    ``hosts`` are in the order of their ranks, and every host has the same number of ranks. ``hosts`` is empty if they
    are unknown. ``root`` is the run's checkout.
    """
    reports = [_read_rank(folder, rank, _find_host(rank, ranks, hosts), root) for rank in range(min(ranks, MAX_RANKS))]
    clipped = [rank.model_copy(update={"recent": rank.recent[:KEPT_COLLECTIVES]}) for rank in reports]
    sentences = filter(None, (describe_waiting(reports), describe_launched(reports)))
    return Hang(ranks=clipped, text=clip("; ".join(sentences), MAX_TEXT))


def _find_host(rank: int, ranks: int, hosts: Sequence[str]) -> str:
    """Return the host of ``rank``; '' if the hosts are unknown. ``ranks`` is the number of ranks on all hosts."""
    if not hosts:
        return ""
    ranks_per_host = max(1, math.ceil(ranks / len(hosts)))
    return hosts[min(rank // ranks_per_host, len(hosts) - 1)]


def _read_rank(folder: Path, rank: int, host: str, root: Path) -> RankHang:
    """Return the report of one rank, from the three files that the rank wrote to ``folder``.

    ``stacks.{rank}`` has its stacks, and ``last.{rank}`` (the page) its latest collectives. ``flight.{rank}`` has the
    latest calls in torch's Flight Recorder. ``root`` is the run's checkout. Code in it is the code under test.
    """
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
        joining=any(frame.function == _JOIN_FUNCTION for frame in stacks.main),
        module=notes.module,
        frames=frames[:KEPT_FRAMES],
        code_frame=next(filter(_is_under_test, frames), None),
    )


def _working_frames(stacks: Stacks, root: Path) -> Sequence[Frame]:
    """Return the frames that show what a rank does.

    These are the frames of its main thread. If the main thread waits for the backward pass, torch runs the backward
    pass in another thread. Then the frames of the first thread with code under test come before those of the main
    thread.
    """
    is_in_backward = bool(stacks.main) and stacks.main[0].function == _BACKWARD_FUNCTION
    if not is_in_backward:
        return stacks.main

    def runs_code_under_test(thread: Sequence[Frame]) -> bool:
        return any(_is_under_test(frame) and not _is_hidden(frame, root) for frame in thread)

    backward_thread = next(filter(runs_code_under_test, stacks.others), ())
    return [*backward_thread, *stacks.main]


def _is_hidden(frame: Frame, root: Path) -> bool:
    """Whether the report leaves a frame out, because it is in regbot's own code or in ``_PLUMBING_FILES``.

    If the code under test is regbot's smoke model, frames in the model and its dispatchers are kept. This is the
    case if ``root``, the run's checkout, contains the package ``regbot_guest``.
    """
    smoke_model_is_under_test = (root / "regbot_guest").is_dir()
    if _OWN_FILES.search(frame.file) or frame.file.endswith("regbot/guest/__main__.py"):
        is_in_smoke_model = smoke_model_is_under_test and _OWN_MODEL_FILES.search(frame.file)
        return not is_in_smoke_model
    if smoke_model_is_under_test and frame.file == "__main__.py":  # the guest's own __main__.py
        return True
    return bool(_PLUMBING_FILES.search(frame.file))


def _is_under_test(frame: Frame) -> bool:
    """Whether a frame is in a file of the checkout. ``_parse_frame`` has made the paths of these files relative."""
    return not frame.file.startswith(("/", "<", PACKAGES))


def read_stacks(text: str, root: Path) -> Stacks:
    """Parse the file that ``faulthandler`` wrote. The file's first line names the main thread.

    If the file has no stack of that thread, the last thread in the file counts as the main thread.
    """
    lines = text.splitlines()
    main_line = _MAIN_THREAD.fullmatch(lines[0]) if lines else None
    main_thread = int(main_line[1], 16) if main_line else None
    frames_by_thread: list[tuple[int, list[Frame]]] = []
    for line in lines[1:]:
        if thread_line := _THREAD.match(line):
            frames_by_thread.append((int(thread_line[1], 16), []))
        elif frames_by_thread and (frame_line := _FRAME.fullmatch(line)):
            _, last_frames = frames_by_thread[-1]
            last_frames.append(_parse_frame(frame_line, root))
    if not frames_by_thread:
        return Stacks(answered=False)
    _, last_frames = frames_by_thread[-1]
    main_frames = next((frames for thread, frames in frames_by_thread if thread == main_thread), last_frames)
    others = tuple(tuple(frames) for _, frames in frames_by_thread if frames is not main_frames)
    return Stacks(answered=True, main=tuple(main_frames), others=others)


def _parse_frame(frame_line: re.Match[str], root: Path) -> Frame:
    """Return the frame of a line that matches ``_FRAME``. Files of the checkout and of installed packages get relative
    paths. A line number that is not a number, or has more than 8 digits, becomes 0.
    """
    path = os.path.normpath(frame_line["file"])
    checkout = next((folder for folder in (str(root), os.path.realpath(root)) if path.startswith(f"{folder}/")), None)
    path = path.removeprefix(f"{checkout}/") if checkout is not None else _INSTALLED_PREFIX.sub(PACKAGES, path)
    line = frame_line["line"]
    number = int(line) if line.isdigit() and len(line) < 9 else 0
    return Frame(file=printable(path)[-300:], line=number, function=clip(printable(frame_line["function"]), 200))


def read_notes(page: bytes) -> CollectiveNotes:
    """Parse the page ``last.{rank}`` that one rank recorded. An invalid page is treated as empty.

    The page has a table with one row for each of the latest collectives. Collectives have serial numbers from 1. A row
    whose serial number is 0 or above the latest one is ignored. ``inside_serial`` is the collective that the rank was
    calling since ``entered_ns``; 0 if it was calling none. ``dump_ns`` is the time at which the rank wrote its stacks.
    """
    if len(page) != FILE_BYTES or not page.startswith(MAGIC):
        return CollectiveNotes()
    latest_serial, inside_serial, entered_ns = HEADER.unpack_from(page, HEADER_OFFSET)
    (dump_ns,) = UINT64.unpack_from(page, DUMP_TIME_OFFSET)
    (group_count,) = UINT64.unpack_from(page, GROUP_COUNT_OFFSET)
    groups = [
        _parse_group(page, GROUP_TABLE_OFFSET + position * GROUP.size)
        for position in range(min(group_count, MAX_GROUPS))
    ]
    # The guest calls a row of this table a slot.
    rows = [
        _CollectiveRow(*SLOT.unpack_from(page, SLOT_TABLE_OFFSET + position * SLOT.size))
        for position in range(NUM_SLOTS)
    ]
    newest_first = sorted((row for row in rows if 0 < row.serial <= min(latest_serial, MAX_NUMBER)), reverse=True)
    collectives = {row.serial: _parse_collective(row, groups) for row in newest_first}
    inside = collectives.get(inside_serial) if inside_serial else None
    return CollectiveNotes(
        recent=tuple(collective for collective in collectives.values() if collective is not None),
        inside=inside,
        inside_s=max(0.0, min((dump_ns - entered_ns) / 1e9, MAX_WAIT_S)) if inside is not None else None,
        issued=tuple((group.name, group.issued) for group in groups),
        module=_decode_text(page[MODULE_OFFSET : MODULE_OFFSET + MODULE_BYTES]),
    )


def read_flight(data: bytes) -> Collective | None:
    """Return the latest collective in the file that one rank wrote from torch's Flight Recorder. Return None if the
    file is missing or invalid.
    """
    try:
        newest_call = parse_json(data, "a Flight Recorder's calls")[0]
        backend, _, name = str(newest_call["name"]).partition(":")  # for example nccl:_all_gather_base
        plain_name, first_word = name.replace("_", ""), name.partition(" ")[0]
        kind = next((kind for prefix, kind in FLIGHT_KINDS.items() if plain_name.startswith(prefix)), None)
        return Collective(
            kind=kind or clip(printable(first_word), 40),
            group=clip(printable(str(newest_call["group"])), 80),
            number=newest_call["number"],
            state=FLIGHT_STATES[newest_call["state"]],
            backend=clip(printable(backend), 20),
        )
    except (RecordError, ValidationError, LookupError, TypeError):  # missing, or written by the code under test
        return None


@dataclass(frozen=True)
class _Group:
    """One row of the page's table of process groups."""

    name: str
    """Name and ranks, such as ``ep [0-3]``."""
    backend: str
    ranks: tuple[int, ...]
    """() if the ranks are unknown."""
    issued: int
    """Number of collectives that the rank has issued in the group."""


class _CollectiveRow(NamedTuple):
    """One row of the table of collectives in a rank's file (its memory page), as it is stored. Rows are compared by
    their serial numbers."""

    serial: int
    """Number of the collective among all collectives of the rank; 0 for an empty row."""
    number: int
    """Number of the collective within its group."""
    issued_ns: int
    size: int
    """Bytes of the collective."""
    group: int
    """Index in the table of groups."""
    kind: int
    """Index in ``KINDS``."""
    state: int
    """Key of ``STATES``."""


def _parse_group(page: bytes, offset: int) -> _Group:
    """Return the process group in a row of a rank's page. The row begins at byte ``offset``."""
    name, backend, ranks, issued = GROUP.unpack_from(page, offset)
    members = _decode_text(ranks)
    return _Group(
        name=f"{_decode_text(name)} [{members}]",
        backend=_decode_text(backend),
        ranks=_parse_ranks(members),
        issued=min(issued, MAX_NUMBER),
    )


def _parse_collective(row: _CollectiveRow, groups: Sequence[_Group]) -> Collective | None:
    """Return the collective in a row of the table of collectives of a rank's page; None if the row is invalid."""
    if row.group >= len(groups) or row.kind >= len(KINDS) or row.state not in STATES:
        return None
    group = groups[row.group]
    return Collective(
        kind=KINDS[row.kind],
        group=group.name,
        ranks=list(group.ranks),
        number=min(row.number, MAX_NUMBER),
        state=STATES[row.state],
        bytes=min(row.size, MAX_NUMBER),
        backend=group.backend,
    )


def _parse_ranks(members: str) -> tuple[int, ...]:
    """Expand ``0-3``, ``0,2,5``, or ``0-8:4`` (every fourth rank) to rank numbers. Return () for any other text.

    A list that fills its field in the page may be truncated, so () is returned for it too.
    """
    if match := re.fullmatch(r"(?P<first>\d{1,5})-(?P<last>\d{1,5})(?::(?P<stride>\d{1,5}))?", members):
        first, last, stride = int(match["first"]), int(match["last"]), int(match["stride"] or 1)
        return tuple(range(first, last + 1, stride))[:MAX_RANKS] if stride else ()
    if re.fullmatch(r"\d{1,5}(,\d{1,5})*", members) and len(members) < MEMBERS_BYTES:
        return tuple(int(rank) for rank in members.split(","))
    return ()


def _decode_text(data: bytes) -> str:
    """Return the text of a field, which ends at the first zero byte."""
    return printable(data.partition(b"\0")[0].decode("utf-8", "replace"))


def _read(path: Path, limit: int) -> bytes:
    """Return the first ``limit`` bytes of a regular file; b"" if the file cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
