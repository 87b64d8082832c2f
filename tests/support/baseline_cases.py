"""Builders of sessions to store; as a script, processes that store sessions and are killed.

    python baseline_cases.py STORE   writers in parallel, ended by SIGKILL at any moment

It prints one JSON line per writer, with the sessions that it reported as stored, and the state of the store afterwards.
"""

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from regbot.baselines import commands
from regbot.baselines.intake import Intake
from regbot.baselines.store import Store
from regbot.baselines.verify import verify
from regbot.judge import judge
from regbot.records.baseline import BaselineAddition
from regbot.records.config import Config
from regbot.records.run import Run
from regbot.records.session import SessionHeader, read_session
from support.ledger_builder import smoke_ledger
from support.timed_builder import HEADER, slot, statics, timed_run

NOW = datetime(2026, 6, 1, tzinfo=UTC)
COUNTED = smoke_ledger(variant="cpu")
ABBA = ("base", "head", "head", "base")


def header_of(number: int, **changes: object) -> SessionHeader:
    """Return the header of a session that began ``number`` hours into the year."""
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    return HEADER.model_copy(update={"created": created.isoformat(), "seed": number} | changes)


def block_runs(number: int = 0, blocks: int = 1) -> list[Run]:
    """Return warm launches and whole blocks of valid runs."""
    draw = random.Random(number)
    warm = [timed_run(slot(0, place, arm), 0.2) for place, arm in enumerate(("base", "head"))]
    return warm + [
        timed_run(slot(block, place, arm), 0.1 * (1 + draw.gauss(0, 0.01)), ledger=COUNTED)
        for block in range(1, blocks + 1)
        for place, arm in enumerate(ABBA)
    ]


def write_session(path: Path, runs: Sequence[Run] | None = None, number: int = 0, **changes: object) -> Path:
    """Write a session file with the traces and then ``runs``."""
    lines = [header_of(number, **changes), *statics(), *(block_runs(number) if runs is None else runs)]
    path.write_text("".join(line.to_line() for line in lines))
    return path


def make_intake(path: Path | str = "session.jsonl", **changes: Any) -> Intake:
    return Intake(**{"origin": str(path), "who": "ada", "why": "nightly"} | changes)


def add(store: Store, file: Path, intake: Intake, now: datetime) -> BaselineAddition:
    """Do what ``regbot baseline add`` does with a session file."""
    session = read_session(file)
    return commands.add(store, session, judge(session, Config()), intake, now)


def store_one(root: Path, scratch: Path, number: int, who: str = "ada") -> list[str]:
    """Run ``baseline add`` in this process and return the files that it reports as stored."""
    file = write_session(scratch / f"{os.getpid()}.jsonl", number=number)
    return add(Store(root), file, make_intake(file, who=who), NOW).files


# ---- processes


def fork(do: Callable[[int], None]) -> tuple[int, int]:
    """Fork a process that calls ``do`` with the writing end of a pipe. Return its id and the reading end."""
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
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def complete_lines(reading: int) -> list[str]:
    """Return the complete lines that a process wrote."""
    with os.fdopen(reading, "rb") as pipe:
        return [line.decode() for line in pipe.read().split(b"\n")[:-1]]


def say(writing: int, files: Sequence[str]) -> None:
    os.write(writing, "".join(f"{file}\n" for file in files).encode())


def killed(root: Path) -> None:
    """Run two concurrent writers, which share some sessions, and kill one or both."""
    draw = random.Random(7)
    for number in range(16):

        def write(writing: int, first: int, who: str) -> None:
            for session in range(first, first + 100):
                say(writing, store_one(root, root.parent, session, who))

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
            report(complete_lines(reading), root)


def report(files: Sequence[str], root: Path) -> None:
    problems = verify(Store(root), NOW).problems if root.exists() else []
    print(json.dumps({"files": files, "problems": problems}), flush=True)


if __name__ == "__main__":
    killed(Path(sys.argv[1]))
