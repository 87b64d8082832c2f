"""Selects the stored sessions that a run may be compared with: only sessions of the same node class and environment.

The result is the sessions, or a refusal that names the differences. The judge decides what the sessions are used for. A
folder contains the sessions of one workload, class and environment, so no other folder has to be opened. The index
lists the newest sessions of the folder, and only these sessions are read completely.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from regbot.baselines.index import FOLDER, SCALARS, TERMS
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
    cut: int
    clock: Clock
    dispatcher: str = ""


class FieldDifference(NamedTuple):
    """A field in which stored sessions differ from the query. The value None means unknown."""

    field: str
    stored: object
    wanted: object

    def __str__(self) -> str:
        return f"{self.field.replace('_', ' ')} is {_quote(self.stored)} in store, {_quote(self.wanted)} here"


@dataclass(frozen=True)
class ReferenceRefusal:
    """Why no stored session is comparable.

    ``differences`` are the differences to the most similar stored session; () if nothing is stored.
    """

    differences: tuple[FieldDifference, ...]
    text: str


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
    """Return the newest ``limit`` comparable sessions, or a refusal with the differences.

    Raises BaselineError if a needed session is unusable or was measured in the future, because a reference with gaps is
    unusable.
    """
    group = class_folder(query.workload, query.variant, query.node_class) / environment_folder(query.environment)
    terms = {name: getattr(query, name) for name in TERMS}
    used: dict[str, Baseline] = {}
    other_terms_count = 0
    nearest: tuple[FieldDifference, ...] = ()
    for path, scalars in _newest_sessions(store, group, "timed", series, now):
        if len(used) == limit:
            break
        if differences := _find_differences(scalars, terms, TERMS):
            other_terms_count += 1
            nearest = nearest or differences
        elif scalars["session"] not in used:  # if two users stored the same session, count it once
            session = store.session(path)
            if session.node_class != query.node_class or session.environment != query.environment:
                raise BaselineError(path, "is in the folder of another class or environment", "run baseline verify")
            if any(getattr(session, name) != scalars[name] for name in SCALARS):
                raise BaselineError(path, "differs from its index entry", f"delete {FOLDER}; regbot rebuilds it")
            used[session.session] = session
    if used:
        return RollingReference(tuple(reversed(used.values())), tuple(_warnings(query, other_terms_count)))
    if other_terms_count:
        return _make_refusal(query, nearest, f"the {other_terms_count} stored sessions")
    return _explain_mismatch(store, query)


def stored_ledger(
    store: Store, workload: str, variant: str, tier: Tier, commit: str | None = None
) -> StoredLedger | None:
    """Return the newest stored ledger of a workload. If ledgers of ``commit`` are stored, return the newest of those
    ledgers.

    The environment is ignored: counts are comparable across environments, and changes by a new torch or XLA should be
    visible. Returns None if no ledger is stored. Raises BaselineError.
    """
    workload_path = PurePosixPath(workload_folder(workload, variant))
    groups = [group for node_class in store.folders(workload_path) for group in store.folders(node_class)]
    for wanted_commit in (commit, None) if commit is not None else (None,):
        rows = [(store.index.newest_with_ledger(group, tier, wanted_commit), group) for group in groups]
        candidates = [(row, group) for row, group in rows if row is not None]
        if candidates:
            break
    else:
        return None
    row, group = max(
        candidates, key=lambda candidate: (candidate[0].scalars["measured"], str(candidate[1] / candidate[0].name))
    )
    baseline = store.session(group / row.name)
    if baseline.ledger is None:
        raise BaselineError(group / row.name, "differs from its index entry", f"delete {FOLDER}; regbot rebuilds it")
    return StoredLedger(baseline, store.ledger(baseline.ledger))


def newest_session(store: Store, workload: str, variant: str, tier: Tier, commit: str) -> Baseline | None:
    """Return the newest stored session of a workload and tier, in any environment; None if there is none. If sessions
    of ``commit`` are stored, return the newest of those. Raises BaselineError."""
    workload_path = PurePosixPath(workload_folder(workload, variant))
    rows = [
        (row, group)
        for node_class in store.folders(workload_path)
        for group in store.folders(node_class)
        for row in store.index.newest_first(group)
        if row.scalars["tier"] == tier
    ]
    if not rows:
        return None
    row, group = max(rows, key=lambda item: (item[0].scalars["commit"] == commit, item[0].scalars["measured"]))
    return store.session(group / row.name)


def list_environments(store: Store, workload: str, variant: str) -> list[tuple[str, EnvironmentKey, PurePosixPath]]:
    """Return node class, environment and folder of every group of a workload's sessions. Reads one file per folder."""
    groups = [
        group
        for node_class in store.folders(PurePosixPath(workload_folder(workload, variant)))
        for group in store.folders(node_class)
    ]
    listing = []
    for group in groups:
        for path in store.index.find_by_name(group, limit=1):
            first = store.session(path)
            listing.append((first.node_class, first.environment, group))
    return listing


def _newest_sessions(
    store: Store, group: PurePosixPath, tier: Tier, series: Series, now: datetime
) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    """Yield path and scalars of the sessions of a folder that belong to ``series`` and ``tier``, newest first.

    Raises BaselineError if a session of the folder was measured in the future.
    """
    check_not_in_future(store, group, now)
    for row in store.index.newest_first(group):
        if (row.scalars["tier"], row.scalars["series"]) == (tier, series):
            yield group / row.name, row.scalars


def check_not_in_future(store: Store, group: PurePosixPath, now: datetime) -> None:
    """Raise BaselineError if a session of a folder was measured in the future."""
    if future_row := store.index.newest_after(group, format_time(now + FUTURE_TOLERANCE)):
        problem = f"was measured at {future_row.scalars['measured']}, and it is {format_time(now)} here"
        raise BaselineError(group / future_row.name, problem, RESTORE)


def _explain_mismatch(store: Store, query: ReferenceQuery) -> ReferenceRefusal:
    """Return a refusal with the differences to the most similar stored sessions.

    If sessions of this node class are stored, only these are considered.
    """
    stored_groups = list_environments(store, query.workload, query.variant)
    wanted = query.environment.model_dump()
    same_class = [
        _find_differences(key.model_dump(), wanted, tuple(EnvironmentKey.model_fields))
        for node_class, key, _ in stored_groups
        if node_class == query.node_class
    ]
    if same_class:
        return _make_refusal(query, min(same_class, key=len), "the stored sessions of this class")
    classes = sorted({node_class for node_class, _, _ in stored_groups})
    if classes:
        return _make_refusal(
            query, (FieldDifference("node_class", ", ".join(classes), query.node_class),), "what is stored"
        )
    return ReferenceRefusal(
        (), f"no session of {query.workload} ({query.variant}) is stored; add one with 'regbot baseline add'"
    )


def _make_refusal(query: ReferenceQuery, differences: tuple[FieldDifference, ...], subject: str) -> ReferenceRefusal:
    if not differences:
        return ReferenceRefusal(
            (), f"no session of {query.workload} ({query.variant}) is stored that serves this reference; add one"
        )
    words = "; ".join(map(str, differences))
    return ReferenceRefusal(differences, f"{subject} of {query.workload} cannot be compared: {words}")


def _find_differences(
    stored: dict[str, object], wanted: dict[str, object], names: tuple[str, ...]
) -> tuple[FieldDifference, ...]:
    pairs = (FieldDifference(name, stored.get(name), wanted[name]) for name in names)
    return tuple(pair for pair in pairs if pair.stored != pair.wanted)


def _warnings(query: ReferenceQuery, other_terms_count: int) -> list[str]:
    warnings = []
    if query.environment.unknown:
        names = ", ".join(query.environment.unknown)
        warnings.append(f"{names} of the environment are unknown here and in store, and are assumed to be the same")
    if other_terms_count:
        warnings.append(f"{other_terms_count} newer stored sessions were timed with other terms and are left out")
    return warnings


def _quote(value: object) -> str:
    return "unknown" if value is None else repr(value)
