"""A bisection as a reply on GitHub: the answer in one sentence, the commits behind it, what it took.

Whatever authors wrote is text. Commits are the only links, made of their 40 digits; the line to type again is made of
the two ends, because one from the result could be any command.
"""

from collections.abc import Iterator

from regbot.records.bisection import Bisection, Change, Point
from regbot.report import bisection_words as words
from regbot.report import wording
from regbot.report.markdown import Markdown, Words, code, fence, fit, prose, sentence

LIMIT = 60_000
"""Characters; GitHub takes 65,536."""
CHANGES_SHOWN, CANDIDATES_SHOWN, FINDINGS_SHOWN, NAMES_SHOWN, NOTES_SHOWN = 8, 12, 8, 8, 8
SENTENCE_CHARACTERS = 900


def bisection_comment(result: Bisection, commit_url: str) -> str:
    """``result`` as GitHub-flavoured markdown. ``commit_url``: what a commit's id is put behind, ending in a slash."""
    status = words.TONES[result.found]
    blocks: list[list[str]] = [
        [f"### {wording.ICONS[status]} {words.WORDS[result.found]}: {sentence(words.headline(result))}"],
        *([*_change(change, commit_url)] for change in result.changes[:CHANGES_SHOWN]),
        _more(len(result.changes) - CHANGES_SHOWN, "change"),
        [] if result.changes else [*_candidates(result, commit_url)],
        [*_notes(result)],
        [_search(result, commit_url)],
        [fence(_again(result), "sh")],
    ]
    kept, cut = fit(("\n".join(block) for block in blocks if block), LIMIT)
    return "\n\n".join([*kept, "…cut here; the rest is in the run's artifact"] if cut else kept) + "\n"


def linked(result: Bisection) -> list[Point]:
    """The points that the comment links to, but for the two ends."""
    changed = [each for change in result.changes[:CHANGES_SHOWN] for each in change.candidates[:CANDIDATES_SHOWN]]
    return [each.point for each in changed or result.candidates[:CANDIDATES_SHOWN]]


def _change(change: Change, commit_url: str) -> Iterator[str]:
    """One change: which commit, after which, what it did, how sure that is."""
    links = [_link(each.point.commit, commit_url) for each in change.candidates[:CANDIDATES_SHOWN]]
    more = len(change.candidates) - len(links)
    yield f"**{', '.join(links)}**{f' and {more} more' if more > 0 else ''}{_after(change)}"
    yield ""
    for finding in change.findings[:FINDINGS_SHOWN]:
        yield f"- {wording.ICONS[finding.status]} **{prose(finding.pattern, 160)}** on axis {code(finding.axis, 60)}"
        yield f"  <br>{prose(finding.text, SENTENCE_CHARACTERS)}"
    yield from _more(len(change.findings) - FINDINGS_SHOWN, "finding")
    if change.entries:
        names = ", ".join(code(entry) for entry in change.entries[:NAMES_SHOWN])
        left = len(change.entries) - NAMES_SHOWN
        yield f"- in {names}{f' and {left} more' if left > 0 else ''}"
    if change.before or change.after:
        told: Words = (*words.value_words(change.before), " → ", *words.value_words(change.after))
        yield f"- {sentence(told)}"
    sure = words.confirmation(change)
    yield f"- {words.effect(change)}, {sure}" if words.effect(change) else f"- {sure}"
    if change.undone:
        yield "- taken back by a later commit of the range: at its end it is not seen"
    if said := words.beside(change):
        yield f"- {prose(said, SENTENCE_CHARACTERS)}"


def _after(change: Change) -> Markdown:
    parent = f", after {code(words.name_of(change.parent), 60)}" if change.parent else ""
    merge = f", brought in by merge {code(change.merge[:12])}" if change.merge is not None else ""
    return Markdown(parent + merge)


def _candidates(result: Bisection, commit_url: str) -> Iterator[str]:
    """What may be the culprit where no change was found for certain."""
    for each in result.candidates[:CANDIDATES_SHOWN]:
        why = "" if each.measurable else f" (cannot be measured: {prose(words.lacking(each, result), 200)})"
        yield f"- {_link(each.point.commit, commit_url)} {prose(each.point.subject, words.SUBJECT_CHARACTERS)}{why}"
    yield from _more(len(result.candidates) - CANDIDATES_SHOWN, "candidate")


def _notes(result: Bisection) -> Iterator[str]:
    """What else the result says, a line each."""
    told = {each.point.key for change in result.changes for each in change.candidates}
    told |= {each.point.key for each in result.candidates}
    broken = [each for each in result.unmeasurable if each.point.key not in told]
    yield from (f"- {prose(reason, 400)}" for reason in words.further(result)[:NOTES_SHOWN])
    yield from (f"- {sentence(words.left(each))}" for each in result.remainders[:NOTES_SHOWN])
    for each in broken[:NOTES_SHOWN]:
        yield f"- {code(each.point.name)} could not be measured: {prose(each.reason, 300)}"
    yield from (f"- warning: {prose(warning, 400)}" for warning in result.warnings[:NOTES_SHOWN])


def _search(result: Bisection, commit_url: str) -> str:
    ends = f"{_link(result.good.commit, commit_url)} to {_link(result.bad.commit, commit_url)}"
    how = f"Compared: {words.method(result)}. It took {words.spent(result)}. To do it again:"
    return f"{ends}: {words.walked(result)}. {how}"


def _again(result: Bisection) -> str:
    return f"regbot bisect {result.good.commit} {result.bad.commit}{' --on time' if result.on == 'time' else ''}"


def _more(number: int, noun: str) -> list[str]:
    return [f"…and {number} more {noun}{'s' * (number > 1)}"] if number > 0 else []


def _link(commit: str, commit_url: str) -> Markdown:
    return Markdown(f"[{code(commit[:12])}]({commit_url}{commit})")
