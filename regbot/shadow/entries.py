"""Read and write the folder of shadow checks. Each check and each outcome has a file, which is never changed.

The result of one check is a ``ShadowEntry``, called an entry here; it is not the entry of a workload in a verdict. An
outcome is the later decision of a person: was the check's verdict on the commit right? The file of a check is called
``<head>-<time>-<hash>.json``, the file of an outcome ``<check>.outcome-<hash>.json``. ``<hash>`` is the hash of the
file's content, and ``<check>`` is the name of the check's file without ``.json``. Writers therefore need no lock, two
branches never conflict, and an edited file is detected.

A file is written under a temporary name, synced and renamed, and then its folder is synced. When the writing function
returns, the file is therefore on the disk. A killed writer leaves a file whose name begins with a dot. Git and readers
ignore files with a dot.
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
from regbot.records.baseline import format_time
from regbot.records.files import RecordError, parse_record, read_capped, write_text
from regbot.records.shadow import (
    OutcomeKind,
    ShadowEntry,
    ShadowOutcome,
    ShadowRow,
    ShadowThroughput,
    ShadowWorkload,
)
from regbot.records.verdict import GRAVITY, Status, Throughput, Verdict, WorkloadVerdict
from regbot.text.clip import clip_label, short_commit

BLOCKING: tuple[Status, ...] = ("FAIL", "INVALID", "REVIEW")
"""Statuses with which a required check blocks a merge by default. REVIEW blocks until somebody accepts it."""

REGRESSION_STATUSES: tuple[Status, ...] = ("FAIL", "REVIEW")
"""Statuses that report a regression or a possible regression. INVALID is left out, because it says nothing about the
change."""

MIN_COMMIT_CHARACTERS = 6
"""Smallest number of characters by which a user may name a commit."""
MAX_BYTES = 2**20
"""Largest size of a file that is read."""
HASH_CHARACTERS = 12
"""Number of characters of the hash in a file name."""

RecordType = TypeVar("RecordType", bound=Record)

_CHECK_NAME = re.compile(rf"[0-9a-f]{{40}}(?:[0-9a-f]{{24}})?-[0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{{HASH_CHARACTERS}}}")
_OUTCOME_NAME = re.compile(rf"({_CHECK_NAME.pattern})\.outcome-[0-9a-f]{{{HASH_CHARACTERS}}}")

FOLDER_FILES = {".gitattributes": "* -text\n", ".gitignore": ".*.json.*\n..*\n"}
"""Files with settings for git, by name. Git must not change line ends, because the hash covers line ends. Git must
ignore the files of killed writers."""

RESTORE_ADVICE = "restore it from git, or delete it"


def record_check(verdict: Verdict, folder: Path, now: datetime, blocking: Collection[Status] = BLOCKING) -> Path:
    """Write the result of a check and return the path of the file. ``blocking``: statuses that would block the merge.
    ``now``: the time when the check ended.

    Raises OSError.
    """
    entry = ShadowEntry(
        created=format_time(now),
        regbot=__version__,
        base=verdict.base.commit,
        head=verdict.head.commit,
        subject=verdict.head.subject,
        verdict=verdict.verdict,
        would_block=verdict.verdict in blocking,
        workloads=[_summarize_workload(workload) for workload in verdict.workloads],
    )
    return _write(folder, f"{entry.head}-{_format_for_name(entry.created)}-", entry)


def settle_commit(folder: Path, commit: str, outcome: OutcomeKind, who: str, why: str, now: datetime) -> Path:
    """Write an outcome for the commit whose hash begins with ``commit``, and return the path of the outcome's file.

    ``who`` is the person who settles the commit, and ``why`` is the reason.

    A commit can be settled again. The last outcome then counts, and earlier outcomes stay in the folder. Raises
    RecordError if ``commit`` matches no commit or several, or if the commit's last check cannot have this outcome.
    Raises OSError.
    """
    *_, last_check = load_checks_of_commit(folder, commit)
    _require_fitting_outcome(last_check.entry, outcome)
    record = ShadowOutcome(
        entry=last_check.name, head=last_check.entry.head, outcome=outcome, who=who, when=format_time(now), why=why
    )
    return _write(folder, f"{last_check.name}.outcome-", record)


def load_checks_of_commit(folder: Path, commit: str) -> list[ShadowRow]:
    """Return the checks of the commit whose hash begins with ``commit``, oldest first.

    Raises RecordError if ``commit`` is too short, or if no commit or several commits match.
    """
    prefix = commit.lower()
    if len(prefix) < MIN_COMMIT_CHARACTERS:
        raise RecordError(
            f"{commit!r} is too short", f"give {MIN_COMMIT_CHARACTERS} characters of head's commit or more"
        )
    rows = [row for row in load_checks(folder) if row.entry.head.startswith(prefix)]
    commit_count = len({row.entry.head for row in rows})
    if commit_count != 1:
        problem = "no commit with a shadow check begins"
        if commit_count:
            problem = f"{commit_count} commits with a shadow check begin"
        raise RecordError(f"{folder}: {problem} with {commit!r}", "see 'regbot shadow list'")
    return rows


def load_checks(folder: Path) -> list[ShadowRow]:
    """Return all checks, ordered by the time when they ended. Each has the last outcome of its commit. If the folder
    does not exist, the list is empty.

    Hidden files and README.md are left out. Raises RecordError for any other file that cannot be read, or whose content
    does not match its name.
    """
    entries: dict[str, ShadowEntry] = {}
    outcomes: dict[str, ShadowOutcome] = {}
    for path in _list_files(folder):
        if _CHECK_NAME.fullmatch(path.stem):
            entries[path.stem] = _read(path, ShadowEntry)
        elif _OUTCOME_NAME.fullmatch(path.stem):
            outcomes[path.stem] = _read(path, ShadowOutcome)
        else:
            raise RecordError(f"{path}: its name is not that of a shadow check: delete or move it")
    last_outcomes: dict[str, ShadowOutcome] = {}  # by head commit
    # In the order of their times. Outcomes of the same second are ordered by the names of their files.
    for name, outcome in sorted(outcomes.items(), key=lambda item: (item[1].when, item[0])):
        entry = entries.get(outcome.entry)
        if entry is None or entry.head != outcome.head or not name.startswith(f"{outcome.entry}."):
            raise RecordError(f"{folder / name}.json: is the outcome of a check that is missing: {RESTORE_ADVICE}")
        last_outcomes[outcome.head] = outcome
    for name, entry in entries.items():
        if not name.startswith(f"{entry.head}-{_format_for_name(entry.created)}-"):
            raise RecordError(
                f"{folder / name}.json: its content is the check of another commit or time: {RESTORE_ADVICE}"
            )
    # By the time when the check ended, then by the name of the file.
    ordered = sorted(entries.items(), key=lambda item: (item[1].created, item[0]))
    return [ShadowRow(name=name, entry=entry, outcome=last_outcomes.get(entry.head)) for name, entry in ordered]


def _require_fitting_outcome(entry: ShadowEntry, outcome: OutcomeKind) -> None:
    """Raise RecordError if a check with this verdict cannot have ``outcome``.

    Only a reported regression can be confirmed or refuted. Only an unreported regression can be missed.
    """
    reports_regression = entry.verdict in REGRESSION_STATUSES
    if reports_regression and outcome == "missed":
        raise RecordError(
            f"the shadow check reported {entry.verdict} for {short_commit(entry.head)}, so it missed no regression: "
            "give 'confirmed', or 'refuted' if there is no regression"
        )
    if not reports_regression and outcome in ("confirmed", "refuted"):
        raise RecordError(
            f"the shadow check reported {entry.verdict} for {short_commit(entry.head)}, which cannot be {outcome}: "
            "give 'missed' for a regression that was detected later"
        )


def _summarize_workload(workload: WorkloadVerdict) -> ShadowWorkload:
    """Return the statuses of a workload, its findings that are not PASS, and the reason for its gravest status."""
    sections = [
        section for section in (workload.sharding, workload.validity, workload.throughput) if section is not None
    ]
    gravest = min(sections, key=lambda section: GRAVITY.index(section.status))
    findings = workload.sharding.findings if workload.sharding else []
    labels = [clip_label(f"{finding.pattern}@{finding.axis}") for finding in findings if finding.status != "PASS"]
    return ShadowWorkload(
        name=workload.name,
        sharding=workload.sharding.status if workload.sharding else None,
        findings=list(dict.fromkeys(labels)),  # without duplicates
        throughput=_summarize_throughput(workload.throughput) if workload.throughput else None,
        validity=workload.validity.status,
        reason=gravest.reasons[0] if gravest.reasons else "",
    )


def _summarize_throughput(throughput: Throughput) -> ShadowThroughput:
    """Return the values of a throughput section that an entry stores. The minutes are 0 without a recorded cost."""
    return ShadowThroughput(
        status=throughput.status,
        decision=throughput.decision,
        estimate_pct=throughput.estimate_pct,
        low_pct=throughput.low_pct,
        high_pct=throughput.high_pct,
        pairs=throughput.pairs,
        minutes=throughput.cost.minutes if throughput.cost else 0.0,
    )


# ---- files


def _list_files(folder: Path) -> list[Path]:
    """Return the files in ``folder``, sorted, without hidden files and README.md. Raises RecordError."""
    try:
        paths = [Path(item) for item in os.scandir(folder) if not item.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(path for path in paths if path.name != "README.md")


def _read(path: Path, model: type[RecordType]) -> RecordType:
    """Return the record in a file whose name ends with the hash of its content. Raises RecordError."""
    data = read_capped(path, MAX_BYTES)
    if not path.stem.endswith(_hash(data)):
        raise RecordError(
            f"{path}: was edited or torn: its content does not match the hash in its name: {RESTORE_ADVICE}"
        )
    return parse_record(data, model, str(path))


def _write(folder: Path, prefix: str, record: Record) -> Path:
    """Write ``record`` to a file in ``folder`` whose name begins with ``prefix``. The file is on the disk when this
    function returns."""
    text = record.to_json()
    path = folder / f"{prefix}{_hash(text.encode())}.json"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _sync(folder.parent)
    for name, content in FOLDER_FILES.items():
        if not (folder / name).exists():
            write_text(folder / name, content)
    write_text(path, text)
    _sync(folder)
    return path


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:HASH_CHARACTERS]


def _format_for_name(moment: str) -> str:
    """Return a time such as ``2026-08-01T12:00:00Z`` without hyphens and colons, because some file systems allow no
    colon in names."""
    return moment.replace("-", "").replace(":", "")


def _sync(folder: Path) -> None:
    """Sync a folder, because syncing a file does not put the file's name on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
