"""What a refresh reads of the store, and what it takes away: a session that was held back and is accepted now."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from regbot.baselines import Store
from regbot.baselines.names import ANCHOR, session_path
from regbot.baselines.store import ATTRIBUTES
from regbot.records.baseline import Baseline


def timed_sessions(store: Store, where: PurePosixPath) -> list[Baseline]:
    """All timed sessions below the folder of a workload on a class, oldest first. Raises BaselineError."""
    paths = [path for group in store.folders(where) for path in store.sessions(group)]
    found = [each for path in paths if (each := store.session(path)).tier == "timed"]
    return sorted(found, key=lambda each: (each.measured, each.session))


def release(store: Store, taken: Sequence[Baseline]) -> None:
    """Take away the sessions of ``taken`` that were held back before: they are stored anew, as accepted."""
    sessions = {each.session for each in taken}
    for each in taken:
        for path in store.sessions(session_path(each, "").parent):
            found = store.session(path)
            if found.session in sessions and found.series == "held":
                store.remove(path)


def store_files(store: Store) -> dict[PurePosixPath, bytes]:
    """What the store holds that a repository would, and the content of what may change."""
    found = {}
    for path in sorted(store.root.rglob("*")) if store.root.is_dir() else []:
        inside = PurePosixPath(path.relative_to(store.root))
        hidden = any(part.startswith(".") and part != ATTRIBUTES for part in inside.parts)
        if path.is_file() and not hidden:
            found[inside] = path.read_bytes() if path.name in (ANCHOR, ATTRIBUTES) else b""
    return found
