"""The answer of a noisy search: the culprit with its probability and its slowdown."""

import math
from collections.abc import Sequence
from statistics import fmean

from regbot.bisect.exact_answer import parent_key
from regbot.bisect.noisy import SearchState, compute_search
from regbot.bisect.prepare import BisectionSetup
from regbot.records.bisection import Bisection, BisectionOutcome, Candidate, Change, Estimate, Observation
from regbot.stats.summary import percent

MAX_CANDIDATES = 10
"""Maximum number of candidates that an undecided search lists."""
MIN_CANDIDATE_PROBABILITY = 0.005
"""An undecided search lists no candidate with a smaller probability."""


def noisy_answer(setup: BisectionSetup, observations: Sequence[Observation], outline: Bisection) -> Bisection:
    """Return ``outline`` with the answer that the runs give, whether or not the search has finished.

    Rounding may push a probability above 1, so it is limited.
    """
    state = compute_search(setup.span, observations, "", setup.search_settings)
    outcome, reasons = _decide_outcome(setup, state)
    change = _build_change(setup, state) if state.status == "found" else None
    candidates = change.candidates if change is not None else []
    if change is None and outcome == "undecided":
        candidates = _list_most_probable(state)
    culprit = candidates[0].point if outcome == "culprit" and len(candidates) == 1 else None
    return outline.model_copy(
        update={
            "outcome": outcome,
            "reasons": reasons,
            "culprit": culprit.commit if culprit is not None else None,
            "version": culprit.version if culprit is not None else "",
            "candidates": candidates,
            "changes": [change] if change is not None else [],
            "posterior": min(1.0, state.probability),
            "none_probability": min(1.0, state.posterior.no_culprit),
            "noise_pct": 100 * math.expm1(state.posterior.noise) if state.samples else None,
        }
    )


def _decide_outcome(setup: BisectionSetup, state: SearchState) -> tuple[BisectionOutcome, list[str]]:
    """Return the outcome of the search and the sentences that explain it."""
    span, confirmation = state.span, state.confirmation
    cleared = ", ".join(span.points[place].name for place in state.cleared)
    cleared_reasons = [f"compared with their parents, these are not slower: {cleared}"] if cleared else []
    if state.status == "unmeasurable":
        ends = {"good": 0, "bad": span.last}
        return "unmeasurable", [
            f"{end} cannot be measured ({state.broken[place].reason}); name another commit"
            for end, place in ends.items()
            if place in state.broken
        ]
    if state.status == "none":
        if len(state.cleared) >= span.last:
            return "none", cleared_reasons
        certainty = f"with probability {100 * state.posterior.no_culprit:.0f}%"
        reason = f"{certainty}, bad is not slower than good by {setup.header.smallest_pct:.3g}% or more"
        return "none", [reason, *cleared_reasons, *_faster_reason(state)]
    if state.status == "found":
        if confirmation.request is None:
            failure = [f"its confirmation failed: {confirmation.failure}"] if confirmation.failure else []
            return "culprit", [*failure, *_merge_reason(setup, state)]
        name = span.points[state.place].name
        return "undecided", [f"the confirmation of {name} is not finished; continue with --resume, or more --runs"]
    reason = f"the likeliest commit has a probability of {100 * state.probability:.0f}%, and 95% are needed"
    return "undecided", [f"{reason}; continue with --resume, or more --runs", *cleared_reasons, *_faster_reason(state)]


def _merge_reason(setup: BisectionSetup, state: SearchState) -> list[str]:
    """Return a list with a hint if the culprit is a merge; otherwise []."""
    culprit = state.span.points[state.place]
    if len(culprit.parents) < 2 or setup.header.axis:
        return []
    return [f"{culprit.name} is a merge; to search the commits that it merged, bisect between its two parents"]


def _faster_reason(state: SearchState) -> list[str]:
    """Return a list with a reason if bad is faster than good by at least three standard errors; otherwise []."""
    good = [sample.value for sample in state.samples if sample.point == 0]
    bad = [sample.value for sample in state.samples if sample.point == state.span.last]
    if len(good) < 2 or len(bad) < 2:
        return []
    gap = fmean(bad) - fmean(good)
    if gap > -3 * state.posterior.noise * math.sqrt(1 / len(good) + 1 / len(bad)):
        return []
    return [f"bad is faster than good by {percent(-gap):.3g}%: are good and bad swapped?"]


def _build_change(setup: BisectionSetup, state: SearchState) -> Change:
    """Return the change that the search found, with the slowdown that the confirmation measured so far."""
    ordered = sorted(state.likeliest, key=lambda place: (place in state.broken, -place))
    candidates = [_build_candidate(state, place) for place in ordered]
    earliest = min(candidates, key=lambda candidate: state.span.place_by_key[candidate.point.key])
    gate = state.confirmation.gate
    estimate = None
    if gate is not None:
        _, interval = gate.tests[setup.header.summary]
        estimate = Estimate(
            pct=percent(interval.estimate),
            low_pct=percent(interval.low),
            high_pct=percent(interval.high),
            pairs=gate.pairs,
            decision=gate.decision,
        )
    return Change(
        candidates=candidates,
        parent=parent_key(state.span, earliest, state.span.points[state.parent].key),
        entries=setup.header.entries,
        estimate=estimate,
        confirmed="yes" if gate is not None and gate.decision == "regressed" else "undecided",
    )


def _list_most_probable(state: SearchState) -> list[Candidate]:
    candidates = [_build_candidate(state, place) for place in range(1, len(state.span.points))]
    candidates.sort(key=lambda candidate: -(candidate.probability or 0.0))
    return [
        candidate
        for candidate in candidates[:MAX_CANDIDATES]
        if (candidate.probability or 0.0) >= MIN_CANDIDATE_PROBABILITY
    ]


def _build_candidate(state: SearchState, place: int) -> Candidate:
    return Candidate(
        point=state.span.points[place],
        probability=min(1.0, float(state.posterior.culprit[place - 1])),
        measurable=place not in state.broken,
        reason=state.broken[place].reason if place in state.broken else "",
    )
