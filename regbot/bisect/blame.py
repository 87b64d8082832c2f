"""Attribution for a bisection of versions between two commits: does the slowdown come from the dependency or the code?

The search compares the versions of the dependency, all with the code of the bad commit. So it does not measure the
effect of the code. For this effect, two points are compared, both with the first version:

    ``header.corner``     the point with good's code
    ``header.points[0]``  the point with bad's code, which is also the first point of the search

Noisy values are compared in pairs of runs, as in a confirmation. Exact values need only one more measurement. If the
user gave one commit only, ``header.corner`` is None and nothing is compared.
"""

from collections.abc import Sequence

from regbot.bisect import noisy
from regbot.bisect.exact_search import compared_entries
from regbot.bisect.noisy import Contrast, MeasurementRequest, SearchSettings, SearchState
from regbot.records.bisection import BisectionHeader, BisectionOutcome, Observation
from regbot.stats.paired import Thresholds
from regbot.text.clip import short_commit

CONTRAST_NAME = "bad's code against good's, under the first version"


def next_exact(
    header: BisectionHeader, observations: Sequence[Observation], pending: Sequence[tuple[MeasurementRequest, str]]
) -> list[MeasurementRequest]:
    """Return the next measurement of good's code with the first version, as a list of at most one request.

    A workload needs this measurement once, after both ends of the dependency axis are measured for the workload. It is
    not repeated if it fails.
    """
    if header.corner is None or pending:
        return []
    end_keys = (header.points[0].key, header.points[-1].key)
    measured = {(observation.point, observation.entry) for observation in observations if observation.usable}
    corner_entries = {observation.entry for observation in observations if observation.point == header.corner.key}
    for entry in compared_entries(header):
        are_ends_measured = all((key, entry) in measured for key in end_keys)
        if entry not in corner_entries and are_ends_measured:
            return [MeasurementRequest(header.corner, "confirm", CONTRAST_NAME, entry=entry)]
    return []


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
    ``root`` is the state of this search, and ``stratum`` is the stratum of the run.
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
    """Return the paired comparison of bad's code with good's code so far; None if only one commit was given.

    ``root`` is the state of the search over the versions. ``stratum`` is the stratum of the next run; '' if only the
    result is needed.
    """
    if header.corner is None:
        return None
    # ``smallest`` is the smallest slowdown to look for. If the runs rule out a slowdown of ``delta``, the code has no
    # effect. If they show a slowdown above ``eps``, a quarter of ``smallest`` or less, the code has an effect. For the
    # confirmation of a culprit, ``eps`` has the same formula, with the estimated effect in place of ``smallest``.
    smallest = root.span.smallest
    thresholds = Thresholds(delta=smallest, eps=min(settings.indifference, noisy.SLOWER_SHARE * smallest))
    sides = noisy.ContrastSides(CONTRAST_NAME, parent=header.corner, culprit=root.span.points[0])
    return noisy.evaluate_contrast(
        sides, observations, pending=(), seed=settings.seed, thresholds=thresholds, stratum=stratum
    )


def exact_blame(header: BisectionHeader, observations: Sequence[Observation], outcome: BisectionOutcome) -> str:
    """Say whether the dependency or the code is to blame, from exact values; '' if only one commit was given."""
    if header.corner is None:
        return ""
    has_any_difference = False
    for entry in compared_entries(header):
        good_code_value = _find_value(observations, header.corner.key, entry)
        bad_code_value = _find_value(observations, header.points[0].key, entry)
        if good_code_value is None or bad_code_value is None:
            return _blame_sentence(header, outcome, code_has_effect=None)
        has_any_difference |= good_code_value != bad_code_value
    return _blame_sentence(header, outcome, code_has_effect=has_any_difference)


def _find_value(observations: Sequence[Observation], point_key: str, entry: str) -> str | None:
    """Return the exact value of a workload at a point; None if it was not measured."""
    for observation in observations:
        if observation.usable and observation.point == point_key and observation.entry == entry:
            return observation.state
    return None


def noisy_blame(header: BisectionHeader, outcome: BisectionOutcome, contrast: Contrast | None) -> str:
    """Say whether the dependency or the code is to blame, from noisy values; '' if only one commit was given.

    ``contrast`` is the result of ``compare_code``. Its ``gate`` is None before the first look at its pairs.
    """
    if contrast is None:
        return ""
    decision = contrast.gate.decision if contrast.gate is not None else "undecided"
    code_has_effect = None if decision == "undecided" else decision == "regressed"
    return _blame_sentence(header, outcome, code_has_effect)


def _blame_sentence(header: BisectionHeader, outcome: BisectionOutcome, code_has_effect: bool | None) -> str:
    """Return the sentence of the report; '' if neither the dependency nor the code is known to be to blame.

    ``outcome`` is that of the search over the versions. ``code_has_effect`` is None if the effect of the code is not
    known.
    """
    assert header.corner is not None
    name, first_version = header.axis, header.points[0].version
    commits = f"{short_commit(header.corner.commit)} and {short_commit(header.points[0].commit)}"
    advice = f"bisect the commits between {commits} too, with {name} {first_version} installed"
    if outcome == "culprit":
        if code_has_effect is None:
            return f"{name} is to blame; it is not known whether the code between {commits} has a share"
        if code_has_effect:
            return f"code and dependency share the blame: {advice}"
        return f"{name} alone is to blame, not the code"
    if outcome == "none" and code_has_effect:
        return f"the code alone is to blame, not {name}: {advice}"
    return ""
