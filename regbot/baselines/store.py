"""The store: a folder of immutable text files, each named after the hash of its bytes, and one anchor per class.

Only anchors ever change. Therefore branches that add sessions merge without conflict, and branches that move the same
anchor conflict. Each file is written to a temporary file, synced and renamed. The temporary file of a killed writer
begins with a dot, so no reader takes it, and git ignores it. A lock serialises the writers of one machine.

Readers take no lock. Only this module reads files of the store. A file whose content does not match its name and folder
is never used.

A *class folder* is the folder of one workload and node class. Each of its files has one ``Baseline`` record: one stored
session. All paths are relative to the store.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

from filelock import FileLock

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
from regbot.records.files import RecordError, parse_record, read_capped, write_record, write_text
from regbot.records.ledger import Ledger

ATTRIBUTES = ".gitattributes"
GIT_FILES = {ATTRIBUTES: "* -text\n", ".gitignore": ".*\n!.git*\n"}
"""Files for git, by name. git must not change line ends, because the name of a file is the hash of its bytes. It
ignores the lock and temporary files."""

LOCK_TIMEOUT_S, LOCK_POLL_S = 120.0, 0.01

RESTORE = "restore it from the commit that added it (git log --diff-filter=A), or delete it and add the session again"
HASH_NAME = re.compile(r"[0-9a-f]{64}\.json")
_CONFLICT = re.compile(rb"^(<{7}|={7}|>{7})( |\r?$)", re.MULTILINE)

R = TypeVar("R", bound=Record)


class BaselineError(RecordError):
    """A file of the store, or content to store, is unusable. The text is one line: file: problem: advice."""

    def __init__(self, file: object, problem: str, advice: str) -> None:
        super().__init__(f"{file}: {problem}", advice)

    def __str__(self) -> str:
        return f"{self.message}: {self.advice}"


class Store:
    """The stored references under ``root``, which may not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # ---- reading

    def class_folders(self, workload_folder: str | None = None) -> list[PurePosixPath]:
        root_folder = PurePosixPath()
        parents = [root_folder / workload_folder] if workload_folder else self.folders(root_folder)
        return [folder for parent in parents if str(parent) != LEDGERS for folder in self.folders(parent)]

    def folders(self, parent: PurePosixPath) -> list[PurePosixPath]:
        """Return the folders in ``parent``, sorted; [] if ``parent`` does not exist. Links are not followed."""
        return sorted(parent / item.name for item in self._list_items(parent) if item.is_dir(follow_symlinks=False))

    def sessions(self, folder: PurePosixPath) -> list[PurePosixPath]:
        """Return the paths of the stored sessions in one folder, sorted by name. The files are not read."""
        names = sorted(item.name for item in self._list_items(folder) if HASH_NAME.fullmatch(item.name))
        return [folder / name for name in names]

    def read_sessions(self, folder: PurePosixPath) -> dict[PurePosixPath, Baseline]:
        """Return the stored sessions of a class folder by path, oldest first. Raises BaselineError if one of them is
        unusable, because a reference with gaps is unusable."""
        sessions = {path: self.session(path) for path in self.sessions(folder)}
        return dict(sorted(sessions.items(), key=lambda item: (item[1].measured, item[1].session)))

    def session(self, path: PurePosixPath) -> Baseline:
        """Read a stored session. Raises BaselineError if its content does not match its name and folder."""
        baseline = self._read_hashed(path, Baseline)
        _check_location(path, session_path(baseline, path.stem))
        return baseline

    def ledger(self, digest: str) -> Ledger:
        """Read a stored ledger. Raises BaselineError."""
        return self._read_hashed(ledger_path(digest), Ledger)

    def calibrations(self, folder: PurePosixPath) -> list[PurePosixPath]:
        """Return the paths of the stored calibrations of one workload and class, sorted by name."""
        return self.sessions(folder / CALIBRATION)

    def calibration(self, path: PurePosixPath) -> Calibration:
        """Read a stored calibration. Raises BaselineError if its content does not match its name and folder."""
        calibration = self._read_hashed(path, Calibration)
        _check_location(path, calibration_path(calibration, path.stem))
        return calibration

    def anchor(self, workload: str, variant: str, node_class: str) -> Anchor | None:
        """Return the anchor of a variant and node class; None if there is no anchor. Raises BaselineError."""
        path = class_folder(workload, variant, node_class) / ANCHOR
        if not (self.root / path).exists():
            return None
        anchor = self.read_anchor(path)
        if anchor.node_class != node_class:  # two classes whose names differ only in punctuation
            problem = f"is the anchor of {anchor.node_class!r}, whose folder has the name of that of {node_class!r}"
            raise BaselineError(path, problem, "delete it, and set it again for one of the two")
        return anchor

    def read_anchor(self, path: PurePosixPath) -> Anchor:
        """Read the anchor in ``path``. Raises BaselineError."""
        data = self._read_bytes(path)
        if _CONFLICT.search(data):
            advice = "choose a commit, take that side (git checkout --ours or --theirs), or set the anchor"
            raise BaselineError(path, "has a merge conflict of two anchors", f"{advice} with 'regbot baseline anchor'")
        anchor = _parse(path, data, Anchor, "write it again with 'regbot baseline anchor'")
        _check_location(path, anchor_path(anchor))
        if _seal(anchor).to_json().encode() != data:
            raise BaselineError(path, "was edited: its digest is not that of its content", RESTORE)
        return anchor

    # ---- writing

    def add(self, baselines: Sequence[Baseline], ledgers: Mapping[str, Ledger]) -> list[PurePosixPath]:
        """Store sessions and their ledgers. Return the path of each session, also of those that were stored before.

        Each of ``baselines`` is the record of one session. The keys of ``ledgers`` are their hashes. Raises
        BaselineError if the same session is stored with other content, OSError if the disk is full. After an error,
        some of the files may be stored. Calling ``add`` again stores the rest.
        """
        known: dict[PurePosixPath, dict[str, tuple[PurePosixPath, Baseline]]] = {}
        paths: list[PurePosixPath] = []
        texts: dict[PurePosixPath, str] = {}
        with self._write_lock():
            for baseline in baselines:
                path = session_path(baseline, record_digest(baseline))
                if path.parent not in known:
                    stored = self.read_sessions(path.parent)
                    known[path.parent] = {session.session: (at, session) for at, session in stored.items()}
                sessions = known[path.parent]
                if baseline.session in sessions:
                    # Another user may have stored the session. The file then has another name, because its content
                    # names that user and so has another hash.
                    paths.append(_same_session_path(*sessions[baseline.session], baseline))
                else:
                    sessions[baseline.session] = path, baseline
                    texts[path] = baseline.to_json()
                    paths.append(path)
            for digest, ledger in ledgers.items():  # before the sessions that name them
                if record_digest(ledger) != digest:
                    raise ValueError(f"{digest} is not the hash of its ledger")
                write_record(self.root / ledger_path(digest), ledger)
            for path, text in texts.items():
                write_text(self.root / path, text)
        return paths

    def remove(self, path: PurePosixPath) -> None:
        """Remove a stored session. An example is a session that was held back from the rolling reference, and that will
        be stored again because a person has accepted its slowdown.

        Raises OSError.
        """
        with self._write_lock():
            (self.root / path).unlink(missing_ok=True)

    def add_calibration(self, calibration: Calibration) -> PurePosixPath:
        """Store a calibration and return its path. Raises BaselineError, OSError."""
        path = calibration_path(calibration, record_digest(calibration))
        with self._write_lock():
            write_record(self.root / path, calibration)
        return path

    def move_anchor(self, anchor: Anchor) -> PurePosixPath:
        """Replace the anchor of a variant and node class, and return the path of the new anchor.

        The field ``previous`` of the new anchor becomes the commit of the present anchor. Raises BaselineError,
        OSError.
        """
        path = anchor_path(anchor)
        with self._write_lock():
            present = self.anchor(anchor.workload, anchor.variant, anchor.node_class)
            new_anchor = anchor.model_copy(update={"previous": present.commit if present else None})
            write_record(self.root / path, _seal(new_anchor))
        return path

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Lock the store against other writers on this machine, and write the files for git if they are missing."""
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / ".lock", timeout=LOCK_TIMEOUT_S, poll_interval=LOCK_POLL_S):
            for name, text in GIT_FILES.items():
                if not (self.root / name).exists():
                    write_text(self.root / name, text)
            yield

    # ---- files

    def _list_items(self, folder: PurePosixPath) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as items:
                return [item for item in items if not item.name.startswith(".")]
        except FileNotFoundError:
            return []

    def _read_bytes(self, path: PurePosixPath) -> bytes:
        """Return the content of a file. Raises BaselineError if it cannot be read or is too large."""
        try:
            return read_capped(self.root / path)
        except RecordError as error:
            raise BaselineError(path, str(error).removeprefix(f"{self.root / path}: "), RESTORE) from error

    def _read_hashed(self, path: PurePosixPath, model: type[R]) -> R:
        """Read a record from a file that is named after its hash. Raises BaselineError if the hash differs."""
        data = self._read_bytes(path)
        _check_hash(path, data)
        return _parse(path, data, model, "store it again with your version of regbot")


def _check_hash(path: PurePosixPath, data: bytes) -> None:
    """Raise BaselineError if a file is not named after the hash of its content, ``data``.

    A merge conflict is told apart from other damage.
    """
    if hashlib.sha256(data).hexdigest() == path.stem:
        return
    if _CONFLICT.search(data):
        raise BaselineError(path, "has conflict markers, although stored files never change", RESTORE)
    raise BaselineError(path, "was edited or cut off: its name is not the hash of its content", RESTORE)


def _check_location(path: PurePosixPath, expected_path: PurePosixPath) -> None:
    """Raise BaselineError if a file is not in the folder where its content belongs."""
    if path != expected_path:
        problem = "is in the folder of another workload, version or class"
        raise BaselineError(path, problem, f"move it to {expected_path}")


def _same_session_path(path: PurePosixPath, stored: Baseline, baseline: Baseline) -> PurePosixPath:
    """Return ``path`` if ``stored`` and ``baseline`` have the same content. Raises BaselineError otherwise.

    A different provenance is ignored.
    """
    if stored.model_copy(update={"provenance": baseline.provenance}) != baseline:
        stored_session = f"has the same session of {baseline.measured} with {len(stored.runs)} runs"
        problem = f"{stored_session}, and the new one has {len(baseline.runs)}"
        raise BaselineError(path, problem, "delete it, then add the session again")
    return path


def _seal(anchor: Anchor) -> Anchor:
    bare = anchor.model_copy(update={"digest": None})
    return bare.model_copy(update={"digest": record_digest(bare)})


def record_digest(record: Record) -> str:
    return hashlib.sha256(record.to_json().encode()).hexdigest()


def _parse(path: PurePosixPath, data: bytes, model: type[R], advice: str) -> R:
    """Return the record of type ``model`` in ``data``, the content of ``path``. Raises BaselineError."""
    try:
        return parse_record(data, model, "it")
    except RecordError as error:
        raise BaselineError(path, str(error).removeprefix("it: "), advice) from error
