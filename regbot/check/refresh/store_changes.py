"""Read sessions and files of the store for a refresh, and remove held-back copies of accepted sessions.

A ``Baseline`` is one stored session.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath

from regbot.baselines import Store
from regbot.baselines.names import ANCHOR, class_folder
from regbot.baselines.store import ATTRIBUTES
from regbot.records.baseline import Baseline


def timed_sessions(store: Store, folder: PurePosixPath) -> list[Baseline]:
    """Load all timed sessions of a workload on a node class, oldest first. ``folder`` is the folder of the workload and
    node class. Raises BaselineError."""
    return [session for session in store.read_sessions(folder).values() if session.tier == "timed"]


def remove_withheld_copies(store: Store, accepted: Sequence[Baseline]) -> None:
    """Remove the stored copies of ``accepted`` sessions that were held back (series ``held``).

    The same session may be stored only once. The caller then stores the accepted sessions in the rolling reference.
    """
    session_ids = {baseline.session for baseline in accepted}
    for baseline in accepted:
        folder = class_folder(baseline.workload, baseline.variant, baseline.node_class)
        for path, stored in store.read_sessions(folder).items():
            if stored.session in session_ids and stored.series == "held":
                store.remove(path)


def store_files(store: Store) -> dict[PurePosixPath, bytes]:
    """Return the files of the store that a repository would track: their content by their path relative to the store.

    Only anchors and the git attributes can change. All other files never change once they are stored. They are not
    read, and their value is ``b""``.
    """
    if not store.root.is_dir():
        return {}
    files = {}
    for path in sorted(store.root.rglob("*")):
        relative_path = PurePosixPath(path.relative_to(store.root))
        is_hidden = any(part.startswith(".") and part != ATTRIBUTES for part in relative_path.parts)
        if path.is_file() and not is_hidden:
            files[relative_path] = path.read_bytes() if path.name in (ANCHOR, ATTRIBUTES) else b""
    return files
