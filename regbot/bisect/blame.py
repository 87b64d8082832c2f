"""Attribution for a bisection of versions between two commits: does the slowdown come from the dependency or the code?

The search compares the versions of the dependency, all with the code of the bad commit. It does not measure the effect
of the code. The effect of the code is the difference between bad's code and good's code, both with the first version.
``header.corner`` is the point with good's code and the first version. Noisy values are compared in pairs of runs, as in
a confirmation. Exact values need only one more measurement.
"""

from collections.abc import Sequence

from regbot.bisect import noisy
from regbot.bisect.noisy import Contrast, MeasurementRequest, SearchSettings, SearchState
from regbot.records.bisection import BisectionHeader, BisectionOutcome, Observation
from regbot.stats.paired import Thresholds
from regbot.text.clip import short_commit

CONTRAST_NAME = "bad's code against good's, under the first version"


def next_exact(
    header: BisectionHeader, observations: Sequence[Observation], pending: Sequence[tuple[MeasurementRequest, str]]
) -> list[MeasurementRequest]:
    """Return the next measurement of good's code with the first version, after both ends of the axis are measured."""
    if header.corner is None or pending:
        return []
    ends = {header.points[0].key, header.points[-1].key}
    measured = {(observation.point, observation.entry) for observation in observations if observation.usable}
    measured_entries = {observation.entry for observation in observations if observation.point == header.corner.key}
    missing = [
        entry
        for entry in header.entries or [""]
        if entry not in measured_entries and all((end, entry) in measured for end in ends)
    ]
    return [MeasurementRequest(header.corner, "confirm", CONTRAST_NAME, entry=missing[0])] if missing else []


def next_code_comparison(
    header: BisectionHeader,
    settings: SearchSettings,
    root: SearchState,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
) -> list[MeasurementRequest]:
    """Return the request for the next timed run that compares the code of the two commits.

    Returns [] if no run is needed, if a run is pending, or if the search over the versions has not finished yet.
    """
    if root.status not in ("found", "none") or pending:
        return []
    contrast = compare_code(header, settings, root, observations, stratum)
    return contrast.requests if contrast is not None else []


def compare_code(
    header: BisectionHeader,
    settings: SearchSettings,
    root: SearchState,
    observations: Sequence[Observation],
    stratum: str = "",
) -> Contrast | None:
    """Return the paired comparison of bad's code with good's code so far; None if only one commit was given."""
    if header.corner is None:
        return None
    # The comparison must rule out, or prove, the smallest slowdown to look for. As in a confirmation, the indifference
    # threshold is at most a fixed share of the effect.
    smallest = root.span.smallest
    thresholds = Thresholds(smallest, min(settings.indifference, noisy.SLOWER_SHARE * smallest))
    sides = noisy.ContrastSides(CONTRAST_NAME, header.corner, root.span.points[0])
    return noisy.evaluate_contrast(sides, observations, (), settings.seed, thresholds, stratum)


def exact_blame(header: BisectionHeader, observations: Sequence[Observation], outcome: BisectionOutcome) -> str:
    """Say whether the dependency or the code is to blame, from exact values; '' if only one commit was given."""
    if header.corner is None:
        return ""
    differences = []
    for entry in header.entries or [""]:
        states = [
            next(
                (
                    observation.state
                    for observation in observations
                    if (observation.point, observation.entry) == (key, entry) and observation.usable
                ),
                None,
            )
            for key in (header.corner.key, header.points[0].key)
        ]
        if None in states:
            return _blame_sentence(header, outcome, None)
        differences.append(states[0] != states[1])
    return _blame_sentence(header, outcome, any(differences))


def noisy_blame(header: BisectionHeader, outcome: BisectionOutcome, contrast: Contrast | None) -> str:
    """Say whether the dependency or the code is to blame, from noisy values; '' if only one commit was given."""
    if contrast is None:
        return ""
    decision = contrast.gate.decision if contrast.gate is not None else "undecided"
    return _blame_sentence(header, outcome, None if decision == "undecided" else decision == "regressed")


def _blame_sentence(header: BisectionHeader, outcome: BisectionOutcome, code_has_effect: bool | None) -> str:
    """Return the sentence of the report. ``code_has_effect`` is None if the effect of the code is not known."""
    assert header.corner is not None
    name, first_version = header.axis, header.points[0].version
    commits = f"{short_commit(header.corner.commit)} and {short_commit(header.points[0].commit)}"
    advice = f"bisect the commits between {commits} too, with {name} {first_version} installed"
    if outcome == "culprit":
        if code_has_effect is None:
            return f"{name} is to blame; it is not known whether the code between {commits} has a share"
        return (
            f"code and dependency share the blame: {advice}"
            if code_has_effect
            else f"{name} alone is to blame, not the code"
        )
    if outcome == "none" and code_has_effect:
        return f"the code alone is to blame, not {name}: {advice}"
    return ""
