"""Verification of the store. It reads every file and reports each problem in one line: file: problem: advice."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.baselines.names import ANCHOR, CALIBRATION, LEDGERS
from regbot.baselines.store import HASH_NAME, RESTORE, BaselineError, Store
from regbot.records.baseline import Anchor, Baseline, BaselineCheck, format_time, parse_time
from regbot.records.calibration import Calibration
from regbot.records.text.clip import clip_message, short_commit
from regbot.workloads.shapes import ShapeError, load_shape

README = PurePosixPath("README.md")


class _StoreContent(NamedTuple):
    """Content of the store by path, with the problems found while reading it."""

    sessions: dict[PurePosixPath, Baseline]
    ledgers: set[PurePosixPath]
    anchors: dict[PurePosixPath, Anchor]
    calibrations: dict[PurePosixPath, Calibration]
    problems: list[BaselineError]


def verify(store: Store, now: datetime | None = None) -> BaselineCheck:
    """Read the whole store and report every problem. Raises BaselineError if there is no store."""
    if not store.root.is_dir():
        raise BaselineError(store.root, "is not a folder", "give the folder of the baselines with --store")
    content = _StoreContent(sessions={}, ledgers=set(), anchors={}, calibrations={}, problems=[])
    for path in _list_files(store, PurePosixPath(), content.problems):
        _read_file(store, path, content, now or datetime.now(UTC))
    problems = [str(problem) for problem in (*content.problems, *_cross_check(content))]
    return BaselineCheck(
        sessions=len(content.sessions),
        ledgers=len(content.ledgers),
        anchors=len(content.anchors),
        calibrations=len(content.calibrations),
        problems=[clip_message(problem) for problem in sorted(problems)],
    )


def _read_file(store: Store, path: PurePosixPath, content: _StoreContent, now: datetime) -> None:
    """Read a file, and add it to ``content``, or add the problem. The path shows which kind of file it is."""
    try:
        if path.name == ANCHOR:
            content.anchors[path] = store.read_anchor(path)
            _check_not_in_future(path, content.anchors[path].moved, now)
        elif not HASH_NAME.fullmatch(path.name):
            if path != README:
                problem = "does not belong to the store, whose files are named after their hash"
                raise BaselineError(path, problem, "delete or move it")
        elif path.parent == PurePosixPath(LEDGERS):
            store.ledger(path.stem)
            content.ledgers.add(path)
        elif path.parent.name == CALIBRATION:
            content.calibrations[path] = store.calibration(path)
            _check_not_in_future(path, content.calibrations[path].measured, now)
        else:
            content.sessions[path] = store.session(path)
            _check_not_in_future(path, content.sessions[path].measured, now)
    except BaselineError as error:
        content.problems.append(error)


def _cross_check(content: _StoreContent) -> Iterator[BaselineError]:
    """Yield problems that no file shows alone: a missing ledger, a session that is stored twice, a shape that this
    version does not have, and an anchor without a session of its commit.
    """
    path_by_session: dict[str, PurePosixPath] = {}
    stored_commits: set[tuple[PurePosixPath, str]] = set()
    checked_folders: set[PurePosixPath] = set()
    for path, baseline in sorted(content.sessions.items()):
        ledger_path = PurePosixPath(LEDGERS, f"{baseline.ledger}.json")
        if baseline.ledger is not None and ledger_path not in content.ledgers:
            advice = "restore it, or delete this session and add it again"
            yield BaselineError(path, f"its ledger {ledger_path} is missing or unusable", advice)
        other_path = path_by_session.setdefault(baseline.session, path)
        if other_path != path:
            yield BaselineError(path, f"has the same session as {other_path}", "delete one of the two")
        stored_commits.add((path.parent, baseline.commit))
        workload_folder = path.parents[1]
        if workload_folder not in checked_folders and not _has_shape(baseline.workload):
            problem = "has a shape or version that this regbot does not have"
            yield BaselineError(workload_folder, problem, "delete it, or use a version of regbot that has it")
        checked_folders.add(workload_folder)
    for path, anchor in content.anchors.items():
        if (path.parent, anchor.commit) not in stored_commits:
            problem = f"no session of its commit {short_commit(anchor.commit)} is stored in this class"
            yield BaselineError(path, problem, "add a session of it with 'regbot baseline add', or move the anchor")


def _list_files(store: Store, folder: PurePosixPath, problems: list[BaselineError]) -> Iterator[PurePosixPath]:
    """Yield all files in ``folder`` and its subfolders, sorted. Names that begin with a dot are left out. Links are
    added to ``problems`` and not followed.
    """
    for entry in sorted(os.scandir(store.root / folder), key=lambda dir_entry: dir_entry.name):
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            problems.append(BaselineError(path, "is a link", "replace it by the file itself, or delete it"))
        elif entry.is_dir():
            yield from _list_files(store, path, problems)
        else:
            yield path


def _check_not_in_future(path: PurePosixPath, written: str, now: datetime) -> None:
    if parse_time(written) > now + FUTURE_TOLERANCE:
        problem = f"was written at {written}, and it is {format_time(now)} here: one of the clocks is wrong"
        raise BaselineError(path, problem, RESTORE)


def _has_shape(workload: str) -> bool:
    shape_and_mesh = workload.rpartition(":")[2]
    try:
        load_shape(shape_and_mesh.partition("/")[0])
    except ShapeError:
        return False
    return True
