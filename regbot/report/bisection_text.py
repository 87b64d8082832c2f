"""A bisection in a terminal: the answer, the commits behind it, the picture, what it cost; and a plan before it starts.

Plain text, at most 110 characters wide; only the command to reproduce and paths are never broken, so that they can be
copied. Whatever others wrote can do nothing to a terminal.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regbot.records.bisection import Bisection, BisectionPlan, Candidate, Change, Point
from regbot.report import bisection_words as words
from regbot.report.markdown import Words
from regbot.report.posterior import posterior_rows, share
from regbot.report.quantities import count
from regbot.text import printable

WIDTH = 110
INDENT = "  "

RESULT, PAGE, LOG = "bisection.json", "bisection.html", "bisection.jsonl"
"""Files that a bisection leaves in its folder."""

CANDIDATES_SHOWN, CHANGES_SHOWN, FINDINGS_SHOWN, ENTRIES_SHOWN, NOTES_SHOWN = 8, 12, 5, 8, 8
"""What is left out stands in the report, and a line says so."""

SENTENCE_CHARACTERS = 900
DAY_CHARACTERS = len("2026-03-14")
REASON_CHARACTERS = 160


def bisection_page(result: Bisection, out: Path | None) -> str:
    """What the terminal prints at the end of a bisection. ``out``: the folder with its files, where there is one."""
    blocks = [
        [*_filled(f"{words.WORDS[result.found]}: {_plain(words.headline(result))}", "")],
        *([*_change(change, result)] for change in result.changes[:CHANGES_SHOWN]),
        [*_more(len(result.changes) - CHANGES_SHOWN, "change")],
        [] if result.changes else [*_suspects(result)],
        [*_notes(words.further(result), "")],
        [*_picture(result)],
        [*_remainders(result)],
        [*_notes([result.blame] if result.blame else [], "")],
        [*_unmeasurable(result)],
        [*_facts(result)],
        [*_notes(result.warnings, "warning: ")],
        ["reproduce with", f"{INDENT}{printable(result.reproduce)}"] if result.reproduce else [],
        [] if out is None else [str(out / name) for name in (RESULT, PAGE, LOG)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def plan_page(plan: BisectionPlan) -> str:
    """What a bisection may cost, before anything is spent; or why it cannot succeed."""
    blocks = [[_possible(plan)], [*_expected(plan)], [*_notes(plan.reasons, "")]]
    if not plan.possible:
        blocks = [blocks[0], blocks[2], blocks[1]]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _change(change: Change, result: Bisection) -> Iterator[str]:
    """One change: its commit or the set of them, what was found, how it was confirmed."""
    if len(change.candidates) == 1:
        yield from _commit(change.candidates[0].point, result)
    else:
        yield words.one_of_so_many(change.candidates)
        yield from _candidates(change.candidates, result)
    if change.parent:
        merge = f", brought in by merge {change.merge[:12]}" if change.merge is not None else ""
        yield from _filled(f"parent {words.cut(words.name_of(change.parent), words.NAME_CHARACTERS)}{merge}")
    for finding in change.findings[:FINDINGS_SHOWN]:
        pattern, axis = (words.cut(text, words.NAME_CHARACTERS) for text in (finding.pattern, finding.axis))
        yield from _filled(f"{finding.status}  {pattern} (axis {axis})")
        yield from _filled(finding.text, 2 * INDENT)
    yield from _more(len(change.findings) - FINDINGS_SHOWN, "finding")
    if change.entries:
        shown = ", ".join(words.cut(entry, words.NAME_CHARACTERS) for entry in change.entries[:ENTRIES_SHOWN])
        more = len(change.entries) - ENTRIES_SHOWN
        yield from _filled(f"in {shown}{f' and {more} more' if more > 0 else ''}")
    if change.before or change.after:
        yield from _filled(_plain((*words.value_words(change.before), " -> ", *words.value_words(change.after))))
    sure = words.confirmation(change)
    yield from _filled(f"{words.effect(change)}, {sure}" if words.effect(change) else sure)
    if change.undone:
        yield from _filled("taken back by a later commit of the range: at its end it is not seen")
    yield from _filled(words.cut(words.beside(change), SENTENCE_CHARACTERS))


def _commit(point: Point, result: Bisection) -> Iterator[str]:
    """Who, when, under which number, with which subject."""
    if point.version:
        yield from _filled(_plain((*words.who(point, result.axis), ", under commit ", point.commit[:12])), "")
        return
    yield from _filled(f"{point.name}  {words.cut(point.subject, words.SUBJECT_CHARACTERS)}", "", INDENT)
    known = (words.cut(point.author, words.AUTHOR_CHARACTERS), point.date[:DAY_CHARACTERS], _request(point))
    yield from _filled(", ".join(word for word in known if word))


def _suspects(result: Bisection) -> Iterator[str]:
    if result.candidates:
        yield "most suspect first"
        yield from _candidates(result.candidates, result)


def _candidates(candidates: Sequence[Candidate], result: Bisection) -> Iterator[str]:
    """A line or two for each: name, probability, subject, author and request, and why it was not measured."""
    names = [words.cut(printable(one.point.name), 24) for one in candidates[:CANDIDATES_SHOWN]]
    width = max(map(len, names), default=0)
    indent = INDENT + " " * (width + 10)
    for name, one in zip(names, candidates, strict=False):
        probable = share(one.probability) if one.probability is not None else ""
        yield from _filled(f"{name:<{width}}  {probable:>6}  {_told(one.point)}".rstrip(), INDENT, indent)
        if not one.measurable:
            why = words.cut(words.lacking(one, result), REASON_CHARACTERS)
            yield from _filled(f"cannot be measured{': ' if why else ''}{why}", indent)
    yield from _more(len(candidates) - CANDIDATES_SHOWN, "candidate")


def _told(point: Point) -> str:
    """Subject, author and pull request on one line; of a version there is no more to tell than its name."""
    if point.version:
        return ""
    subject = words.cut(point.subject, 42)
    by = ", ".join(word for word in (words.cut(point.author, 20), _request(point)) if word)
    return f"{subject} ({by})" if subject and by else subject or by


def _request(point: Point) -> str:
    return f"pull request {point.pull_request}" if point.pull_request is not None else ""


def _picture(result: Bisection) -> Iterator[str]:
    if not result.places or result.exact or result.found == "unmeasurable":
        return
    names = [words.name_of(place.key) for place in result.places]
    yield "where it may be" if len(result.changes) < 2 else "where the first of them may be"
    yield from (INDENT + row for row in posterior_rows(result.places, names, result.none_probability))


def _remainders(result: Bisection) -> Iterator[str]:
    for remainder in result.remainders[:CHANGES_SHOWN]:
        yield from _filled(words.cut(_plain(words.left(remainder)), SENTENCE_CHARACTERS), "", INDENT)
    yield from _more(len(result.remainders) - CHANGES_SHOWN, "remainder")


def _unmeasurable(result: Bisection) -> Iterator[str]:
    told = {one.point.key for change in result.changes for one in change.candidates}
    rest = [one for one in result.unmeasurable if one.point.key not in told]
    if rest:
        yield f"could not be measured{' either' if told and len(rest) < len(result.unmeasurable) else ''}"
    for one in rest[:NOTES_SHOWN]:
        yield from _filled(f"{one.point.name}  {words.cut(one.reason, REASON_CHARACTERS)}")
    yield from _more(len(rest) - NOTES_SHOWN, "point")


def _facts(result: Bisection) -> Iterator[str]:
    ends = f"{result.good.name} -> {result.bad.name}"
    axis = f"{words.cut(result.axis, words.NAME_CHARACTERS)} " if result.axis else ""
    for label, fact in (
        ("range", f"{axis}{ends}: {words.walked(result)}"),
        ("compared", words.method(result)),
        ("cost", words.spent(result)),
    ):
        yield from _filled(f"{label:<10}{fact}", "", " " * 10)


def _possible(plan: BisectionPlan) -> str:
    noun = count(plan.commits, "point")
    different = "" if plan.different == plan.commits else f", {plan.different} of which run other code"
    how = {"ledger": "on the ledger", "time": "on step times", "command": "by the command"}[plan.on]
    exact = ", exact" if plan.exact else ""
    can = "PLAN" if plan.possible else "CANNOT SUCCEED"
    return f"{can}: bisect {noun}{different}, {how}{exact}"


def _expected(plan: BisectionPlan) -> Iterator[str]:
    """A line a number; what is not known is said where nothing can be planned without it."""
    if not plan.exact:
        unknown = "unknown: there is no noise on record"
        yield _fact("effect", unknown if plan.ratio is None else f"{plan.ratio:.3g} times the noise of one run")
    search = "traces" if plan.on == "ledger" else "search runs"
    if plan.exact and plan.expected_runs is not None:
        yield _fact(search, f"at most {plan.expected_runs:.0f} for one change")
    elif plan.expected_runs is not None:
        often = f", in nine of ten cases no more than {plan.runs_90:.0f}" if plan.runs_90 is not None else ""
        limit = f"never more than {plan.most_runs}"
        if plan.expected_runs > plan.most_runs:
            limit = f"but {plan.most_runs} are allowed"
        yield _fact(search, f"about {plan.expected_runs:.0f}{often}, {limit}")
    else:
        yield _fact(search, f"never more than {plan.most_runs}")
    if plan.confirm_runs:
        yield _fact("confirm", f"at most {count(plan.confirm_runs, 'run')} for one culprit")
    if plan.expected_builds is not None:
        yield _fact("builds", f"about {plan.expected_builds:.0f}")
    if plan.expected_min is not None:
        yield _fact("minutes", f"about {plan.expected_min:.0f}" if plan.expected_min >= 1 else "less than one")
    if plan.success is not None and not plan.exact:
        yield _fact("success", f"the right one is named with probability {share(plan.success)}")


def _fact(label: str, words_: str) -> str:
    return f"{INDENT}{label:<13}{words_}"


def _notes(notes: Sequence[str], before: str) -> Iterator[str]:
    for note in notes[:NOTES_SHOWN]:
        yield from _filled(f"{before}{words.cut(note, SENTENCE_CHARACTERS)}", "", INDENT)
    yield from _more(len(notes) - NOTES_SHOWN, "line")


def _more(number: int, noun: str) -> Iterator[str]:
    if number > 0:
        yield f"{INDENT}…and {number} more {noun}{'s' * (number > 1)}, in the report"


def _plain(said: Words) -> str:
    return "".join(said).replace("−", "-")


def _filled(text: str, indent: str = INDENT, after: str | None = None) -> Iterable[str]:
    """``text`` as lines that fit, and that can do nothing to a terminal."""
    after = indent if after is None else after
    line = printable(text).replace("−", "-")[: 4 * SENTENCE_CHARACTERS]
    return textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=after, drop_whitespace=True)
