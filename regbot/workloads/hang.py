"""Reading what the ranks of a hung run left: stacks and latest collectives, see ``regbot_guest.last_words``.

The files lie in a folder that code under test may write to. They are read with a limit on their size, every text is
made printable, and a file that is not what it should be is as good as none.
"""

import os
import re
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.records.hang import Collective, Frame, Hang, RankHang, State
from regbot.records.run import Run
from regbot.text import printable
from regbot.workloads.odd_one_out import odd_one_out

MAX_STACKS_BYTES = 2**20
MAX_RANKS = 4096
KEPT_FRAMES, KEPT_COLLECTIVES = 8, 3
"""Of each rank, in the record."""

MAGIC = b"regbot/last@1\n"
SIZE = 8192
HEAD, LOOK = struct.Struct("<QQQ"), struct.Struct("<Q")
GROUP, SLOT = struct.Struct("<32s8s80sQ"), struct.Struct("<QQQQHHI")
HEAD_AT, LOOK_AT, GROUPS_AT, WHERE_AT, GROUP_AT, SLOT_AT = 32, 16, 24, 64, 256, 3328
WHERE_BYTES, GROUPS, SLOTS = 192, 24, 64
KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "gather", "scatter",
         "send_recv", "barrier")  # fmt: skip
STATES: dict[int, State] = {1: "issuing", 2: "launched", 3: "ended"}
"""As ``regbot_guest.last_words`` writes it."""

_MAIN = re.compile(r"main (0x[0-9a-f]{16})")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{4,16})[^:]*:?$")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_OWN = re.compile(r"(^|/)regbot_guest/")
_OWN_MODEL = re.compile(r"(^|/)regbot_guest/(moe|model|dispatch|exchange|deepep|hybridep|routing|rows)\.py$")
"""Of regbot's own files those that are a workload themselves."""
_PASSED_THROUGH = re.compile(
    r"^<|(^|/)(runpy|threading)\.py$|torch/distributed/((run|launcher|elastic)\b|c10d_logger\.py)|torch/_tensor\.py"
    r"|torch/(nn/modules/module|autograd/(__init__|function|graph)|utils/_contextlib)\.py$"
)
"""What is in every stack and says nothing."""
PACKAGES = "packages: "
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+/")
_JOINING = "init_process_group"
"""The function of torch in which a rank waits for the others to join."""
_ENGINE = "_engine_run_backward"
"""Where torch hands backward over to its own threads, on a GPU."""


@dataclass(frozen=True)
class Stacks:
    """Of one rank, innermost frame first. ``main`` is empty where the rank did not answer."""

    answered: bool
    main: tuple[Frame, ...] = ()
    others: tuple[tuple[Frame, ...], ...] = ()


@dataclass(frozen=True)
class Notes:
    """What a rank noted of its collectives."""

    recent: tuple[Collective, ...] = ()
    inside: Collective | None = None
    inside_s: float | None = None
    issued: tuple[tuple[str, int], ...] = ()
    module: str = ""


def with_hang(run: Run, folder: Path, ranks: int, root: Path) -> Run:
    """``run`` with the report of who was where, if it hung. ``folder`` is its record folder, ``root`` its checkout."""
    if run.outcome != "hung":
        return run
    hang = read_hang(folder, ranks, run.allocation.hosts if run.allocation is not None else [], root)
    reason = f"{run.reason}. What its ranks left of themselves: {hang.text}" if hang.text else run.reason
    return run.model_copy(update={"hang": hang, "reason": reason[:4000]})


def read_hang(folder: Path, ranks: int, hosts: Sequence[str], root: Path) -> Hang:
    """Who was where. ``hosts`` are in the order of their ranks, each has as many of them as the others."""
    each = max(1, -(-ranks // len(hosts))) if hosts else 1
    found = [
        _rank(folder, rank, hosts[min(rank // each, len(hosts) - 1)] if hosts else "", root)
        for rank in range(min(ranks, MAX_RANKS))
    ]
    kept = [rank.model_copy(update={"recent": rank.recent[:KEPT_COLLECTIVES]}) for rank in found]
    return Hang(ranks=kept, text=odd_one_out(found)[:2000])


def _rank(folder: Path, rank: int, host: str, root: Path) -> RankHang:
    text = _read(folder / f"stacks.{rank}", MAX_STACKS_BYTES)
    page = _read(folder / f"last.{rank}", SIZE)
    stacks, notes = read_stacks(text.decode("utf-8", "replace"), root), read_notes(page)
    frames = [frame for frame in _at_work(stacks, root) if not _hidden(frame, root)]
    return RankHang(
        rank=rank,
        host=host,
        sign=bool(text or page),
        answered=stacks.answered,
        inside=notes.inside,
        inside_s=notes.inside_s,
        recent=list(notes.recent),
        issued=dict(notes.issued),
        joining=any(frame.function == _JOINING for frame in stacks.main),
        module=notes.module,
        frames=frames[:KEPT_FRAMES],
        at=next(filter(_under_test, frames), None),
    )


def _at_work(stacks: Stacks, root: Path) -> Sequence[Frame]:
    """The frames that tell what a rank does: the main thread's, and before them those of a thread that it waits for in
    backward."""
    if stacks.main and stacks.main[0].function == _ENGINE:
        mine = ((thread, any(_under_test(f) and not _hidden(f, root) for f in thread)) for thread in stacks.others)
        busy: Sequence[Frame] = next((thread for thread, of_the_code in mine if of_the_code), ())
        return [*busy, *stacks.main]
    return stacks.main


def _hidden(frame: Frame, root: Path) -> bool:
    smoke = (root / "regbot_guest").is_dir()  # regbot's own model is the code under test
    if _OWN.search(frame.file) or frame.file.endswith("regbot/guest/__main__.py"):
        return not (smoke and _OWN_MODEL.search(frame.file))
    if smoke and frame.file == "__main__.py":
        return True
    return bool(_PASSED_THROUGH.search(frame.file))


def _under_test(frame: Frame) -> bool:
    """Whether a frame is of the checkout: only those files are told relative to it."""
    return not frame.file.startswith(("/", "<", PACKAGES))


def read_stacks(text: str, root: Path) -> Stacks:
    """The stacks in a file that ``faulthandler`` wrote after the line that names the main thread."""
    lines = text.splitlines()
    named = _MAIN.fullmatch(lines[0]) if lines else None
    threads: list[tuple[int, list[Frame]]] = []
    for line in lines[1:]:
        if head := _THREAD.match(line):
            threads.append((int(head[1], 16), []))
        elif threads and (frame := _FRAME.fullmatch(line)):
            threads[-1][1].append(_frame(frame[1], frame[2], frame[3], root))
    main = int(named[1], 16) if named else None
    mine = next((frames for thread, frames in threads if thread == main), threads[-1][1] if threads else [])
    return Stacks(bool(threads), tuple(mine), tuple(tuple(frames) for _, frames in threads if frames is not mine))


def _frame(file: str, line: str, function: str, root: Path) -> Frame:
    inside = os.path.normpath(file)
    for folder in (str(root), os.path.realpath(root)):
        if inside.startswith(f"{folder}/"):
            inside = inside[len(folder) + 1 :]
            break
    else:
        inside = _INSTALLED.sub(PACKAGES, inside)
    number = int(line) if line.isdigit() and len(line) < 9 else 0
    return Frame(file=printable(inside)[-300:], line=number, function=printable(function)[:200])


def read_notes(page: bytes) -> Notes:
    """What stands in the page of one rank; nothing where it is none of ours."""
    if len(page) != SIZE or not page.startswith(MAGIC):
        return Notes()
    serial, inside, since = HEAD.unpack_from(page, HEAD_AT)
    (look,), (known,) = LOOK.unpack_from(page, LOOK_AT), LOOK.unpack_from(page, GROUPS_AT)
    groups = [_group(page, GROUP_AT + place * GROUP.size) for place in range(min(known, GROUPS))]
    slots = [SLOT.unpack_from(page, SLOT_AT + place * SLOT.size) for place in range(SLOTS)]
    slots = sorted((slot for slot in slots if 0 < slot[0] <= min(serial, 2**53)), reverse=True)
    found = {slot[0]: _collective(slot, groups) for slot in slots}
    waits = found.get(inside) if inside else None
    return Notes(
        recent=tuple(collective for collective in found.values() if collective is not None),
        inside=waits,
        inside_s=max(0.0, min((look - since) / 1e9, 1e7)) if waits is not None else None,
        issued=tuple((group.name, group.issued) for group in groups),
        module=_text(page[WHERE_AT : WHERE_AT + WHERE_BYTES]),
    )


@dataclass(frozen=True)
class _Group:
    name: str
    backend: str
    ranks: tuple[int, ...]
    issued: int


def _group(page: bytes, at: int) -> _Group:
    name, backend, ranks, issued = GROUP.unpack_from(page, at)
    members = _text(ranks)
    return _Group(f"{_text(name)} [{members}]", _text(backend), _spread(members), min(issued, 2**53))


def _collective(slot: tuple[int, ...], groups: Sequence[_Group]) -> Collective | None:
    _, number, _, size, place, kind, state = slot
    if place >= len(groups) or kind >= len(KINDS) or state not in STATES:
        return None
    group = groups[place]
    return Collective(
        kind=KINDS[kind],
        group=group.name,
        ranks=list(group.ranks),
        number=min(number, 2**53),
        state=STATES[state],
        bytes=min(size, 2**53),
        backend=group.backend,
    )


def _spread(members: str) -> tuple[int, ...]:
    """``0-3``, ``0-8:4`` or ``0,2,5`` as ranks; none where it is something else, or was cut off."""
    if found := re.fullmatch(r"(\d{1,5})-(\d{1,5})(?::(\d{1,5}))?", members):
        step = int(found[3] or 1)
        return tuple(range(int(found[1]), int(found[2]) + 1, step))[:MAX_RANKS] if step else ()
    if re.fullmatch(r"\d{1,5}(,\d{1,5})*", members) and len(members) < 80:
        return tuple(int(rank) for rank in members.split(","))
    return ()


def _text(data: bytes) -> str:
    return printable(data.partition(b"\0")[0].decode("utf-8", "replace"))


def _read(path: Path, limit: int) -> bytes:
    """The first ``limit`` bytes of a plain file; b"" where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
