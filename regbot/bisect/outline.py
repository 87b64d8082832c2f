"""The fields that all answers of a bisection share."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from regbot.bisect import history
from regbot.records.bisection import Bisection, BisectionHeader, BisectionOutcome, Candidate, Observation, Point
from regbot.records.files import RecordError, read_record
from regbot.records.run import Run
from regbot.text.clip import clip_message, short_commit


def build_outline(
    header: BisectionHeader, observations: Sequence[Observation], outcome: BisectionOutcome, reasons: Sequence[str]
) -> Bisection:
    """Build an answer without a culprit: the inputs, the measurements and their cost.

    ``reasons`` are the sentences that explain the outcome.
    """
    # Runs of an earlier check and values from the cache cost nothing.
    launched = [
        observation for observation in observations if observation.purpose != "reused" and not observation.cached
    ]
    seconds = sum(observation.wall_s + observation.build_s for observation in launched)
    return Bisection(
        outcome=outcome,
        culprit=None,
        candidates=[],
        posterior=None,
        on=header.on,
        exact=header.exact,
        axis=header.axis,
        good=header.points[0],
        bad=header.points[-1],
        commits=len(header.points) - 1,
        # How many points run other code than the point before them.
        different=sum(not point.same_as_before for point in header.points[1:]),
        search_runs=sum(observation.purpose == "search" for observation in launched),
        confirm_runs=sum(observation.purpose == "confirm" for observation in launched),
        remainder_runs=sum(observation.purpose == "remainder" for observation in launched),
        reused_runs=sum(observation.purpose == "reused" for observation in observations),
        cached_runs=sum(observation.cached for observation in observations),
        builds=sum(observation.built for observation in launched),
        minutes=seconds / 60,
        unmeasurable=_list_unmeasurable(header, observations),
        observations=list(observations),
        reasons=[clip_message(reason) for reason in reasons],
        reproduce=reproduce_command(header),
        warnings=header.warnings,
    )


def same_code_answer(header: BisectionHeader) -> Bisection:
    """Return the answer for a range in which no commit changes the code that runs."""
    reason = "good and bad run the same code: only comments, documents or tests differ, and nothing was measured"
    return build_outline(header, [], "none", [reason])


def refused_answer(header: BisectionHeader, reason: str) -> Bisection:
    """Return the answer of a bisection that was not started."""
    return build_outline(header, [], "unmeasurable", [reason])


def reproduce_command(header: BisectionHeader) -> str:
    """Return the command that repeats this bisection."""
    good, bad = header.points[0], header.points[-1]
    # In a search over versions all points have bad's commit. Good's commit is then in the corner point, if it differs.
    first_point = header.corner or good
    words = ["regbot", "bisect", short_commit(first_point.commit), short_commit(bad.commit)]
    words += ["--command", header.command] if header.on == "command" else ["--on", header.on]
    words += ["--exact"] if header.exact and header.on == "command" else []
    words += ["--axis", f"{header.axis}={good.version}..{bad.version}"] if header.axis else []
    for entry in header.entries:
        words += ["--workload", entry]
    words += ["--full"] if header.full else []
    for path in header.paths:
        words += ["--path", path]
    return clip_message(shlex.join([*words, *header.options]))


def find_parent(repo: Path, point: Point, before: Point, places: Mapping[str, int]) -> tuple[str, int | None]:
    """Return the key of the point that a culprit is compared with, and the number of commits left out between them.

    ``point`` is the culprit, and ``before`` is the measured point before it. ``places`` maps the key of each point to
    its place, which is the same number for points that run the same code. There are three cases:

    1. A version has no parent in git: return ``before`` and None.
    2. The first parent of the culprit runs the same code as ``before``: return the parent and None. The measurement of
       ``before`` holds for the parent too.
    3. Otherwise return ``before``, and how many commits after it are no points of the search.

    Raises CheckoutError.
    """
    if point.version or not point.parents:
        return before.key, None
    parent = point.parents[0]
    if places.get(parent) == places[before.key]:
        return parent, None
    line = history.list_first_parents(repo, before.commit, point.commit)
    return before.key, sum(commit not in places for commit in line)


def load_run(out: Path, observation: Observation) -> Run | None:
    """Load the run of an observation from its file ``record``; None if there is no such file or it cannot be read."""
    try:
        return read_record(out / observation.record, Run) if observation.record else None
    except RecordError:
        return None


def _list_unmeasurable(header: BisectionHeader, observations: Sequence[Observation]) -> list[Candidate]:
    """Return the points that have failures and no value, in order, each with its first reason. Void runs do not
    count.
    """
    measured_keys = {observation.point for observation in observations if observation.usable}
    reasons: dict[str, str] = {}
    for observation in observations:
        is_failure = not observation.usable and not observation.void
        if is_failure and observation.point not in measured_keys:
            reasons.setdefault(observation.point, observation.reason)
    return [
        Candidate(point=point, measurable=False, reason=reasons[point.key])
        for point in header.points
        if point.key in reasons
    ]
