"""Sentences about the result of a bisection: the culprit, its effect, the confirmation and the cost.

Every kind of result has its own small function. The report (an HTML page), the reply on GitHub and the terminal use the
same sentences. A *point* is a commit, or a version of a dependency at one commit. A sentence is a tuple of text parts
(``Words``). Untrusted parts have the type ``Name`` or ``UntrustedText``. This module computes no numbers. All numbers
come from the result.

``result.on`` is what was searched by: "ledger", "time" or "command". ``result.axis`` is the package whose
versions were searched, '' if commits were searched. ``change.parent`` is the point before the change, which the change
was compared with. ``change.confirmed`` is "yes", "no" or "undecided" if pairs were measured for a confirmation. It is
"exact" after an exact search, which needs no confirmation, and "not asked" if the options switch the confirmation off.
"""

from collections.abc import Callable, Sequence

from regbot.records.bisection import (
    Bisection,
    BisectionOutcome,
    Candidate,
    Change,
    Estimate,
    Observation,
    Point,
    Remainder,
    SearchMetric,
)
from regbot.records.verdict import Finding, Status
from regbot.report.markdown import Name, UntrustedText, Words
from regbot.report.posterior import share
from regbot.report.quantities import size, with_interval
from regbot.text.clip import clip_line, short_commit
from regbot.text.words import count

SUBJECT_CHARACTERS = 100
AUTHOR_CHARACTERS = 60
NAME_CHARACTERS = 60
REASON_CHARACTERS = 400
MAX_NAMED = 4
"""Maximum number of commits or changes that a headline names. The blocks below the headline name all of them."""

NUMBER_WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}

RESULT_WORDS: dict[BisectionOutcome, str] = {
    "culprit": "CULPRIT FOUND",
    "none": "NO CULPRIT",
    "undecided": "UNDECIDED",
    "unmeasurable": "NOT MEASURABLE",
}
"""Outcome -> first words of the answer."""
TONES: dict[BisectionOutcome, Status] = {
    "culprit": "FAIL",
    "none": "PASS",
    "undecided": "INCONCLUSIVE",
    "unmeasurable": "INVALID",
}
"""For each outcome, the status whose colour and sign the HTML report uses."""

SUBJECTS: dict[SearchMetric, str] = {
    "ledger": "the collectives",
    "time": "the step time",
    "command": "the printed number",
}
"""Quantity that the search goes by -> name of what a culprit changed."""


def name_outcome(result: Bisection) -> str:
    """Return the words before the headline. A culprit that no pairs have confirmed is named as such."""
    is_unconfirmed = bool(result.changes) and all(
        change.confirmed in ("no", "undecided", "not asked") for change in result.changes
    )
    return (
        f"{RESULT_WORDS[result.outcome]}{', NOT CONFIRMED' if result.outcome == 'culprit' and is_unconfirmed else ''}"
    )


def headline(result: Bisection) -> Words:
    """Return the answer in one sentence, without the leading words from ``name_outcome``."""
    return _HEADLINES[result.outcome](result)


def _culprit_headline(result: Bisection) -> Words:
    """Return the sentence about the changes; without changes, about the candidates that remain."""
    changes = result.changes
    if len(changes) == 1:
        return _describe_single_change(changes[0], result)
    if changes:
        return _describe_several_changes(result)
    return ("the culprit is ", *_list_candidates(result.candidates, result))


def _describe_single_change(change: Change, result: Bisection) -> Words:
    """Return the commit or the candidates of a change, its effect, and how it was confirmed."""
    if len(change.candidates) > 1:
        sentence: Words = (
            "the culprit is ",
            *_list_candidates(change.candidates, result),
            "; it ",
            *_describe_change(change, result),
        )
    else:
        sentence = (*describe_point(change.candidates[0].point, result.axis), " ", *_describe_change(change, result))
    return (*sentence, *_append_confirmation(change), *_describe_merge(change), *_describe_undone(change))


def _describe_several_changes(result: Bisection) -> Words:
    """Return the number of changes, and for each of the first ``MAX_NAMED`` its commit and its effect in short."""
    # A search by time or cost may also name changes of the ledger. These changes have findings.
    all_are_of_searched_metric = result.on == "ledger" or not any(change.findings for change in result.changes)
    subject = f" of {SUBJECTS[result.on]}" if all_are_of_searched_metric else ""
    parts: list[str] = [f"{count(len(result.changes), 'change')}{subject}: "]
    for number, change in enumerate(result.changes[:MAX_NAMED]):
        first = change.candidates[0].point
        parts += [
            "; " if number else "",
            *_name_point(first, result.axis),
            *_name_alternatives(change.candidates[1:], result),
            *_describe_change_briefly(change),
            "" if change.confirmed in ("yes", "exact") else " (not confirmed)",
            *_describe_undone(change),
        ]
    if len(result.changes) > MAX_NAMED:
        parts.append(f"; and {len(result.changes) - MAX_NAMED} more")
    return tuple(parts)


def _name_alternatives(others: Sequence[Candidate], result: Bisection) -> Words:
    """Return words for ``others``, the candidates that the search cannot tell apart from the named one; () if none."""
    if len(others) == 1:
        return (" or ", *_name_point(others[0].point, result.axis))
    return (f" or one of {len(others)} other {_choose_noun(result)}s",) if others else ()


def _list_candidates(candidates: Sequence[Candidate], result: Bisection) -> Words:
    """Return a phrase that names the candidates: ``one of the 3 commits A, B, C (two of them cannot be measured)``."""
    if len(candidates) == 1:
        return describe_point(candidates[0].point, result.axis)
    names: list[str] = []
    for number, candidate in enumerate(candidates[:MAX_NAMED]):
        names += [", " if number else "", Name(candidate.point.name)]
    if len(candidates) > MAX_NAMED:
        names.append(f" and {len(candidates) - MAX_NAMED} more")
    unmeasurable = sum(not candidate.measurable for candidate in candidates)
    reason = (
        f"{_spell_number(unmeasurable)} of them cannot be measured"
        if unmeasurable
        else "the runs cannot distinguish them"
    )
    return (f"one of the {count(len(candidates), _choose_noun(result))} ", *names, f" ({reason})")


def count_candidates(candidates: Sequence[Candidate]) -> str:
    """Return the heading of a list of candidates. It mentions the order only if the candidates have probabilities."""
    has_probabilities = any(candidate.probability is not None for candidate in candidates)
    return f"the culprit is one of these {len(candidates)}{', most probable first' if has_probabilities else ''}"


def describe_point(point: Point, axis: str = "") -> Words:
    """Return ``a1b2c3 "subject" by author (pull request 12)``. For a version of a dependency, return package and
    version.

    ``axis``: the package whose versions the search covers; '' if it covers commits.
    """
    if point.version:
        return _name_version(point, axis)
    subject: Words = (' "', UntrustedText(clip_line(point.subject, SUBJECT_CHARACTERS)), '"') if point.subject else ()
    author: Words = (" by ", UntrustedText(clip_line(point.author, AUTHOR_CHARACTERS))) if point.author else ()
    request = f" (pull request {point.pull_request})" if point.pull_request is not None else ""
    return (Name(point.name), *subject, *author, request)


def _name_point(point: Point, axis: str) -> Words:
    request = f" (pull request {point.pull_request})" if point.pull_request is not None else ""
    return _name_version(point, axis) if point.version else (Name(point.name), request)


def _name_version(point: Point, axis: str) -> Words:
    return (Name(clip_line(axis, NAME_CHARACTERS)), " ", Name(clip_line(point.version, NAME_CHARACTERS)))


def _describe_change(change: Change, result: Bisection) -> Words:
    """Return the effect of a change, as the predicate of a sentence about its commit: ``raised the step time: ...``.

    ``before`` and ``after`` are the values that an exact search measured. In other searches, both are ''.
    """
    if change.findings:
        return (f"changed {SUBJECTS['ledger']}: ", *_name_findings(change.findings))
    if change.estimate is not None:
        return (f"{_choose_verb(change.estimate)} {SUBJECTS[result.on]}: ", format_effect(change))
    if change.before or change.after:
        return ("changed the value from ", *value_words(change.before), " to ", *value_words(change.after))
    probability_text = f", with probability {share(result.posterior)}" if result.posterior is not None else ""
    return (f"changed {SUBJECTS[result.on]}{probability_text}",)


def _describe_change_briefly(change: Change) -> Words:
    """Return the effect of a change in a short form, for a list of changes."""
    if change.findings:
        return (", ", *_name_findings(change.findings))
    if change.estimate is not None:
        return (f", {format_effect(change)}",)
    if change.before or change.after:
        return (", from ", *value_words(change.before), " to ", *value_words(change.after))
    return ()


def _name_findings(findings: Sequence[Finding]) -> Words:
    """Return the first finding with its axis, and the number of further findings."""
    first, *more = findings
    others = f" and {count(len(more), 'more finding')}" if more else ""
    return (
        UntrustedText(clip_line(first.pattern, NAME_CHARACTERS)),
        " (axis ",
        Name(clip_line(first.axis, NAME_CHARACTERS)),
        f"){others}",
    )


def _choose_verb(estimate: Estimate) -> str:
    """Return the verb for the direction of a change. If the interval contains zero, the verb names no direction."""
    if estimate.low_pct > 0:
        return "raised"
    return "lowered" if estimate.high_pct < 0 else "moved"


def value_words(value: str) -> Words:
    """Return words for a value that an exact search measured. ``value`` is '' if nothing was measured."""
    return (Name(clip_line(value, NAME_CHARACTERS)),) if value else ("no value",)


def format_effect(change: Change) -> str:
    """Return the estimated effect with its interval, such as ``+48.1% [+40.2, +56.9]``; '' if there is no estimate."""
    estimate = change.estimate
    return "" if estimate is None else with_interval(estimate.pct, estimate.low_pct, estimate.high_pct)


def _append_confirmation(change: Change) -> Words:
    """Return how a change was confirmed; () for an exact search, which needs no confirmation, and if the options switch
    the confirmation off."""
    words = describe_confirmation(change)
    return (f", {words}",) if change.confirmed in ("yes", "no", "undecided") else ()


def describe_confirmation(change: Change) -> str:
    """Return how a change was confirmed by a comparison with the point before it, or that it was not confirmed.

    If the point before is not the parent in git, commits between the two points may have made the change. A note says
    so. ``change.left_out`` is then the number of these commits, else None.
    """
    parent, note = name_parent(change), ""
    if change.left_out is not None:  # the point before is not the parent in git
        parent = clip_line(point_name(change.parent), NAME_CHARACTERS)
        note = f"; {parent} is not its parent in git"
        if change.left_out:
            commits = count(change.left_out, "commit")
            note += f": {commits} between them were left out of the search, and one of them may be the cause"
    if change.confirmed == "exact":
        noun = "version" if change.candidates[0].point.version else "commit"
        if len(change.candidates) > 1:
            return f"exact: one of these {noun}s made the change, which {parent} does not have{note}"
        return f"exact: this {noun} has the change, and {parent} does not{note}"
    if change.confirmed == "not asked":
        return f"not confirmed against {parent}: confirmation was not requested{note}"
    if change.estimate is None:
        return f"{'' if change.confirmed == 'yes' else 'not '}confirmed against {parent}{note}"
    pairs = count(change.estimate.pairs, "pair")
    if change.confirmed == "yes":
        return f"confirmed against {parent} by {pairs}{note}"
    result = "show no such change" if change.confirmed == "no" else "did not decide"
    return f"not confirmed: {pairs} against {parent} {result}{note}"


def name_parent(change: Change) -> str:
    """Return words for the point that the culprit is compared with: ``its parent``, ``the version before it`` or ``the
    nearest measured commit before it``. If several candidates remain, it is ``the commit before them``."""
    is_single = len(change.candidates) == 1
    culprit = "it" if is_single else "them"
    if change.left_out is not None:
        return f"the nearest measured commit before {culprit}"
    if change.candidates[0].point.version:
        return f"the version before {culprit}"
    return "its parent" if is_single else "the commit before them"


def introduce_parent(change: Change) -> str:
    """Return the words before the name of the point that a culprit is compared with."""
    return f"{name_parent(change)} is"


def select_extra_text(change: Change) -> str:
    """Return the sentence that the search wrote about a change; '' if the facts of the change say enough.

    They say enough if the change is confirmed, has findings, an estimate or values, and is no merge.
    """
    is_merge = any(len(candidate.point.parents) > 1 for candidate in change.candidates)
    has_facts = change.findings or change.estimate is not None or change.before or change.after
    is_confirmed = change.confirmed in ("yes", "exact")
    return "" if has_facts and is_confirmed and not is_merge else change.text


def explain_missing_measurement(candidate: Candidate, result: Bisection) -> str:
    """Return why a candidate could not be measured; '' if it could be measured or the reason is unknown."""
    if candidate.measurable:
        return ""
    reasons = (other.reason for other in result.unmeasurable if other.point.key == candidate.point.key)
    return candidate.reason or next(reasons, "")


def _describe_merge(change: Change) -> Words:
    return () if change.merge is None else (", as a part of merge ", Name(short_commit(change.merge)))


def _describe_undone(change: Change) -> Words:
    return (", undone by a later commit of the range",) if change.undone else ()


def _none_headline(result: Bisection) -> Words:
    """Return the sentence for a search that shows that no point of the range made the change."""
    if result.reasons:
        return (UntrustedText(clip_line(result.reasons[0].rstrip(". "), REASON_CHARACTERS)),)
    sentence = f"no {_choose_noun(result)} of the range is to blame"
    if result.none_probability is not None:
        return (f"{sentence}, with probability {share(result.none_probability)}",)
    return (sentence,)


def _undecided_headline(result: Bisection) -> Words:
    """Return the most suspect candidate, the result of its confirmation if there was one, and the first reason."""
    if not result.candidates:
        return ("the culprit is not known", *_append_first_reason(result))
    best = result.candidates[0]
    probability_text = f", with probability {share(best.probability)}," if best.probability is not None else ""
    suspect: Words = (f"most suspect{probability_text} is ", *describe_point(best.point, result.axis))
    if not result.changes:
        return (*suspect, *_append_first_reason(result, "; "))
    change = result.changes[0]
    change_text = f": {format_effect(change)}" if format_effect(change) else ""
    return (*suspect, f"{change_text}, {describe_confirmation(change)}", *_append_first_reason(result, "; "))


def _unmeasurable_headline(result: Bisection) -> Words:
    return ("the range could not be searched", *_append_first_reason(result))


def _append_first_reason(result: Bisection, separator: str = ": ") -> Words:
    """Return the first reason of the result after ``separator``; () if the result has no reason."""
    if not result.reasons:
        return ()
    reason = clip_line(result.reasons[0].rstrip(". "), REASON_CHARACTERS)
    return (separator, UntrustedText(reason))


_HEADLINES: dict[BisectionOutcome, Callable[[Bisection], Words]] = {
    "culprit": _culprit_headline,
    "none": _none_headline,
    "undecided": _undecided_headline,
    "unmeasurable": _unmeasurable_headline,
}
"""Outcome -> function that returns the headline."""


def list_other_reasons(result: Bisection) -> list[str]:
    """Return the reasons of the result, without the first reason if the headline already contains its whole text."""
    headline_has_first = result.outcome != "culprit" and result.reasons and len(result.reasons[0]) <= REASON_CHARACTERS
    return result.reasons[1:] if headline_has_first else result.reasons


def describe_range(result: Bisection) -> str:
    """Return the size of the range: ``64 commits, 52 of which change the code that runs``. ``result.different`` is the
    number of these points that run other code than the point before them."""
    noun = _choose_noun(result)
    if result.different == result.commits:
        return count(result.commits, noun)
    return f"{count(result.commits, noun)}, {result.different} of which change the code that runs"


def describe_method(result: Bisection) -> str:
    """Return what the search compared. ``result.noise_pct`` is the standard deviation of one run in percent; None if it
    is unknown."""
    if result.on == "ledger":
        return "the collectives of one step, exact"
    if result.on == "time":
        return "step times, noisy" if result.noise_pct is None else f"step times; {_describe_noise(result.noise_pct)}"
    if result.exact:
        return "what the command prints, exact"
    noise = "noisy" if result.noise_pct is None else _describe_noise(result.noise_pct)
    return f"what the command prints; {noise}"


def _describe_noise(noise_pct: float) -> str:
    return f"runs of one commit differ by {size(noise_pct)} (standard deviation)"


def describe_cost(result: Bisection) -> str:
    """Return the cost, such as ``28 search runs, 8 confirmation runs, 9 builds, 84.2 minutes``. Parts that are zero are
    left out."""
    search = "trace" if result.on == "ledger" else "search run"
    parts = [count(result.search_runs, search)]
    parts += [count(result.confirm_runs, "confirmation run")] if result.confirm_runs else []
    parts += [f"{count(result.remainder_runs, 'run')} for remaining changes"] if result.remainder_runs else []
    parts += [f"{count(result.reused_runs, 'reused run')}"] if result.reused_runs else []
    parts += [f"{result.cached_runs} more from the cache"] if result.cached_runs else []
    return ", ".join([*parts, count(result.builds, "build"), f"{result.minutes:.1f} minutes"])


def describe_remainder(remainder: Remainder) -> Words:
    """Return what the search knows about further changes before or after a culprit. ``remainder.where`` is "before" or
    "after"."""
    culprit = Name(clip_line(point_name(remainder.culprit), NAME_CHARACTERS))
    if remainder.text:
        return (culprit, ": ", UntrustedText(remainder.text))
    return (culprit, f": no further change {remainder.where} it (probability {share(remainder.none_probability)})")


def describe_purpose(observation: Observation) -> str:
    """Return the purpose of a measurement. For a confirmation, the number of the block is added."""
    if observation.purpose == "confirm" and observation.block:
        return f"confirm, block {observation.block}"
    return observation.purpose


def point_name(key: str) -> str:
    """Return the name of a point from its key, which is ``commit`` or ``commit+version``.

    The name is the version if there is one, else the short commit hash.
    """
    commit, _, version = key.partition("+")
    return version or short_commit(commit)


def _choose_noun(result: Bisection) -> str:
    return "version" if result.axis else "commit"


def _spell_number(number: int) -> str:
    return NUMBER_WORDS.get(number, str(number))
