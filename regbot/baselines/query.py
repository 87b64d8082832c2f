"""Selects the stored sessions that a run may be compared with: only sessions of the same environment and terms, of one
node class."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.baselines.names import session_path, workload_folder
from regbot.baselines.store import RESTORE, BaselineError, Store, record_digest
from regbot.records.baseline import Baseline, EnvironmentKey, format_time, parse_time
from regbot.records.calibration import Calibration
from regbot.records.run import Clock, Tier
from regbot.records.session import TimedPlan

TERMS = ("world_size", "steps", "cut", "clock", "dispatcher")
"""Fields in which two sessions must be equal. Otherwise their step times are not comparable."""
ROLLING_SESSIONS = 40


class RollingReference(NamedTuple):
    sessions: list[Baseline]
    """Comparable stored sessions, oldest first."""
    warnings: list[str]
    refusal: str
    """Why no stored session is comparable; '' if there is one."""


def read_workload(store: Store, workload: str, variant: str) -> list[Baseline]:
    """Return the stored sessions of a workload on all node classes, oldest first. Raises BaselineError."""
    folders = store.class_folders(workload_folder(workload, variant))
    sessions = [session for folder in folders for session in store.read_sessions(folder).values()]
    return sorted(sessions, key=lambda session: (session.measured, session.session))


def terms_of(timed: Baseline | Calibration) -> dict[str, Any]:
    return {name: getattr(timed, name) for name in TERMS}


def planned_terms(plan: TimedPlan, clock: Clock) -> dict[str, Any]:
    return {name: clock if name == "clock" else getattr(plan, name) for name in TERMS}


def select_rolling_reference(
    stored: Sequence[Baseline], plan: TimedPlan, environment: EnvironmentKey, clock: Clock, now: datetime
) -> RollingReference:
    """Return the newest sessions of main among ``stored``, those of one node class, that are comparable with ``plan``.

    Raises BaselineError if a session of this environment was measured after ``now``, because a reference with gaps is
    unusable.
    """
    of_environment = [session for session in stored if session.environment == environment]
    check_not_in_future(of_environment, now)
    wanted = planned_terms(plan, clock)
    sessions_by_identity: dict[str, Baseline] = {}
    on_other_terms: list[Baseline] = []  # newest first
    for session in reversed(of_environment):
        if (session.tier, session.series) != ("timed", "rolling"):
            continue
        if len(sessions_by_identity) == ROLLING_SESSIONS:
            break
        if terms_of(session) == wanted:  # if two users stored the same session, count it once
            sessions_by_identity.setdefault(session.session, session)
        else:
            on_other_terms.append(session)
    warnings = []
    if environment.unknown:
        names = ", ".join(environment.unknown)
        warnings.append(f"{names} of the environment are unknown here and in store, and are assumed to be the same")
    if on_other_terms:
        warnings.append(f"{len(on_other_terms)} newer stored sessions were timed with other terms and are left out")
    refusal = ""
    if not sessions_by_identity:
        refusal = f"no session of {plan.entry} ({plan.variant}) is stored that serves this reference; add one"
        if on_other_terms:
            differences = [
                f"{name.replace('_', ' ')} is {value!r} in store, {wanted[name]!r} here"
                for name, value in terms_of(on_other_terms[0]).items()
                if value != wanted[name]
            ]
            refusal = f"the {len(on_other_terms)} stored sessions of {plan.entry} cannot be compared: "
            refusal += "; ".join(differences)
    return RollingReference(list(reversed(sessions_by_identity.values())), warnings, refusal)


def newest_session(store: Store, workload: str, variant: str, tier: Tier, commit: str) -> Baseline | None:
    """Return the newest stored session of ``commit``. If the commit has none, return the newest of any commit.

    Only sessions of the workload and tier are considered, in any environment: counts are comparable across
    environments, and changes by a new torch or XLA should be visible. Return None if there is none. Raises
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
