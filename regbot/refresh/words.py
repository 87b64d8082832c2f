"""What a refresh says: to the terminal, in the commit, and in the pull request that somebody reviews."""

import math
from collections.abc import Iterable, Iterator

from regbot.records.refresh import Refreshed, RefreshedWorkload, Span
from regbot.report.markdown import code, fit, prose
from regbot.text import printable

TABLE_BUDGET, SECTIONS_BUDGET, WARNINGS_BUDGET, FILES_BUDGET = 10_000, 30_000, 3_000, 8_000
"""Characters. With what the forge adds they stay below the 65,536 that GitHub takes."""

REASONS_SHOWN = 8

WORDS = {
    "PASS": "taken into the rolling reference",
    "FAIL": "held back",
    "INCONCLUSIVE": "held back until it is decided",
    "INVALID": "could not be measured",
    "REVIEW": "for a person to judge",
}


def proposal_title(found: Refreshed) -> str:
    """One plain line of our own words: what is held back is said before anything else."""
    held = sum(night.series == "held" for night in found.workloads)
    count = len(found.workloads)
    stored = f"{len(found.files)} file{'s' * (len(found.files) != 1)}"
    if held:
        return f"HELD BACK: baselines of {found.commit[:12]} ({held} of {count} workload{'s' * (count != 1)}, {stored})"
    return f"Baselines of {found.commit[:12]}: {stored}"


def commit_message(found: Refreshed) -> str:
    """The message of the proposal's commit."""
    nights = (f"{printable(night.name)}: {night.status}, {outcome(night)}" for night in found.workloads)
    return "\n".join([proposal_title(found), "", *nights])


def proposal_text(found: Refreshed) -> str:
    """A pull request as one file of GitHub-flavoured markdown: its title, then its text."""
    return f"# {proposal_title(found)}\n\n{proposal_body(found)}"


def proposal_body(found: Refreshed) -> str:
    """The text of the pull request, as GitHub-flavoured markdown: what it would change and why."""
    lines = [
        "Main was run beside the anchor's commit, pair by pair on one node. Positive percentages are slower.",
        "",
        "| workload | main against the anchor | since the anchor, of its budget | creep | what becomes of it |",
        "|---|---|---|---|---|",
        *_fitting((_row(night) for night in found.workloads), TABLE_BUDGET, "workloads"),
        "",
        *_fitting(("\n".join(_section(night)) for night in found.workloads), SECTIONS_BUDGET, "workloads"),
    ]
    if found.warnings:
        warnings = _fitting((f"- {prose(warning, 400)}" for warning in found.warnings), WARNINGS_BUDGET, "warnings")
        lines += ["## To keep in mind", "", *warnings, ""]
    if found.files:
        lines.append(files_section(found.files))
    return "\n".join(lines).rstrip() + "\n"


def files_section(files: Iterable[str]) -> str:
    """The files that would change, as markdown."""
    return "\n".join(["## Files", "", *_fitting((f"- {code(path, 300)}" for path in files), FILES_BUDGET, "files")])


def _fitting(lines: Iterable[str], characters: int, what: str) -> list[str]:
    kept, left = fit(lines, characters)
    return [*kept, f"…and {left} more {what}"] if left else kept


def refresh_page(found: Refreshed, file: str = "") -> str:
    """The same for a terminal. ``file``: with the proposal, where it is one."""
    lines = [f"{found.status}  main {found.commit[:12]}"]
    for night in found.workloads:
        lines += [
            "",
            f"{night.name}  {night.variant}  {night.status}: {outcome(night)}",
            f"  anchor         {night.anchor[:12] if night.anchor else 'none before'}",
        ]
        if night.tonight is not None:
            lines.append(f"  tonight        {_words(night.tonight)} in {night.pairs} pairs")
        if night.since_anchor is not None:
            lines.append(f"  since anchor   {_words(night.since_anchor)}, budget {night.budget_pct:g}%")
        if night.drift is not None:
            lines.append(f"  creep          {_drift(night)}")
        if night.environment_shift is not None:
            lines.append(f"  environment    {_words(night.environment_shift)} by the anchor's own commit")
        lines += [f"  {printable(change)}" for change in night.environment_changes]
        lines += [f"  - {printable(reason)}" for reason in night.reasons]
    lines += [f"warning: {printable(warning)}" for warning in found.warnings]
    if found.branch is not None:
        lines += ["", f"proposed as {found.branch} ({found.proposal[:12] if found.proposal else ''})"]
    elif found.files and file:
        lines += ["", f"proposed in {file}"]
    elif not found.files:
        lines += ["", "nothing to propose"]
    return "\n".join(lines)


def outcome(night: RefreshedWorkload) -> str:
    """What becomes of a night, in a few words."""
    if night.series is None:
        return WORDS["INVALID"] if night.status != "FAIL" else "it does not run"
    if night.series == "held":
        return WORDS[night.status]
    return "accepted, and the anchor moves" if night.accepted is not None else WORDS["PASS"]


def _row(night: RefreshedWorkload) -> str:
    since = (
        f"{_words(night.since_anchor)} of {night.budget_pct:g}%" if night.since_anchor is not None else "first night"
    )
    cells = [
        code(night.name),
        _words(night.tonight) if night.tonight is not None else "not measured",
        since,
        _drift(night) if night.drift is not None else "",
        f"**{night.status}** {outcome(night)}",
    ]
    return f"| {' | '.join(cells)} |"


def _section(night: RefreshedWorkload) -> Iterator[str]:
    yield f"## {code(night.name)}"
    yield ""
    anchor = (
        f"anchor {code(night.anchor[:12])}" if night.anchor else "there was no anchor: this commit becomes the first"
    )
    yield f"{anchor}, {night.pairs} pairs, variant {code(night.variant)}"
    yield ""
    yield from (f"- {prose(reason)}" for reason in night.reasons[:REASONS_SHOWN])
    if night.environment_changes:
        yield "- the environment is another one than before: " + "; ".join(
            prose(each, 300) for each in night.environment_changes[:REASONS_SHOWN]
        )
    if night.environment_shift is not None:
        yield (
            f"- of a difference to earlier sessions the environment makes {_words(night.environment_shift)} (the "
            "anchor's own commit, here against there), the code what the table says"
        )
    shown = [each.estimate_pct for each in (night.tonight, night.since_anchor) if each is not None]
    if night.series == "held" and night.status == "FAIL" and shown:
        worst = math.ceil(10 * max(shown)) / 10  # what is accepted has to cover it
        yield (
            f"- to take it in, somebody puts a name to it: `regbot baseline refresh --accept {worst:.1f} --who NAME "
            "--why TEXT`; the anchor then moves here"
        )
    yield ""


def _words(span: Span) -> str:
    return f"{span.estimate_pct:+.2f}% [{span.low_pct:+.2f}, {span.high_pct:+.2f}]"


def _drift(night: RefreshedWorkload) -> str:
    assert night.drift is not None
    state = "ALARM" if night.drift.alarm else "quiet"
    return f"{state}: {night.drift.value_pct:.2g} of {night.drift.limit_pct:.2g} after {night.drift.nights} nights"
