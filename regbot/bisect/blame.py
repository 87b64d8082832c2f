"""Where versions are walked between two commits: how much of the change is the dependency's, how much the code's.

The versions are walked under bad's code. What is left, bad's code against good's under the first version, is the
code's own share: measured like a confirmation, in pairs, or by one more value where values are exact.
"""

from collections.abc import Sequence

from regbot.bisect import noisy
from regbot.bisect.noisy import Contrast, Node, Terms, Wanted
from regbot.records.bisection import BisectionHeader, Found, Observation
from regbot.stats.paired import Thresholds

NAME = "bad's code against good's, under the first version"


def next_exact(
    header: BisectionHeader, observations: Sequence[Observation], pending: Sequence[tuple[Wanted, str]]
) -> list[Wanted]:
    """The corner, for every workload, once the versions are told apart."""
    if header.corner is None or pending:
        return []
    ends = {header.points[0].key, header.points[-1].key}
    told = {(each.point, each.entry) for each in observations if each.usable}
    made = {each.entry for each in observations if each.point == header.corner.key}
    left = [
        entry for entry in header.entries or [""] if entry not in made and all((end, entry) in told for end in ends)
    ]
    return [Wanted(header.corner, "confirm", NAME, entry=left[0])] if left else []


def next_noisy(
    header: BisectionHeader,
    terms: Terms,
    root: Node,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    stratum: str,
) -> list[Wanted]:
    """The next run of the comparison of the two commits; [] where there is none, or none yet."""
    if root.status not in ("found", "none") or pending:
        return []
    found = code(header, terms, root, observations, stratum)
    return found.wanted if found is not None else []


def code(
    header: BisectionHeader, terms: Terms, root: Node, observations: Sequence[Observation], stratum: str = ""
) -> Contrast | None:
    """Bad's code against good's, as far as that has been measured; None where one commit was given."""
    if header.corner is None:
        return None
    limits = Thresholds(noisy.CLEARED_SHARE * root.span.smallest * 2, min(terms.indifference, root.span.smallest / 4))
    return noisy.contrast(NAME, header.corner, root.span.points[0], observations, (), terms.seed, limits, stratum)


def exact_words(header: BisectionHeader, observations: Sequence[Observation], found: Found) -> str:
    """Who is to blame, of exact values; '' where one commit was given."""
    if header.corner is None:
        return ""
    differ = []
    for entry in header.entries or [""]:
        states = [
            next(
                (each.state for each in observations if (each.point, each.entry) == (key, entry) and each.usable), None
            )
            for key in (header.corner.key, header.points[0].key)
        ]
        if None in states:
            return _words(header, found, None)
        differ.append(states[0] != states[1])
    return _words(header, found, any(differ))


def noisy_words(header: BisectionHeader, found: Found, contrast: Contrast | None) -> str:
    """Who is to blame, of noisy values; '' where one commit was given."""
    if contrast is None:
        return ""
    decision = contrast.gate.decision if contrast.gate is not None else "undecided"
    return _words(header, found, None if decision == "undecided" else decision == "regressed")


def _words(header: BisectionHeader, found: Found, code_too: bool | None) -> str:
    assert header.corner is not None
    name, first = header.axis, header.points[0].version
    commits = f"{header.corner.commit[:12]} and {header.points[0].commit[:12]}"
    further = f"bisect the commits between {commits} too, with {name} {first} installed"
    if found == "culprit":
        if code_too is None:
            return f"{name} is to blame; whether the code between {commits} has a share could not be told"
        return (
            f"code and dependency share the blame: {further}" if code_too else f"{name} alone is to blame, not the code"
        )
    if found == "none" and code_too:
        return f"the code alone is to blame, not {name}: {further}"
    return ""
