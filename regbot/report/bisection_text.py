"""Terminal output of a bisection: the plan before the search, and at its end the answer, commits, picture and cost.

The text is plain and at most 110 characters wide. Paths and the command to reproduce the search are never broken, so
that they can be copied. Untrusted text is made safe for a terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regbot.records.bisection import Bisection, BisectionPlan, Candidate, Change, Point
from regbot.report import bisection_words as words
from regbot.report.markdown import Words
from regbot.report.posterior import posterior_heading, posterior_rows, share
from regbot.text.clip import clip, clip_line, short_commit
from regbot.text.printable import printable
from regbot.text.words import count, listed
from regbot.text.wrap import wrapped

INDENT = "  "

RESULT, PAGE, LOG = "bisection.json", "bisection.html", "bisection.jsonl"
"""Names of the files in the folder of a bisection."""

MAX_CANDIDATES, MAX_CHANGES, MAX_FINDINGS, MAX_ENTRIES, MAX_NOTES = 8, 12, 5, 8, 8
"""Limits of the terminal output. If a limit leaves something out, a line says how much. The report page shows
everything."""

SENTENCE_CHARACTERS = 900
DAY_CHARACTERS = len("2026-03-14")
"""Number of characters of the day in a time such as ``2026-03-14T09:26:53Z``."""
REASON_CHARACTERS = 160
CANDIDATE_NAME_CHARACTERS, CANDIDATE_SUBJECT_CHARACTERS, CANDIDATE_AUTHOR_CHARACTERS = 24, 42, 20
"""Limits of the parts of a candidate's line, so that the line fits into the width of the output."""


def bisection_page(result: Bisection, out: Path | None) -> str:
    """Return the terminal output at the end of a bisection. ``out``: folder with the files of the bisection; None
    without one."""
    blocks = [
        [*_wrap_lines(f"{words.name_outcome(result)}: {_join_words(words.headline(result))}", "")],
        *([*_write_change(change, result)] for change in result.changes[:MAX_CHANGES]),
        [*_count_more(len(result.changes) - MAX_CHANGES, "change")],
        [] if result.changes else [*_write_suspects(result)],
        [*_write_notes(words.list_other_reasons(result), "")],
        [*_write_picture(result)],
        [*_write_remainders(result)],
        # Of a search over versions: whether the dependency, the code or both caused the change.
        [*_write_notes([result.blame] if result.blame else [], "")],
        [*_write_unmeasurable(result)],
        [*_write_facts(result)],
        [*_write_notes(result.warnings, "warning: ")],
        ["reproduce with", f"{INDENT}{printable(result.reproduce)}"] if result.reproduce else [],
        [] if out is None else [str(out / name) for name in (RESULT, PAGE, LOG)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def plan_page(plan: BisectionPlan) -> str:
    """Return the expected cost of a bisection that has not started, or why it cannot succeed."""
    blocks = [[_format_plan_headline(plan)], [*_write_plan_numbers(plan)], [*_write_notes(plan.reasons, "")]]
    if not plan.possible:
        headline, numbers, reasons = blocks
        blocks = [headline, reasons, numbers]  # the reasons say why it cannot succeed
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _write_change(change: Change, result: Bisection) -> Iterator[str]:
    """Yield the lines of one change: its commit or candidates, the findings, and how it was confirmed.

    ``change.entries`` are the workloads that the change affects. ``change.before`` and ``change.after`` are the values
    that an exact search measured, '' in other searches.
    """
    if len(change.candidates) == 1:
        yield from _write_commit(change.candidates[0].point, result)
    else:
        yield words.count_candidates(change.candidates)
        yield from _write_candidates(change.candidates, result)
    if change.parent:
        merge = f"; merge {short_commit(change.merge)} brought it in" if change.merge is not None else ""
        parent = clip_line(words.point_name(change.parent), words.NAME_CHARACTERS)
        yield from _wrap_lines(f"{words.introduce_parent(change)} {parent}{merge}")
    for finding in change.findings[:MAX_FINDINGS]:
        pattern, axis = (clip_line(text, words.NAME_CHARACTERS) for text in (finding.pattern, finding.axis))
        yield from _wrap_lines(f"{finding.status}  {pattern} (axis {axis})")
        yield from _wrap_lines(finding.text, 2 * INDENT)
    yield from _count_more(len(change.findings) - MAX_FINDINGS, "finding")
    if change.entries:
        entries = [clip_line(entry, words.NAME_CHARACTERS) for entry in change.entries]
        yield from _wrap_lines(f"in {listed(entries, MAX_ENTRIES)}")
    if change.before or change.after:
        yield from _wrap_lines(
            _join_words((*words.value_words(change.before), " -> ", *words.value_words(change.after)))
        )
    confirmation = words.describe_confirmation(change)
    yield from _wrap_lines(
        f"{words.format_effect(change)}, {confirmation}" if words.format_effect(change) else confirmation
    )
    if change.undone:
        yield from _wrap_lines("undone by a later commit of the range, so the end of the range does not show it")
    yield from _wrap_lines(clip_line(words.select_extra_text(change), SENTENCE_CHARACTERS))


def _write_commit(point: Point, result: Bisection) -> Iterator[str]:
    """Yield the commit with its subject, author, date and pull request; for a version, the package and the version."""
    if point.version:
        yield from _wrap_lines(
            _join_words((*words.describe_point(point, result.axis), ", at commit ", short_commit(point.commit))), ""
        )
        return
    yield from _wrap_lines(f"{point.name}  {clip_line(point.subject, words.SUBJECT_CHARACTERS)}", "", INDENT)
    details = (
        clip_line(point.author, words.AUTHOR_CHARACTERS),
        point.date[:DAY_CHARACTERS],
        _format_pull_request(point),
    )
    yield from _wrap_lines(", ".join(detail for detail in details if detail))


def _write_suspects(result: Bisection) -> Iterator[str]:
    """Yield the candidates of a search without a confirmed change, the most probable first."""
    if result.candidates:
        yield "most suspect first"
        yield from _write_candidates(result.candidates, result)


def _write_candidates(candidates: Sequence[Candidate], result: Bisection) -> Iterator[str]:
    """Yield the lines of each candidate: name, probability, subject, author, pull request, and why it was not
    measured."""
    names = [
        clip_line(printable(candidate.point.name), CANDIDATE_NAME_CHARACTERS)
        for candidate in candidates[:MAX_CANDIDATES]
    ]
    width = max(map(len, names), default=0)
    indent = INDENT + " " * (width + 10)  # name, probability (6 characters) and two gaps of 2 characters
    for name, candidate in zip(names, candidates, strict=False):
        probability = share(candidate.probability) if candidate.probability is not None else ""
        yield from _wrap_lines(
            f"{name:<{width}}  {probability:>6}  {_describe_point(candidate.point)}".rstrip(), INDENT, indent
        )
        if not candidate.measurable:
            reason = clip_line(words.explain_missing_measurement(candidate, result), REASON_CHARACTERS)
            yield from _wrap_lines(f"cannot be measured{': ' if reason else ''}{reason}", indent)
    yield from _count_more(len(candidates) - MAX_CANDIDATES, "candidate")


def _describe_point(point: Point) -> str:
    """Return subject, author and pull request of a commit on one line. Return '' for a version, which has only a
    name."""
    if point.version:
        return ""
    subject = clip_line(point.subject, CANDIDATE_SUBJECT_CHARACTERS)
    author = clip_line(point.author, CANDIDATE_AUTHOR_CHARACTERS)
    details = ", ".join(word for word in (author, _format_pull_request(point)) if word)
    return f"{subject} ({details})" if subject and details else subject or details


def _format_pull_request(point: Point) -> str:
    return f"pull request {point.pull_request}" if point.pull_request is not None else ""


def _write_picture(result: Bisection) -> Iterator[str]:
    """Yield the picture of the posterior, which is the probability of each point of being the culprit. Yield nothing
    for an exact search, which has no posterior, and if the range could not be searched. ``result.places`` are the
    points. Of several changes, the picture is about the first one."""
    if not result.places or result.exact or result.outcome == "unmeasurable":
        return
    names = [words.point_name(place.key) for place in result.places]
    change = "a change" if result.outcome == "none" else "the change"
    if len(result.changes) > 1:
        change = "the change that was found first"
    verb = "could" if result.outcome == "none" else "may"
    yield f"where {change} {verb} be"
    yield INDENT + posterior_heading()
    yield from (INDENT + row for row in posterior_rows(result.places, names, result.none_probability))


def _write_remainders(result: Bisection) -> Iterator[str]:
    """Yield what the search knows about further changes before and after each culprit."""
    for remainder in result.remainders[:MAX_CHANGES]:
        yield from _wrap_lines(
            clip_line(_join_words(words.describe_remainder(remainder)), SENTENCE_CHARACTERS), "", INDENT
        )
    yield from _count_more(len(result.remainders) - MAX_CHANGES, "remainder")


def _write_unmeasurable(result: Bisection) -> Iterator[str]:
    """Yield the points that could not be measured and that no change names as a candidate. The heading says "either" if
    a change names other points that could not be measured."""
    named_points = {item.point.key for change in result.changes for item in change.candidates}
    unnamed = [item for item in result.unmeasurable if item.point.key not in named_points]
    if unnamed:
        yield f"could not be measured{' either' if named_points and len(unnamed) < len(result.unmeasurable) else ''}"
    for item in unnamed[:MAX_NOTES]:
        yield from _wrap_lines(f"{item.point.name}  {clip_line(item.reason, REASON_CHARACTERS)}")
    yield from _count_more(len(unnamed) - MAX_NOTES, "point")


def _write_facts(result: Bisection) -> Iterator[str]:
    """Yield the range, what was compared, and the cost."""
    endpoints = f"{result.good.name} -> {result.bad.name}"
    # ``axis`` is the package whose versions were searched; '' if commits were searched.
    axis = f"{clip_line(result.axis, words.NAME_CHARACTERS)} " if result.axis else ""
    for label, fact in (
        ("range", f"{axis}{endpoints}: {words.describe_range(result)}"),
        ("compared", words.describe_method(result)),
        ("effort", words.describe_cost(result)),
    ):
        yield from _wrap_lines(f"{label:<10}{fact}", "", " " * 10)


def _format_plan_headline(plan: BisectionPlan) -> str:
    """Return the size of the range and what the search would compare: ``PLAN: bisect 64 points, ...``."""
    noun = count(plan.commits, "point")
    different = "" if plan.different == plan.commits else f", {plan.different} of which change the code that runs"
    basis = {"ledger": "by ledger", "time": "by step time", "command": "by what the command prints"}[plan.on]
    exact = " (exact)" if plan.exact else ""
    heading = "PLAN" if plan.possible else "CANNOT SUCCEED"
    return f"{heading}: bisect {noun}{different}, {basis}{exact}"


def _write_plan_numbers(plan: BisectionPlan) -> Iterator[str]:
    """Yield one line for each number of the plan that is known. The effect has a line, or a line says that the noise
    is unknown. An exact search needs no effect and no probability of success."""
    if not plan.exact:
        if plan.ratio is None:
            yield _format_fact("noise", "not known: how much runs of one commit differ on this node")
        else:
            yield _format_fact("slowdown", f"{plan.ratio:.3g} times the noise of one run")
    search = "traces" if plan.on == "ledger" else "search runs"
    if plan.exact and plan.expected_runs is not None:
        yield _format_fact(search, f"at most {plan.expected_runs:.0f} for one change")
    elif plan.expected_runs is not None:
        upper_text = f", in nine of ten cases no more than {plan.runs_90:.0f}" if plan.runs_90 is not None else ""
        limit = f"never more than {plan.most_runs}"
        if plan.expected_runs > plan.most_runs:
            limit = f"but {plan.most_runs} are allowed"
        yield _format_fact(search, f"about {plan.expected_runs:.0f}{upper_text}, {limit}")
    else:
        yield _format_fact(search, f"never more than {plan.most_runs}")
    if plan.confirm_runs:
        yield _format_fact("confirm", f"at most {count(plan.confirm_runs, 'run')} for one culprit")
    if plan.expected_builds is not None:
        yield _format_fact("builds", f"about {plan.expected_builds:.0f}")
    if plan.expected_min is not None:
        minutes = f"about {plan.expected_min:.0f}" if plan.expected_min >= 1 else "less than one"
        yield _format_fact("minutes", f"{minutes} for the search runs, without builds and confirmation")
    if plan.success is not None and not plan.exact:
        yield _format_fact("success", f"the search names the right commit with probability {share(plan.success)}")


def _format_fact(label: str, text: str) -> str:
    return f"{INDENT}{label:<13}{text}"


def _write_notes(notes: Sequence[str], prefix: str) -> Iterator[str]:
    for note in notes[:MAX_NOTES]:
        yield from _wrap_lines(f"{prefix}{clip_line(note, SENTENCE_CHARACTERS)}", "", INDENT)
    yield from _count_more(len(notes) - MAX_NOTES, "line")


def _count_more(number: int, noun: str) -> Iterator[str]:
    if number > 0:
        yield f"{INDENT}…and {count(number, f'more {noun}')}, in the report"


def _join_words(sentence: Words) -> str:
    """Return a sentence as plain text, with a hyphen as the minus sign."""
    return "".join(sentence).replace("−", "-")


def _wrap_lines(text: str, indent: str = INDENT, rest_indent: str | None = None) -> Iterable[str]:
    """Return ``text`` as lines of at most the terminal's width, safe for a terminal.

    ``indent`` is put before the first line, and ``rest_indent`` before all other lines (by default ``indent``).
    """
    return wrapped(clip(text.replace("−", "-"), 4 * SENTENCE_CHARACTERS), indent, rest_indent).splitlines()
