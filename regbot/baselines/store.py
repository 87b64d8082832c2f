"""The store: a folder of immutable text files, each named after the hash of its bytes, and one anchor for each class.

Nothing is ever changed but an anchor, so two branches that both add sessions merge without a conflict, and two that
both move an anchor have one. What ``add`` has returned is on the disk: written beside, synced, renamed into place, its
folder synced. Whatever ends a writer half-way leaves a file in ``.incoming``, which git does not see and the next
writer removes; writers of one machine follow each other by a lock.

Reading takes no lock, and writes nothing but what ``index`` keeps to find sessions by, which git does not see either. A
file is read here and nowhere else; one that is not what its name and its folder say is never used.
"""

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock
from pydantic import ValidationError

from regbot.baselines.index import SCALARS, Index, Row, row_of
from regbot.baselines.names import (
    ANCHOR,
    CALIBRATION,
    LEDGERS,
    anchor_path,
    calibration_path,
    class_folder,
    ledger_path,
    session_path,
)
from regbot.records.base import Record
from regbot.records.baseline import Anchor, Baseline
from regbot.records.calibration import Calibration
from regbot.records.files import MAX_RECORD_BYTES, RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger

INCOMING = ".incoming"
ATTRIBUTES = ".gitattributes"
ATTRIBUTES_TEXT = "* -text\n"
"""No git may change line ends here: a file's name is the hash of its bytes."""

LOCK_TIMEOUT_S, LOCK_POLL_S = 120.0, 0.01
GLANCE_BYTES = 4096
"""More than the scalars at the beginning of a stored session take, texts of usual length provided."""

RESTORE = "restore it from the commit that added it (git log --diff-filter=A), or delete it and add the session again"
HASHED = re.compile(r"[0-9a-f]{64}\.json")
"""The name of a session's or a ledger's file."""
_CONFLICT = re.compile(rb"^(<{7}|={7}|>{7})( |\r?$)", re.MULTILINE)
_SCALAR = re.compile(r' "(\w+)": ([^{\[].*),')

R = TypeVar("R", bound=Record)


class BaselineError(RecordError):
    """Something stored, or to be stored, cannot be used. One line: file: what is wrong: what to do."""

    def __init__(self, file: object, what: str, fix: str) -> None:
        super().__init__(f"{file}: {what}: {fix}")


class _New(NamedTuple):
    """A session that is to be written."""

    path: PurePosixPath
    baseline: Baseline
    text: bytes


class Store:
    """The stored references under ``root``, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = Index(root, self._names, self._told)
        """Finds sessions without opening every file."""

    # ---- reading

    def groups(self) -> list[PurePosixPath]:
        """Folders of stored sessions, one for each workload, class and environment."""
        return [
            environment
            for workload in self.folders(PurePosixPath())
            if str(workload) != LEDGERS
            for node_class in self.folders(workload)
            for environment in self.folders(node_class)
        ]

    def folders(self, at: PurePosixPath) -> list[PurePosixPath]:
        """Folders in ``at``, by name; none where there is no such folder. Links are not followed."""
        return sorted(at / entry.name for entry in self._entries(at) if entry.is_dir(follow_symlinks=False))

    def sessions(self, group: PurePosixPath) -> list[PurePosixPath]:
        """The stored sessions in one folder, as their names tell."""
        return [group / name for name in self._names(group)]

    def glance(self, path: PurePosixPath) -> dict[str, Any]:
        """The scalars at the beginning of a stored session, unchecked: enough to know whether to read it."""
        with (self.root / path).open("rb") as file:
            lines = file.read(GLANCE_BYTES).decode("utf-8", "replace").split("\n")
        found: dict[str, Any] = {}
        for line in lines[1:-1]:
            scalar = _SCALAR.fullmatch(line)
            if scalar is None:
                break
            with suppress(ValueError):
                found[scalar[1]] = json.loads(scalar[2])
        if isinstance(found.get("measured"), str) and found.keys() >= {*SCALARS}:
            return found
        return self.session(path).model_dump(by_alias=True)  # it is torn or was changed: reading it whole says how

    def session(self, path: PurePosixPath) -> Baseline:
        """One stored session. Raises BaselineError where it is not what its name and folder say."""
        return self.identify(path, self._hashed(path, Baseline))

    def _told(self, path: PurePosixPath) -> Row | None:
        """What the index keeps of a session; None where it has gone. Raises BaselineError as ``glance`` does."""
        file = self.root / path
        try:
            if not stat.S_ISREG(file.lstat().st_mode):
                raise BaselineError(path, "is not a regular file", RESTORE)
            with file.open("rb") as opened:
                data = opened.read(MAX_RECORD_BYTES)
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() == path.stem:
            with suppress(ValidationError):
                found = Baseline.model_validate_json(data)
                if session_path(found, path.stem) == path:
                    return row_of(path.name, found)
        told = self.glance(path)
        return Row(path.name, False, {name: told[name] for name in SCALARS}, 0, None, None, None, None)

    def identify(self, path: PurePosixPath, found: Baseline) -> Baseline:
        """``found``, where it belongs into the folder of ``path``."""
        right = session_path(found, path.stem)
        if right != path:
            raise BaselineError(path, _misplaced(path, right, found.shape_version), f"move it to {right}")
        return found

    def ledger(self, digest: str) -> Ledger:
        """A stored ledger. Raises BaselineError."""
        return self._hashed(ledger_path(digest), Ledger)

    def calibrations(self, group: PurePosixPath) -> list[PurePosixPath]:
        """The stored calibrations of one workload, class and environment, as their names tell."""
        return self.sessions(group / CALIBRATION)

    def calibration(self, path: PurePosixPath) -> Calibration:
        """One stored calibration. Raises BaselineError where it is not what its name and folder say."""
        found = self._hashed(path, Calibration)
        if (right := calibration_path(found, path.stem)) != path:
            raise BaselineError(path, "lies in the folder of another class or environment", f"move it to {right}")
        return found

    def anchor(self, workload: str, variant: str, node_class: str) -> Anchor | None:
        """The anchor of a class, None where there is none. Raises BaselineError."""
        path = class_folder(workload, variant, node_class) / ANCHOR
        return self.read_anchor(path) if (self.root / path).exists() else None

    def read_anchor(self, path: PurePosixPath) -> Anchor:
        """The anchor in ``path``. Raises BaselineError."""
        data = self._bytes(path)
        if _CONFLICT.search(data):
            raise BaselineError(
                path,
                "holds a conflict of two anchors",
                "decide which commit it is, take that side (git checkout --ours or --theirs), "
                "or move it on with 'regbot baseline anchor'",
            )
        anchor = _parse(path, data, Anchor, "write it again with 'regbot baseline anchor'")
        if anchor_path(anchor) != path:
            raise BaselineError(path, "lies in the folder of another class", f"move it to {anchor_path(anchor)}")
        return anchor

    # ---- writing

    def add(self, baselines: Sequence[Baseline], ledgers: Mapping[str, Ledger]) -> list[PurePosixPath]:
        """Store sessions and the ledgers that they name; where each lies, also if it was stored before.

        All of it is on the disk when this returns. Raises BaselineError where another content of the same session is
        stored, OSError where there is no room; a part may then be stored, and adding again completes it.
        """
        new: dict[PurePosixPath, dict[str, _New]] = {}
        with self._writing():
            paths = [self._known(baseline) or self._new(baseline, new) for baseline in baselines]
            for digest, ledger in ledgers.items():
                text = ledger.to_json().encode()
                if hashlib.sha256(text).hexdigest() != digest:
                    raise ValueError(f"{digest} is not the hash of its ledger")
                self._put(ledger_path(digest), text)
            if ledgers:  # on the disk before a session that names one is
                _sync_folder(self.root / LEDGERS)
            for folder in {path.parent: None for path in paths}:
                added = [*new.get(folder, {}).values()]
                for each in added:
                    self._put(each.path, each.text)
                _sync_folder(self.root / folder)
                self.index.add(folder, (row_of(each.path.name, each.baseline) for each in added))
        return paths

    def remove(self, path: PurePosixPath) -> None:
        """Take a stored session away, because another of the same run replaces it. Raises OSError."""
        with self._writing():
            (self.root / path).unlink(missing_ok=True)
            _sync_folder((self.root / path).parent)

    def add_calibration(self, calibration: Calibration) -> PurePosixPath:
        """Store a calibration; where it lies. Raises BaselineError, OSError."""
        text = calibration.to_json().encode()
        path = calibration_path(calibration, hashlib.sha256(text).hexdigest())
        with self._writing():
            self._place(path, text)
        return path

    def move_anchor(self, anchor: Anchor) -> PurePosixPath:
        """Write an anchor; ``previous`` becomes the commit that is there. Raises BaselineError, OSError."""
        path = anchor_path(anchor)
        with self._writing():
            before = self.anchor(anchor.workload, anchor.variant, anchor.node_class)
            moved = anchor.model_copy(update={"previous": before.commit if before else None})
            self._place(path, moved.to_json().encode())
        return path

    def _known(self, baseline: Baseline) -> PurePosixPath | None:
        """Where the session of ``baseline`` lies already, whoever stored it."""
        for path in self.index.holding(session_path(baseline, "").parent, baseline.session):
            if (self.root / path).exists():
                return _same(path, self.session(path), baseline)
        return None

    def _new(self, baseline: Baseline, new: dict[PurePosixPath, dict[str, _New]]) -> PurePosixPath:
        """Where ``baseline`` is to lie. What is to be written joins ``new``, by folder and session."""
        text = baseline.to_json().encode()
        path = session_path(baseline, hashlib.sha256(text).hexdigest())
        first = new.setdefault(path.parent, {}).setdefault(baseline.session, _New(path, baseline, text))
        return path if first.baseline is baseline else _same(first.path, first.baseline, baseline)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Alone on this machine: what lies in ``.incoming`` then was left by a writer that is gone."""
        incoming = self.root / INCOMING
        self.root.parent.mkdir(parents=True, exist_ok=True)
        _make_folder(incoming, self.root)
        with FileLock(incoming / "lock", timeout=LOCK_TIMEOUT_S, poll_interval=LOCK_POLL_S):
            for entry in os.scandir(incoming):
                if entry.name not in ("lock", ".gitignore"):
                    Path(entry).unlink()
            for path, text in (
                (PurePosixPath(INCOMING, ".gitignore"), "*\n"),
                (PurePosixPath(ATTRIBUTES), ATTRIBUTES_TEXT),
            ):
                if not (self.root / path).exists():
                    self._place(path, text.encode())
            yield

    def _place(self, path: PurePosixPath, data: bytes) -> None:
        """``data`` in ``path``, whole and on the disk, or not at all."""
        self._put(path, data)
        _sync_folder((self.root / path).parent)

    def _put(self, path: PurePosixPath, data: bytes) -> None:
        """``data`` in ``path``, whole or not at all. It stays there once its folder has been synced."""
        target = self.root / path
        _make_folder(target.parent, self.root)
        if not _holds(target, data):
            descriptor, temporary = tempfile.mkstemp(dir=self.root / INCOMING)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).chmod(0o644)
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise

    # ---- files

    def _names(self, group: PurePosixPath) -> list[str]:
        """Of the files of the stored sessions in one folder."""
        return sorted(entry.name for entry in self._entries(group) if HASHED.fullmatch(entry.name))

    def _entries(self, at: PurePosixPath) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / at) as entries:
                return [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            return []

    def _bytes(self, path: PurePosixPath) -> bytes:
        try:
            return read_capped(self.root / path, MAX_RECORD_BYTES)
        except RecordError as error:
            raise BaselineError(path, str(error).removeprefix(f"{self.root / path}: "), RESTORE) from error

    def _hashed(self, path: PurePosixPath, model: type[R]) -> R:
        """The record in a file that is named after its hash. Tells how it came not to be one."""
        data = self._bytes(path)
        if _CONFLICT.search(data):
            raise BaselineError(
                path, "holds conflict markers, and two versions of a file that never changes cannot be", RESTORE
            )
        if hashlib.sha256(data).hexdigest() == path.stem:
            return _parse(path, data, model, "store it again with the regbot that you use")
        if not data.rstrip().endswith(b"}"):
            raise BaselineError(path, f"is truncated after {len(data):,} bytes", RESTORE)
        raise BaselineError(path, "was edited: its content is not the one that its name is the hash of", RESTORE)


def _same(path: PurePosixPath, found: Baseline, baseline: Baseline) -> PurePosixPath:
    """``path``, which holds ``found``, where ``baseline`` is the same but for who stored it. Raises BaselineError."""
    if found.model_copy(update={"provenance": baseline.provenance}) != baseline:
        raise BaselineError(
            path,
            f"holds the same session of {baseline.measured} with {len(found.runs)} runs, and this has "
            f"{len(baseline.runs)}",
            "delete it, then add the session again",
        )
    return path


def digest_of(record: Record) -> str:
    """The hash that a record's file is named after."""
    return hashlib.sha256(record.to_json().encode()).hexdigest()


def _parse(path: PurePosixPath, data: bytes, model: type[R], fix: str) -> R:
    if not data.strip():
        raise BaselineError(path, "is empty", RESTORE)
    expected = model.model_fields["schema_id"].default
    try:
        document = parse_json(data, "it")
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != expected:
            raise BaselineError(path, f"is of schema {str(schema)[:80]!r}, and {expected!r} is read here", fix)
        return parse_record(data, model, "it")
    except BaselineError:
        raise
    except RecordError as error:
        raise BaselineError(path, str(error).removeprefix("it: "), fix) from error


def _misplaced(path: PurePosixPath, right: PurePosixPath, version: int) -> str:
    """In what the folder of ``path`` is not that of its content."""
    (workload, *rest), (own, *own_rest) = path.parts, right.parts
    if len(rest) == len(own_rest):
        if workload != own:
            of_folder = workload.rpartition("@")
            if own.rpartition("@")[0] == of_folder[0]:
                return f"is of shape version {version} in the folder of version {of_folder[2]}"
            return "lies in the folder of another workload"
        return "lies in the folder of another " + ("node class" if rest[0] != own_rest[0] else "environment")
    return "lies outside the folder of its workload, class and environment"


def _holds(target: Path, data: bytes) -> bool:
    try:
        return not target.is_symlink() and target.read_bytes() == data
    except OSError:
        return False


def _make_folder(folder: Path, root: Path) -> None:
    """``folder`` and those above it, each named on the disk by the one above."""
    if folder.is_dir():
        return
    missing = [each for each in (folder, *folder.parents) if each.is_relative_to(root) and not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    """Names in a folder are on the disk only when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
