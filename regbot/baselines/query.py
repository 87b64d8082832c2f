"""Selects the stored sessions that a run may be compared with: only sessions of the same node class and environment.

The result is the sessions, or a refusal that names the differences. The judge decides what the sessions are used for. A
*group* is the folder of one workload, node class and environment in the store, so no other folder has to be opened. The
index lists the newest sessions of the group, and only these sessions are read completely.

The *scalars* of a session are the simple fields at the beginning of its file (``SCALARS``). They are not checked, so
they only serve to choose the sessions to read. The *terms* are the fields ``TERMS`` (world size, steps, warm-up, clock,
requested dispatcher). Times on other terms are not comparable.

A parameter ``workload`` is an entry, such as ``mixtral-8x7b@1/ep``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from regbot.baselines.index import FOLDER, SCALARS, TERMS, IndexRow
from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.baselines.names import class_folder, environment_folder, workload_folder
from regbot.baselines.store import RESTORE, BaselineError, Store
from regbot.records.baseline import Baseline, EnvironmentKey, Series, format_time
from regbot.records.ledger import Ledger
from regbot.records.run import Clock, Tier

ROLLING_SESSIONS = 40
"""Maximum number of sessions in the rolling reference."""


@dataclass(frozen=True)
class ReferenceQuery:
    """A workload to compare with stored sessions: its node class, its environment and the terms of its timing."""

    workload: str
    variant: str
    node_class: str
    environment: EnvironmentKey
    world_size: int
    steps: int
    """Steps of one run, warm-up included."""
    cut: int
    """How many of the steps are planned as warm-up."""
    clock: Clock
    dispatcher: str = ""
    """The requested dispatcher; '' if the workload chooses one."""


class FieldDifference(NamedTuple):
    """A field in which stored sessions differ from the query. The value None means unknown."""

    field: str
    stored: object
    wanted: object

    def __str__(self) -> str:
        return f"{self.field.replace('_', ' ')} is {_quote(self.stored)} in store, {_quote(self.wanted)} here"


@dataclass(frozen=True)
class ReferenceRefusal:
    """Why no stored session is comparable."""

    differences: tuple[FieldDifference, ...]
    """Differences between the query and the most similar stored session; () if nothing is stored."""
    text: str
    """The reason, for the user."""


@dataclass(frozen=True)
class RollingReference:
    """Comparable stored sessions, oldest first."""

    sessions: tuple[Baseline, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredLedger:
    """A stored ledger, and the session that it belongs to."""

    baseline: Baseline
    ledger: Ledger


def load_rolling_reference(
    store: Store, query: ReferenceQuery, now: datetime, series: Series = "rolling", limit: int = ROLLING_SESSIONS
) -> RollingReference | ReferenceRefusal:
    """Return the newest ``limit`` comparable sessions of ``series``, or a refusal with the differences.

    The series ``rolling`` has the sessions of main.

    Raises BaselineError if a needed session is unusable or was measured in the future, because a reference with gaps is
    unusable.
    """
    group = class_folder(query.workload, query.variant, query.node_class) / environment_folder(query.environment)
    terms = {name: getattr(query, name) for name in TERMS}
    sessions_by_identity: dict[str, Baseline] = {}
    other_terms_count = 0
    newest_differences: tuple[FieldDifference, ...] = ()  # those of the newest session on other terms
    for path, scalars in _newest_sessions(store, group, "timed", series, now):
        if len(sessions_by_identity) == limit:
            break
        if differences := _find_differences(scalars, terms, TERMS):
            other_terms_count += 1
            newest_differences = newest_differences or differences
        elif scalars["session"] not in sessions_by_identity:  # if two users stored the same session, count it once
            session = store.session(path)
            if session.node_class != query.node_class or session.environment != query.environment:
                raise BaselineError(path, "is in the folder of another class or environment", "run baseline verify")
            if any(getattr(session, name) != scalars[name] for name in SCALARS):
                raise BaselineError(path, "differs from its index entry", f"delete {FOLDER}; regbot rebuilds it")
            sessions_by_identity[session.session] = session
    if sessions_by_identity:
        oldest_first = tuple(reversed(sessions_by_identity.values()))
        return RollingReference(oldest_first, tuple(_warnings(query, other_terms_count)))
    if other_terms_count:
        return _make_refusal(query, newest_differences, f"the {other_terms_count} stored sessions")
    return _explain_mismatch(store, query)


def stored_ledger(
    store: Store, workload: str, variant: str, tier: Tier, commit: str | None = None
) -> StoredLedger | None:
    """Return the newest stored ledger of ``commit``. If the commit has none, or is None, return the newest ledger of
    any commit. Return None if no ledger is stored. Raises BaselineError.

    The environment is ignored: counts are comparable across environments, and changes by a new torch or XLA should be
    visible.
    """
    candidates = _newest_with_ledger(store, workload, variant, tier, commit)
    if not candidates and commit is not None:
        candidates = _newest_with_ledger(store, workload, variant, tier, commit=None)
    if not candidates:
        return None

    def sort_key(candidate: tuple[PurePosixPath, IndexRow]) -> tuple[str, str]:
        """Return the time of the session and its path. The path decides between two sessions of the same second, so
        that every call returns the same session.
        """
        path, row = candidate
        return row.scalars["measured"], str(path)

    path, _ = max(candidates, key=sort_key)
    baseline = store.session(path)
    if baseline.ledger is None:
        raise BaselineError(path, "differs from its index entry", f"delete {FOLDER}; regbot rebuilds it")
    return StoredLedger(baseline, store.ledger(baseline.ledger))


def _newest_with_ledger(
    store: Store, workload: str, variant: str, tier: Tier, commit: str | None
) -> list[tuple[PurePosixPath, IndexRow]]:
    """Return the newest session with a ledger in each group of a workload, with its path. ``commit`` is the commit of
    the sessions; None for any commit.
    """
    sessions = []
    for group in _list_groups(store, workload, variant):
        row = store.index.newest_with_ledger(group, tier, commit)
        if row is not None:
            sessions.append((group / row.name, row))
    return sessions


def _list_groups(store: Store, workload: str, variant: str) -> list[PurePosixPath]:
    """Return the groups of a workload on all node classes and in all environments."""
    class_folders = store.folders(PurePosixPath(workload_folder(workload, variant)))
    return [group for folder in class_folders for group in store.folders(folder)]


def newest_session(store: Store, workload: str, variant: str, tier: Tier, commit: str) -> Baseline | None:
    """Return the newest stored session of ``commit``. If the commit has none, return the newest of any commit.

    Only sessions of the workload and tier are considered, in any environment. Return None if there is none. Raises
    BaselineError.
    """
    sessions = [
        (group / row.name, row.scalars)
        for group in _list_groups(store, workload, variant)
        for row in store.index.newest_first(group)
        if row.scalars["tier"] == tier
    ]
    if not sessions:
        return None

    def sort_key(session: tuple[PurePosixPath, dict[str, Any]]) -> tuple[bool, str]:
        """Return whether the session is of ``commit``, and its time. Keys of sessions of ``commit`` are the largest."""
        _, scalars = session
        return scalars["commit"] == commit, scalars["measured"]

    path, _ = max(sessions, key=sort_key)
    return store.session(path)


def list_environments(store: Store, workload: str, variant: str) -> list[tuple[str, EnvironmentKey, PurePosixPath]]:
    """Return node class, environment and folder of every group of a workload. Reads one session of each group, because
    all sessions of a group have the same class and environment.
    """
    listing = []
    for group in _list_groups(store, workload, variant):
        for path in store.index.find_by_name(group, limit=1):
            sample = store.session(path)
            listing.append((sample.node_class, sample.environment, group))
    return listing


def _newest_sessions(
    store: Store, group: PurePosixPath, tier: Tier, series: Series, now: datetime
) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    """Yield path and scalars of the sessions of a group that belong to ``series`` and ``tier``, newest first.

    Raises BaselineError if a session of the group was measured in the future.
    """
    check_not_in_future(store, group, now)
    for row in store.index.newest_first(group):
        if (row.scalars["tier"], row.scalars["series"]) == (tier, series):
            yield group / row.name, row.scalars


def check_not_in_future(store: Store, group: PurePosixPath, now: datetime) -> None:
    """Raise BaselineError if a session of a group was measured after ``now`` by more than ``FUTURE_TOLERANCE``."""
    if future_row := store.index.newest_after(group, format_time(now + FUTURE_TOLERANCE)):
        problem = f"was measured at {future_row.scalars['measured']}, and it is {format_time(now)} here"
        raise BaselineError(group / future_row.name, problem, RESTORE)


def _explain_mismatch(store: Store, query: ReferenceQuery) -> ReferenceRefusal:
    """Return a refusal for a query whose group has no timed session of the wanted series.

    If sessions of the same node class are stored, the refusal has the differences of the most similar environment.
    Otherwise it names the node classes that are stored.
    """
    stored_groups = list_environments(store, query.workload, query.variant)
    wanted = query.environment.model_dump()
    differences_of_class = [
        _find_differences(environment.model_dump(), wanted, tuple(EnvironmentKey.model_fields))
        for node_class, environment, _ in stored_groups
        if node_class == query.node_class
    ]
    if differences_of_class:
        fewest_differences = min(differences_of_class, key=len)
        return _make_refusal(query, fewest_differences, "the stored sessions of this class")
    classes = sorted({node_class for node_class, _, _ in stored_groups})
    if classes:
        difference = FieldDifference("node_class", stored=", ".join(classes), wanted=query.node_class)
        return _make_refusal(query, (difference,), "what is stored")
    return ReferenceRefusal(
        differences=(),
        text=f"no session of {query.workload} ({query.variant}) is stored; add one with 'regbot baseline add'",
    )


def _make_refusal(query: ReferenceQuery, differences: tuple[FieldDifference, ...], subject: str) -> ReferenceRefusal:
    """Return a refusal that says that ``subject`` cannot be compared because of ``differences``.

    If there are no differences, sessions of this environment are stored, but they are traces or of another series. The
    series are the sessions of main, the re-runs of the anchor, and the sessions that a refresh held back.
    """
    if not differences:
        return ReferenceRefusal(
            differences=(),
            text=f"no session of {query.workload} ({query.variant}) is stored that serves this reference; add one",
        )
    difference_list = "; ".join(str(difference) for difference in differences)
    return ReferenceRefusal(differences, f"{subject} of {query.workload} cannot be compared: {difference_list}")


def _find_differences(
    stored: dict[str, object], wanted: dict[str, object], names: tuple[str, ...]
) -> tuple[FieldDifference, ...]:
    """Return the differences in the fields ``names``. A field that ``stored`` lacks is unknown."""
    return tuple(
        FieldDifference(name, stored.get(name), wanted[name]) for name in names if stored.get(name) != wanted[name]
    )


def _warnings(query: ReferenceQuery, other_terms_count: int) -> list[str]:
    """Return the warnings about a reference. ``other_terms_count`` is the number of sessions that were left out because
    they were timed on other terms. ``environment.unknown`` has the names of the fields with an unknown value.
    """
    warnings = []
    if query.environment.unknown:
        names = ", ".join(query.environment.unknown)
        warnings.append(f"{names} of the environment are unknown here and in store, and are assumed to be the same")
    if other_terms_count:
        warnings.append(f"{other_terms_count} newer stored sessions were timed with other terms and are left out")
    return warnings


def _quote(value: object) -> str:
    return "unknown" if value is None else repr(value)
