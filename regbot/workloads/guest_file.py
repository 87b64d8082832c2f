"""Reads files that a guest wrote beside its record, after checks that make them safe to read.

The files are read in a process of its own, whose time and memory are limited. So no file can stop a check, whatever a
reader does with it.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from regbot.ledgers.readers import Reader
from regbot.records.files import MAX_RECORD_BYTES
from regbot.records.ledger import Axis, Ledger, Liveness
from regbot.records.run import CompiledProgram, RawProfile
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable
from regbot.workloads.logs import StepLog
from regbot.workloads.task import Task

READ_LIMIT_S = 120
"""Seconds of processor time in which the files of one rank must be read. A trace at the limit of the default
``local.max_record_mb`` takes 9 s.
"""
READ_LIMIT_BYTES = 4 * 2**30
WALL_FACTOR = 5
"""Longest time that the process may take, in multiples of ``READ_LIMIT_S``. A busy node gives it a part of a core."""

_PROGRAM = Path(__file__).with_name("read_guest_files.py")


class GuestFileError(Exception):
    """A file of the guest cannot be used. The message names the file and the reason."""


def read_ledgers(
    reader: Reader, paths: Sequence[Path], world: int, max_bytes: int, max_expansion: int = 1, **options: bool
) -> list[Ledger]:
    """Return the ledger of rank 0 of ``world`` ranks, or of their common program, in each of ``paths``.

    ``options`` are arguments of the reader. Raises GuestFileError if a file cannot be read, is not a regular file, has
    other hard links, has more than ``max_bytes``, or has more than ``max_expansion`` times as many when it is
    decompressed, or if it is of another rank or world.
    """
    for path in paths:
        _check_file(path, max_bytes)
    contents = run_program(reader.NAME, [(path, path.name) for path in paths], max_expansion * max_bytes, options)
    ledgers = [Ledger.model_validate_json(json.dumps(content)) for content in contents]
    for path, ledger in zip(paths, ledgers, strict=True):
        if (ledger.rank, ledger.world_size) != (0, world):
            raise GuestFileError(
                f"{path.name}: is of rank {ledger.rank} of {ledger.world_size}, but rank 0 of {world} was requested"
            )
    return ledgers


def read_step_log(path: Path, format_name: str, tokens_per_step: float | None) -> StepLog:
    """Return the step log in ``path``. The arguments are those of ``regbot.workloads.logs.read_log``.

    Raises GuestFileError. Its message calls the file 'its log'.
    """
    options = {"format_name": format_name, "tokens_per_step": tokens_per_step}
    (content,) = run_program("logs", [(path, "its log")], 0, options)
    return TypeAdapter(StepLog).validate_python(content)


def complete_ledger(
    ledger: Ledger,
    claim: CompiledProgram | RawProfile,
    task: Task,
    names: Mapping[str, str],
    axes: Mapping[str, Axis],
    liveness: Liveness,
) -> Ledger:
    """Return ``ledger``, which a reader gave, with what it cannot know: the task, the names of its axes by the reader's
    label, the other ``axes`` of the mesh, and the configuration that the guest claims.
    """
    named_axes = {names.get(label, label): axis for label, axis in ledger.axes.items()}
    entries = [entry.model_copy(update={"axis": names.get(entry.axis, entry.axis)}) for entry in ledger.entries]
    return ledger.model_copy(
        update={
            "workload": task.entry,
            "variant": task.variant.name,
            "axes": {**axes, **named_axes},
            "entries": entries,
            "liveness": liveness,
            "config": claim.config,
            "software": claim.software,
        }
    )


def _check_file(path: Path, max_bytes: int) -> None:
    try:
        status = path.lstat()
    except OSError as error:
        raise GuestFileError(f"{path.name}: named in the record, but it cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise GuestFileError(f"{path.name}: is a link or no regular file; it was not read")
    if status.st_size > max_bytes:
        limit = f"more than the {max_bytes:,} of local.max_record_mb"
        raise GuestFileError(f"{path.name}: {status.st_size:,} bytes, {limit}")


def run_program(
    reader: str, files: Sequence[tuple[Path, str]], max_bytes: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the content of each file as the reader's record, in JSON. ``files`` have their names in messages.

    Raises GuestFileError.
    """
    request = {
        "reader": reader,
        "paths": [str(path.absolute()) for path, _ in files],
        "max_bytes": max_bytes,
        "options": options,
        "limit_s": READ_LIMIT_S,
        "limit_bytes": READ_LIMIT_BYTES,
        "limit_answer_bytes": MAX_RECORD_BYTES,
        "import_path": [str(Path(folder).absolute()) for folder in sys.path],
    }
    try:
        # With -P, nothing is imported from the folder of the program. Each thread would take address space.
        command = (sys.executable, "-P", str(_PROGRAM), json.dumps(request))
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.run(
            command, cwd="/", env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=WALL_FACTOR * READ_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise GuestFileError(f"its files were not read within {WALL_FACTOR * READ_LIMIT_S} s") from error
    if process.returncode:
        last_line = clip(printable(process.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]), 200)
        limits = f"{READ_LIMIT_S} s of processor time and {READ_LIMIT_BYTES / 2**30:g} GiB of memory"
        raise GuestFileError(f"its files were not read within {limits} ({last_line or 'it printed nothing'})")
    answer = json.loads(process.stdout)
    if message := answer.get("error"):
        for path, name in files:
            message = message.replace(str(path.absolute()), name)
        raise GuestFileError(message)
    return answer["contents"]  # type: ignore[no-any-return]
