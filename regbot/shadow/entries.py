"""The folder of shadow checks: one file for each check and one for each outcome, written once and never changed.

A check's file is ``<head>-<time>-<hash>.json``, an outcome's ``<check>.outcome-<hash>.json``; the hash is that of the
content. So writers need no lock, two branches never conflict, and a file that was edited shows. What a function has
returned is on the disk: written beside, synced, renamed into place, its folder synced. A writer that is killed leaves a
file whose name begins with a dot, which git does not see and nobody reads.
"""

import hashlib
import os
import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from regbot import __version__
from regbot.records.base import Record
from regbot.records.baseline import utc
from regbot.records.files import RecordError, parse_record, read_capped, write_text
from regbot.records.shadow import (
    OutcomeWord,
    ShadowEntry,
    ShadowOutcome,
    ShadowRow,
    ShadowThroughput,
    ShadowWorkload,
)
from regbot.records.verdict import GRAVITY, Status, Throughput, Verdict, WorkloadVerdict

DEFAULT_FOLDER = Path("shadow")

BLOCKING: tuple[Status, ...] = ("FAIL", "INVALID", "REVIEW")
"""What a required check stops a merge for by default; REVIEW until somebody has accepted it."""

CLAIMS: tuple[Status, ...] = ("FAIL", "REVIEW")
"""What says that something is wrong, or may be. INVALID says nothing about the change."""

SHORTEST_COMMIT = 6
MAX_BYTES = 2**20
HASH = 12
"""Characters of a content's hash in a name."""

R = TypeVar("R", bound=Record)

_ENTRY = re.compile(rf"[0-9a-f]{{40}}(?:[0-9a-f]{{24}})?-[0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{{HASH}}}")
_OUTCOME = re.compile(rf"({_ENTRY.pattern})\.outcome-[0-9a-f]{{{HASH}}}")

KEPT = {".gitattributes": "* -text\n", ".gitignore": ".*.json.*\n..*\n"}
"""No git may change line ends, of which the hash is; none is to see what a killed writer left."""

RESTORE = "restore it from git, or delete it"


def record(verdict: Verdict, folder: Path, now: datetime, blocking: Collection[Status] = BLOCKING) -> Path:
    """Write down what a check would have said; where. ``blocking``: the statuses that would have stopped the merge.

    Raises OSError.
    """
    entry = ShadowEntry(
        created=utc(now),
        regbot=__version__,
        base=verdict.base.commit,
        head=verdict.head.commit,
        subject=verdict.head.subject,
        verdict=verdict.verdict,
        would_block=verdict.verdict in blocking,
        workloads=[_short(each) for each in verdict.workloads],
    )
    return _write(folder, f"{entry.head}-{_in_name(entry.created)}-", entry)


def settle(folder: Path, commit: str, outcome: OutcomeWord, who: str, why: str, now: datetime) -> Path:
    """Write down what was found out about the commit that begins with ``commit``; where.

    It may be settled again: the last outcome counts, and none is deleted. Raises RecordError where no commit or more
    than one begins so, or the outcome is none that its last check can have; OSError.
    """
    last = of_commit(folder, commit)[-1]
    _possible(last.entry, outcome)
    told = ShadowOutcome(entry=last.name, head=last.entry.head, outcome=outcome, who=who, when=utc(now), why=why)
    return _write(folder, f"{last.name}.outcome-", told)


def of_commit(folder: Path, commit: str) -> list[ShadowRow]:
    """The checks of the one commit that begins with ``commit``, at least one. Raises RecordError."""
    start = commit.lower()
    if len(start) < SHORTEST_COMMIT:
        raise RecordError(f"{commit!r} is too short; give {SHORTEST_COMMIT} characters of head's commit or more")
    found = [row for row in checks(folder) if row.entry.head.startswith(start)]
    heads = len({row.entry.head for row in found})
    if heads != 1:
        what = f"{heads} commits with a shadow check begin" if heads else "no commit with a shadow check begins"
        raise RecordError(f"{folder}: {what} with {commit!r}; see 'regbot shadow list'")
    return found


def checks(folder: Path) -> list[ShadowRow]:
    """All checks in the order in which they ended, each with the last outcome of its commit; none without a folder.

    Raises RecordError for a file that is not what its name says: nothing is skipped.
    """
    entries: dict[str, ShadowEntry] = {}
    outcomes: list[tuple[str, str, ShadowOutcome]] = []
    for path in _files(folder):
        if _ENTRY.fullmatch(path.stem):
            entries[path.stem] = _read(path, ShadowEntry)
        elif _OUTCOME.fullmatch(path.stem):
            told = _read(path, ShadowOutcome)
            outcomes.append((told.when, path.stem, told))
        else:
            raise RecordError(f"{path}: is no shadow check by its name: delete or move it")
    last: dict[str, ShadowOutcome] = {}
    for _, name, told in sorted(outcomes, key=lambda each: each[:2]):
        entry = entries.get(told.entry)
        if entry is None or entry.head != told.head or not name.startswith(f"{told.entry}."):
            raise RecordError(f"{folder / name}.json: is the outcome of a check that is not here: {RESTORE}")
        last[told.head] = told
    for name, entry in entries.items():
        if not name.startswith(f"{entry.head}-{_in_name(entry.created)}-"):
            raise RecordError(f"{folder / name}.json: is the check of another commit or time by its content: {RESTORE}")
    ordered = sorted(entries.items(), key=lambda each: (each[1].created, each[0]))
    return [ShadowRow(name=name, entry=entry, outcome=last.get(entry.head)) for name, entry in ordered]


def _possible(entry: ShadowEntry, outcome: OutcomeWord) -> None:
    """Raises RecordError for an outcome that says nothing about what the check said."""
    claimed = entry.verdict in CLAIMS
    if claimed and outcome == "missed":
        raise RecordError(
            f"shadow said {entry.verdict} of {entry.head[:12]}, so a regression in it was not missed: "
            "it is 'confirmed', or 'refuted' where there is none"
        )
    if not claimed and outcome in ("confirmed", "refuted"):
        raise RecordError(
            f"shadow said {entry.verdict} of {entry.head[:12]}, which claims nothing that could be {outcome}: "
            "a regression that was found in it later is 'missed'"
        )


def _short(found: WorkloadVerdict) -> ShadowWorkload:
    sections = [each for each in (found.sharding, found.validity, found.throughput) if each is not None]
    gravest = min(sections, key=lambda section: GRAVITY.index(section.status))
    return ShadowWorkload(
        name=found.name,
        sharding=found.sharding.status if found.sharding else None,
        findings=list(
            dict.fromkeys(
                f"{each.pattern}@{each.axis}"[:500]
                for each in (found.sharding.findings if found.sharding else [])
                if each.status != "PASS"
            )
        ),
        throughput=_pace(found.throughput) if found.throughput else None,
        validity=found.validity.status,
        reason=gravest.reasons[0] if gravest.reasons else "",
    )


def _pace(found: Throughput) -> ShadowThroughput:
    return ShadowThroughput(
        status=found.status,
        decision=found.decision,
        estimate_pct=found.estimate_pct,
        low_pct=found.low_pct,
        high_pct=found.high_pct,
        pairs=found.pairs,
        minutes=found.cost.minutes if found.cost else 0.0,
    )


# ---- files


def _files(folder: Path) -> list[Path]:
    """The files in ``folder`` by name, but for those whose names begin with a dot. Raises RecordError."""
    try:
        found = [Path(entry) for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(path for path in found if path.name != "README.md")


def _read(path: Path, model: type[R]) -> R:
    """The record in a file whose name ends with the hash of its content. Raises RecordError."""
    data = read_capped(path, MAX_BYTES)
    if not path.stem.endswith(_hash(data)):
        raise RecordError(
            f"{path}: was edited or torn: its content is not the one that its name is the hash of: {RESTORE}"
        )
    return parse_record(data, model, str(path))


def _write(folder: Path, start: str, record: Record) -> Path:
    """``record`` in a file of ``folder`` whose name begins with ``start``, on the disk."""
    text = record.to_json()
    path = folder / f"{start}{_hash(text.encode())}.json"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _sync(folder.parent)
    for name, kept in KEPT.items():
        if not (folder / name).exists():
            write_text(folder / name, kept)
    write_text(path, text)
    _sync(folder)
    return path


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:HASH]


def _in_name(moment: str) -> str:
    """``2026-08-01T12:00:00Z`` as names hold it, for file systems that know no colon."""
    return moment.replace("-", "").replace(":", "")


def _sync(folder: Path) -> None:
    """Names in a folder are on the disk only when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
