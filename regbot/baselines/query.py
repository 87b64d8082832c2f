"""Selects the stored sessions that a run may be compared with: only sessions of the same node class, environment and
terms (``TERMS``). The result is the sessions, or a refusal that names the differences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.baselines.names import session_path, workload_folder
from regbot.baselines.store import RESTORE, BaselineError, Store, record_digest
from regbot.records.baseline import Baseline, EnvironmentKey, Series, format_time, parse_time
from regbot.records.ledger import Ledger
from regbot.records.run import Clock, Tier

TERMS = ("world_size", "steps", "cut", "clock", "dispatcher")
"""Fields in which two sessions must be equal. Otherwise their step times are not comparable."""
ROLLING_SESSIONS = 40


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


@dataclass(frozen=True)
class RollingReference:
    """Comparable stored sessions, oldest first."""

    sessions: tuple[Baseline, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredLedger:
    baseline: Baseline
    ledger: Ledger


def read_workload(store: Store, workload: str, variant: str) -> list[Baseline]:
    """Return the stored sessions of a workload on all node classes, oldest first. Raises BaselineError."""
    folders = store.class_folders(workload_folder(workload, variant))
    sessions = [session for folder in folders for session in store.read_sessions(folder).values()]
    return sorted(sessions, key=lambda session: (session.measured, session.session))


def select_rolling_reference(
    stored: Sequence[Baseline],
    query: ReferenceQuery,
    now: datetime,
    series: Series = "rolling",
    limit: int = ROLLING_SESSIONS,
) -> RollingReference | ReferenceRefusal:
    """Return the newest ``limit`` comparable sessions of ``series``, or a refusal with the differences.

    The series ``rolling`` has the sessions of main. Raises BaselineError if a session of this class and environment was
    measured after ``now``, because a reference with gaps is unusable.
    """
    of_environment = [
        session
        for session in stored
        if session.node_class == query.node_class and session.environment == query.environment
    ]
    check_not_in_future(of_environment, now)
    terms = {name: getattr(query, name) for name in TERMS}
    sessions_by_identity: dict[str, Baseline] = {}
    other_terms_count = 0
    newest_differences: tuple[FieldDifference, ...] = ()  # those of the newest session on other terms
    for session in reversed(of_environment):
        if (session.tier, session.series) != ("timed", series):
            continue
        if len(sessions_by_identity) == limit:
            break
        if differences := _find_differences(session, terms):
            other_terms_count += 1
            newest_differences = newest_differences or differences
        else:  # if two users stored the same session, count it once
            sessions_by_identity.setdefault(session.session, session)
    if sessions_by_identity:
        oldest_first = tuple(reversed(sessions_by_identity.values()))
        return RollingReference(oldest_first, tuple(_warnings(query, other_terms_count)))
    if other_terms_count:
        return _make_refusal(query, newest_differences, f"the {other_terms_count} stored sessions")
    return _explain_mismatch(stored, query)


def stored_ledger(
    store: Store, workload: str, variant: str, tier: Tier, commit: str | None = None
) -> StoredLedger | None:
    """Return the newest stored ledger of ``commit``. If the commit has none, or is None, return the newest ledger of
    any commit. Return None if no ledger is stored. Raises BaselineError.

    The environment is ignored: counts are comparable across environments, and changes by a new torch or XLA should be
    visible.
    """
    sessions = read_workload(store, workload, variant)
    with_ledger = [session for session in sessions if session.tier == tier and session.ledger is not None]
    of_commit = [session for session in with_ledger if session.commit == commit]
    newest = next(reversed(of_commit or with_ledger), None)
    if newest is None or newest.ledger is None:
        return None
    return StoredLedger(newest, store.ledger(newest.ledger))


def newest_session(store: Store, workload: str, variant: str, tier: Tier, commit: str) -> Baseline | None:
    """Return the newest stored session of ``commit``. If the commit has none, return the newest of any commit.

    Only sessions of the workload and tier are considered, in any environment. Return None if there is none. Raises
    BaselineError.
    """
    sessions = [session for session in read_workload(store, workload, variant) if session.tier == tier]
    of_commit = [session for session in sessions if session.commit == commit]
    return next(reversed(of_commit or sessions), None)


def check_not_in_future(sessions: Sequence[Baseline], now: datetime) -> None:
    """Raise BaselineError if a session was measured after ``now`` by more than ``FUTURE_TOLERANCE``."""
    for session in sessions:
        if parse_time(session.measured) > now + FUTURE_TOLERANCE:
            problem = f"was measured at {session.measured}, and it is {format_time(now)} here"
            raise BaselineError(session_path(session, record_digest(session)), problem, RESTORE)


def _explain_mismatch(stored: Sequence[Baseline], query: ReferenceQuery) -> ReferenceRefusal:
    """Return a refusal for a query without a timed session of the wanted series in its class and environment.

    If sessions of the same node class are stored, the refusal has the differences of the most similar environment.
    Otherwise it names the node classes that are stored.
    """
    wanted = query.environment.model_dump()
    differences_of_class = [
        _find_differences(session.environment, wanted) for session in stored if session.node_class == query.node_class
    ]
    if differences_of_class:
        fewest_differences = min(differences_of_class, key=len)
        return _make_refusal(query, fewest_differences, "the stored sessions of this class")
    classes = sorted({session.node_class for session in stored})
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


def _find_differences(stored: Baseline | EnvironmentKey, wanted: dict[str, object]) -> tuple[FieldDifference, ...]:
    return tuple(
        FieldDifference(name, getattr(stored, name), value)
        for name, value in wanted.items()
        if getattr(stored, name) != value
    )


def _warnings(query: ReferenceQuery, other_terms_count: int) -> Iterator[str]:
    """Yield the warnings about a reference. ``other_terms_count`` is the number of sessions that were left out because
    they were timed on other terms. ``environment.unknown`` has the names of the fields with an unknown value.
    """
    if query.environment.unknown:
        names = ", ".join(query.environment.unknown)
        yield f"{names} of the environment are unknown here and in store, and are assumed to be the same"
    if other_terms_count:
        yield f"{other_terms_count} newer stored sessions were timed with other terms and are left out"


def _quote(value: object) -> str:
    return "unknown" if value is None else repr(value)
