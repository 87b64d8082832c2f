"""Is the store what it says it is? Every file is read, and every problem is one line: file: what: what to do."""

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.baselines.names import ANCHOR, CALIBRATION, LEDGERS
from regbot.baselines.store import HASHED, RESTORE, BaselineError, Store
from regbot.records.baseline import Anchor, Baseline, BaselineCheck, moment, utc
from regbot.shapes import ShapeError, load_shape

README = "README.md"
CPU_PROGRAM = "dispatch-mode"
"""The source of a ledger that was counted in a CPU program."""
_MESSAGE = 4000


class _Found(NamedTuple):
    """What was read so far, and what could not be."""

    sessions: dict[PurePosixPath, Baseline]
    ledgers: dict[str, str]
    """Their source by their hash."""
    anchors: list[tuple[PurePosixPath, Anchor]]
    calibrations: list[PurePosixPath]
    problems: list[str]


def verify(store: Store, now: datetime) -> BaselineCheck:
    """Read the whole store. Raises BaselineError where there is none."""
    if not store.root.is_dir():
        raise BaselineError(store.root, "is not a folder", "give the folder of the baselines with --store")
    found = _Found({}, {}, [], [], [])
    for path in _files(store, PurePosixPath(), found.problems):
        _read(store, path, found, now)
    problems = [*found.problems, *_across(found)]
    return BaselineCheck(
        sessions=len(found.sessions),
        ledgers=len(found.ledgers),
        anchors=len(found.anchors),
        calibrations=len(found.calibrations),
        problems=[problem[:_MESSAGE] for problem in sorted(problems)],
        notes=[note[:_MESSAGE] for note in _outdated(found)],
    )


def _read(store: Store, path: PurePosixPath, found: _Found, now: datetime) -> None:
    try:
        if path.parts[0] == LEDGERS:
            found.ledgers[path.stem] = store.ledger(_ledger_name(path)).source
        elif path.name == ANCHOR:
            anchor = store.read_anchor(path)
            _in_time(path, anchor.moved, now)
            found.anchors.append((path, anchor))
        elif path.parent.name == CALIBRATION:
            _in_time(path, store.calibration(_session_name(path)).measured, now)
            found.calibrations.append(path)
        elif path != PurePosixPath(README):
            baseline = store.session(_session_name(path))
            found.sessions[path] = baseline
            _in_time(path, baseline.measured, now)
    except BaselineError as error:
        found.problems.append(str(error))


def _across(read: _Found) -> Iterator[str]:
    """What no file shows by itself."""
    seen: dict[str, PurePosixPath] = {}
    commits: set[tuple[PurePosixPath, str]] = set()
    versions: set[PurePosixPath] = set()
    for path, found in sorted(read.sessions.items()):
        if found.ledger is not None and found.ledger not in read.ledgers:
            fix = "restore it, or delete this session and add it again"
            yield str(BaselineError(path, f"its ledger {LEDGERS}/{found.ledger}.json is missing or unusable", fix))
        if (first := seen.setdefault(found.session, path)) != path:
            yield str(BaselineError(path, f"holds the same session as {first}", "delete one of the two"))
        commits.add((path.parent.parent, found.commit))
        top = PurePosixPath(path.parts[0])
        if top not in versions and not _shape_is_here(found.workload):
            what = "is of a shape or version that this regbot does not have"
            yield str(BaselineError(top, what, "delete it, or use the regbot that has it"))
        versions.add(top)
    for path, anchor in read.anchors:
        if (path.parent, anchor.commit) not in commits:
            fix = "add a session of it with 'regbot baseline add', or move the anchor"
            yield str(
                BaselineError(path, f"no session of its commit {anchor.commit[:12]} is stored in this class", fix)
            )


def _outdated(read: _Found) -> Iterator[str]:
    """The newest trace of a workload, where it is of a CPU program: a trace on a paper GPU is not compared with it."""
    newest: dict[str, PurePosixPath] = {}
    for path, baseline in read.sessions.items():
        last = newest.get(path.parts[0])
        if baseline.tier == "static" and (last is None or read.sessions[last].measured < baseline.measured):
            newest[path.parts[0]] = path
    for path in sorted(newest.values()):
        if read.ledgers.get(read.sessions[path].ledger or "") == CPU_PROGRAM:
            yield (
                f"{path}: was traced as a CPU program; checks of the adapters smoke and module trace on a paper GPU "
                "and do not compare with it: replace it with 'regbot baseline refresh', or set device = 'cpu'"
            )


def _files(store: Store, at: PurePosixPath, problems: list[str]) -> Iterator[PurePosixPath]:
    """All files but those whose names begin with a dot. Links are told of and not followed."""
    for entry in sorted(os.scandir(store.root / at), key=lambda each: each.name):
        path = at / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            problems.append(str(BaselineError(path, "is a link", "put the file itself there, or delete it")))
        elif entry.is_dir():
            yield from _files(store, path, problems)
        else:
            yield path


def _ledger_name(path: PurePosixPath) -> str:
    if len(path.parts) != 2 or not HASHED.fullmatch(path.name):
        raise BaselineError(path, "is no ledger by its name", "delete it")
    return path.stem


def _session_name(path: PurePosixPath) -> PurePosixPath:
    if not HASHED.fullmatch(path.name):
        raise BaselineError(path, "is no part of a store: files are named after their hash", "delete or move it")
    return path


def _in_time(path: PurePosixPath, written: str, now: datetime) -> None:
    if moment(written) > now + FUTURE_TOLERANCE:
        raise BaselineError(path, f"is of {written}, and it is {utc(now)} here: one of the clocks is wrong", RESTORE)


def _shape_is_here(workload: str) -> bool:
    try:
        load_shape(workload.rpartition(":")[2].partition("/")[0])
    except ShapeError:
        return False
    return True
