"""The answer of a bisection, computed from its observations. This module measures nothing."""

from collections.abc import Sequence

from regbot.bisect.exact_answer import exact_answer
from regbot.bisect.noisy_answer import noisy_answer
from regbot.bisect.prepare import BisectionSetup
from regbot.records.bisection import Bisection, BisectionHeader, Candidate, Observation
from regbot.records.text.clip import clip_message


def compute_answer(setup: BisectionSetup, observations: Sequence[Observation]) -> Bisection:
    """Return the answer that the observations give, whether or not the search has finished."""
    outline = _build_outline(setup, observations)
    if setup.span.last == 0:
        reason = "good and bad run the same code: only comments, documents or tests differ, and nothing was measured"
        return outline.model_copy(update={"outcome": "none", "reasons": [reason]})
    if not setup.header.exact:
        answer = noisy_answer(setup, observations, outline)
        return answer.model_copy(update={"reasons": [clip_message(reason) for reason in answer.reasons]})
    outcome, reasons, changes = exact_answer(setup, observations)
    candidates = changes[0].candidates if changes else []
    culprit = candidates[0].point if len(candidates) == 1 else None
    return outline.model_copy(
        update={
            "outcome": outcome,
            "reasons": [clip_message(reason) for reason in reasons],
            "changes": changes,
            "candidates": candidates,
            "culprit": culprit.commit if culprit is not None else None,
            "version": culprit.version if culprit is not None else "",
        }
    )


def _build_outline(setup: BisectionSetup, observations: Sequence[Observation]) -> Bisection:
    """Build an answer without a culprit: the inputs, the measurements and their cost."""
    header = setup.header
    own = [observation for observation in observations if observation.purpose != "reused"]
    return Bisection(
        outcome="undecided",
        culprit=None,
        candidates=[],
        posterior=None,
        on=header.on,
        exact=header.exact,
        axis=header.axis,
        good=header.points[0],
        bad=header.points[-1],
        commits=len(header.points) - 1,
        different=setup.span.last,
        search_runs=sum(observation.purpose == "search" for observation in own),
        confirm_runs=sum(observation.purpose == "confirm" for observation in own),
        reused_runs=len(observations) - len(own),
        builds=sum(observation.built for observation in own),
        minutes=sum(observation.wall_s + observation.build_s for observation in own) / 60,
        unmeasurable=_list_unmeasurable(header, observations),
        observations=list(observations),
        warnings=[*header.warnings, *setup.notes],
    )


def _list_unmeasurable(header: BisectionHeader, observations: Sequence[Observation]) -> list[Candidate]:
    """Return the points that have failures and no value, in order, each with its first reason. Void runs do not
    count."""
    measured_keys = {observation.point for observation in observations if observation.usable}
    reasons: dict[str, str] = {}
    for observation in observations:
        is_failure = not observation.usable and not observation.void
        if is_failure and observation.point not in measured_keys:
            reasons.setdefault(observation.point, observation.reason)
    return [
        Candidate(point=point, measurable=False, reason=reasons[point.key])
        for point in header.points
        if point.key in reasons
    ]
