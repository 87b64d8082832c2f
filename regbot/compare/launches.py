"""When and where the runs of the files ran, as far as the files show it.

A *session* is a series of launches without a long pause. If base and head ran in turn in one session on the same hosts,
effects of node and day affect both arms alike. If each base file comes from a session of its own, the scatter of the
files contains these effects. If the files show neither of these two cases, they decide nothing, because a difference
between two sessions looks like a difference between two commits.

Host names do not separate sessions: containers on one machine have several host names.

Run records have the hosts of the launch, and its start by regbot's own clock. Logs of Megatron and torchtitan have the
time of each step line, and no host. CSV files, golden values and logs of MaxText have neither.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from regbot.compare.run_files import StepFile
from regbot.logs import LINE_FORMATS, LogError, StepLogFile
from regbot.stats.prediction import MIN_NODES

MAX_PAUSE_S = 3600.0
"""A session ends if no launch follows within this time, in seconds. Clocks and neighbours of a node change within
hours. An hour covers the pause for a build.
"""

_DAY_AND_TIME = re.compile(r"\b(20\d\d-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)\b")


@dataclass(frozen=True)
class LaunchTimes:
    """Start and end of one launch in seconds (Unix time).

    Logs do not name their time zone. Their times are read as UTC.
    """

    start_s: float
    end_s: float


@dataclass(frozen=True)
class CommonSession:
    """The session in which all runs of both arms ran in turn."""

    start_s: float
    """Start of the first launch (Unix time)."""
    end_s: float
    """End of the last launch (Unix time)."""
    hosts: tuple[str, ...]
    """Hosts of each launch; all launches have the same hosts."""
    turns: int
    """Number of changes between base and head, in the order of the launches."""


def read_times(file: StepFile) -> LaunchTimes | None:
    """Return when the run ran; None if the file does not show it."""
    if file.log is not None:
        return _read_log_times(file)
    run = file.run
    if run is None or run.started_unix_s is None:
        return None
    # The wall time of a record may be 0 or a share of a longer launch. A launch takes at least as long as its steps.
    return LaunchTimes(run.started_unix_s, run.started_unix_s + max(run.wall_s, sum(file.step_s)))


def read_hosts(file: StepFile) -> tuple[str, ...]:
    """Return the hosts of the run in sorted order; () if the file does not name them."""
    run = file.run
    if run is None:
        return ()
    if run.allocation is not None:
        return tuple(sorted(run.allocation.hosts))
    return (run.node.name,) if run.node is not None else ()


def find_common_session(base: Sequence[StepFile], head: Sequence[StepFile]) -> CommonSession | None:
    """Return the session in which all runs ran; None if the files do not prove such a session.

    The files prove it if they show the same hosts, one launch after the other without a long pause, and base and head
    in turn. As in a session of pairs, the launches must change between base and head at least once for each run of the
    smaller arm, and at least twice. With fewer changes, an effect that lasts for hours could stay in one arm.
    """
    files = [*base, *head]
    # A set: ``other_hosts`` is [] if all files name the same hosts. ``hosts`` is () if they name none.
    hosts, *other_hosts = {read_hosts(file) for file in files}
    if other_hosts or not hosts:
        return None
    launches = [times for file in files if (times := read_times(file)) is not None]
    has_unknown_times = len(launches) < len(files)
    if has_unknown_times or len(_group_by_session(launches)) > 1:
        return None
    arms = ["base"] * len(base) + ["head"] * len(head)
    ordered = sorted(zip(launches, arms, strict=True), key=lambda item: item[0].start_s)
    if any(later.start_s < earlier.end_s for (earlier, _), (later, _) in pairwise(ordered)):
        return None  # simultaneous launches disturb each other, or ran on several machines with one host name
    turns = sum(arm != next_arm for (_, arm), (_, next_arm) in pairwise(ordered))
    if turns < max(2, min(len(base), len(head))):
        return None
    (first_launch, _), (last_launch, _) = ordered[0], ordered[-1]
    return CommonSession(first_launch.start_s, last_launch.end_s, hosts, turns)


def select_separate_sessions(files: Sequence[StepFile], declared: bool) -> list[StepFile]:
    """Return one file of each session, in the given order. It is the file of the session's first launch.

    Only one file counts, because the mean of several launches scatters less than the single launch of head. A file that
    does not show when it ran is a session of its own if the user has ``declared`` separate sessions. Otherwise it is
    left out.
    """
    times = [read_times(file) for file in files]
    # Index and times of each launch whose times are known.
    dated = [(i, launch) for i, launch in enumerate(times) if launch is not None]
    first_launches = [session[0] for session in _group_by_session([launch for _, launch in dated])]
    # Indices in ``files``.
    selected = {dated[launch_index][0] for launch_index in first_launches}
    if declared:
        selected |= {i for i, launch in enumerate(times) if launch is None}
    return [files[i] for i in sorted(selected)]


def has_unknown_host(sessions: Sequence[StepFile], head: Sequence[StepFile]) -> bool:
    """Return whether head may have run on a host without a base file, while base has too few hosts to show how much
    hosts differ.

    ``sessions`` has one base file of each session. The result is False if no base file names its hosts: nothing can
    then be said about hosts.
    """
    base_hosts = {read_hosts(file) for file in sessions} - {()}
    has_few_hosts = 0 < len(base_hosts) < MIN_NODES
    return has_few_hosts and any(read_hosts(file) not in base_hosts for file in head)


def _group_by_session(launches: Sequence[LaunchTimes]) -> list[list[int]]:
    """Return a list for each session: the indices of its launches in ``launches``, in the order of their start."""
    sessions: list[list[int]] = []
    session_end_s = -math.inf
    for i in sorted(range(len(launches)), key=lambda index: launches[index].start_s):
        if launches[i].start_s > session_end_s + MAX_PAUSE_S:
            sessions.append([])
        sessions[-1].append(i)
        session_end_s = max(session_end_s, launches[i].end_s)
    return sessions


def _read_log_times(file: StepFile) -> LaunchTimes | None:
    """Return when the first and the last step of a log were printed; None if no line of a step has a date."""
    times: list[float] = []  # of the first and the last such line
    try:
        for line in StepLogFile(file.path).lines():
            match = _DAY_AND_TIME.search(line.text)
            if match and any(line_format.recognises(line.text) for line_format in LINE_FORMATS):
                day, time = match.groups()
                times = [*times[:1], _unix_time(day, time)]
    except (LogError, ValueError):  # ValueError: the date does not exist, such as 2026-02-30
        return None
    return LaunchTimes(min(times), max(times)) if times else None


def _unix_time(day: str, time: str) -> float:
    return datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=UTC).timestamp()
