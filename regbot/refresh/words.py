"""What a refresh says: to the terminal, in the commit, and in the pull request that somebody reviews."""

from collections.abc import Iterator

from regbot.records.refresh import Refreshed, RefreshedWorkload, Span
from regbot.report.markdown import code, prose
from regbot.text import printable

WORDS = {
    "PASS": "taken into the rolling reference",
    "FAIL": "held back",
    "INCONCLUSIVE": "held back until it is decided",
    "INVALID": "could not be measured",
    "REVIEW": "for a person to judge",
}


def commit_message(found: Refreshed) -> str:
    """The message of the proposal's commit."""
    count = len(found.files)
    lines = [f"Baselines of {found.commit[:12]}: {count} file{'s' * (count != 1)}", ""]
    return "\n".join([*lines, *(f"{night.name}: {night.status}, {outcome(night)}" for night in found.workloads)])


def proposal_text(found: Refreshed) -> str:
    """The text of the pull request, as GitHub-flavoured markdown: its title, then what it would change and why."""
    lines = [
        f"# Baselines of {code(found.commit[:12])}",
        "",
        "Main was run beside the anchor's commit, pair by pair on one node. Positive percentages are slower.",
        "",
        "| workload | main against the anchor | since the anchor, of its budget | creep | what becomes of it |",
        "|---|---|---|---|---|",
        *(_row(night) for night in found.workloads),
        "",
        *(line for night in found.workloads for line in _section(night)),
    ]
    if found.warnings:
        lines += ["## To keep in mind", "", *(f"- {prose(warning)}" for warning in found.warnings), ""]
    if found.files:
        lines += ["## Files", "", *(f"- {code(path)}" for path in found.files), ""]
    return "\n".join(lines).rstrip() + "\n"


def refresh_page(found: Refreshed) -> str:
    """The same for a terminal."""
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
    yield f"## {night.name}"
    yield ""
    anchor = (
        f"anchor {code(night.anchor[:12])}" if night.anchor else "there was no anchor: this commit becomes the first"
    )
    yield f"{anchor}, {night.pairs} pairs, variant {code(night.variant)}"
    yield ""
    yield from (f"- {prose(reason)}" for reason in night.reasons)
    if night.environment_changes:
        yield "- the environment is another one than before: " + "; ".join(
            prose(each) for each in night.environment_changes
        )
    if night.environment_shift is not None:
        yield (
            f"- of a difference to earlier sessions the environment makes {_words(night.environment_shift)} (the "
            "anchor's own commit, here against there), the code what the table says"
        )
    if night.series == "held" and night.status == "FAIL":
        worst = max(each.estimate_pct for each in (night.tonight, night.since_anchor) if each is not None)
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
