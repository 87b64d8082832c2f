"""The answer of a noisy search: the culprit with its probability, its slowdown, and possible further changes.

``root`` is the state of the main search. Its ``children`` are the states of the follow-up searches: "inside" a culprit
that is a merge, and "before" and "after" a culprit. ``header`` has the inputs of the bisection; ``header.on`` says
whether it searches by step time or by what a command prints.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal

from regbot.bisect import blame, noisy
from regbot.bisect.context import BisectionSetup
from regbot.bisect.outline import build_outline, find_parent
from regbot.judge.estimates import percent
from regbot.records.bisection import (
    Bisection,
    BisectionHeader,
    BisectionOutcome,
    Candidate,
    Change,
    Estimate,
    Observation,
    PointSummary,
    Remainder,
)
from regbot.report.bisection_words import SUBJECTS
from regbot.report.posterior import share
from regbot.stats.paired import SequentialTest
from regbot.text.clip import clip_message

MAX_CANDIDATES = 10
"""Maximum number of candidates that an undecided search lists."""
MIN_CANDIDATE_PROBABILITY = 0.005
"""An undecided search lists no candidate with a smaller probability."""


def noisy_answer(setup: BisectionSetup, observations: Sequence[Observation], mean_costs: noisy.RunCosts) -> Bisection:
    """Return the answer that the runs give, whether or not the search has finished.

    Rounding may push a probability above 1, so it is limited.
    """
    header = setup.header
    settings = setup.search_settings
    root = noisy.compute_search(
        setup.noisy_span,
        observations,
        pending=(),
        stratum="",  # no further run is requested here
        settings=settings,
        mean_costs=mean_costs,
        expand_merge=setup.expand_merge_noisy,
    )
    analysis = root.analysis
    assert analysis is not None
    outcome, reasons = decide_outcome(setup, root, observations)
    # In a search over versions, the code of two commits is compared too (``blame``). Otherwise this is None.
    code_contrast = blame.compare_code(header, settings, root, observations)
    code_gate = code_contrast.gate if code_contrast is not None else None
    changes = [change for state in _all_states(root) if (change := _state_change(setup, state)) is not None]
    if root.status == "found" and changes:
        candidates = changes[0].candidates
    else:
        candidates = _list_most_probable(root) if outcome == "undecided" else []
    is_named = outcome == "culprit" and bool(changes) and len(candidates) == 1
    culprit = candidates[0].point if is_named else None
    # The change of the main search comes first, or the change inside it if it is a merge. The others follow by size. A
    # change has no estimate before the first look of its confirmation.
    first_changes, follow_up_changes = changes[:1], changes[1:]
    follow_up_changes.sort(key=lambda change: change.estimate.pct if change.estimate else 0.0, reverse=True)
    return build_outline(header, observations, outcome, reasons).model_copy(
        update={
            "culprit": culprit.commit if culprit is not None else None,
            "version": culprit.version if culprit is not None else "",
            "candidates": candidates,
            "posterior": min(1.0, analysis.probability),
            "none_probability": min(1.0, analysis.posterior.no_culprit),
            "changes": [*first_changes, *follow_up_changes],
            "remainders": list(_build_remainders(root)),
            "places": _build_places(root),
            "noise_pct": 100 * math.expm1(analysis.posterior.noise) if analysis.samples else None,
            "code": _build_estimate(header, code_gate) if code_gate is not None else None,
            "blame": blame.noisy_blame(header, outcome, code_contrast),
        }
    )


def decide_outcome(
    setup: BisectionSetup, root: noisy.SearchState, observations: Sequence[Observation]
) -> tuple[BisectionOutcome, list[str]]:
    """Return the outcome of the search and the sentences that explain it."""
    header = setup.header
    if root.status == "unmeasurable":
        return "unmeasurable", _explain_failed_ends(root, observations)
    if root.status == "none":
        return "none", _explain_none(header, root)
    if root.status == "found":
        # A confirmation that ended because nodes were unfit can be finished on other nodes.
        is_confirmation_open = header.confirm and (root.nodes_unfit or not root.gate_finished)
        if is_confirmation_open:
            name = root.span.points[root.place].name
            failure = f" ({root.failure})" if root.failure else ""
            reason = f"{name} is by far the likeliest culprit, but its confirmation is not finished{failure}"
            return "undecided", [f"{reason}; continue with --resume"]
        return "culprit", [*_unresolved_merge_reason(root), *_undone_reason(root)]
    return "undecided", _explain_undecided(header, root, observations)


def _explain_failed_ends(root: noisy.SearchState, observations: Sequence[Observation]) -> list[str]:
    """Return why good or bad cannot be measured."""
    reason_by_key = {observation.point: observation.reason for observation in observations if not observation.usable}
    # ``places`` maps the key of each point to its place.
    reason_by_place = {place: reason_by_key[key] for key, place in root.span.places.items() if key in reason_by_key}
    place_by_end = {"good": 0, "bad": len(root.span.points) - 1}
    return [
        f"{end} cannot be measured ({reason_by_place[place]}); name another commit"
        for end, place in place_by_end.items()
        if place in reason_by_place
    ]


def _explain_none(header: BisectionHeader, root: noisy.SearchState) -> list[str]:
    """Return why the search answers that there is no culprit."""
    if root.cleared_places:
        names = ", ".join(root.span.points[place].name for place in root.cleared_places)
        return [f"the gate has cleared {names}, and no other candidate remains: no slowdown is confirmed"]
    assert root.analysis is not None
    certainty = f"with probability {share(root.analysis.posterior.no_culprit)}"
    return [
        f"{certainty}, no commit raised {SUBJECTS[header.on]} by {header.smallest_pct:.3g}% or more",
        *_unmeasured_shares_reason(root),
        *_faster_reason(root),
    ]


def _explain_undecided(
    header: BisectionHeader, root: noisy.SearchState, observations: Sequence[Observation]
) -> list[str]:
    """Return why the search stopped without an answer."""
    analysis = root.analysis
    assert analysis is not None
    run_count = sum(observation.purpose == "search" for observation in observations)
    if analysis.posterior.no_culprit >= header.posterior:
        explanation = (
            "good and bad do not differ, but some commits between them, which could show an undone slowdown, were not "
            "run"
        )
    else:
        explanation = (
            f"the likeliest commit has a probability of {100 * analysis.probability:.0f}%, and --posterior requires "
            f"{100 * header.posterior:.0f}%"
        )
    # If the budget or void runs ended the search instead, ``flow`` adds how to continue.
    own_run_count = sum(observation.purpose == "search" and not observation.cached for observation in observations)
    is_run_limit_reached = own_run_count >= header.most_runs
    advice = "; continue with --resume and more --runs" if is_run_limit_reached else ""
    reasons = [f"undecided after {run_count} search runs: {explanation}{advice}"]
    if root.cleared_places:
        names = ", ".join(root.span.points[place].name for place in root.cleared_places)
        reasons.append(f"the gate has cleared {names}: the runs do not fit a single lasting slowdown")
    return [*reasons, *_faster_reason(root)]


def _unresolved_merge_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if the culprit is a merge and the search of its commits has no result;
    otherwise [].
    """
    inside_search = root.children.get("inside")
    if inside_search is None or inside_search.status in ("found", "none"):
        return []
    return [f"the culprit among the commits that {root.span.points[root.place].name} merged is not known"]


def _undone_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if bad is hardly slower than good although a culprit lies between them;
    otherwise [].

    Hardly slower means: even two standard errors above its estimate, the slowdown of bad is at most half of the
    culprit's effect.
    """
    analysis = root.analysis
    assert analysis is not None
    good, bad = _end_values(root)
    if not good or not bad:
        return []
    gap, standard_error = _gap_of_ends(good, bad, analysis.posterior.noise)
    if gap + 2 * standard_error > analysis.posterior.effect / 2:
        return []
    return ["bad is hardly slower than good: a later commit of the range seems to have undone the slowdown"]


def _end_values(root: noisy.SearchState) -> tuple[list[float], list[float]]:
    """Return the values of the runs of good and those of the runs of bad, both as logarithms."""
    assert root.analysis is not None
    last_place = len(root.span.points) - 1
    good = [sample.value for sample in root.analysis.samples if sample.point == 0]
    bad = [sample.value for sample in root.analysis.samples if sample.point == last_place]
    return good, bad


def _gap_of_ends(good: Sequence[float], bad: Sequence[float], noise: float) -> tuple[float, float]:
    """Return the log-ratio of bad over good, and its standard error. ``noise`` is the standard deviation of one run."""
    return fmean(bad) - fmean(good), noise * math.sqrt(1 / len(good) + 1 / len(bad))


def _unmeasured_shares_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if no commit could be measured in some parts of the range; otherwise [].

    In such a part the search misses a slowdown that a later commit undid.
    """
    if not root.unmeasured_shares:
        return []
    shares = ", ".join(f"{100 * probability:.0f}%" for probability in root.unmeasured_shares)
    reason = f"no commit near {shares} of the prior probability could be measured"
    return [f"{reason}, so the search would miss a slowdown there that a later commit undid"]


def _faster_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if bad is faster than good by at least three standard errors; otherwise []."""
    assert root.analysis is not None
    good, bad = _end_values(root)
    if len(good) < 2 or len(bad) < 2:
        return []
    gap, standard_error = _gap_of_ends(good, bad, root.analysis.posterior.noise)
    if gap > -3 * standard_error:
        return []
    return [f"bad is faster than good by {percent_words(-gap)}: are good and bad swapped?"]


def _all_states(root: noisy.SearchState) -> Iterator[noisy.SearchState]:
    """Yield the state of the main search, then the states of its follow-up searches."""
    yield root
    for child in root.children.values():
        yield from _all_states(child)


def _state_change(setup: BisectionSetup, state: noisy.SearchState) -> Change | None:
    """Return the change that a search found; None if it found none.

    Also returns None if the culprit is a merge and the follow-up search found the culprit among its commits. The state
    of that follow-up search then gives the change.
    """
    if state.status != "found" or state.analysis is None:
        return None
    inside_search = state.children.get("inside")
    if inside_search is not None and inside_search.status == "found":
        return None
    header, span = setup.header, state.span
    candidates = _list_likeliest(state)
    earliest = min(state.analysis.likeliest)  # a place, like ``likeliest``
    estimate, confirmed = _read_confirmation(header, state)
    name = candidates[0].point.name if len(candidates) == 1 else f"one of {len(candidates)} commits"
    if estimate is not None:
        size = f"{estimate.pct:+.1f}% [{estimate.low_pct:+.1f}, {estimate.high_pct:+.1f}]"
    else:
        size = f"about {percent_words(state.analysis.posterior.effect)}"
    confirmation_words = {
        "yes": "confirmed by pairs",
        "undecided": "by an estimate from the search runs only: pairs have not confirmed it",
        "not asked": "by an estimate from the search runs only",
    }
    merge_note = (
        ", the merge itself and no commit that it merges,"
        if inside_search is not None and inside_search.status == "none"
        else ""
    )
    text = f"{name}{merge_note} is {size} slower, {confirmation_words[confirmed]}"
    if confirmed == "undecided" and estimate is not None:
        text = f"{name}{merge_note} may or may not be slower than the commit before it"
    failure = f" ({state.failure})" if state.failure else ""
    point_before = span.points[span.before(earliest)]
    # ``left_out`` is the number of commits between parent and culprit that are no points of the search.
    parent, left_out = find_parent(setup.options.repo, span.points[earliest], point_before, span.places)
    return Change(
        candidates=candidates,
        parent=parent,
        left_out=left_out,
        merge=span.merge or None,
        entries=header.entries,
        estimate=estimate,
        confirmed=confirmed,
        text=clip_message(f"{text}{failure}"),
    )


def _read_confirmation(
    header: BisectionHeader, state: noisy.SearchState
) -> tuple[Estimate | None, Literal["yes", "undecided", "not asked"]]:
    """Return the slowdown that the confirmation measured, and whether it confirms the culprit.

    The slowdown is None before the first look of the confirmation. "not asked" stands for ``--no-confirm``.
    """
    if state.gate is None:
        return None, "undecided" if header.confirm else "not asked"
    return _build_estimate(header, state.gate), "yes" if state.gate.decision == "regressed" else "undecided"


def _build_estimate(header: BisectionHeader, gate: SequentialTest) -> Estimate:
    """Return the slowdown of the compared summary in percent. The decision is the gate's, over all summaries."""
    _, interval = gate.tests[header.summary]
    return Estimate(
        pct=percent(interval.estimate),
        low_pct=percent(interval.low),
        high_pct=percent(interval.high),
        pairs=gate.pairs,
        decision=gate.decision,
    )


def _list_likeliest(state: noisy.SearchState) -> list[Candidate]:
    """Return the culprit of a search: one candidate, or several that no run can separate.

    Candidates that can be measured come first, then the more probable ones.
    """
    analysis = state.analysis
    assert analysis is not None
    probabilities = noisy.culprit_probabilities(state)
    ordered = sorted(analysis.likeliest, key=lambda place: (not analysis.available[place], -probabilities[place]))
    return [_build_candidate(state, place, probabilities[place]) for place in ordered]


def _list_most_probable(state: noisy.SearchState) -> list[Candidate]:
    """Return the most probable candidates of a search that is undecided, most probable first.

    The first place is good, so it is no candidate.
    """
    probabilities = noisy.culprit_probabilities(state)
    ordered = sorted(range(1, len(probabilities)), key=lambda place: -probabilities[place])[:MAX_CANDIDATES]
    return [
        _build_candidate(state, place, probabilities[place])
        for place in ordered
        if probabilities[place] >= MIN_CANDIDATE_PROBABILITY
    ]


def _build_candidate(state: noisy.SearchState, place: int, probability: float) -> Candidate:
    """Return the candidate at a place. Rounding may push a probability above 1, so it is limited."""
    assert state.analysis is not None
    return Candidate(
        point=state.span.points[place],
        probability=min(1.0, probability),
        measurable=bool(state.analysis.available[place]),
    )


def _build_remainders(root: noisy.SearchState) -> Iterator[Remainder]:
    """Yield the result of each search before or after a culprit that found no second culprit.

    A second culprit is reported as a change of its own.
    """
    for state in _all_states(root):
        for name, child in state.children.items():
            if name not in ("before", "after") or child.analysis is None or child.status == "found":
                continue
            no_culprit = child.analysis.posterior.no_culprit
            possible = f"another slowdown {name} it is possible (probability {share(max(0.0, 1 - no_culprit))})"
            smallest = percent_words(child.span.smallest)
            text_by_status = {
                "none": f"no other slowdown of {smallest} or more {name} it (probability {share(no_culprit)})",
                "searching": f"{possible}; the search was not finished",
                "undecided": possible,
                "unmeasurable": f"{possible}, because the commits {name} it cannot be measured",
            }
            yield Remainder(
                where="before" if name == "before" else "after",
                culprit=state.span.points[state.place].key,
                none_probability=min(1.0, no_culprit),
                text=text_by_status[child.status],
            )


def _build_places(root: noisy.SearchState) -> list[PointSummary]:
    """Return what the picture of the search shows of each place: probability, number of runs, and mean slowdown against
    good.

    The slowdown of a run is relative to the mean of good in the same stratum. Runs of a stratum without good are left
    out of the mean.
    """
    analysis = root.analysis
    assert analysis is not None
    probabilities = noisy.culprit_probabilities(root)
    run_counts = Counter(sample.point for sample in analysis.samples)
    good_values: dict[str, list[float]] = {}  # stratum -> values of the runs of good
    for sample in analysis.samples:
        if sample.point == 0:
            good_values.setdefault(sample.stratum, []).append(sample.value)
    log_ratios: dict[int, list[float]] = {}  # place -> slowdowns of its runs against good
    for sample in analysis.samples:
        if sample.stratum in good_values:
            log_ratios.setdefault(sample.point, []).append(sample.value - fmean(good_values[sample.stratum]))
    return [
        PointSummary(
            key=point.key,
            probability=min(1.0, probabilities[place]),
            runs=run_counts[place],
            mean=percent(fmean(log_ratios[place])) if place in log_ratios else None,
            measurable=bool(analysis.available[place]),
        )
        for place, point in enumerate(root.span.points)
    ]


def percent_words(log_ratio: float) -> str:
    return f"{percent(log_ratio):.3g}%"
