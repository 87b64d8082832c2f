"""Texts of a refresh: the terminal page, the commit message, and the pull request."""

import math
from collections.abc import Iterable, Iterator

from regbot.records.refresh import Drift, IntervalEstimate, RefreshReport, WorkloadRefresh
from regbot.report.markdown import code, fit, prose
from regbot.text.clip import short_commit
from regbot.text.printable import printable
from regbot.text.table import markdown_row
from regbot.text.words import count

TABLE_CHARACTERS, SECTIONS_CHARACTERS, WARNINGS_CHARACTERS, FILES_CHARACTERS = 10_000, 30_000, 3_000, 8_000
"""Largest lengths of the parts of the pull request text. Together they stay below GitHub's maximum of 65,536."""

MAX_REASONS = 8
"""Largest number of reasons, and of environment changes, that the section of a workload lists."""

OUTCOME_TEXTS = {
    "PASS": "taken into the rolling reference",
    "FAIL": "held back",
    "INCONCLUSIVE": "held back until it is decided",
    "INVALID": "could not be measured",
    "REVIEW": "for a person to judge",
}
"""What happens to the session of a night, by the status of the night."""


def proposal_title(report: RefreshReport) -> str:
    """Return the title of the pull request as one line of plain text. If sessions of some workloads are held back from
    the rolling reference, the title begins with HELD BACK and names the number of these workloads."""
    withheld_count = sum(night.series == "held" for night in report.workloads)
    commit, files = short_commit(report.commit), count(len(report.files), "file")
    if withheld_count:
        workloads = f"{withheld_count} of {count(len(report.workloads), 'workload')}"
        return f"HELD BACK: baselines of {commit} ({workloads}, {files})"
    return f"Baselines of {commit}: {files}"


def commit_message(report: RefreshReport) -> str:
    """Return the message of the commit with the new references: the title, and one line for each workload."""
    nights = (f"{printable(night.name)}: {night.status}, {describe_outcome(night)}" for night in report.workloads)
    return "\n".join([proposal_title(report), "", *nights])


def proposal_text(report: RefreshReport) -> str:
    """Return the title and the text of the pull request as one document of GitHub-flavoured markdown."""
    return f"# {proposal_title(report)}\n\n{proposal_body(report)}"


def proposal_body(report: RefreshReport) -> str:
    """Return the text of the pull request as GitHub-flavoured markdown: what the pull request would change, and why."""
    lines = [
        "Main was timed in pairs with the anchor's commit on one node. Positive percentages: main is slower.",
        "",
        "| workload | main against the anchor tonight | over the last nights, and budget | creep | decision |",
        "|---|---|---|---|---|",
        *_fit_lines((_row(night) for night in report.workloads), TABLE_CHARACTERS, "workloads"),
        "",
        *_fit_lines(("\n".join(_section(night)) for night in report.workloads), SECTIONS_CHARACTERS, "workloads"),
    ]
    if report.warnings:
        warning_lines = (f"- {prose(warning, 400)}" for warning in report.warnings)
        lines += ["## Warnings", "", *_fit_lines(warning_lines, WARNINGS_CHARACTERS, "warnings"), ""]
    if report.files:
        lines.append(files_section(report.files))
    return "\n".join(lines).rstrip() + "\n"


def files_section(files: Iterable[str]) -> str:
    """Return the list of files that the pull request would change, as markdown."""
    file_lines = (f"- {code(path, 300)}" for path in files)
    return "\n".join(["## Files", "", *_fit_lines(file_lines, FILES_CHARACTERS, "files")])


def _fit_lines(lines: Iterable[str], max_characters: int, noun: str) -> list[str]:
    """Return the first lines that fit into ``max_characters``. If lines were left out, add a line with their number.
    ``noun``: plural of what a line describes."""
    fitting_lines, omitted_count = fit(lines, max_characters)
    return [*fitting_lines, f"…and {omitted_count} more {noun}"] if omitted_count else fitting_lines


def refresh_page(report: RefreshReport, file: str = "") -> str:
    """Return the report for a terminal. ``file``: name of the file with the proposal; '' without one."""
    lines = [f"{report.status}  main {short_commit(report.commit)}"]
    for night in report.workloads:
        lines += [
            "",
            f"{night.name}  {night.variant}  {night.status}: {describe_outcome(night)}",
            f"  anchor         {short_commit(night.anchor) if night.anchor else 'none before this night'}",
        ]
        if night.tonight is not None:
            lines.append(f"  tonight        {_estimate_text(night.tonight)} in {night.pairs} pairs")
        if night.since_anchor is not None:
            lines.append(f"  since anchor   {_estimate_text(night.since_anchor)}, budget {night.budget_pct:g}%")
        if night.drift is not None:
            lines.append(f"  creep          {_drift_text(night.drift)}")
        if night.environment_shift is not None:
            lines.append(f"  environment    {_estimate_text(night.environment_shift)} measured on the anchor's commit")
        lines += [f"  {printable(change)}" for change in night.environment_changes]
        lines += [f"  - {printable(reason)}" for reason in night.reasons]
    lines += [f"warning: {printable(warning)}" for warning in report.warnings]
    if report.branch is not None:
        lines += ["", f"proposed as {report.branch} ({short_commit(report.proposal) if report.proposal else ''})"]
    elif report.files and file:
        lines += ["", f"proposed in {file}"]
    elif not report.files:
        lines += ["", "nothing to propose"]
    return "\n".join(lines)


def describe_outcome(night: WorkloadRefresh) -> str:
    """Return the decision on a night in a few words."""
    if night.series is None:
        return OUTCOME_TEXTS["INVALID"] if night.status != "FAIL" else "main does not run"
    if night.series == "held":
        return OUTCOME_TEXTS[night.status]
    return "accepted, and the anchor moves" if night.accepted is not None else OUTCOME_TEXTS["PASS"]


def _row(night: WorkloadRefresh) -> str:
    """Return the table row of a workload."""
    since = (
        f"{_estimate_text(night.since_anchor)}, budget {night.budget_pct:g}%"
        if night.since_anchor is not None
        else "first night"
    )
    cells = [
        code(night.name),
        _estimate_text(night.tonight) if night.tonight is not None else "not measured",
        since,
        _drift_text(night.drift) if night.drift is not None else "",
        f"**{night.status}** {describe_outcome(night)}",
    ]
    return markdown_row(cells)


def _section(night: WorkloadRefresh) -> Iterator[str]:
    """Yield the lines of the section about a workload: anchor, reasons, environment, and how to accept a slowdown."""
    yield f"## {code(night.name)}"
    yield ""
    anchor = (
        f"anchor {code(short_commit(night.anchor))}"
        if night.anchor
        else "there was no anchor: this commit becomes the first anchor"
    )
    yield f"{anchor}, {night.pairs} pairs, variant {code(night.variant)}"
    yield ""
    yield from (f"- {prose(reason)}" for reason in night.reasons[:MAX_REASONS])
    if night.environment_changes:
        yield "- the environment changed: " + "; ".join(
            prose(change, 300) for change in night.environment_changes[:MAX_REASONS]
        )
    if night.environment_shift is not None:
        yield (
            f"- the environment changed the step time of the anchor's commit by "
            f"{_estimate_text(night.environment_shift)}; the table shows the effect of the code alone"
        )
    estimates = [change.estimate_pct for change in (night.tonight, night.since_anchor) if change is not None]
    if night.series == "held" and night.status == "FAIL" and estimates:
        worst_pct = math.ceil(10 * max(estimates)) / 10  # rounded up: the accepted slowdown must cover the estimate
        yield (
            f"- to accept this slowdown, run `regbot baseline refresh --accept {worst_pct:.1f} --who NAME "
            "--why TEXT`; the anchor then moves to this commit"
        )
    yield ""


def _estimate_text(estimate: IntervalEstimate) -> str:
    """Return the estimate and its interval in percent, such as ``+1.20% [+0.80, +1.60]``."""
    return f"{estimate.estimate_pct:+.2f}% [{estimate.low_pct:+.2f}, {estimate.high_pct:+.2f}]"


def _drift_text(drift: Drift) -> str:
    """Return the state of the creep monitor, its value and its alarm limit, such as ``quiet: 0.8 of 2.5 after 9
    nights``."""
    state = "ALARM" if drift.alarm else "quiet"
    correlation = "" if drift.correlation is None else f" (correlation of nights {drift.correlation:.2f})"
    return f"{state}: {drift.value_pct:.2g} of {drift.limit_pct:.2g} after {count(drift.nights, 'night')}{correlation}"
