"""The answer of a noisy search: the culprit with its probability, its slowdown, and possible further changes."""

import math
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
from regbot.report.posterior import share
from regbot.stats.paired import SequentialTest
from regbot.text.clip import clip_message


def noisy_answer(setup: BisectionSetup, observations: Sequence[Observation], mean_costs: noisy.RunCosts) -> Bisection:
    """Return the answer that the runs give, whether or not the search has finished."""
    header = setup.header
    settings = setup.search_settings
    root = noisy.compute_search(
        setup.noisy_span, observations, (), "", settings, mean_costs, expand_merge=setup.expand_merge_noisy
    )
    analysis = root.analysis
    assert analysis is not None
    outcome, reasons = decide_outcome(setup, root, observations)
    code_contrast = blame.compare_code(header, settings, root, observations)
    code_gate = code_contrast.gate if code_contrast is not None else None
    changes = [change for state in _all_states(root) if (change := _state_change(setup, state)) is not None]
    ordered = sorted(changes, key=lambda change: -(change.estimate.pct if change.estimate else 0.0))
    probability = analysis.probability
    if root.status == "found" and changes:
        candidates = changes[0].candidates
    else:
        candidates = _list_most_probable(root) if outcome == "undecided" else []
    first = changes[0] if outcome == "culprit" and changes else None
    is_sole = first is not None and len(first.candidates) == 1
    return build_outline(header, observations, outcome, reasons).model_copy(
        update={
            "culprit": first.candidates[0].point.commit if first is not None and is_sole else None,
            "version": first.candidates[0].point.version if first is not None and is_sole else "",
            "candidates": candidates,
            "posterior": min(1.0, probability),
            "none_probability": min(1.0, analysis.posterior.no_culprit),
            "changes": [changes[0], *(other for other in ordered if other is not changes[0])] if changes else [],
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
    """Return the outcome and its reasons."""
    header = setup.header
    analysis = root.analysis
    assert analysis is not None
    if root.status == "unmeasurable":
        reason_by_key = {
            observation.point: observation.reason for observation in observations if not observation.usable
        }
        reason_by_place = {place: reason_by_key[key] for key, place in root.span.places.items() if key in reason_by_key}
        ends = (("good", 0), ("bad", len(root.span.points) - 1))
        return "unmeasurable", [
            f"{name} cannot be measured: {reason_by_place[place]}" for name, place in ends if place in reason_by_place
        ]
    if root.status == "none" and root.cleared_places:
        names = ", ".join(root.span.points[place].name for place in root.cleared_places)
        return "none", [f"the gate has cleared {names}, and no other candidate remains: no slowdown is confirmed"]
    if root.status == "none":
        certainty = f"with probability {share(analysis.posterior.no_culprit)}"
        return "none", [
            f"{certainty} no commit made it {header.smallest_pct:.3g}% slower or more",
            *_unmeasured_shares_reason(root),
            *_faster_reason(root),
        ]
    if root.status == "found":
        if header.confirm and (root.nodes_unfit or not root.gate_finished):
            name, failure = root.span.points[root.place].name, f" ({root.failure})" if root.failure else ""
            reason = f"{name} is by far the likeliest culprit, but its confirmation is not finished{failure}"
            return "undecided", [f"{reason}; continue with --resume"]
        return "culprit", [*_unresolved_merge_reason(root), *_undone_reason(root)]
    run_count = sum(observation.purpose == "search" for observation in observations)
    best_candidate = (
        f"the likeliest commit has {100 * analysis.probability:.0f}%, less than the {100 * header.posterior:.0f}% of "
        "--posterior"
    )
    if analysis.posterior.no_culprit >= header.posterior:
        best_candidate = (
            "good and bad do not differ, but some commits between them, which could show an undone slowdown, were not "
            "run"
        )
    reasons = [f"undecided after {run_count} search runs: {best_candidate}; continue with --resume and more --runs"]
    if root.cleared_places:
        names = ", ".join(root.span.points[place].name for place in root.cleared_places)
        reasons.append(f"the gate has cleared {names}: the runs do not fit a single lasting slowdown")
    return "undecided", [*reasons, *_faster_reason(root)]


def _unresolved_merge_reason(root: noisy.SearchState) -> list[str]:
    inside = root.children.get("inside")
    if inside is None or inside.status in ("found", "none"):
        return []
    return [f"the culprit among the commits that {root.span.points[root.place].name} merged is not known"]


def _undone_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if bad is hardly slower than good although a culprit lies between them;
    otherwise [].
    """
    analysis = root.analysis
    assert analysis is not None
    good, bad = (
        [sample.value for sample in analysis.samples if sample.point == place]
        for place in (0, len(root.span.points) - 1)
    )
    if not good or not bad:
        return []
    gap, error = fmean(bad) - fmean(good), analysis.posterior.noise * math.sqrt(1 / len(good) + 1 / len(bad))
    if gap + 2 * error > analysis.posterior.effect / 2:
        return []
    return ["bad is hardly slower than good: a later commit of the range seems to have undone the slowdown"]


def _unmeasured_shares_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if parts of the range could not be searched for a slowdown that a later commit undid;
    otherwise [].
    """
    if not root.unmeasured_shares:
        return []
    shares = ", ".join(f"{100 * probability:.0f}%" for probability in root.unmeasured_shares)
    reason = f"no commit near {shares} of the prior probability could be measured"
    return [f"{reason}, so the search would miss a slowdown there that a later commit undid"]


def _faster_reason(root: noisy.SearchState) -> list[str]:
    """Return a list with a reason if bad is faster than good; otherwise []."""
    analysis = root.analysis
    assert analysis is not None
    last = len(root.span.points) - 1
    good = [sample.value for sample in analysis.samples if sample.point == 0]
    bad = [sample.value for sample in analysis.samples if sample.point == last]
    if len(good) < 2 or len(bad) < 2:
        return []
    gap = fmean(bad) - fmean(good)
    error = analysis.posterior.noise * math.sqrt(1 / len(good) + 1 / len(bad))
    if gap > -3 * error:
        return []
    return [f"bad is faster than good by {percent_words(-gap)}: are good and bad swapped?"]


def _all_states(root: noisy.SearchState) -> Iterator[noisy.SearchState]:
    yield root
    for child in root.children.values():
        yield from _all_states(child)


def _state_change(setup: BisectionSetup, state: noisy.SearchState) -> Change | None:
    """Return the change that a finished search found.

    Returns None if the search found no change, or if the culprit is a merge and the follow-up search found the culprit
    inside it.
    """
    if state.status != "found" or state.analysis is None:
        return None
    inside = state.children.get("inside")
    if inside is not None and inside.status == "found":
        return None
    header, span = setup.header, state.span
    candidates = _list_likeliest(state)
    earliest = min(state.analysis.likeliest)
    estimate, confirmed = _read_confirmation(header, state)
    name = candidates[0].point.name if len(candidates) == 1 else f"one of {len(candidates)} commits"
    if estimate is not None:
        size = f"{estimate.pct:+.1f}% [{estimate.low_pct:+.1f}, {estimate.high_pct:+.1f}]"
    else:
        size = f"about {percent_words(state.analysis.posterior.effect)}"
    words = {
        "yes": "confirmed by pairs",
        "undecided": "not confirmed: the pairs do not decide whether it is slower than the commit before it",
        "not asked": "by an estimate from the search runs only",
    }
    merge_note = (
        ", the merge itself and no commit that it merges," if inside is not None and inside.status == "none" else ""
    )
    failure = f" ({state.failure})" if state.failure else ""
    point_before = span.points[span.before(earliest)]
    parent, left_out = find_parent(setup.options.repo, span.points[earliest], point_before, span.places)
    return Change(
        candidates=candidates,
        parent=parent,
        left_out=left_out,
        merge=span.merge or None,
        entries=header.entries,
        estimate=estimate,
        confirmed=confirmed,
        text=clip_message(f"{name}{merge_note} is {size} slower, {words[confirmed]}{failure}"),
    )


def _read_confirmation(
    header: BisectionHeader, state: noisy.SearchState
) -> tuple[Estimate | None, Literal["yes", "undecided", "not asked"]]:
    if state.gate is None:
        return None, "undecided" if header.confirm else "not asked"
    return _build_estimate(header, state.gate), "yes" if state.gate.decision == "regressed" else "undecided"


def _build_estimate(header: BisectionHeader, gate: SequentialTest) -> Estimate:
    _, interval = gate.tests[header.summary]
    return Estimate(
        pct=percent(interval.estimate),
        low_pct=percent(interval.low),
        high_pct=percent(interval.high),
        pairs=gate.pairs,
        decision=gate.decision,
    )


def _list_likeliest(state: noisy.SearchState) -> list[Candidate]:
    """Return the culprit of a finished search: one candidate, or several that no run can separate."""
    analysis = state.analysis
    assert analysis is not None
    probabilities = noisy.culprit_probabilities(state)
    ordered = sorted(analysis.likeliest, key=lambda index: (not analysis.available[index], -probabilities[index]))
    return [
        Candidate(
            point=state.span.points[index],
            probability=min(1.0, probabilities[index]),
            measurable=bool(analysis.available[index]),
        )
        for index in ordered
    ]


def _list_most_probable(state: noisy.SearchState) -> list[Candidate]:
    """Return up to ten candidates with a probability of at least 0.5%, for a search that is undecided."""
    analysis = state.analysis
    assert analysis is not None
    probabilities = noisy.culprit_probabilities(state)
    ordered = sorted(range(1, len(probabilities)), key=lambda index: -probabilities[index])[:10]
    return [
        Candidate(
            point=state.span.points[index],
            probability=min(1.0, probabilities[index]),
            measurable=bool(analysis.available[index]),
        )
        for index in ordered
        if probabilities[index] >= 0.005
    ]


def _build_remainders(root: noisy.SearchState) -> Iterator[Remainder]:
    for state in _all_states(root):
        for name, child in state.children.items():
            if name not in ("before", "after") or child.analysis is None or child.status == "found":
                continue
            no_culprit = child.analysis.posterior.no_culprit
            likely = f"{share(no_culprit)} likely"
            unknown = f"known whether another slowdown lies {name} it ({likely} that there is none)"
            words = {
                "none": f"no slowdown of {percent_words(child.span.smallest)} or more {name} it ({likely})",
                "searching": f"it is not yet {unknown}",
                "undecided": f"it is not {unknown}",
                "unmeasurable": f"the commits {name} it cannot be measured ({likely} that none of them is slower)",
            }
            yield Remainder(
                where="before" if name == "before" else "after",
                culprit=state.span.points[state.place].key,
                none_probability=min(1.0, no_culprit),
                text=words[child.status],
            )


def _build_places(root: noisy.SearchState) -> list[PointSummary]:
    analysis = root.analysis
    assert analysis is not None
    probabilities = noisy.culprit_probabilities(root)
    # Each value is relative to the mean of good in the same stratum.
    values: dict[int, list[float]] = {}
    good_values: dict[str, list[float]] = {}
    for sample in analysis.samples:
        if sample.point == 0:
            good_values.setdefault(sample.stratum, []).append(sample.value)
    for sample in analysis.samples:
        if sample.stratum in good_values:
            values.setdefault(sample.point, []).append(sample.value - fmean(good_values[sample.stratum]))
    runs: dict[int, int] = {}
    for sample in analysis.samples:
        runs[sample.point] = runs.get(sample.point, 0) + 1
    return [
        PointSummary(
            key=point.key,
            probability=min(1.0, probabilities[index]),
            runs=runs.get(index, 0),
            mean=percent(fmean(values[index])) if index in values else None,
            measurable=bool(analysis.available[index]),
        )
        for index, point in enumerate(root.span.points)
    ]


def percent_words(log_ratio: float) -> str:
    return f"{percent(log_ratio):.3g}%"
