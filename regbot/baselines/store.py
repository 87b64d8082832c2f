"""The store: a folder of immutable text files, each named after the hash of its bytes, and one anchor per class.

Only anchors ever change. Therefore branches that add sessions merge without conflict, and branches that move the same
anchor conflict. When ``add`` returns, its files are on the disk: each file is written to a temporary file, synced and
renamed, and the folder of the file is synced. If a writer is interrupted, it leaves a file in ``.incoming``. git
ignores this folder, and the next writer removes the file. A lock serialises the writers of one machine.

Readers take no lock. Only this module reads files of the store. A file whose content does not match its name and folder
is never used.

A *class folder* is the folder of one workload and node class. Each of its files has one ``Baseline`` record: one stored
session. All paths are relative to the store.
"""

import hashlib
import os
import re
import tempfile
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
from regbot.records.files import MAX_RECORD_BYTES, RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger
from regbot.records.text.clip import clip

INCOMING = ".incoming"
ATTRIBUTES = ".gitattributes"
ATTRIBUTES_TEXT = "* -text\n"
"""Content of ``.gitattributes``. It keeps git from changing line ends, because the name of a file is the hash of its
bytes.
"""

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
        return self.check_location(path, self._read_hashed(path, Baseline))

    def check_location(self, path: PurePosixPath, baseline: Baseline) -> Baseline:
        """Return ``baseline``. Raises BaselineError if ``path`` is not the path at which its content must be stored."""
        expected_path = session_path(baseline, path.stem)
        if expected_path != path:
            raise BaselineError(
                path, _describe_misplacement(path, expected_path, baseline.shape_version), f"move it to {expected_path}"
            )
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
        if (expected_path := calibration_path(calibration, path.stem)) != path:
            raise BaselineError(path, "is in the folder of another class", f"move it to {expected_path}")
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
            raise BaselineError(
                path,
                "has a merge conflict of two anchors",
                "choose a commit, take that side (git checkout --ours or --theirs), "
                "or set the anchor with 'regbot baseline anchor'",
            )
        anchor = _parse(path, data, Anchor, "write it again with 'regbot baseline anchor'")
        if anchor_path(anchor) != path:
            raise BaselineError(path, "is in the folder of another class", f"move it to {anchor_path(anchor)}")
        if _seal(anchor).to_json().encode() != data:
            raise BaselineError(path, "was edited: its digest is not that of its content", RESTORE)
        return anchor

    # ---- writing

    def add(self, baselines: Sequence[Baseline], ledgers: Mapping[str, Ledger]) -> list[PurePosixPath]:
        """Store sessions and their ledgers. Return the path of each session, also of those that were stored before.

        Each of ``baselines`` is the record of one session. The keys of ``ledgers`` are their hashes. Everything is on
        the disk when this function returns. Raises BaselineError if the same session is stored with other content,
        OSError if the disk is full. After an error, some of the files may be stored. Calling ``add`` again stores the
        rest.
        """
        known: dict[PurePosixPath, dict[str, tuple[PurePosixPath, Baseline]]] = {}
        paths: list[PurePosixPath] = []
        texts: dict[PurePosixPath, bytes] = {}
        with self._write_lock():
            for baseline in baselines:
                text = baseline.to_json().encode()
                path = session_path(baseline, hashlib.sha256(text).hexdigest())
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
                    texts[path] = text
                    paths.append(path)
            for digest, ledger in ledgers.items():
                text = ledger.to_json().encode()
                if hashlib.sha256(text).hexdigest() != digest:
                    raise ValueError(f"{digest} is not the hash of its ledger")
                self._write_file(ledger_path(digest), text)
            if ledgers:  # ledgers must be on the disk before the sessions that name them
                _sync_folder(self.root / LEDGERS)
            for path, text in texts.items():
                self._write_file(path, text)
            # Also sync folders that get no new session: an interrupted earlier call may not have synced them.
            for folder in known:
                _sync_folder(self.root / folder)
        return paths

    def remove(self, path: PurePosixPath) -> None:
        """Remove a stored session. An example is a session that was held back from the rolling reference, and that will
        be stored again because a person has accepted its slowdown.

        Raises OSError.
        """
        with self._write_lock():
            (self.root / path).unlink(missing_ok=True)
            _sync_folder((self.root / path).parent)

    def add_calibration(self, calibration: Calibration) -> PurePosixPath:
        """Store a calibration and return its path. Raises BaselineError, OSError."""
        text = calibration.to_json().encode()
        path = calibration_path(calibration, hashlib.sha256(text).hexdigest())
        with self._write_lock():
            self._write_synced(path, text)
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
            self._write_synced(path, _seal(new_anchor).to_json().encode())
        return path

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Lock the store against other writers on this machine.

        Also remove the files that interrupted writers left in ``.incoming``. Write ``.gitattributes``, and the
        ``.gitignore`` of ``.incoming``, if they are missing.
        """
        incoming = self.root / INCOMING
        self.root.parent.mkdir(parents=True, exist_ok=True)
        _make_folder(incoming, self.root)
        with FileLock(incoming / "lock", timeout=LOCK_TIMEOUT_S, poll_interval=LOCK_POLL_S):
            for file in os.scandir(incoming):
                if file.name not in ("lock", ".gitignore"):
                    Path(file).unlink()
            for path, text in (
                (PurePosixPath(INCOMING, ".gitignore"), "*\n"),
                (PurePosixPath(ATTRIBUTES), ATTRIBUTES_TEXT),
            ):
                if not (self.root / path).exists():
                    self._write_synced(path, text.encode())
            yield

    def _write_synced(self, path: PurePosixPath, data: bytes) -> None:
        self._write_file(path, data)
        _sync_folder((self.root / path).parent)

    def _write_file(self, path: PurePosixPath, data: bytes) -> None:
        """Write ``data`` to ``path`` atomically. The file is durable only after its folder is synced."""
        target = self.root / path
        _make_folder(target.parent, self.root)
        if not _has_content(target, data):
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

    def _list_items(self, folder: PurePosixPath) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as items:
                return [item for item in items if not item.name.startswith(".")]
        except FileNotFoundError:
            return []

    def _read_bytes(self, path: PurePosixPath) -> bytes:
        """Return the content of a file. Raises BaselineError if it cannot be read or is too large."""
        try:
            return read_capped(self.root / path, MAX_RECORD_BYTES)
        except RecordError as error:
            raise BaselineError(path, str(error).removeprefix(f"{self.root / path}: "), RESTORE) from error

    def _read_hashed(self, path: PurePosixPath, model: type[R]) -> R:
        """Read a record from a file that is named after its hash. Raises BaselineError if the hash differs."""
        data = self._read_bytes(path)
        _check_hash(path, data)
        return _parse(path, data, model, "store it again with your version of regbot")


def _check_hash(path: PurePosixPath, data: bytes) -> None:
    """Raise BaselineError if a file is not named after the hash of its content, ``data``.

    The likely causes are told apart: a merge conflict, a truncated file, and an edit.
    """
    if hashlib.sha256(data).hexdigest() == path.stem:
        return
    if _CONFLICT.search(data):
        raise BaselineError(path, "has conflict markers, although stored files never change", RESTORE)
    if not data.rstrip().endswith(b"}"):
        raise BaselineError(path, f"is truncated after {len(data):,} bytes", RESTORE)
    raise BaselineError(path, "was edited: its name is not the hash of its content", RESTORE)


def _same_session_path(path: PurePosixPath, stored: Baseline, baseline: Baseline) -> PurePosixPath:
    """Return ``path`` if ``stored`` and ``baseline`` have the same content. Raises BaselineError otherwise.

    A different provenance is ignored.
    """
    if stored.model_copy(update={"provenance": baseline.provenance}) != baseline:
        raise BaselineError(
            path,
            f"has the same session of {baseline.measured} with {len(stored.runs)} runs, and the new one has "
            f"{len(baseline.runs)}",
            "delete it, then add the session again",
        )
    return path


def _seal(anchor: Anchor) -> Anchor:
    bare = anchor.model_copy(update={"digest": None})
    return bare.model_copy(update={"digest": record_digest(bare)})


def record_digest(record: Record) -> str:
    return hashlib.sha256(record.to_json().encode()).hexdigest()


def _parse(path: PurePosixPath, data: bytes, model: type[R], advice: str) -> R:
    """Return the record of type ``model`` in ``data``, the content of ``path``.

    Raises BaselineError with ``advice`` if the content is of another schema or invalid.
    """
    if not data.strip():
        raise BaselineError(path, "is empty", RESTORE)
    expected_schema = model.model_fields["schema_id"].default
    try:
        document = parse_json(data, "it")  # "it" stands for the file in errors and is removed below
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != expected_schema:
            problem = f"is of schema {clip(str(schema), 80)!r}, but must be {expected_schema!r}"
            raise BaselineError(path, problem, advice)
        return parse_record(data, model, "it")
    except BaselineError:
        raise
    except RecordError as error:
        raise BaselineError(path, str(error).removeprefix("it: "), advice) from error


def _describe_misplacement(path: PurePosixPath, expected_path: PurePosixPath, version: int) -> str:
    """Describe how the folder of ``path`` differs from the folder where its content belongs."""
    if len(path.parts) != len(expected_path.parts):
        return "is outside the folder of its workload and class"
    workload, expected_workload = path.parts[0], expected_path.parts[0]
    if workload == expected_workload:
        return "is in the folder of another node class"
    name, _, folder_version = workload.rpartition("@")
    expected_name, _, _ = expected_workload.rpartition("@")
    if name == expected_name:
        return f"is of shape version {version} in the folder of version {folder_version}"
    return "is in the folder of another workload"


def _has_content(target: Path, data: bytes) -> bool:
    try:
        return not target.is_symlink() and target.read_bytes() == data
    except OSError:
        return False


def _make_folder(folder: Path, root: Path) -> None:
    if folder.is_dir():
        return
    innermost_first = [path for path in (folder, *folder.parents) if path.is_relative_to(root) and not path.is_dir()]
    for new_folder in reversed(innermost_first):
        new_folder.mkdir(exist_ok=True)
        _sync_folder(new_folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
