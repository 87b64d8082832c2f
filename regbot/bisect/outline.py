"""What every answer of a bisection has, whoever is to blame."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from regbot.records.bisection import Bisection, BisectionHeader, Candidate, Found, Observation
from regbot.records.files import RecordError, read_record
from regbot.records.run import Run


def outline(
    header: BisectionHeader, observations: Sequence[Observation], found: Found, reasons: Sequence[str]
) -> Bisection:
    """An answer that names nobody: what was asked, what was measured, what it cost."""
    launched = [each for each in observations if each.purpose != "reused" and not each.cached]
    seconds = sum(each.wall_s + each.build_s for each in launched)
    return Bisection(
        found=found,
        culprit=None,
        candidates=[],
        posterior=None,
        on=header.on,
        exact=header.exact,
        axis=header.axis,
        good=header.points[0],
        bad=header.points[-1],
        commits=len(header.points) - 1,
        different=sum(not point.same_as_before for point in header.points[1:]),
        search_runs=sum(each.purpose == "search" for each in launched),
        confirm_runs=sum(each.purpose == "confirm" for each in launched),
        remainder_runs=sum(each.purpose == "remainder" for each in launched),
        reused_runs=sum(each.purpose == "reused" for each in observations),
        cached_runs=sum(each.cached for each in observations),
        builds=sum(each.built for each in launched),
        minutes=seconds / 60,
        unmeasurable=_unmeasurable(header, observations),
        observations=list(observations),
        reasons=[reason[:4000] for reason in reasons],
        reproduce=reproduce(header),
        warnings=header.warnings,
    )


def nothing_between(header: BisectionHeader) -> Bisection:
    """The answer where no commit of the range runs other code than the one before it."""
    reason = "good and bad run the same code: only comments, documents or tests differ, and nothing was measured"
    return outline(header, [], "none", [reason])


def refused(header: BisectionHeader, reason: str) -> Bisection:
    """The answer of a bisection that was not begun."""
    return outline(header, [], "unmeasurable", [reason])


def reproduce(header: BisectionHeader) -> str:
    """The command that asks the same again."""
    good, bad = header.points[0], header.points[-1]
    first = header.corner or good
    words = ["regbot", "bisect", first.commit[:12], bad.commit[:12]]
    words += ["--command", header.command] if header.on == "command" else ["--on", header.on]
    words += ["--exact"] if header.exact and header.on == "command" else []
    words += ["--axis", f"{header.axis}={good.version}..{bad.version}"] if header.axis else []
    words += [word for entry in header.entries for word in ("--workload", entry)]
    words += ["--full"] if header.full else []
    words += [word for path in header.paths for word in ("--path", path)]
    return shlex.join([*words, *header.options])[:4000]


def run_of(out: Path, observation: Observation) -> Run | None:
    """The whole run behind an observation, as long as its file is there."""
    try:
        return read_record(out / observation.record, Run) if observation.record else None
    except RecordError:
        return None


def _unmeasurable(header: BisectionHeader, observations: Sequence[Observation]) -> list[Candidate]:
    points = {point.key: point for point in header.points}
    usable = {each.point for each in observations if each.usable}
    said: dict[str, str] = {}
    for each in observations:
        if not each.usable and not each.void and each.point in points and each.point not in usable:
            said.setdefault(each.point, each.reason)
    return [
        Candidate(point=points[key], measurable=False, reason=reason)
        for key, reason in sorted(said.items(), key=lambda pair: list(points).index(pair[0]))
    ]
