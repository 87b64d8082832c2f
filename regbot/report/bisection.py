"""The result of a bisection on one page of markdown. The terminal, the folder of results and GitHub show this page.

On GitHub, the record was written by a job that also ran a pull request's code. So every text of the record is quoted:
names as code, and sentences by ``quote``, which escapes markdown for GitHub and leaves it readable for a terminal.
GitHub links a commit by its 40 digits, so no address is needed.
"""

from collections.abc import Callable, Iterator

from regbot.records.bisection import Bisection, BisectionOutcome, BisectionPlan, Candidate, Change, Point, SearchMetric
from regbot.records.text.clip import short_commit
from regbot.records.text.words import count
from regbot.records.verdict import Status
from regbot.report.headline import ICONS
from regbot.report.markdown import code, fence, fit, prose, sentence, visible
from regbot.report.quantities import size, with_interval
from regbot.report.source_lines import describe_lines

LIMIT = 60_000
"""Maximum number of characters of the page. GitHub's limit for a comment is 65,536."""
MAX_LISTED = 12
"""Maximum number of changes, candidates, findings, reasons and warnings. ``bisection.json`` has all of them."""
MAX_CHARACTERS = 900
"""Maximum number of characters of a quoted sentence."""

RESULT_WORDS: dict[BisectionOutcome, tuple[str, Status]] = {
    "culprit": ("CULPRIT FOUND", "FAIL"),
    "none": ("NO CULPRIT", "PASS"),
    "undecided": ("UNDECIDED", "INCONCLUSIVE"),
    "unmeasurable": ("NOT MEASURABLE", "INVALID"),
}
"""First words of the page, and the status whose icon stands before them."""
SUBJECTS: dict[SearchMetric, str] = {
    "ledger": "the collectives",
    "time": "the step time",
    "command": "what the command prints",
}

Quote = Callable[[str, int], str]


def bisection_page(result: Bisection) -> str:
    """Return the page for GitHub, and for the folder of results."""
    return _page(result, prose)


def bisection_text(result: Bisection) -> str:
    """Return the page for a terminal. Invisible characters are replaced, and markdown is not escaped."""
    return _page(result, visible).rstrip()


def list_named_points(result: Bisection) -> list[Point]:
    """Return the points that the page names as candidates."""
    candidates = [candidate for change in result.changes for candidate in change.candidates]
    return [candidate.point for candidate in candidates or result.candidates]


def plan_text(plan: BisectionPlan) -> str:
    """Return the expected cost of a bisection that has not started."""
    runs = f"at most {plan.most_runs} runs"
    if plan.expected_runs is not None:
        measurement = "trace" if plan.on == "ledger" else "search run"
        runs = f"{'at most' if plan.exact else 'about'} {count(round(plan.expected_runs), measurement)}"
    if plan.confirm_runs:
        runs += f" and at most {count(plan.confirm_runs, 'run')} to confirm the culprit"
    if plan.expected_min is not None:
        runs += f", about {max(1, round(plan.expected_min))} min for the search runs"
    if plan.ratio is not None:
        runs += f"; the slowdown is {plan.ratio:.3g} times the noise of a run"
    different = f", {plan.different} of which change the code that runs" if plan.different < plan.commits else ""
    points = f"{count(plan.commits, 'point')}{different}"
    return "\n".join([f"PLAN: bisect {points}, by {SUBJECTS[plan.on]}: {runs}", *plan.reasons])


def _page(result: Bisection, quote: Quote) -> str:
    word, status = RESULT_WORDS[result.outcome]
    if result.outcome == "culprit" and not _is_confirmed(result):
        word += ", NOT CONFIRMED"
    blocks = [
        f"### {ICONS[status]} {word}: {_headline(result)}",
        *("\n".join(_write_change(change, result, quote)) for change in result.changes[:MAX_LISTED]),
        *([_list_candidates(result.candidates, result, quote)] if result.candidates and not result.changes else []),
        "\n".join(_write_notes(result, quote)),
        _describe_search(result),
    ]
    if result.on != "command" and not result.axis:
        option = " --on time" if result.on == "time" else ""
        blocks.append(fence(f"regbot bisect {result.good.commit} {result.bad.commit}{option}", "sh"))
    fitting, cut = fit((block for block in blocks if block), LIMIT)
    return "\n\n".join([*fitting, "…cut here; bisection.json has the rest"] if cut else fitting) + "\n"


def _is_confirmed(result: Bisection) -> bool:
    return all(change.confirmed != "undecided" for change in result.changes)


def _headline(result: Bisection) -> str:
    if not result.changes:
        headlines = {
            "none": f"nothing in the range changed {SUBJECTS[result.on]}",
            "unmeasurable": "the range could not be searched",
        }
        return headlines.get(result.outcome, "the culprit is not known")
    names = []
    for change in result.changes[:MAX_LISTED]:
        others = len(change.candidates) - 1
        alternatives = f" or {count(others, 'other')}" if others else ""
        names.append(f"{code(change.candidates[0].point.name)}{alternatives}")
    verb = "changed" if result.exact else "raised" if _is_confirmed(result) else "may have raised"
    return f"{', '.join(names)} {verb} {SUBJECTS[result.on]}"


def _write_change(change: Change, result: Bisection, quote: Quote) -> Iterator[str]:
    """Yield the lines of one change: its commit or candidates, and what changed against the point before it."""
    if len(change.candidates) > 1:
        yield f"One of these {len(change.candidates)}, which the measurements cannot tell apart:"
        yield ""
    yield _list_candidates(change.candidates, result, quote)
    for finding in change.findings[:MAX_LISTED]:
        yield f"- {ICONS[finding.status]} {finding.status}: {quote(finding.pattern, 160)}, axis {code(finding.axis)}"
        yield f"  {quote(finding.text, MAX_CHARACTERS)}"
        if lines := describe_lines(finding):
            yield f"  {sentence(lines)}"
    if change.entries:
        yield f"- in {', '.join(code(entry) for entry in change.entries[:MAX_LISTED])}"
    if result.exact and result.on == "command":
        yield f"- from {code(change.before)} to {code(change.after)}"
    if change.estimate is not None:
        estimate = change.estimate
        yield f"- {SUBJECTS[result.on]}: {with_interval(estimate.pct, estimate.low_pct, estimate.high_pct)}"
    yield f"- {_describe_confirmation(change)}"
    if change.merge is not None:
        yield f"- merged by {code(short_commit(change.merge))}"


def _describe_confirmation(change: Change) -> str:
    commit, _, version = change.parent.partition("+")
    parent = code(version or short_commit(commit))
    if change.confirmed == "exact":
        return f"exact: compared with {parent}, which does not have the change"
    pairs = f" by {count(change.estimate.pairs, 'pair')}" if change.estimate is not None else ""
    return f"{'' if change.confirmed == 'yes' else 'not '}confirmed{pairs} against {parent}"


def _list_candidates(candidates: list[Candidate], result: Bisection, quote: Quote) -> str:
    lines = []
    for candidate in candidates[:MAX_LISTED]:
        point = candidate.point
        name = f"{code(result.axis)} {code(point.version)} at {point.commit}" if point.version else point.commit
        request = f"pull request {point.pull_request}" if point.pull_request is not None else ""
        details = [code(text) for text in (point.subject, point.author, point.date[:10]) if text and not point.version]
        probability = f"{100 * candidate.probability:.1f}% " if candidate.probability is not None else ""
        line = f"- {probability}{name}"
        line += f" {', '.join([*details, *([request] if request else [])])}" if details else ""
        line += "" if candidate.measurable else f"; cannot be measured: {quote(candidate.reason, 300)}"
        lines.append(line)
    if len(candidates) > MAX_LISTED:
        lines.append(f"- and {len(candidates) - MAX_LISTED} more")
    return "\n".join(lines)


def _write_notes(result: Bisection, quote: Quote) -> Iterator[str]:
    """Yield the reasons, the points that could not be measured, and the warnings."""
    yield from (f"- {quote(reason, MAX_CHARACTERS)}" for reason in result.reasons[:MAX_LISTED])
    named = {point.key for point in list_named_points(result)}
    unnamed = [candidate for candidate in result.unmeasurable if candidate.point.key not in named]
    for candidate in unnamed[:MAX_LISTED]:
        yield f"- {code(candidate.point.name)} could not be measured: {quote(candidate.reason, 300)}"
    if len(unnamed) > MAX_LISTED:
        yield f"- {len(unnamed) - MAX_LISTED} more could not be measured"
    yield from (f"- warning: {quote(warning, MAX_CHARACTERS)}" for warning in result.warnings[:MAX_LISTED])


def _describe_search(result: Bisection) -> str:
    """Return what was searched and compared, and what it cost."""
    noun = "version" if result.axis else "commit"
    different = f", {result.different} of which change the code that runs" if result.different < result.commits else ""
    noise = f"; runs of one commit differ by {size(result.noise_pct)} (sd)" if result.noise_pct is not None else ""
    search = "trace" if result.on == "ledger" else "search run"
    parts = [
        count(result.search_runs, search),
        count(result.confirm_runs, "confirmation run") if result.confirm_runs else "",
        count(result.reused_runs, "reused run") if result.reused_runs else "",
        count(result.builds, "build"),
        f"{result.minutes:.1f} minutes",
    ]
    cost = ", ".join(part for part in parts if part)
    axis = f"{code(result.axis)} " if result.axis else ""
    return (
        f"{axis}{code(result.good.name)} to {code(result.bad.name)}: {count(result.commits, noun)}{different}. "
        f"Compared: {SUBJECTS[result.on]}{', exact' if result.exact else noise}. Cost: {cost}."
    )
