"""Which stored sessions a run may be held against: those of exactly its node class and environment, and no others.

The answer is the sessions or a refusal that names what differs; which of them screen a pull request is for the judge.
The folder tells workload, class and environment, so nothing else is opened; of the sessions in it the index tells which
are the newest, and only those are read, whole.
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
from regbot.records.baseline import Baseline, EnvironmentKey, Series, utc
from regbot.records.ledger import Ledger
from regbot.records.run import Clock, Tier

ROLLING_SESSIONS = 40
"""Sessions of the rolling reference (specification of the statistics, section 5, refresh policy 1)."""


@dataclass(frozen=True)
class Asked:
    """What is to be compared with stored sessions: a workload, where it runs, and on which terms it is timed."""

    workload: str
    variant: str
    node_class: str
    environment: EnvironmentKey
    world_size: int
    steps: int
    cut: int
    clock: Clock
    dispatcher: str = ""


class Difference(NamedTuple):
    """A field by which nothing stored is comparable; None is unknown."""

    field: str
    stored: object
    asked: object

    def __str__(self) -> str:
        return f"{self.field.replace('_', ' ')} is {_shown(self.stored)} in store, {_shown(self.asked)} here"


@dataclass(frozen=True)
class Refusal:
    """Why no stored session is comparable: the fields that differ from the nearest; none where nothing is stored."""

    differences: tuple[Difference, ...]
    text: str


@dataclass(frozen=True)
class Rolling:
    """Stored sessions that are comparable, oldest first."""

    sessions: tuple[Baseline, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredLedger:
    """A ledger and the session that it stands in."""

    baseline: Baseline
    ledger: Ledger


def rolling(
    store: Store, asked: Asked, now: datetime, series: Series = "rolling", last: int = ROLLING_SESSIONS
) -> Rolling | Refusal:
    """The ``last`` sessions that ``asked`` may be held against, or why there are none.

    Raises BaselineError where a session that would be used cannot be, or says that it was measured in the future: a
    reference with a hole is no reference.
    """
    group = class_folder(asked.workload, asked.variant, asked.node_class) / environment_folder(asked.environment)
    terms = {name: getattr(asked, name) for name in TERMS}
    used: dict[str, Baseline] = {}
    others = 0
    nearest: tuple[Difference, ...] = ()
    for path, told in _newest(store, group, "timed", series, now):
        if len(used) == last:
            break
        if unlike := _differences(told, terms, TERMS):
            others += 1
            nearest = nearest or unlike
        elif told["session"] not in used:  # stored twice, by two people: it counts once
            found = store.session(path)
            if found.node_class != asked.node_class or found.environment != asked.environment:
                raise BaselineError(path, "lies in a folder with another class or environment", "run baseline verify")
            if any(getattr(found, name) != told[name] for name in SCALARS):
                raise BaselineError(path, "is not what the index says of it", f"delete {FOLDER}; it is made again")
            used[found.session] = found
    if used:
        return Rolling(tuple(reversed(used.values())), tuple(_warnings(asked, others)))
    if others:
        return _refusal(asked, nearest, f"the {others} stored sessions")
    return _nearest(store, asked)


def stored_ledger(
    store: Store, workload: str, variant: str, tier: Tier, commit: str | None = None
) -> StoredLedger | None:
    """The newest stored ledger of a workload, of ``commit`` where there is one of it.

    Of any environment: counts are no times, and that a new torch or XLA changes them is what this is to show. Raises
    BaselineError.
    """
    top = PurePosixPath(workload_folder(workload, variant))
    groups = [group for node_class in store.folders(top) for group in store.folders(node_class)]
    for wanted in (commit, None) if commit is not None else (None,):
        found = [(row, group) for group in groups if (row := store.index.newest_counted(group, tier, wanted))]
        if found:
            break
    else:
        return None
    row, group = max(found, key=lambda each: (each[0].scalars["measured"], str(each[1] / each[0].name)))
    baseline = store.session(group / row.name)
    if baseline.ledger is None:
        raise BaselineError(group / row.name, "is not what the index says of it", f"delete {FOLDER}; it is made again")
    return StoredLedger(baseline, store.ledger(baseline.ledger))


def environments(store: Store, workload: str, variant: str) -> list[tuple[str, EnvironmentKey, PurePosixPath]]:
    """Class, environment and folder of every group of sessions of a workload. One file of each folder is read."""
    groups = [
        group
        for node_class in store.folders(PurePosixPath(workload_folder(workload, variant)))
        for group in store.folders(node_class)
    ]
    found = []
    for group in groups:
        for path in store.index.named(group, most=1):
            first = store.session(path)
            found.append((first.node_class, first.environment, group))
    return found


def _newest(
    store: Store, group: PurePosixPath, tier: Tier, series: Series, now: datetime
) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    """The sessions of one folder that serve a series, newest first, each with its scalars.

    Raises BaselineError where a session of the folder is of the future.
    """
    none_of_the_future(store, group, now)
    for row in store.index.newest(group):
        if (row.scalars["tier"], row.scalars["series"]) == (tier, series):
            yield group / row.name, row.scalars


def none_of_the_future(store: Store, group: PurePosixPath, now: datetime) -> None:
    """Raises BaselineError where a session of a folder says that it was measured in the future."""
    if late := store.index.after(group, utc(now + FUTURE_TOLERANCE)):
        what = f"was measured at {late.scalars['measured']}, and it is {utc(now)} here"
        raise BaselineError(group / late.name, what, RESTORE)


def _nearest(store: Store, asked: Asked) -> Refusal:
    """Names what keeps the nearest stored sessions from being compared: of this class if any are."""
    there = environments(store, asked.workload, asked.variant)
    here = asked.environment.model_dump()
    same_class = [
        _differences(key.model_dump(), here, tuple(EnvironmentKey.model_fields))
        for node_class, key, _ in there
        if node_class == asked.node_class
    ]
    if same_class:
        return _refusal(asked, min(same_class, key=len), "the sessions stored of this class")
    classes = sorted({node_class for node_class, _, _ in there})
    if classes:
        return _refusal(asked, (Difference("node_class", ", ".join(classes), asked.node_class),), "what is stored")
    return Refusal(
        (), f"no session of {asked.workload} ({asked.variant}) is stored; add one with 'regbot baseline add'"
    )


def _refusal(asked: Asked, differences: tuple[Difference, ...], what: str) -> Refusal:
    if not differences:
        return Refusal(
            (), f"no session of {asked.workload} ({asked.variant}) is stored that serves this reference; add one"
        )
    words = "; ".join(map(str, differences))
    return Refusal(differences, f"{what} of {asked.workload} cannot be compared: {words}")


def _differences(stored: dict[str, object], asked: dict[str, object], names: tuple[str, ...]) -> tuple[Difference, ...]:
    pairs = (Difference(name, stored.get(name), asked[name]) for name in names)
    return tuple(pair for pair in pairs if pair.stored != pair.asked)


def _warnings(asked: Asked, others: int) -> list[str]:
    found = []
    if asked.environment.unknown:
        names = ", ".join(asked.environment.unknown)
        found.append(
            f"of the environment {names} are not known, neither here nor in store, and are taken to be the same"
        )
    if others:
        found.append(f"{others} newer stored sessions were timed on other terms and are left out")
    return found


def _shown(value: object) -> str:
    return "unknown" if value is None else repr(value)
