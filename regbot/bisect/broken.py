"""Points that cannot be measured: how far the search jumps away from them, and when it stops and asks the user.

Points fail singly or as a block of neighbours, such as the commits between a fault and its repair. ``git bisect skip``
leaves a block by jumps of a random length. Here ``success_chances`` estimates the chance that a point can be measured.
The searches multiply the information expected from a point by this chance. No random number is drawn, so a resumed
search makes the same choices. The exact and the noisy search use the same chances.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regbot.records.bisection import Observation
from regbot.stats.culprit import Floats
from regbot.text.clip import clip
from regbot.text.words import count
from regbot.workloads import Task, interpreter

MAX_SAME_FAILURES = 8
"""If this many points fail for one reason, the search stops, because the reason is probably not in the commits."""

REASON_CHARACTERS = 200

_VARYING_TEXT = re.compile(r"(?:/[^\s/:'\"]+)+|\b[0-9a-f]{7,64}\b|\d+")
"""Paths, digests and numbers. They differ between checkouts that fail for one reason."""
_MISSING_MODULE = re.compile(r"No module named ['\"]?([A-Za-z_][\w.]*)")
"""Python's message about a module that it cannot import."""


class CommonFailure(NamedTuple):
    """A reason for which several points cannot be measured."""

    cause: str
    """The reason without paths and numbers, or the message about a missing module."""
    points: frozenset[str]
    """Keys of the points."""
    last: Observation
    """The latest of the failures."""


def success_chances(point_count: int, measured: Collection[int], broken: Collection[int]) -> Floats:
    """Return for each point the chance that it can be measured: 1 for a measured point, 0 for a broken one.

    ``measured`` and ``broken`` are positions in the range. The failures between two measured points are either
    unrelated single points or one block. Each failure halves the probability that they are unrelated: with three
    failures it is 1/8.

    A block contains all points between its first and its last failure. How far it extends beyond them is not known.
    Every position between the last failure and the next measured point is equally probable as its end, and likewise
    for its beginning.
    """
    chances = np.ones(point_count)
    chances[list(broken)] = 0.0
    for start, end in pairwise([-1, *sorted(measured), point_count]):
        failures = sorted(point for point in broken if start < point < end)
        if not failures:
            continue
        unrelated = 2.0 ** -len(failures)
        first, last = failures[0], failures[-1]
        for point in range(start + 1, end):
            before_block = (first - point) / (first - start)  # the chance that the block begins after the point
            after_block = (point - last) / (end - last)  # the chance that the block ends before the point
            outside_block = max(0.0, before_block, after_block)  # 0 between the first and the last failure
            chances[point] *= unrelated + (1 - unrelated) * outside_block
    return chances


def find_common_failure(observations: Sequence[Observation]) -> CommonFailure | None:
    """Return the reason for which ``MAX_SAME_FAILURES`` points cannot be measured; None if there is no such reason.

    Points that the command skips on purpose do not count.
    """
    by_cause: dict[str, list[Observation]] = {}
    for failure in _list_failures(observations):
        if not failure.skipped:
            by_cause.setdefault(_find_cause(failure.reason), []).append(failure)
    for cause, failures in by_cause.items():
        points = frozenset(failure.point for failure in failures)
        if len(points) >= MAX_SAME_FAILURES:
            return CommonFailure(cause, points, failures[-1])
    return None


def release_common_failures(observations: Sequence[Observation]) -> list[Observation]:
    """Return the observations for a search that is resumed.

    Failures that stopped the search become void, so that their points are measured again: the user has probably mended
    the cause.
    """
    released = list(observations)
    while (common := find_common_failure(released)) is not None:
        released = [
            observation.model_copy(update={"void": True}) if _has_failure(observation, common) else observation
            for observation in released
        ]
    return released


def _has_failure(observation: Observation, common: CommonFailure) -> bool:
    """Return whether the observation failed for the reason of ``common``."""
    return (
        not observation.usable
        and observation.point in common.points
        and _find_cause(observation.reason) == common.cause
    )


def explain_common_failure(common: CommonFailure, tasks: Mapping[str, Task]) -> str:
    """Return why the search stopped, and what the user can do. ``tasks`` has the task of each entry."""
    missing_module = _MISSING_MODULE.search(common.last.reason)
    task = tasks.get(common.last.entry)
    # An observation of a timed run names no workload, because its search has only one.
    if task is None and len(tasks) == 1:
        (task,) = tasks.values()
    if missing_module is None:
        reason, remedy = f"the last one: {clip(common.last.reason, REASON_CHARACTERS)}", "mend it"
    elif task is None:
        module_name = missing_module[1]
        reason, remedy = f"the Python module {module_name} is missing", "install the module where the command finds it"
    else:
        python = interpreter(task, Path())  # an interpreter in the checkout gets a path relative to the checkout
        reason = f"the Python module {missing_module[1]} is missing for the interpreter {python}"
        keys = f"the keys python and build of [workloads.{task.workload_name}]"
        remedy = f"install the module there, or start a new search after a change of {keys}"
    points = count(len(common.points), "point")
    return (
        f"the search stopped because {points} cannot be measured for one reason ({reason}). If the code is not the "
        f"cause, {remedy}; --resume measures these points again. --resume --anyway continues without them"
    )


def describe_failures(observations: Sequence[Observation]) -> str:
    """Return how many points cannot be measured, and the last reason; '' if no point failed."""
    failures = _list_failures(observations)
    if not failures:
        return ""
    points = count(len({failure.point for failure in failures}), "point")
    return f"{points} cannot be measured, last reason: {clip(failures[-1].reason, REASON_CHARACTERS)}"


def _list_failures(observations: Sequence[Observation]) -> list[Observation]:
    """Return the failures of points that have no value. Void runs are no failures."""
    measured = {(observation.point, observation.entry) for observation in observations if observation.usable}
    return [
        observation
        for observation in observations
        if not observation.usable and not observation.void and (observation.point, observation.entry) not in measured
    ]


def _find_cause(reason: str) -> str:
    """Return a reason without its varying parts, so that failures with one cause give equal texts.

    For example, "/a/b: error 3" and "/a/c: error 4" both give ": error ".
    """
    missing_module = _MISSING_MODULE.search(reason)
    return missing_module[0] if missing_module is not None else _VARYING_TEXT.sub("", reason)
