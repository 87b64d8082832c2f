"""What a bisection found, in words: who brought the change, what it was, how sure that is, what it cost.

Every situation has its own small function. The same words serve the page and the terminal: a sentence is a tuple in
which what somebody else wrote is marked. Nothing is computed here: all numbers are the result's.
"""

from collections.abc import Callable, Sequence

from regbot.records.bisection import Bisection, Candidate, Change, Estimate, Found, Observation, On, Point, Remainder
from regbot.records.verdict import Finding, Status
from regbot.report.markdown import Name, Said, Words
from regbot.report.posterior import share
from regbot.report.quantities import count, size, with_interval

SUBJECT_CHARACTERS = 100
AUTHOR_CHARACTERS = 60
NAME_CHARACTERS = 60
REASON_CHARACTERS = 400
NAMED = 4
"""Commits and changes that a headline names; the blocks below it name them all."""

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}

WORDS: dict[Found, str] = {
    "culprit": "CULPRIT FOUND",
    "none": "NO CULPRIT",
    "undecided": "UNDECIDED",
    "unmeasurable": "NOT MEASURABLE",
}
TONES: dict[Found, Status] = {
    "culprit": "FAIL",
    "none": "PASS",
    "undecided": "INCONCLUSIVE",
    "unmeasurable": "INVALID",
}
"""As grave as the verdict whose colour and sign the page borrows."""

SUBJECTS: dict[On, str] = {"ledger": "the collectives", "time": "the step time", "command": "the cost"}


def headline(result: Bisection) -> Words:
    """The answer in one sentence, without its word."""
    return _HEADLINES[result.found](result)


def _culprit(result: Bisection) -> Words:
    changes = result.changes
    if len(changes) == 1:
        return _one_change(changes[0], result)
    if changes:
        return _several_changes(result)
    return ("the culprit is ", *_one_of(result.candidates, result))


def _one_change(change: Change, result: Bisection) -> Words:
    if len(change.candidates) > 1:
        found: Words = ("the culprit is ", *_one_of(change.candidates, result), "; it ", *_did(change, result))
    else:
        found = (*who(change.candidates[0].point, result.axis), " ", *_did(change, result))
    return (*found, *_confirmed_after(change), *_merged(change), *_undone(change))


def _several_changes(result: Bisection) -> Words:
    parts: list[str] = [f"{count(len(result.changes), 'change')} of {SUBJECTS[result.on]}: "]
    for number, change in enumerate(result.changes[:NAMED]):
        first = change.candidates[0].point
        more = f" (or {count(len(change.candidates) - 1, 'other')})" if len(change.candidates) > 1 else ""
        parts += ["; " if number else "", *_named(first, result.axis), more, *_briefly(change), *_undone(change)]
    if len(result.changes) > NAMED:
        parts.append(f"; and {len(result.changes) - NAMED} more")
    return tuple(parts)


def _one_of(candidates: Sequence[Candidate], result: Bisection) -> Words:
    """``one of 3 commits, two of which cannot be measured: A, B, C``."""
    if len(candidates) == 1:
        return who(candidates[0].point, result.axis)
    names: list[str] = []
    for number, candidate in enumerate(candidates[:NAMED]):
        names += [", " if number else "", Name(candidate.point.name)]
    if len(candidates) > NAMED:
        names.append(f" and {len(candidates) - NAMED} more")
    broken = sum(not candidate.measurable for candidate in candidates)
    why = f"{_number(broken)} of which cannot be measured" if broken else "that cannot be told apart"
    return (f"one of {count(len(candidates), _noun(result))}{', ' if broken else ' '}{why}: ", *names)


def one_of_so_many(candidates: Sequence[Candidate]) -> str:
    """The head of a list of candidates; an exact search gives them no probabilities."""
    doubtful = any(candidate.probability is not None for candidate in candidates)
    return f"one of {len(candidates)}{', most probable first' if doubtful else ''}"


def who(point: Point, axis: str = "") -> Words:
    """``a1b2c3 "subject" by author (pull request 12)``; on an axis of versions the package and its version."""
    if point.version:
        return _version(point, axis)
    said: Words = (' "', Said(cut(point.subject, SUBJECT_CHARACTERS)), '"') if point.subject else ()
    by: Words = (" by ", Said(cut(point.author, AUTHOR_CHARACTERS))) if point.author else ()
    request = f" (pull request {point.pull_request})" if point.pull_request is not None else ""
    return (Name(point.name), *said, *by, request)


def _named(point: Point, axis: str) -> Words:
    request = f" (pull request {point.pull_request})" if point.pull_request is not None else ""
    return _version(point, axis) if point.version else (Name(point.name), request)


def _version(point: Point, axis: str) -> Words:
    return (Name(cut(axis, NAME_CHARACTERS)), " ", Name(cut(point.version, NAME_CHARACTERS)))


def _did(change: Change, result: Bisection) -> Words:
    """What a change did, as the predicate of its commit."""
    if change.findings:
        return (f"changed {SUBJECTS['ledger']}: ", *_findings(change.findings))
    if change.estimate is not None:
        return (f"{_verb(change.estimate)} {SUBJECTS[result.on]}: ", effect(change))
    if change.before or change.after:
        return ("changed the value from ", *value_words(change.before), " to ", *value_words(change.after))
    probable = f", with probability {share(result.posterior)}" if result.posterior is not None else ""
    return (f"changed {SUBJECTS[result.on]}{probable}",)


def _briefly(change: Change) -> Words:
    """What a change did, as one of several."""
    if change.findings:
        return (", ", *_findings(change.findings))
    if change.estimate is not None:
        return (f", {effect(change)}",)
    if change.before or change.after:
        return (", from ", *value_words(change.before), " to ", *value_words(change.after))
    return ()


def _findings(findings: Sequence[Finding]) -> Words:
    first, *more = findings
    others = f" and {count(len(more), 'more finding')}" if more else ""
    return (Said(cut(first.pattern, NAME_CHARACTERS)), " (axis ", Name(cut(first.axis, NAME_CHARACTERS)), f"){others}")


def _verb(found: Estimate) -> str:
    """No interval that holds zero says which way."""
    return "raised" if found.low_pct > 0 else "lowered" if found.high_pct < 0 else "moved"


def value_words(value: str) -> Words:
    """A value of an exact search; '' is none at all."""
    return (Name(cut(value, NAME_CHARACTERS)),) if value else ("no value",)


def effect(change: Change) -> str:
    """``+48.1% [+40.2, +56.9]``; '' where nothing was estimated."""
    found = change.estimate
    return "" if found is None else with_interval(found.pct, found.low_pct, found.high_pct)


def _confirmed_after(change: Change) -> Words:
    words = confirmation(change)
    return (f", {words}",) if change.confirmed in ("yes", "no", "undecided") else ()


def confirmation(change: Change) -> str:
    """How a change was confirmed against its parent, or that it was not."""
    if change.confirmed == "exact":
        return "exact: unchanged up to its parent, changed with it"
    if change.confirmed == "not asked":
        return "not confirmed against its parent: that was not asked for"
    if change.estimate is None:
        return "confirmed against its parent" if change.confirmed == "yes" else "not confirmed against its parent"
    pairs = count(change.estimate.pairs, "pair")
    if change.confirmed == "yes":
        return f"confirmed against its parent by {pairs}"
    shown = "show no such change" if change.confirmed == "no" else "did not decide"
    return f"not confirmed: {pairs} against its parent {shown}"


def beside(change: Change) -> str:
    """The result's own sentence, where it says what the facts do not: of a merge, or where not all is confirmed."""
    merge = any(len(one.point.parents) > 1 for one in change.candidates)
    facts = change.findings or change.estimate is not None or change.before or change.after
    return "" if facts and change.confirmed in ("yes", "exact") and not merge else change.text


def lacking(one: Candidate, result: Bisection) -> str:
    """Why a candidate was not measured; '' where it was."""
    if one.measurable:
        return ""
    listed = (other.reason for other in result.unmeasurable if other.point.key == one.point.key)
    return one.reason or next(listed, "")


def _merged(change: Change) -> Words:
    return () if change.merge is None else (", brought in by merge ", Name(change.merge[:12]))


def _undone(change: Change) -> Words:
    return (", taken back by a later commit of the range",) if change.undone else ()


def _none(result: Bisection) -> Words:
    nobody = f"no {_noun(result)} of the range is to blame"
    if result.none_probability is not None and not result.reasons:
        return (f"{nobody}, with probability {share(result.none_probability)}",)
    return (nobody, *_because(result))


def _undecided(result: Bisection) -> Words:
    if not result.candidates:
        return ("the culprit is not known", *_because(result))
    best = result.candidates[0]
    probable = f", with probability {share(best.probability)}," if best.probability is not None else ""
    one: Words = (f"most suspect{probable} is ", *who(best.point, result.axis))
    if not result.changes:
        return (*one, *_because(result, "; "))
    change = result.changes[0]
    moved = f": {effect(change)}" if effect(change) else ""
    return (*one, f"{moved}, {confirmation(change)}", *_because(result, "; "))


def _unmeasurable(result: Bisection) -> Words:
    return ("the range could not be searched", *_because(result))


def _because(result: Bisection, after: str = ": ") -> Words:
    return (after, Said(cut(result.reasons[0].rstrip(". "), REASON_CHARACTERS))) if result.reasons else ()


_HEADLINES: dict[Found, Callable[[Bisection], Words]] = {
    "culprit": _culprit,
    "none": _none,
    "undecided": _undecided,
    "unmeasurable": _unmeasurable,
}


def further(result: Bisection) -> list[str]:
    """The reasons that the headline has not told, or not to their end."""
    told = result.found != "culprit" and result.reasons and len(result.reasons[0]) <= REASON_CHARACTERS
    return result.reasons[1:] if told else result.reasons


def walked(result: Bisection) -> str:
    """``64 commits, 52 of which run other code than the one before``."""
    noun = _noun(result)
    if result.different == result.commits:
        return count(result.commits, noun)
    return f"{count(result.commits, noun)}, {result.different} of which run other code than the one before"


def method(result: Bisection) -> str:
    """What was compared."""
    if result.on == "ledger":
        return "the collectives of one step, exact"
    if result.on == "time":
        return "step times, noisy" if result.noise_pct is None else f"step times; {_noise(result.noise_pct)}"
    if result.exact:
        return "what the command prints, exact"
    noise = "noisy" if result.noise_pct is None else _noise(result.noise_pct)
    return f"what the command prints; {noise}"


def _noise(noise_pct: float) -> str:
    return f"one run scatters by {size(noise_pct)} (standard deviation)"


def spent(result: Bisection) -> str:
    """``28 search runs, 8 confirmation runs, 12 reused, 9 builds, 84.2 minutes``: what is nothing is left out."""
    search = "trace" if result.on == "ledger" else "search run"
    parts = [count(result.search_runs, search)]
    parts += [count(result.confirm_runs, "confirmation run")] if result.confirm_runs else []
    parts += [f"{count(result.remainder_runs, 'run')} for what is left"] if result.remainder_runs else []
    parts += [f"{count(result.reused_runs, 'run')} reused"] if result.reused_runs else []
    parts += [f"{result.cached_runs} from the cache"] if result.cached_runs else []
    return ", ".join([*parts, count(result.builds, "build"), f"{result.minutes:.1f} minutes"])


def left(remainder: Remainder) -> Words:
    """What stands on one side of a culprit."""
    culprit = Name(cut(name_of(remainder.of), NAME_CHARACTERS))
    if remainder.text:
        return (culprit, ": ", Said(remainder.text))
    nothing = f"nothing more {remainder.where} it, with probability {share(remainder.none_probability)}"
    return (culprit, f": {nothing}")


def purpose(observation: Observation) -> str:
    """What a measurement was for, and in which block of a confirmation."""
    if observation.purpose == "confirm" and observation.block:
        return f"confirm, block {observation.block}"
    return observation.purpose


def name_of(key: str) -> str:
    """The name of a point of which only the key is known."""
    commit, _, version = key.partition("+")
    return version or commit[:12]


def cut(text: str, limit: int) -> str:
    """``text`` on one line, cut at ``limit`` characters; what is invisible in it is the printer's business."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _noun(result: Bisection) -> str:
    return "version" if result.axis else "commit"


def _number(number: int) -> str:
    return NUMBERS.get(number, str(number))
