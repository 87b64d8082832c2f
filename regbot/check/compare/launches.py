"""What the start times in Run records show: whether unpaired runs are of one session, and in which order the runs of
pairs ran. Logs and CSV files never show it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, NamedTuple

from regbot.check.compare.run_files import StepFile

Order = Literal["abba", "alternating", "unknown"]
"""Order of the runs in pairs. ``abba``: each arm ran first in half of the pairs, so that an effect of the position
cancels. ``alternating``: the same arm always ran first."""

MAX_PAUSE_S = 3600.0
"""A session ends if no launch follows within this time, in seconds. Clocks and neighbours of a node change within
hours. An hour covers the pause for a build.
"""


class _Launch(NamedTuple):
    start_s: float
    """Unix time."""
    end_s: float
    hosts: tuple[str, ...]
    """In sorted order."""
    arm: str


def describe_common_session(base: Sequence[StepFile], head: Sequence[StepFile]) -> str:
    """Return the evidence that all runs are of one session; '' if the files do not prove it.

    The launches must have the same hosts, follow one another without a long pause, and change between base and head at
    least once for each run of the smaller arm, and at least twice. Else an effect of hours could stay in one arm.
    """
    found = [*(_read_launch(file, "base") for file in base), *(_read_launch(file, "head") for file in head)]
    launches = sorted(launch for launch in found if launch is not None)
    if len(launches) < len(found) or len({launch.hosts for launch in launches}) > 1:
        return ""
    # Simultaneous launches disturb each other, or ran on several machines with one host name.
    pauses = [later.start_s - earlier.end_s for earlier, later in pairwise(launches)]
    turns = sum(earlier.arm != later.arm for earlier, later in pairwise(launches))
    if any(not 0 <= pause <= MAX_PAUSE_S for pause in pauses) or turns < max(2, min(len(base), len(head))):
        return ""
    start, end = (datetime.fromtimestamp(moment, UTC) for moment in (launches[0].start_s, launches[-1].end_s))
    return (
        f"the records show one session: all runs on {', '.join(launches[0].hosts)} from {start:%Y-%m-%d %H:%M} to "
        f"{end:%Y-%m-%d %H:%M} UTC, and base and head alternated {turns} times"
    )


def find_order(base: Sequence[StepFile], head: Sequence[StepFile], stated: Order) -> Order:
    """Return the order of the runs in pairs, by their start times, or as the user ``stated`` it if one is missing."""
    found = [
        (_read_launch(first, "base"), _read_launch(second, "head")) for first, second in zip(base, head, strict=True)
    ]
    launches = [(first, second) for first, second in found if first is not None and second is not None]
    if not launches or len(launches) < len(found):
        return stated
    base_first = sum(first.start_s < second.start_s for first, second in launches)
    return "abba" if abs(2 * base_first - len(launches)) <= 1 else "alternating"


def _read_launch(file: StepFile, arm: str) -> _Launch | None:
    run = file.run
    if run is None or run.started_unix_s is None:
        return None
    if run.allocation is not None:
        hosts = tuple(sorted(run.allocation.hosts))
    elif run.node is not None:
        hosts = (run.node.name,)
    else:
        return None
    # The wall time of a record may be 0 or a share of a longer launch. A launch takes at least as long as its steps.
    end_s = run.started_unix_s + max(run.wall_s, sum(file.step_s))
    return _Launch(run.started_unix_s, end_s, hosts, arm)
