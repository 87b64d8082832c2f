"""When and where the runs of the files ran, as far as the files show it.

A *session* is a series of launches without a long pause. If base and head ran in turn in one session on the same hosts,
effects of node and day affect both arms alike. If each base file comes from a session of its own, the scatter of the
files contains these effects. Files that show neither of the two decide nothing, because a difference between two
sessions looks like a difference between two commits.

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
"""A session ends if no launch follows within this time. Clocks and neighbours of a node change within hours. An hour
covers the pause for a build.
"""

_TIME = re.compile(r"\b(20\d\d-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)\b")


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
    end_s: float
    hosts: tuple[str, ...]
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
    """Return the session of all runs; None if the files do not show that they ran in one.

    The evidence is in the files: the same hosts, one launch after the other without a long pause, and base and head in
    turn. As in a session of pairs, the launches must change between base and head at least once for each run of the
    smaller arm, and at least twice. With fewer changes, an effect that lasts for hours could stay in one arm.
    """
    files = [*base, *head]
    hosts = {read_hosts(file) for file in files}
    times_of_files = [read_times(file) for file in files]
    launches = [times for times in times_of_files if times is not None]
    if hosts == {()} or len(hosts) > 1 or len(launches) < len(files) or len(_group_by_session(launches)) > 1:
        return None
    order = sorted(range(len(files)), key=lambda i: launches[i].start_s)
    if any(launches[later].start_s < launches[earlier].end_s for earlier, later in pairwise(order)):
        return None  # simultaneous launches disturb each other, or ran on several machines with one host name
    turns = sum((earlier < len(base)) != (later < len(base)) for earlier, later in pairwise(order))
    if turns < max(2, min(len(base), len(head))):
        return None
    return CommonSession(launches[order[0]].start_s, launches[order[-1]].end_s, hosts.pop(), turns)


def select_separate_sessions(files: Sequence[StepFile], declared: bool) -> list[StepFile]:
    """Return one file of each session, in the given order: the first file of each session that the files show.

    Only one counts, because a mean of several launches scatters less than the one launch that it is compared with.
    A file that does not show when it ran counts as a session only if the user has ``declared`` it.
    """
    times = [read_times(file) for file in files]
    known = [(i, launch) for i, launch in enumerate(times) if launch is not None]
    groups = _group_by_session([launch for _, launch in known])
    selected = {known[group[0]][0] for group in groups}
    if declared:
        selected |= {i for i, launch in enumerate(times) if launch is None}
    return [files[i] for i in sorted(selected)]


def has_unknown_host(sessions: Sequence[StepFile], head: Sequence[StepFile]) -> bool:
    """Return whether head may have run on other hosts than ``sessions``, which has one base file of each session, and
    these are too few to show how much hosts differ.

    False if no base file names its hosts: nothing can then be said about hosts.
    """
    base_hosts = {read_hosts(file) for file in sessions} - {()}
    return 0 < len(base_hosts) < MIN_NODES and not {read_hosts(file) for file in head} <= base_hosts


def _group_by_session(launches: Sequence[LaunchTimes]) -> list[list[int]]:
    """Return the indices of the launches of each session, in the order of their start."""
    groups: list[list[int]] = []
    end_s = -math.inf
    for i in sorted(range(len(launches)), key=lambda index: launches[index].start_s):
        if launches[i].start_s > end_s + MAX_PAUSE_S:
            groups.append([])
        groups[-1].append(i)
        end_s = max(end_s, launches[i].end_s)
    return groups


def _read_log_times(file: StepFile) -> LaunchTimes | None:
    """Return the times of the first and the last step line with a time; None if no step line has one."""
    times: list[float] = []
    try:
        for line in StepLogFile(file.path).lines():
            match = _TIME.search(line.text)
            if match and any(line_format.recognises(line.text) for line_format in LINE_FORMATS):
                times = [*times[:1], _unix_time(*match.groups())]
    except (LogError, ValueError):  # a date that no calendar has; the steps of the file were readable before
        return None
    return LaunchTimes(min(times), max(times)) if times else None


def _unix_time(day: str, time: str) -> float:
    return datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=UTC).timestamp()
