"""Write the result of a bisection as a reply on GitHub: the answer in one sentence, the commits, and the cost.

Text by authors of commits is escaped. The only links are links to commits, built from the 40 digits of the commit. The
command that repeats the search is built from the two ends of the range. The command in the result is not used, because
untrusted code may have written it.
"""

from collections.abc import Iterator

from regbot.records.bisection import Bisection, Change, Point
from regbot.report import bisection_words as words
from regbot.report import headline as wording
from regbot.report.markdown import Markdown, Name, Words, code, fence, fit, prose, sentence
from regbot.report.posterior import share
from regbot.text.clip import short_commit
from regbot.text.words import count

LIMIT = 60_000
"""Maximum number of characters of the reply. GitHub's limit is 65,536."""
MAX_CHANGES, MAX_CANDIDATES, MAX_FINDINGS, MAX_NAMES, MAX_NOTES = 8, 12, 8, 8, 8
"""Limits for the numbers of listed things. MAX_NOTES applies to each kind of note."""
SENTENCE_CHARACTERS = 900


def bisection_comment(result: Bisection, commit_url: str) -> str:
    """Return ``result`` as GitHub-flavoured markdown. ``commit_url`` is the prefix of a commit's address, before the
    hash."""
    status = words.TONES[result.outcome]  # the status whose icon the heading has
    blocks: list[list[str]] = [
        [f"### {wording.ICONS[status]} {words.name_outcome(result)}: {sentence(words.headline(result))}"],
        *([*_write_change(change, result.axis, commit_url)] for change in result.changes[:MAX_CHANGES]),
        _count_more(len(result.changes) - MAX_CHANGES, "change"),
        [] if result.changes else [*_write_candidates(result, commit_url)],
        [*_write_notes(result)],
        [_write_search(result, commit_url)],
        [fence(_format_repeat_command(result), "sh")] if _is_repeatable(result) else [],
    ]
    fitting_blocks, cut = fit(("\n".join(block) for block in blocks if block), LIMIT)
    return (
        "\n\n".join([*fitting_blocks, "…cut here; the artifact of the run has the rest"] if cut else fitting_blocks)
        + "\n"
    )


def list_linked_points(result: Bisection) -> list[Point]:
    """Return the points that the reply links to, without the two ends of the range.

    A reply with changes links to the candidates of the changes, another reply to the candidates of the search.
    """
    change_candidates = [
        candidate for change in result.changes[:MAX_CHANGES] for candidate in change.candidates[:MAX_CANDIDATES]
    ]
    return [candidate.point for candidate in change_candidates or result.candidates[:MAX_CANDIDATES]]


def _write_change(change: Change, axis: str, commit_url: str) -> Iterator[str]:
    """Yield the lines of one change: its commit or version, the parent, the effect and how it was confirmed. ``axis``:
    name of the package whose versions were searched, '' if commits were searched.

    ``change.entries`` are the workloads that the change affects. ``change.before`` and ``change.after`` are the values
    that an exact search measured, '' in other searches."""
    links = [
        sentence((*words.describe_point(candidate.point, axis), " at commit "))
        + _link_commit(candidate.point.commit, commit_url)
        if candidate.point.version
        else _link_commit(candidate.point.commit, commit_url)
        for candidate in change.candidates[:MAX_CANDIDATES]
    ]
    more = len(change.candidates) - len(links)
    yield f"**{', '.join(links)}**{f' and {more} more' if more > 0 else ''}{_describe_parent(change)}"
    yield ""
    for finding in change.findings[:MAX_FINDINGS]:
        yield f"- {wording.ICONS[finding.status]} **{prose(finding.pattern, 160)}** on axis {code(finding.axis, 60)}"
        yield f"  <br>{prose(finding.text, SENTENCE_CHARACTERS)}"
    yield from _count_more(len(change.findings) - MAX_FINDINGS, "finding")
    if change.entries:
        names = ", ".join(code(entry) for entry in change.entries[:MAX_NAMES])
        extra_entries = len(change.entries) - MAX_NAMES
        yield f"- in {names}{f' and {extra_entries} more' if extra_entries > 0 else ''}"
    if change.before or change.after:
        value_change: Words = (*words.value_words(change.before), " → ", *words.value_words(change.after))
        yield f"- {sentence(value_change)}"
    confirmation = words.describe_confirmation(change)
    yield f"- {words.format_effect(change)}, {confirmation}" if words.format_effect(change) else f"- {confirmation}"
    if change.undone:
        yield "- undone by a later commit of the range, so the end of the range does not show it"
    if extra := words.select_extra_text(change):
        yield f"- {prose(extra, SENTENCE_CHARACTERS)}"


def _describe_parent(change: Change) -> Markdown:
    """Return the point before the change, and the merge that brought the change in; '' if neither is known."""
    parent = f"; {words.introduce_parent(change)} {code(words.point_name(change.parent), 60)}" if change.parent else ""
    merge = f"; merge {code(short_commit(change.merge))} brought it in" if change.merge is not None else ""
    return Markdown(parent + merge)


def _write_candidates(result: Bisection, commit_url: str) -> Iterator[str]:
    """Yield the candidates of a search that did not confirm a change."""
    if result.candidates:
        yield "Most suspect first:"
        yield ""
    for candidate in result.candidates[:MAX_CANDIDATES]:
        reason = (
            ""
            if candidate.measurable
            else f" (cannot be measured: {prose(words.explain_missing_measurement(candidate, result), 200)})"
        )
        probability = f"{share(candidate.probability)} " if candidate.probability is not None else ""
        yield (
            f"- {probability}{_link_commit(candidate.point.commit, commit_url)} "
            f"{prose(candidate.point.subject, words.SUBJECT_CHARACTERS)}{reason}"
        )
    yield from _count_more(len(result.candidates) - MAX_CANDIDATES, "candidate")


def _write_notes(result: Bisection) -> Iterator[str]:
    """Yield the messages that no block above contains: reasons, what is known about further changes (remainders),
    points that could not be measured, and warnings."""
    named_points = {item.point.key for change in result.changes for item in change.candidates}
    named_points |= {item.point.key for item in result.candidates}
    unnamed = [item for item in result.unmeasurable if item.point.key not in named_points]
    yield from (f"- {prose(reason, 400)}" for reason in words.list_other_reasons(result)[:MAX_NOTES])
    yield from (f"- {sentence(words.describe_remainder(item))}" for item in result.remainders[:MAX_NOTES])
    for item in unnamed[:MAX_NOTES]:
        yield f"- {code(item.point.name)} could not be measured: {prose(item.reason, 300)}"
    yield from (f"- warning: {prose(warning, 400)}" for warning in result.warnings[:MAX_NOTES])


def _write_search(result: Bisection, commit_url: str) -> str:
    """Return what was searched and compared, and the cost. If a command can repeat the search, the text ends with the
    words that introduce the command."""
    commit = _link_commit(result.good.commit, commit_url)
    if result.axis:  # the package whose versions were searched, all at one commit
        versions = (*words.describe_point(result.good, result.axis), " to ", Name(result.bad.version))
        endpoints = f"{sentence(versions)} at commit {commit}"
    else:
        endpoints = f"{commit} to {_link_commit(result.bad.commit, commit_url)}"
    search_text = f"Compared: {words.describe_method(result)}. It took {words.describe_cost(result)}."
    repeat = " To repeat the search:" if _is_repeatable(result) else ""
    return f"{endpoints}: {words.describe_range(result)}. {search_text}{repeat}"


def _is_repeatable(result: Bisection) -> bool:
    """Return whether it makes sense to repeat the search, and the two ends of the range are enough for that.

    A search over versions, or by what a command prints, needs options that only the result contains. If an end cannot
    be measured, another search fails too."""
    return not result.axis and result.on != "command" and result.outcome != "unmeasurable"


def _format_repeat_command(result: Bisection) -> str:
    return f"regbot bisect {result.good.commit} {result.bad.commit}{' --on time' if result.on == 'time' else ''}"


def _count_more(number: int, noun: str) -> list[str]:
    """Return the line about things that a limit leaves out; [] if ``number`` is 0 or less."""
    return [f"…and {count(number, f'more {noun}')}"] if number > 0 else []


def _link_commit(commit: str, commit_url: str) -> Markdown:
    return Markdown(f"[{code(short_commit(commit))}]({commit_url}{commit})")
