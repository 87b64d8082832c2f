"""Read sessions and files of the store for a refresh, and remove held-back sessions that are now accepted."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from regbot.baselines import Store
from regbot.baselines.names import ANCHOR, session_path
from regbot.baselines.store import ATTRIBUTES
from regbot.records.baseline import Baseline


def timed_sessions(store: Store, folder: PurePosixPath) -> list[Baseline]:
    """Load all timed sessions of a workload on a node class, oldest first. Raises BaselineError."""
    sessions = [store.session(path) for group in store.folders(folder) for path in store.sessions(group)]
    timed = [session for session in sessions if session.tier == "timed"]
    return sorted(timed, key=lambda session: (session.measured, session.session))


def release(store: Store, accepted: Sequence[Baseline]) -> None:
    """Remove the copies of ``accepted`` sessions that were stored as held back. The caller stores these sessions again
    as accepted."""
    sessions = {baseline.session for baseline in accepted}
    for baseline in accepted:
        for path in store.sessions(session_path(baseline, "").parent):
            stored = store.session(path)
            if stored.session in sessions and stored.series == "held":
                store.remove(path)


def store_files(store: Store) -> dict[PurePosixPath, bytes]:
    """Return the files of the store that a repository would track, by path. Only files that may change have their
    content; other files have the value b""."""
    files = {}
    for path in sorted(store.root.rglob("*")) if store.root.is_dir() else []:
        relative = PurePosixPath(path.relative_to(store.root))
        is_hidden = any(part.startswith(".") and part != ATTRIBUTES for part in relative.parts)
        if path.is_file() and not is_hidden:
            files[relative] = path.read_bytes() if path.name in (ANCHOR, ATTRIBUTES) else b""
    return files
