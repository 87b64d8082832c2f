"""The screen: a few runs of head against stored sessions, before anybody pays for pairs.

It compares a session with sessions, of one node class and one environment, timed on the same terms. It may pass and
never fails a change by itself: what lies outside of it, or trains differently, or ran another dispatcher, goes on to
pairs. Only with ``gate = "stored"``, for those who cannot run pairs, may its interval fail a change too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from regbot.baselines.intake import class_of, environment_of
from regbot.judge.backends import DISPATCHER
from regbot.judge.estimates import percent, span
from regbot.judge.pairs import is_screen, sound, summaries
from regbot.judge.standing import primary_tests, thresholds
from regbot.judge.training import rounding, trajectory_differs
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.verdict import Decision
from regbot.stats.launch import SUMMARIES, cut_of, steadiness
from regbot.stats.screen import LEAST_SESSIONS, SCREEN_RUNS, Prediction, level, screen, stored_gate

SLOTS = 1 + SCREEN_RUNS
"""The warm launch, then the runs that count."""
ATTEMPTS = 2
LEAST_NODES = 3
"""Nodes that stored sessions have to be of, where head's is none of them: two show little of how nodes differ."""


@dataclass(frozen=True)
class Screening:
    """What the screen says. ``decision`` is None where pairs have to decide; ``why`` then says why."""

    decision: Decision | None
    why: str
    reference: Reference | None = None
    tests: dict[str, tuple[Decision, Prediction]] | None = None
    bound: float | None = None
    """Log scale: the largest slowdown that is not excluded."""


def whole_screen(runs: Sequence[Run]) -> list[Run]:
    """The runs of a screen that was made to its end, its warm launch first; [] where there is none."""
    for attempt in range(ATTEMPTS, 0, -1):
        found = [run for run in runs if is_screen(run) and run.attempt == attempt]
        if len(found) >= SLOTS and all(sound(run) for run in found[:SLOTS]):
            return found[:SLOTS]
    return []


def is_screened(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> bool:
    """Whether the screen comes first: stored sessions are there, and are of what the arms are."""
    return (
        header.throughput.gate != "pairs"
        and any(len(each.sessions) >= LEAST_SESSIONS for each in plan.references)
        and not header.base.overrides
        and not header.head.overrides
        and all(is_screen(run) for run in runs)
    )


def reference_for(plan: TimedPlan, run: Run) -> Reference | str:
    """What is stored of the node class and environment that ``run`` had, or why there is nothing."""
    node_class, environment = class_of(run), environment_of(run)
    same_class = [each for each in plan.references if each.node_class == node_class]
    if not same_class:
        return plan.no_reference or f"no session of it is stored of the node class {node_class}"
    for each in same_class:
        if each.environment == environment and run.timing is not None and each.clock == run.timing.clock:
            return each
    here = environment.model_dump()
    nearest = min(same_class, key=lambda each: _unlike(each, here)[0])
    _, words = _unlike(nearest, here)
    return f"stored sessions of this node class cannot be compared: {words or 'another clock timed them'}"


def screening(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> Screening | None:
    """What the screen's runs say; None while some are still to be made."""
    attempt = max((run.attempt for run in runs), default=1)
    done = [run for run in runs if run.attempt == attempt]
    failed = [run for run in done if not sound(run)]
    if failed and (attempt >= ATTEMPTS or failed[0].outcome == "refused"):
        return Screening(None, "the runs of the screen did not end well")
    if failed or not done:
        return None
    reference = reference_for(plan, done[0])
    if isinstance(reference, str):
        return Screening(None, reference)
    if len(reference.sessions) < LEAST_SESSIONS:
        few = f"{len(reference.sessions)} comparable sessions are stored, and a screen wants {LEAST_SESSIONS}"
        return Screening(None, few, reference)
    if len(done) < SLOTS:
        return None
    head = done[1:SLOTS]
    if why := _strange_node(reference, head[-1]) or _unlike_stored(reference, head) or _unsteady(head):
        return Screening(None, why, reference)
    levels = {name: fmean(_summary(run)[name] for run in head) for name in SUMMARIES}
    stored = {
        "median": [level(each.log_median[:SCREEN_RUNS]) for each in reference.sessions],
        "mean": [level(each.log_mean[:SCREEN_RUNS]) for each in reference.sessions],
    }
    bound = math.log1p(header.throughput.screen_bound_pct / 100)
    if header.throughput.gate == "stored":
        decision, tests = stored_gate(stored, levels, primary_tests(header), thresholds(header), bound)
        return Screening(decision, "", reference, tests, max(each.high for _, each in tests.values()))
    found = screen(stored, levels, bound)
    decided: Decision = "within_bound" if found.passed else "undecided"
    tested = {name: (decided, each) for name, each in found.tests.items()}
    return Screening(decided if found.passed else None, found.why, reference, tested, found.bound)


def screen_reasons(found: Screening, gate: str) -> list[str]:
    """The reasons of a section that the stored sessions decided."""
    assert found.reference is not None
    assert found.tests is not None
    count = len(found.reference.sessions)
    centre = found.tests["median"][1]
    against = f"{SCREEN_RUNS} runs of head against {count} stored sessions"
    spread = f"sessions of one commit differ by {100 * centre.sd:.2g}%"
    if found.decision == "within_bound":
        assert found.bound is not None
        most = percent(found.bound)
        said = f"inside of what is stored: {against} give {span(centre)}"
        return [f"{said}; slowdowns above {most:.2g}% are excluded, smaller ones are not, because {spread}"]
    if found.decision in ("regressed", "improved"):
        word = "slower" if found.decision == "regressed" else "faster"
        slower = [
            f"head is {word} than what is stored by the {name} step time: {against}, {span(each)}"
            for name, (decision, each) in found.tests.items()
            if decision == found.decision
        ]
        return [*slower, f"{spread}; pairs on one node would show less than that (gate = 'pairs')"]
    if found.decision == "no_change":
        return [f"no change: {against} give {span(centre)}"]
    settle = "; pairs on one node would settle it (gate = 'screen')" if gate == "stored" else ""
    return [f"undecided: {against} give {span(centre)}, and {spread}{settle}"]


def numbers(found: Screening) -> dict[str, Any]:
    """The fields of a section that hold the screen's numbers."""
    if found.tests is None or found.reference is None:
        return {}
    centre = found.tests["median"][1]
    fields: dict[str, Any] = {
        "estimate_pct": percent(centre.estimate),
        "low_pct": percent(centre.low),
        "high_pct": percent(centre.high),
        "alpha": centre.alpha,
        "sessions": len(found.reference.sessions),
        "base_step_s": math.exp(fmean(level(each.log_median[:SCREEN_RUNS]) for each in found.reference.sessions)),
    }
    if found.bound is not None and found.decision in ("within_bound", "no_change", "improved"):
        fields["bound_pct"] = percent(found.bound)
    return fields


def _summary(run: Run) -> dict[str, float]:
    assert run.timing is not None
    return summaries(run.timing, cut_of(run.timing))


def _unsteady(head: Sequence[Run]) -> str:
    """Why head cannot be passed on a node with GPUs: it never settles. On a CPU that says little."""
    flagged = [not found.steady for run in head if run.timing is not None and (found := steadiness(run.timing))]
    if head[-1].node is None or not head[-1].node.gpus or 2 * sum(flagged) < len(head):
        return ""
    return f"{sum(flagged)} of {len(head)} runs of head have no steady state"


def _strange_node(reference: Reference, head: Run) -> str:
    """Why what is stored says nothing of this machine: what nodes of a class differ by is seen on several only."""
    nodes = {each.node for each in reference.sessions}
    here = head.node.name if head.node is not None else None
    if here in nodes or len(nodes) >= LEAST_NODES:
        return ""
    return f"stored sessions are of {len(nodes)} other node{'s' * (len(nodes) > 1)}, and {LEAST_NODES} are the least"


def _unlike_stored(reference: Reference, head: Sequence[Run]) -> str:
    """Why head cannot be passed by times alone: it did something else than what was stored."""
    executed = {run.backends[DISPATCHER].executed for run in head if DISPATCHER in run.backends}
    if reference.executed is not None and executed != {reference.executed}:
        ran = ", ".join(sorted(executed)) or "one that was not seen"
        return f"stored sessions executed the dispatcher {reference.executed!r}, and head {ran}"
    if trajectory_differs(reference.loss, head, rounding(head)):
        return "head does not train as the newest stored session did"
    dropped = [run.timing.dropped_tokens for run in head if run.timing is not None]
    if reference.dropped_tokens is not None and any(
        each is None or each > reference.dropped_tokens for each in dropped
    ):
        return "head drops more tokens than the newest stored session did"
    return ""


def _unlike(reference: Reference, here: dict[str, object]) -> tuple[int, str]:
    """In how many fields the environment of ``reference`` is another one, and which."""
    stored = reference.environment.model_dump()
    differing = [name for name in stored if stored[name] != here[name]]
    shown = [f"{name} is {_shown(stored[name])} in store, {_shown(here[name])} here" for name in differing]
    return len(differing), "; ".join(shown)


def _shown(value: object) -> str:
    return "unknown" if value is None else repr(value)[:80]
