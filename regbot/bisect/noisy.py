"""The search on noisy values: which run comes next, told from the runs there are.

    search      runs that teach most about the culprit, until one is as probable as was asked, or "none" is
    confirm     the culprit against its parent, in ABBA blocks, by the paired gate; a culprit that the gate clears is
                taken out, and the search goes on
    remainder   what is left before the culprit and after it is searched with the same runs: a second culprit is found
                there, and confirmed, and so on
    inside      a culprit that is a merge: the commits that it brought are searched

Nothing is remembered anywhere else, so a bisection that was killed goes on from its log. Search runs and confirmation
runs are told apart by their purpose and never mixed in a count; for the posterior they all count.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from regbot.bisect.span import Noise, Span, Standing, asked, failing, stand
from regbot.records.bisection import BisectionHeader, Observation, Point, Purpose
from regbot.stats.culprit import Sample, noise_is_seen
from regbot.stats.next_run import choose, costs
from regbot.stats.paired import LOOKS, Sequential, Thresholds, sequential

BLOCK_SLOTS = 4
ATTEMPTS = 2
"""Of a block of a confirmation, and of a point that could be measured and now fails."""
VOIDS = 5
"""So many runs that the node spoilt end a confirmation for one session, in one block of it."""
MOVED = ", nodes lost: "
"""In the name of a stratum before how often its slot lost its nodes; what stands before it is the session."""

REFUTATIONS = 3
"""So many culprits may be cleared by the gate, or be given up while it looks at them, before the search gives up: the
runs do not fit the model."""

REMAINDER_NONE = 0.7
"""Prior probability that nothing is left beside a culprit that was found."""
REMAINDER_SHARE = 1 / 3
"""A second change is looked for down to this share of the first."""
REMAINDER_RUNS = 10
"""Search runs at most that the question costs, before or after a culprit, where earlier runs have not answered it."""

INSIDE_NONE = 0.2
"""Prior probability that a merge itself is to blame, and no commit that it brought."""

SLOWER_SHARE, CLEARED_SHARE = 1 / 4, 1 / 2
"""Of the effect that the search saw: what the gate must prove culprit and parent to differ by, or not to."""

Status = Literal["searching", "none", "found", "undecided", "unmeasurable"]


@dataclass(frozen=True)
class Wanted:
    """One measurement to make."""

    point: Point
    purpose: Purpose
    contrast: str = ""
    block: int = 0
    slot: int = 0
    entry: str = ""


@dataclass(frozen=True)
class Terms:
    """How a bisection is to be done."""

    noise: Noise
    posterior: float
    most_runs: int
    summary: str
    indifference: float
    """Log-ratio that the gate lets pass at most."""
    confirm: bool = True
    seed: int = 0

    @classmethod
    def of(cls, header: BisectionHeader, indifference: float) -> "Terms":
        noise = Noise(math.log1p(header.noise_pct / 100) if header.noise_pct else None, header.noise_pairs)
        return cls(
            noise,
            header.posterior,
            header.most_runs,
            header.summary,
            indifference,
            header.confirm,
            header.seed,
        )


@dataclass(frozen=True)
class Pace:
    """What runs have cost so far, and which points need no build."""

    run_s: float = 1.0
    build_s: float = 0.0
    built: frozenset[str] = frozenset()


@dataclass
class Node:
    """One question, how it stands, and those that follow from its answer."""

    span: Span
    status: Status
    standing: Standing | None = None
    gate: Sequential | None = None
    gate_ended: bool = False
    """Whether the confirmation has said all it can."""
    failure: str = ""
    spoilt: bool = False
    """Whether the node ended the confirmation: another session may bring it to its end."""
    refuted: tuple[int, ...] = ()
    wanted: list[Wanted] = field(default_factory=list)
    children: dict[str, "Node"] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """The culprit's: of a set the one that was measured."""
        assert self.standing is not None
        usable = [place for place in self.standing.likeliest if self.standing.available[place]]
        return max(usable or self.standing.likeliest)


Inside = Callable[[Point], Span | None]
"""The span of what a merge brought; None for a commit that is none."""


def walk(
    span: Span,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    stratum: str,
    terms: Terms,
    pace: Pace,
    inside: Inside,
) -> Node:
    """How the question of ``span`` stands, and the next run for ``stratum``, if any, in the first node that wants one.

    ``pending``: what is running, and in which stratum.
    """
    node = _answered(span, observations, pending, stratum, terms, pace)
    if node.status != "found" or node.wanted or (terms.confirm and not node.gate_ended) or node.standing is None:
        return node
    for name, follows in _followers(node, inside):
        node.children[name] = walk(follows, observations, pending, stratum, terms, pace, inside)
        if wants(node.children[name]):
            break
    return node


def wants(node: Node) -> list[Wanted]:
    """What is to be run next, of a node or of those below it."""
    return node.wanted or [each for child in node.children.values() for each in wants(child)]


def _answered(
    span: Span,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    stratum: str,
    terms: Terms,
    pace: Pace,
) -> Node:
    refuted: tuple[int, ...] = ()
    while True:
        the_question = asked(span, terms.noise, refuted)
        standing = stand(span, the_question, observations, terms.summary)
        node = Node(span, "searching", standing, refuted=refuted)
        if not (standing.available[0] and standing.available[-1]):
            node.status = "unmeasurable"
            return node
        if not noise_is_seen(the_question, standing.samples):
            break
        if standing.belief.none >= terms.posterior:
            node.status = "none"
            return node
        begun = terms.confirm and _pairs_of(span, node.place, observations) is not None
        sure = standing.probability >= (0.5 if begun else terms.posterior)
        at_a_loss = terms.confirm and _unconfirmed(span, standing, observations, terms) > REFUTATIONS
        if at_a_loss and not (begun and sure):
            node.status = "undecided"
            return node
        if sure:
            node.status = "found"
            if not terms.confirm:
                return node
            cleared = _confirm(node, observations, pending, stratum, terms)
            if not cleared:
                return node
            refuted = (*refuted, *standing.likeliest)
            if len(refuted) < len(span.points) - 1:
                continue
            node.status, node.refuted = "none", refuted
            return node
        break
    purpose: Purpose = "remainder" if span.remainder else "search"
    made = [each for each in observations if each.purpose == purpose and not each.cached]
    own = sum(each.contrast == span.name for each in made) + len(pending)
    if own >= REMAINDER_RUNS if purpose == "remainder" else len(made) + len(pending) >= terms.most_runs:
        node.status = "undecided"
        return node
    if any(each.purpose == "confirm" for each, _ in pending):
        return node
    running = [
        Sample(span.places[each.point.key], 0.0, where) for each, where in pending if each.point.key in span.places
    ]
    built = [place for place, point in enumerate(span.points) if point.key in pace.built]
    available = standing.available.copy()
    available[failing(span, observations, ATTEMPTS)] = False
    if not available.any():
        node.status = "undecided"
        return node
    chosen = choose(
        the_question,
        standing.samples,
        stratum,
        available,
        running,
        costs(len(span.points), built, pace.run_s, pace.build_s),
        terms.seed,
    )
    node.wanted = [Wanted(span.points[chosen], purpose, span.name)]
    return node


def contrast_of(span: Span, place: int) -> str:
    return f"{span.points[place].key} against its parent"


def turn(seed: int, contrast: str, block: int) -> str:
    """The order of a block, A the parent: as good as random, and the same whenever it is asked for."""
    return random.Random(f"{seed}/{contrast}/{block}").choice(("ABBA", "BAAB"))


def _pairs_of(span: Span, place: int, observations: Sequence[Observation]) -> list[Observation] | None:
    found = [each for each in observations if each.purpose == "confirm" and each.contrast == contrast_of(span, place)]
    return found or None


def _unconfirmed(span: Span, standing: Standing, observations: Sequence[Observation], terms: Terms) -> int:
    """How many places of the span the gate has looked at and not proven slower."""
    begun = {each.contrast for each in observations if each.purpose == "confirm"}
    names = begun & {contrast_of(span, place) for place in range(1, len(span.points))}
    limits = _limits(span, standing, terms)
    good = span.points[0]
    found = (contrast(name, good, good, observations, (), terms.seed, limits) for name in names)
    return sum(each.gate is None or each.gate.decision != "regressed" for each in found)


def _limits(span: Span, standing: Standing, terms: Terms) -> Thresholds:
    effect = max(standing.belief.effect, span.smallest)
    return Thresholds(CLEARED_SHARE * effect, min(terms.indifference, SLOWER_SHARE * effect))


def _confirm(
    node: Node,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    stratum: str,
    terms: Terms,
) -> bool:
    """Whether the gate clears the culprit of ``node``; else it is confirmed, undecided, or a run is wanted."""
    assert node.standing is not None
    span, place = node.span, node.place
    parent = span.points[_measurable_before(node)]
    limits = _limits(span, node.standing, terms)
    name, culprit = contrast_of(span, place), span.points[place]
    found = contrast(name, parent, culprit, observations, pending, terms.seed, limits, stratum)
    node.gate, node.gate_ended, node.failure, node.wanted = found.gate, found.ended, found.failure, found.wanted
    node.spoilt = found.spoilt
    return found.cleared


@dataclass(frozen=True)
class Contrast:
    """Two points held against each other in pairs, as far as that has gone."""

    gate: Sequential | None
    ended: bool
    wanted: list[Wanted]
    failure: str = ""
    """Why it could not be brought to its end."""
    spoilt: bool = False
    """Whether that is the fault of this session's nodes, and no point's."""

    @property
    def cleared(self) -> bool:
        """Whether the two are shown to be alike, or the culprit to be the faster one."""
        return self.ended and self.gate is not None and self.gate.decision in ("no_change", "improved")


def contrast(
    name: str,
    parent: Point,
    culprit: Point,
    observations: Sequence[Observation],
    pending: Sequence[tuple[Wanted, str]],
    seed: int,
    limits: Thresholds,
    stratum: str = "",
) -> Contrast:
    """ABBA blocks of two points, A the parent, and the paired gate's looks at them.

    ``stratum``: the one that is free. A block that another one has begun is begun again in it: the two runs of a pair
    are never of two sessions. '' where only the answer is asked for.
    """
    made = [each for each in observations if each.purpose == "confirm" and each.contrast == name]
    ratios: dict[str, list[float]] = {}
    gate: Sequential | None = None
    for block in range(1, LOOKS[-1] // 2 + 1):
        order = turn(seed, name, block)
        begun = [each for each in made if each.block == block]
        failures = [each for each in begun if not each.usable]
        failed = sum(not each.void for each in failures) >= ATTEMPTS
        if failed or _spoilt(begun, stratum):
            return Contrast(gate, True, [], failures[-1].reason, not failed)
        runs = _last_attempt(begun)
        if len(runs) < BLOCK_SLOTS:
            if stratum and runs and runs[-1].stratum != stratum:
                runs = []
            point = parent if order[len(runs)] == "A" else culprit
            return Contrast(gate, False, [] if pending else [Wanted(point, "confirm", name, block, len(runs))])
        for first, second in ((0, 1), (2, 3)):
            base, head = (runs[first], runs[second]) if order[first] == "A" else (runs[second], runs[first])
            for summary in base.values.keys() & head.values.keys():
                ratios.setdefault(summary, []).append(head.values[summary] - base.values[summary])
        gate = sequential(ratios, len(ratios), limits)
        if gate is not None and gate.final:
            break
    return Contrast(gate, True, [])


def _spoilt(runs: Sequence[Observation], stratum: str) -> bool:
    """Whether the node has spoilt too many runs of a block in the session that is asked for, by default the last."""
    last = stratum or (runs[-1].stratum if runs else "")
    session = last.partition(MOVED)[0]
    return sum(each.void and each.stratum.partition(MOVED)[0] == session for each in runs) >= VOIDS


def _last_attempt(runs: Sequence[Observation]) -> list[Observation]:
    """The runs of a block that count: those since the last failure, of one stratum."""
    failures = [number for number, each in enumerate(runs) if not each.usable]
    found = list(runs[failures[-1] + 1 :] if failures else runs)
    return [each for each in found if each.stratum == found[-1].stratum]


def _measurable_before(node: Node) -> int:
    assert node.standing is not None
    parent = node.span.before(min(node.standing.likeliest))
    while parent > 0 and not node.standing.available[parent]:
        parent = node.span.before(parent)
    return parent


def _followers(node: Node, inside: Inside) -> list[tuple[str, Span]]:
    """The questions that follow from a culprit."""
    assert node.standing is not None
    span, place = node.span, node.place
    point = span.points[place]
    found: list[tuple[str, Span]] = []
    if len(node.standing.likeliest) == 1 and (brought := inside(point)) is not None:
        found.append(("inside", brought))
    if not span.is_line:
        return found
    smallest = max(span.smallest, REMAINDER_SHARE * node.standing.belief.effect)
    before, last = _measurable_before(node), len(span.points) - 1
    if before > 0:
        name = f"before {point.key}"
        found.append(("before", span.part(name, 0, before, REMAINDER_NONE, smallest)))
    if place < last:
        found.append(("after", span.part(f"after {point.key}", place, last, REMAINDER_NONE, smallest)))
    return found


def spread(node: Node) -> list[float]:
    """The probability of every place of the node's span."""
    assert node.standing is not None
    return [0.0, *map(float, node.standing.belief.culprit)]
