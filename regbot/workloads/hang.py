"""Read what the ranks of a hung run left: ``regbot_guest.hang_recorder`` writes two files for each rank.

- ``stacks.RANK``: the stacks of its threads, by ``faulthandler``,
- ``flight.RANK``: its last collective, from torch's Flight Recorder.

Code under test can write to the folder of these files. They are read with a size limit, and an invalid one is treated
as missing.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from regbot.records.files import RecordError, read_capped, read_record
from regbot.records.hang import Collective, Frame, Hang, RankHang
from regbot.records.run import Run
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.printable import printable
from regbot.records.text.words import listed, plural

MAX_STACKS_BYTES = 2**20
MAX_FLIGHT_BYTES = 2**12
MAX_RANKS = 4096
KEPT_FRAMES = 8
MAX_TEXT = 2000
MAX_PLACES = 4
MAX_LISTED_RANKS = 8

_MAIN_THREAD = re.compile(r"main (0x[0-9a-f]{16})")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{4,16})[^:]*:?$")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
"""Lines of ``stacks.{rank}``: the first line, the line before the frames of a thread, and the line of a frame."""
_HIDDEN_FILES = re.compile(
    r"^<|(^|/)regbot_guest/|regbot/guest/__main__\.py$|(^|/)(runpy|threading)\.py$"
    r"|torch/distributed/((run|launcher|elastic)\b|c10d_logger\.py)|torch/_tensor\.py"
    r"|torch/(nn/modules/module|autograd/(__init__|function|graph)|utils/_contextlib)\.py$"
)
"""Files of regbot's guest, and files whose frames are in every stack and carry no information."""
PACKAGES = "packages: "
_INSTALLED_PREFIX = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+/")
_BACKWARD_FUNCTION = "_engine_run_backward"
"""The torch function that runs the backward pass in torch's own threads, if tensors are on a GPU."""


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
    """Build the hang report of a run from its record folder.

    ``hosts`` are in the order of their ranks, each with the same number of ranks, or empty if they are unknown.
    """
    reports = []
    for rank in range(min(ranks, MAX_RANKS)):
        host = hosts[rank // math.ceil(ranks / len(hosts))] if hosts else ""
        try:
            text = read_capped(folder / f"stacks.{rank}", MAX_STACKS_BYTES).decode("utf-8", "replace")
        except RecordError:
            text = ""
        threads = read_stacks(text, root)
        main = threads[0] if threads else []
        # Frames of a backward pass in torch's own threads come before those of the main thread, which waits for it.
        waits_for_backward = bool(main) and main[0].function == _BACKWARD_FUNCTION
        backward = [thread for thread in threads[1:] if any(map(_is_under_test, thread))] if waits_for_backward else []
        frames = [frame for thread in (*backward[:1], main) for frame in thread if not _HIDDEN_FILES.search(frame.file)]
        report = RankHang(
            rank=rank,
            host=host,
            answered=bool(threads),
            last=_read_last_collective(folder / f"flight.{rank}"),
            frames=frames[:KEPT_FRAMES],
            code_frame=next(filter(_is_under_test, frames), None),
        )
        reports.append(report)
    return Hang(ranks=reports, text=clip(describe_places(reports), MAX_TEXT))


def describe_places(ranks: Sequence[RankHang]) -> str:
    """Return where the ranks are. The rarest place comes first, because the rank that differs is often the cause."""
    ranks_by_place: dict[str, list[RankHang]] = {}
    for rank in ranks:
        ranks_by_place.setdefault(_describe_place(rank), []).append(rank)
    descriptions = []
    for place, members in sorted(ranks_by_place.items(), key=lambda item: len(item[1])):
        numbers = listed([str(rank.rank) for rank in members], MAX_LISTED_RANKS)
        hosts = {rank.host for rank in members}
        host = f" ({hosts.pop()})" if len(hosts) == 1 and members[0].host else ""
        descriptions.append(f"{plural('rank', len(members))} {numbers}{host}: {place}")
    more = [f"{len(descriptions) - MAX_PLACES} more places"] if len(descriptions) > MAX_PLACES else []
    return "; ".join([*descriptions[:MAX_PLACES], *more])


def _describe_place(rank: RankHang) -> str:
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


def _read_last_collective(path: Path) -> Collective | None:
    try:
        last = read_record(path, Collective, MAX_FLIGHT_BYTES)
    except RecordError:  # missing, or written by the code under test
        return None
    return Collective(
        name=printable(last.name), group=printable(last.group), number=last.number, state=printable(last.state)
    )


def _is_under_test(frame: Frame) -> bool:
    is_in_checkout = not frame.file.startswith(("/", "<", PACKAGES))  # ``_parse_frame`` has made these paths relative
    return is_in_checkout and not _HIDDEN_FILES.search(frame.file)


def read_stacks(text: str, root: Path) -> list[list[Frame]]:
    """Return the stacks in a file of ``faulthandler``, innermost frame first; that of the main thread comes first.

    The file's first line names the main thread. If it has no stack, the last thread in the file comes first.
    """
    lines = text.splitlines()
    main_line = _MAIN_THREAD.fullmatch(lines[0]) if lines else None
    threads: list[tuple[int, list[Frame]]] = []
    for line in lines[1:]:
        if thread_line := _THREAD.match(line):
            threads.append((int(thread_line[1], 16), []))
        elif threads and (frame_line := _FRAME.fullmatch(line)):
            threads[-1][1].append(_parse_frame(frame_line, root))
    main_thread = int(main_line[1], 16) if main_line else None
    threads.reverse()
    threads.sort(key=lambda thread: thread[0] != main_thread)
    return [frames for _, frames in threads]


def _parse_frame(frame_line: re.Match[str], root: Path) -> Frame:
    path = os.path.normpath(frame_line["file"])
    checkout = next((folder for folder in (str(root), os.path.realpath(root)) if path.startswith(f"{folder}/")), None)
    path = path.removeprefix(f"{checkout}/") if checkout is not None else _INSTALLED_PREFIX.sub(PACKAGES, path)
    line = frame_line["line"]
    number = int(line) if line.isdigit() and len(line) < 9 else 0
    return Frame(file=printable(path)[-300:], line=number, function=clip(printable(frame_line["function"]), 200))
