"""The answer of a search on noisy values: who it is with which probability, by how much, and what is left."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal

from regbot.bisect import blame, noisy
from regbot.bisect.outline import outline
from regbot.bisect.site import Site
from regbot.judge.estimates import percent
from regbot.records.bisection import (
    Bisection,
    BisectionHeader,
    Candidate,
    Change,
    Estimate,
    Found,
    Observation,
    Place,
    Remainder,
)
from regbot.report.posterior import share
from regbot.stats.paired import Sequential


def noisy_answer(site: Site, observations: Sequence[Observation], pace: noisy.Pace) -> Bisection:
    """What the runs say, finished or not."""
    header = site.header
    terms = site.terms
    root = noisy.walk(site.span, observations, (), "", terms, pace, site.inside)
    standing = root.standing
    assert standing is not None
    found, reasons = _status(site, root, observations)
    code = blame.code(header, terms, root, observations)
    changes = [change for node in _nodes(root) if (change := _slower(header, node)) is not None]
    ordered = sorted(changes, key=lambda change: -(change.estimate.pct if change.estimate else 0.0))
    posterior = standing.probability
    if root.status == "found" and changes:
        candidates = changes[0].candidates
    else:
        candidates = _most_probable(root) if found == "undecided" else []
    first = changes[0] if found == "culprit" and changes else None
    sole = first is not None and len(first.candidates) == 1
    return outline(header, observations, found, reasons).model_copy(
        update={
            "culprit": first.candidates[0].point.commit if first is not None and sole else None,
            "version": first.candidates[0].point.version if first is not None and sole else "",
            "candidates": candidates,
            "posterior": min(1.0, posterior),
            "none_probability": min(1.0, standing.belief.none),
            "changes": [changes[0], *(each for each in ordered if each is not changes[0])] if changes else [],
            "remainders": list(_remainders(root)),
            "places": _places(root),
            "noise_pct": 100 * math.expm1(standing.belief.noise) if standing.samples else None,
            "code": _estimate(header, code.gate) if code is not None and code.gate is not None else None,
            "blame": blame.noisy_words(header, found, code),
        }
    )


def _status(site: Site, root: noisy.Node, observations: Sequence[Observation]) -> tuple[Found, list[str]]:
    header = site.header
    standing = root.standing
    assert standing is not None
    if root.status == "unmeasurable":
        said = {each.point: each.reason for each in observations if not each.usable}
        of = {place: said[key] for key, place in root.span.places.items() if key in said}
        ends = (("good", 0), ("bad", len(root.span.points) - 1))
        return "unmeasurable", [f"{name} cannot be measured: {of[place]}" for name, place in ends if place in of]
    if root.status == "none" and root.refuted:
        names = ", ".join(root.span.points[place].name for place in root.refuted)
        return "none", [f"the gate has cleared {names}, and no other commit is left: nothing slower was confirmed"]
    if root.status == "none":
        sure = f"with probability {share(standing.belief.none)}"
        return "none", [f"{sure} no commit made it {header.smallest_pct:.3g}% slower or more", *_faster(root)]
    if root.status == "found":
        if header.confirm and (root.spoilt or not root.gate_ended):
            name, failure = root.span.points[root.place].name, f" ({root.failure})" if root.failure else ""
            reason = f"{name} is the likeliest by far; its confirmation did not come to its end{failure}"
            return "undecided", [f"{reason}: go on with --resume"]
        return "culprit", [*_unresolved(root), *_taken_back(root)]
    made = sum(each.purpose == "search" for each in observations)
    best = (
        f"the likeliest commit has {100 * standing.probability:.0f}%, and {100 * header.posterior:.0f}% were asked for"
    )
    reasons = [f"undecided after {made} search runs: {best}; go on with --resume and more --runs"]
    if root.refuted:
        names = ", ".join(root.span.points[place].name for place in root.refuted)
        reasons.append(f"the gate has cleared {names}: the runs do not fit one slowdown that stays")
    return "undecided", [*reasons, *_faster(root)]


def _unresolved(root: noisy.Node) -> list[str]:
    inside = root.children.get("inside")
    if inside is None or inside.status in ("found", "none"):
        return []
    return [f"which of the commits that {root.span.points[root.place].name} merged it was could not be told"]


def _taken_back(root: noisy.Node) -> list[str]:
    """What to say where bad is no slower than good although a culprit lies between them."""
    standing = root.standing
    assert standing is not None
    good, bad = ([each.value for each in standing.samples if each.point == at] for at in (0, len(root.span.points) - 1))
    if not good or not bad:
        return []
    gap, error = fmean(bad) - fmean(good), standing.belief.noise * math.sqrt(1 / len(good) + 1 / len(bad))
    if gap + 2 * error > standing.belief.effect / 2:
        return []
    return ["bad is hardly slower than good: a later commit of the range seems to have taken it back"]


def _faster(root: noisy.Node) -> list[str]:
    """What to say where bad is faster than good."""
    standing = root.standing
    assert standing is not None
    last = len(root.span.points) - 1
    good = [each.value for each in standing.samples if each.point == 0]
    bad = [each.value for each in standing.samples if each.point == last]
    if len(good) < 2 or len(bad) < 2:
        return []
    gap = fmean(bad) - fmean(good)
    error = standing.belief.noise * math.sqrt(1 / len(good) + 1 / len(bad))
    if gap > -3 * error:
        return []
    return [f"bad is faster than good by {percent_words(-gap)}: are good and bad swapped?"]


def _nodes(root: noisy.Node) -> Iterator[noisy.Node]:
    yield root
    for child in root.children.values():
        yield from _nodes(child)


def _slower(header: BisectionHeader, node: noisy.Node) -> Change | None:
    """The change of a node that has found one. Where a merge's branch has the culprit, that tells it."""
    if node.status != "found" or node.standing is None:
        return None
    inside = node.children.get("inside")
    if inside is not None and inside.status == "found":
        return None
    candidates = _candidates(node)
    estimate, confirmed = _confirmed(header, node)
    name = candidates[0].point.name if len(candidates) == 1 else f"one of {len(candidates)} commits"
    if estimate is not None:
        size = f"{estimate.pct:+.1f}% [{estimate.low_pct:+.1f}, {estimate.high_pct:+.1f}]"
    else:
        size = f"about {percent_words(node.standing.belief.effect)}"
    words = {
        "yes": "confirmed against its parent",
        "undecided": "not confirmed: its parent and it could not be told apart by pairs",
        "not asked": "by the search alone",
    }
    of_merge = " itself, and no commit that it merges" if inside is not None and inside.status == "none" else ""
    failure = f" ({node.failure})" if node.failure else ""
    return Change(
        candidates=candidates,
        parent=node.span.points[node.span.before(min(node.standing.likeliest))].key,
        merge=node.span.merge or None,
        entries=header.entries,
        estimate=estimate,
        confirmed=confirmed,
        text=f"{name}{of_merge} is {size} slower, {words[confirmed]}{failure}"[:4000],
    )


def _confirmed(
    header: BisectionHeader, node: noisy.Node
) -> tuple[Estimate | None, Literal["yes", "undecided", "not asked"]]:
    if node.gate is None:
        return None, "undecided" if header.confirm else "not asked"
    return _estimate(header, node.gate), "yes" if node.gate.decision == "regressed" else "undecided"


def _estimate(header: BisectionHeader, gate: Sequential) -> Estimate:
    _, shown = gate.tests[header.summary]
    return Estimate(
        pct=percent(shown.estimate),
        low_pct=percent(shown.low),
        high_pct=percent(shown.high),
        pairs=gate.pairs,
        decision=gate.decision,
    )


def _candidates(node: noisy.Node) -> list[Candidate]:
    standing = node.standing
    assert standing is not None
    shares = [float(each) for each in standing.belief.culprit]
    ordered = sorted(standing.likeliest, key=lambda place: (not standing.available[place], -shares[place - 1]))
    return [
        Candidate(
            point=node.span.points[place],
            probability=min(1.0, shares[place - 1]),
            measurable=bool(standing.available[place]),
        )
        for place in ordered
    ]


def _most_probable(node: noisy.Node) -> list[Candidate]:
    standing = node.standing
    assert standing is not None
    shares = [float(each) for each in standing.belief.culprit]
    ordered = sorted(range(len(shares)), key=lambda place: -shares[place])[:10]
    return [
        Candidate(
            point=node.span.points[at + 1],
            probability=min(1.0, shares[at]),
            measurable=bool(standing.available[at + 1]),
        )
        for at in ordered
        if shares[at] >= 0.005
    ]


def _remainders(root: noisy.Node) -> Iterator[Remainder]:
    for node in _nodes(root):
        for name, child in node.children.items():
            if name not in ("before", "after") or child.standing is None or child.status == "found":
                continue
            none = child.standing.belief.none
            words = {
                "none": f"nothing of {percent_words(child.span.smallest)} or more {name} it",
                "searching": f"not yet known whether something slower lies {name} it",
                "undecided": f"whether something slower lies {name} it could not be told",
                "unmeasurable": f"what lies {name} it cannot be measured",
            }
            yield Remainder(
                where="before" if name == "before" else "after",
                of=node.span.points[node.place].key,
                none_probability=min(1.0, none),
                text=f"{words[child.status]} (with probability {share(none)} there is nothing)",
            )


def _places(root: noisy.Node) -> list[Place]:
    standing = root.standing
    assert standing is not None
    shares = noisy.spread(root)
    values: dict[int, list[float]] = {}
    levels: dict[str, list[float]] = {}
    for each in standing.samples:
        if each.point == 0:
            levels.setdefault(each.stratum, []).append(each.value)
    for each in standing.samples:
        if each.stratum in levels:
            values.setdefault(each.point, []).append(each.value - fmean(levels[each.stratum]))
    runs: dict[int, int] = {}
    for each in standing.samples:
        runs[each.point] = runs.get(each.point, 0) + 1
    return [
        Place(
            key=point.key,
            probability=min(1.0, shares[place]),
            runs=runs.get(place, 0),
            mean=percent(fmean(values[place])) if place in values else None,
            measurable=bool(standing.available[place]),
        )
        for place, point in enumerate(root.span.points)
    ]


def percent_words(log_ratio: float) -> str:
    return f"{percent(log_ratio):.3g}%"
