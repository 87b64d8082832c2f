"""Read what the ranks of a hung run left: ``regbot_guest.hang_recorder`` writes two files for each rank.

- ``stacks.RANK``: the stacks of its threads,
- ``flight.RANK``: its last collective, from torch's Flight Recorder.

Code under test can write to the folder of these files. Files are therefore read with a size limit, and all text is made
printable. An invalid file is treated as missing.
"""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.records.files import RecordError, read_capped, read_record
from regbot.records.hang import Collective, Frame, Hang, RankHang
from regbot.records.run import Run
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.printable import printable

MAX_STACKS_BYTES = 2**20
MAX_FLIGHT_BYTES = 2**12
MAX_RANKS = 4096
KEPT_FRAMES = 8
"""Largest number of frames that the record keeps for each rank."""
MAX_TEXT = 2000
"""Largest number of characters of the report's text."""
MAX_PLACES = 4
"""Largest number of different places that the text names."""
MAX_PARTS = 8
"""Largest number of ranges in a list of ranks."""

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


def add_hang_report(run: Run, folder: Path, ranks: int, root: Path) -> Run:
    """Return ``run`` with a hang report if it hung. Otherwise return it unchanged.

    ``folder`` is the record folder of the run, ``ranks`` the number of its ranks, and ``root`` its checkout.
    """
    if run.outcome != "hung":
        return run
    report = read_hang(folder, ranks, run.allocation.hosts if run.allocation is not None else [], root)
    reason = f"{run.reason}. Where its ranks are: {report.text}" if report.text else run.reason
    return run.model_copy(update={"hang": report, "reason": clip_message(reason)})


def read_hang(folder: Path, ranks: int, hosts: Sequence[str], root: Path) -> Hang:
    """Build the hang report of a run with the number ``ranks`` of ranks, from its record folder ``folder``.

    ``hosts`` are in the order of their ranks, and every host has the same number of ranks. ``hosts`` is empty if they
    are unknown. ``root`` is the run's checkout.
    """
    reports = [_read_rank(folder, rank, _find_host(rank, ranks, hosts), root) for rank in range(min(ranks, MAX_RANKS))]
    return Hang(ranks=reports, text=clip(describe_places(reports), MAX_TEXT))


def describe_places(ranks: Sequence[RankHang]) -> str:
    """Return where the ranks are. The rarest place comes first, because the rank that differs is often the cause."""
    ranks_by_place: dict[str, list[RankHang]] = {}
    for rank in ranks:
        ranks_by_place.setdefault(_describe_place(rank), []).append(rank)
    rarest_first = sorted(ranks_by_place.items(), key=lambda item: len(item[1]))
    descriptions = [f"{_name_ranks(members)}: {place}" for place, members in rarest_first[:MAX_PLACES]]
    if len(rarest_first) > MAX_PLACES:
        descriptions.append(f"{len(rarest_first) - MAX_PLACES} more places")
    return "; ".join(descriptions)


def _describe_place(rank: RankHang) -> str:
    """Return the rank's line, if possible in the code under test, and its last collective."""
    if not rank.answered:
        place = "left no stack (it never began, is stopped, or its node hangs)"
    elif frame := rank.code_frame or next(iter(rank.frames), None):
        place = f"in {frame.file}:{frame.line} {frame.function}"
    else:
        place = "in code of the launcher or of regbot"
    if rank.last is None:
        return place
    number = f" #{rank.last.number}" if rank.last.number else ""
    return f"{place}, last collective {rank.last.name}{number} of {rank.last.group} ({rank.last.state})"


def _name_ranks(ranks: Sequence[RankHang]) -> str:
    """Return for example ``rank 3 (node-2)`` or ``ranks 0, 1``. The host is named if all ranks are on it."""
    hosts = {rank.host for rank in ranks}
    host = f" ({hosts.pop()})" if len(hosts) == 1 and ranks[0].host else ""
    return f"rank {ranks[0].rank}{host}" if len(ranks) == 1 else f"ranks {_format_numbers(ranks)}{host}"


def _format_numbers(ranks: Sequence[RankHang]) -> str:
    """Format rank numbers as ``0, 2, 3``. Four or more consecutive ranks are written as a range, such as ``0-62``."""
    consecutive: list[list[int]] = []  # first and last rank of each group of consecutive ranks
    for rank in ranks:
        if consecutive and rank.rank == consecutive[-1][1] + 1:
            consecutive[-1][1] = rank.rank
        else:
            consecutive.append([rank.rank, rank.rank])
    parts = [
        ", ".join(map(str, range(first, last + 1))) if last - first < 3 else f"{first}-{last}"
        for first, last in consecutive
    ]
    return ", ".join(parts[:MAX_PARTS]) + (", ..." if len(parts) > MAX_PARTS else "")


def _find_host(rank: int, ranks: int, hosts: Sequence[str]) -> str:
    """Return the host of ``rank``; '' if the hosts are unknown. ``ranks`` is the number of ranks on all hosts."""
    if not hosts:
        return ""
    ranks_per_host = max(1, math.ceil(ranks / len(hosts)))
    return hosts[min(rank // ranks_per_host, len(hosts) - 1)]


def _read_rank(folder: Path, rank: int, host: str, root: Path) -> RankHang:
    """Return the report of one rank. ``root`` is the run's checkout. Code in it is the code under test."""
    try:
        text = read_capped(folder / f"stacks.{rank}", MAX_STACKS_BYTES).decode("utf-8", "replace")
    except RecordError:
        text = ""
    stacks = read_stacks(text, root)
    frames = [frame for frame in _working_frames(stacks, root) if not _is_hidden(frame, root)]
    return RankHang(
        rank=rank,
        host=host,
        answered=stacks.answered,
        last=_read_last_collective(folder / f"flight.{rank}"),
        frames=frames[:KEPT_FRAMES],
        code_frame=next(filter(_is_under_test, frames), None),
    )


def _read_last_collective(path: Path) -> Collective | None:
    try:
        last = read_record(path, Collective, MAX_FLIGHT_BYTES)
    except RecordError:  # missing, or written by the code under test
        return None
    return Collective(
        name=printable(last.name), group=printable(last.group), number=last.number, state=printable(last.state)
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
