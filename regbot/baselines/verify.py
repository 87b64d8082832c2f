"""Verification of the store. It reads every file and reports each problem in one line: file: problem: advice.

A note is about sound content that checks no longer use.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.baselines.names import ANCHOR, CALIBRATION, LEDGERS, class_folder
from regbot.baselines.store import HASH_NAME, RESTORE, BaselineError, Store
from regbot.records.baseline import Anchor, Baseline, BaselineCheck, format_time, parse_time
from regbot.records.text.clip import clip_message, short_commit
from regbot.records.text.words import count
from regbot.workloads.shapes import ShapeError, load_shape
from regbot.workloads.shapes.model_code import MODEL_FILES, model_hash

README = "README.md"
OWN_MODEL_KEY = "reshard_after_forward"
"""A key of the configuration in the ledgers of the adapters smoke and module, and of no other adapter."""


class _StoreContent(NamedTuple):
    """Content of the store, with the problems found while reading it."""

    sessions: dict[PurePosixPath, Baseline]
    ledgers: dict[str, bool]
    """By hash: whether regbot's own model ran, the smoke model or the transformer around a user's layer."""
    anchors: list[tuple[PurePosixPath, Anchor]]
    calibrations: list[PurePosixPath]
    problems: list[str]


def verify(store: Store, now: datetime) -> BaselineCheck:
    """Read the whole store and return the result. Raises BaselineError if there is no store."""
    if not store.root.is_dir():
        raise BaselineError(store.root, "is not a folder", "give the folder of the baselines with --store")
    content = _StoreContent(sessions={}, ledgers={}, anchors=[], calibrations=[], problems=[])
    for path in _list_files(store, PurePosixPath(), content.problems):
        _read_file(store, path, content, now)
    problems = [*content.problems, *_cross_check(content)]
    notes = _note_outdated_times(content)
    return BaselineCheck(
        sessions=len(content.sessions),
        ledgers=len(content.ledgers),
        anchors=len(content.anchors),
        calibrations=len(content.calibrations),
        problems=[clip_message(problem) for problem in sorted(problems)],
        notes=[clip_message(note) for note in notes],
    )


def _read_file(store: Store, path: PurePosixPath, content: _StoreContent, now: datetime) -> None:
    """Read a file, and add it to ``content``, or add the problem. The path shows which kind of file it is.

    ``README.md`` at the top of the store is left out.
    """
    try:
        if path.parts[0] == LEDGERS:
            ledger = store.ledger(_check_ledger_name(path))
            content.ledgers[path.stem] = OWN_MODEL_KEY in ledger.config
        elif path.name == ANCHOR:
            anchor = store.read_anchor(path)
            _check_not_in_future(path, anchor.moved, now)
            content.anchors.append((path, anchor))
        elif path.parent.name == CALIBRATION:
            calibration = store.calibration(_check_session_name(path))
            _check_not_in_future(path, calibration.measured, now)
            content.calibrations.append(path)
        elif path != PurePosixPath(README):
            baseline = store.session(_check_session_name(path))
            content.sessions[path] = baseline
            _check_not_in_future(path, baseline.measured, now)
    except BaselineError as error:
        content.problems.append(str(error))


def _cross_check(content: _StoreContent) -> Iterator[str]:
    """Yield problems that no file shows alone: a missing ledger, a session that is stored twice, a shape that this
    version does not have, and an anchor without a session of its commit.
    """
    path_by_session: dict[str, PurePosixPath] = {}
    stored_commits: set[tuple[PurePosixPath, str]] = set()
    checked_folders: set[PurePosixPath] = set()
    for path, baseline in sorted(content.sessions.items()):
        if baseline.ledger is not None and baseline.ledger not in content.ledgers:
            advice = "restore it, or delete this session and add it again"
            yield str(
                BaselineError(path, f"its ledger {LEDGERS}/{baseline.ledger}.json is missing or unusable", advice)
            )
        other_path = path_by_session.setdefault(baseline.session, path)
        if other_path != path:
            yield str(BaselineError(path, f"has the same session as {other_path}", "delete one of the two"))
        folder = class_folder(baseline.workload, baseline.variant, baseline.node_class)
        stored_commits.add((folder, baseline.commit))
        workload_folder = PurePosixPath(path.parts[0])
        if workload_folder not in checked_folders and not _has_shape(baseline.workload):
            problem = "has a shape or version that this regbot does not have"
            yield str(BaselineError(workload_folder, problem, "delete it, or use a version of regbot that has it"))
        checked_folders.add(workload_folder)
    for path, anchor in content.anchors:
        if (path.parent, anchor.commit) not in stored_commits:
            advice = "add a session of it with 'regbot baseline add', or move the anchor"
            yield str(
                BaselineError(
                    path, f"no session of its commit {short_commit(anchor.commit)} is stored in this class", advice
                )
            )


def _note_outdated_times(content: _StoreContent) -> Iterator[str]:
    """Yield a note for each workload and node class whose times are all from other versions of regbot's model code.

    Checks do not compare with such times. Only workloads that run regbot's own model code are concerned.
    """
    # ``MODEL_FILES`` has the files of regbot's model code, by adapter. Other adapters run no such code.
    current_hashes = {model_hash(adapter) for adapter in MODEL_FILES}
    timed = {path: baseline for path, baseline in content.sessions.items() if baseline.tier == "timed"}
    current_folders = {
        _class_folder_of(path) for path, baseline in timed.items() if baseline.environment.model in current_hashes
    }
    outdated: dict[PurePosixPath, list[Baseline]] = {}
    for path, baseline in sorted(timed.items()):
        # ``environment.model`` is the hash of regbot's model code; None if other code ran, or in older sessions.
        is_own_model = baseline.environment.model is not None or content.ledgers.get(baseline.ledger or "", False)
        folder = _class_folder_of(path)
        if is_own_model and folder not in current_folders:
            outdated.setdefault(folder, []).append(baseline)
    for folder, baselines in outdated.items():
        calibrations = sum(_class_folder_of(path) == folder for path in content.calibrations)
        stored, workload = count(len(baselines), "session"), baselines[0].workload
        commands = f"'regbot baseline refresh --workload {workload}'"
        if calibrations:
            stored += f" and {count(calibrations, 'calibration')}"
            commands += f" and 'regbot calibrate {workload}'"
        yield (
            f"{folder}: {stored} of another version of regbot's model code: checks do not compare with them; measure "
            f"again with {commands}"
        )


def _class_folder_of(path: PurePosixPath) -> PurePosixPath:
    return PurePosixPath(*path.parts[:2])


def _list_files(store: Store, folder: PurePosixPath, problems: list[str]) -> Iterator[PurePosixPath]:
    """Yield all files in ``folder`` and its subfolders, sorted. Names that begin with a dot are left out. Links are
    added to ``problems`` and not followed.
    """
    for entry in sorted(os.scandir(store.root / folder), key=lambda dir_entry: dir_entry.name):
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            problems.append(str(BaselineError(path, "is a link", "replace it by the file itself, or delete it")))
        elif entry.is_dir():
            yield from _list_files(store, path, problems)
        else:
            yield path


def _check_ledger_name(path: PurePosixPath) -> str:
    """Return the hash in the path of a ledger. Raises BaselineError if the path is not that of a ledger."""
    is_directly_in_folder = len(path.parts) == 2  # ``ledgers`` and the name of the file
    if not is_directly_in_folder or not HASH_NAME.fullmatch(path.name):
        raise BaselineError(path, "does not have the name of a ledger", "delete it")
    return path.stem


def _check_session_name(path: PurePosixPath) -> PurePosixPath:
    """Return ``path``. Raises BaselineError if its name is not a hash."""
    if not HASH_NAME.fullmatch(path.name):
        raise BaselineError(
            path, "does not belong to the store, whose files are named after their hash", "delete or move it"
        )
    return path


def _check_not_in_future(path: PurePosixPath, written: str, now: datetime) -> None:
    if parse_time(written) > now + FUTURE_TOLERANCE:
        raise BaselineError(
            path, f"was written at {written}, and it is {format_time(now)} here: one of the clocks is wrong", RESTORE
        )


def _has_shape(workload: str) -> bool:
    shape_and_mesh = workload.rpartition(":")[2]
    shape, _, _ = shape_and_mesh.partition("/")
    try:
        load_shape(shape)
    except ShapeError:
        return False
    return True
