"""Read what the ranks of a hung run left: ``regbot_guest.hang_recorder`` writes two files for each rank.

- ``stacks.RANK``: the stacks of its threads, by ``faulthandler``,
- ``flight.RANK``: its last collective, from torch's Flight Recorder.

Code under test can write to the folder of these files. They are read with a size limit, and an invalid one is treated
as missing.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from regbot.records.files import RecordError, read_capped, read_record
from regbot.records.hang import Collective, Frame, Hang, RankHang
from regbot.records.run import Run
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.printable import make_printable, printable
from regbot.records.text.words import listed, plural

MAX_STACKS_BYTES, MAX_FLIGHT_BYTES = 2**20, 2**12
MAX_TEXT = 2000
MAX_PLACES = 4
MAX_LISTED_RANKS = 8

_MAIN_THREAD = re.compile(r"main (0x[0-9a-f]{16})")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{4,16})[^:]*:?$")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,8}|\?\?\?) in (?P<function>.*)')
"""Lines of ``stacks.{rank}``: the first line, the line before the frames of a thread, and the line of a frame."""
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/")
_BACKWARD_FUNCTION = "_engine_run_backward"
"""The torch function that runs the backward pass in torch's own threads, if tensors are on a GPU."""


def add_hang_report(run: Run, folder: Path, ranks: int, root: Path) -> Run:
    """Return ``run`` with a hang report if it hung. Otherwise return it unchanged.

    ``folder`` is the record folder of the run, ``ranks`` the number of its ranks, and ``root`` its checkout.
    """
    if run.outcome != "hung":
        return run
    report = read_hang(folder, ranks, root)
    reason = clip_message(f"{run.reason}. Where its ranks are: {report.text}")
    return run.model_copy(update={"hang": report, "reason": reason})


def read_hang(folder: Path, ranks: int, root: Path) -> Hang:
    """Build the hang report of a run from its record folder."""
    reports = []
    for rank in range(ranks):
        try:
            text = read_capped(folder / f"stacks.{rank}", MAX_STACKS_BYTES).decode("utf-8", "replace")
        except RecordError:
            text = ""
        main, *others = read_stacks(text) or [[]]
        # While a backward pass runs in torch's own threads, the main thread waits for it.
        waits_for_backward = bool(main) and main[0]["function"] == _BACKWARD_FUNCTION
        threads = [*others, main] if waits_for_backward else [main]
        code_frame = next((frame for thread in threads for frame in _list_code_frames(thread, root)), None)
        last = _read_last_collective(folder / f"flight.{rank}")
        reports.append(RankHang(rank=rank, answered=bool(main), last=last, code_frame=code_frame))
    return Hang(ranks=reports, text=clip(_describe_places(reports), MAX_TEXT))


def read_stacks(text: str) -> list[list[re.Match[str]]]:
    """Return the frames of each thread in a file of ``faulthandler``, innermost first; the main thread comes first.

    The file's first line names the main thread. If it has no stack, the last thread in the file comes first.
    """
    main_line = _MAIN_THREAD.match(text)
    threads: list[tuple[int, list[re.Match[str]]]] = []
    for line in text.splitlines()[1:]:
        if thread_line := _THREAD.match(line):
            threads.append((int(thread_line[1], 16), []))
        elif threads and (frame_line := _FRAME.fullmatch(line)):
            threads[-1][1].append(frame_line)
    main_thread = int(main_line[1], 16) if main_line else None
    threads.reverse()
    threads.sort(key=lambda thread: thread[0] != main_thread)
    return [frames for _, frames in threads]


def _list_code_frames(thread: Sequence[re.Match[str]], root: Path) -> Iterator[Frame]:
    """Yield the frames of code under test: those of files in the checkout ``root`` that are not installed there."""
    for frame in thread:
        path, line = os.path.normpath(frame["file"]), frame["line"]
        folder = next((folder for folder in (f"{root}/", f"{os.path.realpath(root)}/") if path.startswith(folder)), "")
        if folder and not _INSTALLED.search(path):
            file, number = printable(path.removeprefix(folder))[-300:], int(line) if line.isdigit() else 0
            yield Frame(file=file, line=number, function=clip(printable(frame["function"]), 200))


def _read_last_collective(path: Path) -> Collective | None:
    try:
        last = read_record(path, Collective, MAX_FLIGHT_BYTES)
    except RecordError:  # missing, or written by the code under test
        return None
    return Collective.model_validate(make_printable(last.model_dump()))


def _describe_places(ranks: Sequence[RankHang]) -> str:
    """Return where the ranks are. The rarest place comes first, because the rank that differs is often the cause."""
    ranks_by_place: dict[str, list[str]] = {}
    for rank in ranks:
        ranks_by_place.setdefault(_describe_place(rank), []).append(str(rank.rank))
    descriptions = [
        f"{plural('rank', len(numbers))} {listed(numbers, MAX_LISTED_RANKS)}: {place}"
        for place, numbers in sorted(ranks_by_place.items(), key=lambda item: len(item[1]))
    ]
    return listed(descriptions, MAX_PLACES, "; ")


def _describe_place(rank: RankHang) -> str:
    frame = rank.code_frame
    place = f"in {frame.file}:{frame.line} {frame.function}" if frame else "not in code of the checkout"
    if not rank.answered:
        place = "left no stack (it never began, is stopped, or its node hangs)"
    if rank.last is None:
        return place
    number = f" #{rank.last.number}" if rank.last.number else ""
    return f"{place}, last collective {rank.last.name}{number} of {rank.last.group} ({rank.last.state})"
