"""Sessions to be stored, made of a few numbers; and, as a script, processes that store them and are killed.

    python baseline_cases.py killed STORE WRITER      writers in parallel, ended by SIGKILL at any moment
    python baseline_cases.py everywhere STORE WRITER  a writer ended by SIGKILL before each thing it does to a file
    python baseline_cases.py limited STORE WRITER     a writer whose files may not grow past a limit

A writer is what stores one session: add, or refresh. Each prints one JSON line for every session that a command said
to have stored, and on what followed.
"""

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ledger_builder import smoke_ledger
from regbot.baselines.commands import add
from regbot.baselines.intake import Intake
from regbot.baselines.store import Store
from regbot.baselines.verify import verify
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from timed_builder import HEADER, slot, statics, timed_run

NOW = datetime(2026, 6, 1, tzinfo=UTC)
COUNTED = smoke_ledger(variant="cpu")
ABBA = ("base", "head", "head", "base")


def header_of(number: int, **changes: object) -> SessionHeader:
    """The header of the session that began ``number`` hours into the year."""
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    return HEADER.model_copy(update={"created": created.isoformat(), "seed": number} | changes)


def block_runs(number: int = 0, blocks: int = 1) -> list[Run]:
    """Warm launches and whole blocks, every run good."""
    draw = random.Random(number)
    warm = [timed_run(slot(0, place, arm), 0.2) for place, arm in enumerate(("base", "head"))]
    return warm + [
        timed_run(slot(block, place, arm), 0.1 * (1 + draw.gauss(0, 0.01)), ledger=COUNTED)
        for block in range(1, blocks + 1)
        for place, arm in enumerate(ABBA)
    ]


def write_session(path: Path, runs: Sequence[Run] | None = None, number: int = 0, **changes: object) -> Path:
    """A session file: the traces, then ``runs``."""
    lines = [header_of(number, **changes), *statics(), *(block_runs(number) if runs is None else runs)]
    path.write_text("".join(line.to_line() for line in lines))
    return path


def asked(path: Path | str = "session.jsonl", **changes: Any) -> Intake:
    return Intake(**{"origin": str(path), "who": "ada", "why": "nightly"} | changes)


def store_one(root: Path, scratch: Path, number: int, who: str = "ada") -> list[str]:
    """What ``baseline add`` does, in this process; the files that it says are stored."""
    file = write_session(scratch / f"{os.getpid()}.jsonl", number=number)
    return add(Store(root), file, asked(file, who=who), NOW).files


def refresh_one(root: Path, scratch: Path, number: int, who: str = "ada") -> list[str]:
    """What ``baseline refresh --store`` does with a session that was measured; the files that it says are stored."""
    from refresh_cases import refreshed

    return refreshed(root, scratch, number, who).files


WRITERS: dict[str, Callable[..., list[str]]] = {"add": store_one, "refresh": refresh_one}
writer = store_one
ROOM = {"add": 40, "refresh": 400}
"""Bytes by which the limit grows: a refresh writes its own session and its report too."""


# ---- processes


def fork(do: Callable[[int], None]) -> tuple[int, int]:
    """A process that does ``do`` with the writing end of a pipe; its number and the reading end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    code = 1
    try:
        do(writing)
        code = 0
    except OSError as error:
        os.write(writing, f"! {error}\n".encode())
        code = 3
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def heard(reading: int) -> list[str]:
    """The whole lines that a process wrote; what was cut off by its end was not said."""
    with os.fdopen(reading, "rb") as pipe:
        return [line.decode() for line in pipe.read().split(b"\n")[:-1]]


def say(writing: int, files: Sequence[str]) -> None:
    os.write(writing, "".join(f"{file}\n" for file in files).encode())


def killed(root: Path, rounds: int = 16) -> None:
    """Two writers at a time, some sessions stored by both; one or both are killed."""
    draw = random.Random(7)
    for number in range(rounds):

        def write(writing: int, first: int, who: str) -> None:
            for session in range(first, first + 100):
                say(writing, writer(root, root.parent, session, who))

        first = 100 * number
        writers = [
            fork(lambda writing, first=first: write(writing, first, "ada")),  # type: ignore[misc]
            fork(lambda writing, first=first: write(writing, first + 1, "bob")),  # type: ignore[misc]
        ]
        select.select([reading for _, reading in writers], [], [], 20)
        for child, _ in writers:
            time.sleep(draw.uniform(0, 0.08))
            os.kill(child, signal.SIGKILL)
        for child, reading in writers:
            os.waitpid(child, 0)
            report(heard(reading), root)


def everywhere(root: Path) -> None:
    """Into a store of one session another is written, by a process that dies before its ``n``-th open, rename, mkdir,
    unlink: for every ``n`` until it lives. Each time what is left is told, and what storing it again then leaves."""
    for number in range(1, 200):
        shutil.rmtree(root, ignore_errors=True)
        if number % 2:  # also where there is no store yet
            writer(root, root.parent, 0)

        def write(writing: int, number: int = number) -> None:
            done = 0

            def count(event: str, arguments: tuple[object, ...]) -> None:
                nonlocal done
                if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.chmod", "os.scandir", "os.truncate"):
                    done += 1
                    if done == (number + 1) // 2:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            say(writing, writer(root, root.parent, 1))

        child, reading = fork(write)
        status = os.waitpid(child, 0)[1]
        report(heard(reading), root, killed=os.WIFSIGNALED(status))
        again = writer(root, root.parent, 1)
        report(again, root, left=len([*(root / ".incoming").iterdir()]))
        if number % 2 and not os.WIFSIGNALED(status):
            return


def limited(root: Path) -> None:
    """A file that would grow past the limit takes what fits, as on a disk that fills."""
    for number in range(1, 40, 2):

        def write(writing: int, number: int = number) -> None:
            ready = write_session(root.parent / "session.jsonl", number=number)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (number * number * ROOM[sys.argv[3]], resource.RLIM_INFINITY))
            if writer is store_one:  # its session was measured before the disk was full; a refresh measures its own
                say(writing, add(Store(root), ready, asked(ready), NOW).files)
            else:
                say(writing, writer(root, root.parent, number))

        child, reading = fork(write)
        status = os.waitpid(child, 0)[1]
        report(heard(reading), root, number=number, code=os.waitstatus_to_exitcode(status))


def report(lines: Sequence[str], root: Path, **more: int) -> None:
    files = [line for line in lines if not line.startswith("!")]
    errors = [line for line in lines if line.startswith("!")]
    problems = verify(Store(root), NOW).problems if root.exists() else []
    print(json.dumps({"files": files, "errors": errors, "problems": problems, **more}), flush=True)


if __name__ == "__main__":
    writer = WRITERS[sys.argv[3]]
    {"killed": killed, "everywhere": everywhere, "limited": limited}[sys.argv[1]](Path(sys.argv[2]))
