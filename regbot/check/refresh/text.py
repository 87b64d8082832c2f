"""Texts of a refresh: the terminal page, the commit message, and the pull request.

A *night* is the result of one workload (``WorkloadRefresh``). A session that is *held back* is stored as evidence, and
does not join the rolling reference.
"""

import math
from collections.abc import Iterable, Iterator

from regbot.records.baseline import IntervalEstimate
from regbot.records.refresh import Drift, RefreshReport, WorkloadRefresh
from regbot.records.text.clip import short_commit
from regbot.records.text.printable import printable
from regbot.records.text.table import markdown_row
from regbot.records.text.words import count
from regbot.report.markdown import code, fit, prose

TABLE_CHARACTERS, SECTIONS_CHARACTERS, WARNINGS_CHARACTERS, FILES_CHARACTERS = 10_000, 30_000, 3_000, 8_000
"""Largest lengths of the parts of the pull request text. Together they stay below GitHub's maximum of 65,536."""

MAX_REASONS = 8

OUTCOME_TEXTS = {
    "PASS": "taken into the rolling reference",
    "FAIL": "held back",
    "INCONCLUSIVE": "held back until it is decided",
    "INVALID": "could not be measured",
}
"""What happens to the session of a night, by the status of the night, if no slowdown was accepted."""


def proposal_title(report: RefreshReport) -> str:
    """Return the title of the pull request as one line of plain text.

    If sessions are held back from the rolling reference, the title begins with HELD BACK and names the number of their
    workloads, for example ``HELD BACK: baselines of 3e97a4a4de79 (1 of 2 workloads, 4 files)``.
    """
    withheld_workloads = sum(night.series == "held" for night in report.workloads)
    commit, files = short_commit(report.commit), count(len(report.files), "file")
    if withheld_workloads:
        workloads = f"{withheld_workloads} of {count(len(report.workloads), 'workload')}"
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
    file_lines = (f"- {code(path, 300)}" for path in files)
    return "\n".join(["## Files", "", *_fit_lines(file_lines, FILES_CHARACTERS, "files")])


def _fit_lines(lines: Iterable[str], max_characters: int, noun: str) -> list[str]:
    """Return the first lines that fit into ``max_characters``. If lines were left out, add a line with their number."""
    fitting_lines, omitted = fit(lines, max_characters)
    return [*fitting_lines, f"…and {omitted} more {noun}"] if omitted else fitting_lines


def refresh_page(report: RefreshReport, file: str = "") -> str:
    """Return the report for a terminal: the text of the pull request, and where it was proposed. ``file`` is the name
    of the file with the proposal; '' if there is none."""
    if report.branch is not None:
        place = f"proposed as {report.branch} ({short_commit(report.proposal) if report.proposal else ''})"
    elif report.files:
        place = f"proposed in {file}" if file else "stored"
    else:
        place = "nothing to propose"
    return f"{report.status}\n\n{proposal_text(report)}\n{place}"


def describe_outcome(night: WorkloadRefresh) -> str:
    if night.series is None:  # there is no valid measurement
        # FAIL means that the program of main fails, and the program of the anchor's commit does not.
        return "main does not run" if night.status == "FAIL" else OUTCOME_TEXTS["INVALID"]
    if night.series == "held":
        return OUTCOME_TEXTS[night.status]
    return "accepted, and the anchor moves" if night.accepted is not None else OUTCOME_TEXTS["PASS"]


def _row(night: WorkloadRefresh) -> str:
    tonight = _estimate_text(night.tonight) if night.tonight is not None else "not measured"
    budget = f"budget {night.budget_pct:g}%"
    since_anchor = (
        f"{_estimate_text(night.since_anchor)}, {budget}" if night.since_anchor is not None else "first night"
    )
    drift = _drift_text(night.drift) if night.drift is not None else ""
    outcome = f"**{night.status}** {describe_outcome(night)}"
    return markdown_row([code(night.name), tonight, since_anchor, drift, outcome])


def _section(night: WorkloadRefresh) -> Iterator[str]:
    first_anchor = "there was no anchor: this commit becomes the first anchor"
    anchor = f"anchor {code(short_commit(night.anchor))}" if night.anchor else first_anchor
    yield f"## {code(night.name)}\n\n{anchor}, {night.pairs} pairs, variant {code(night.variant)}\n"
    yield from (f"- {prose(reason)}" for reason in night.reasons[:MAX_REASONS])
    slowdowns_pct = [slowdown.estimate_pct for slowdown in (night.tonight, night.since_anchor) if slowdown is not None]
    if night.series == "held" and night.status == "FAIL" and slowdowns_pct:
        # An acceptance must cover the larger estimate, so round it up to one decimal place.
        required_pct = math.ceil(10 * max(slowdowns_pct)) / 10
        yield (
            f"- to accept this slowdown, run `regbot baseline refresh --accept {required_pct:.1f} --who NAME "
            "--why TEXT`; the anchor then moves to this commit"
        )
    yield ""


def _estimate_text(estimate: IntervalEstimate) -> str:
    """Return the estimate and its interval in percent, such as ``+1.20% [+0.80, +1.60]``."""
    return f"{estimate.estimate_pct:+.2f}% [{estimate.low_pct:+.2f}, {estimate.high_pct:+.2f}]"


def _drift_text(drift: Drift) -> str:
    """Return the state of the creep monitor, for example ``quiet: 0.8 of 2.5 after 9 nights``.

    The two numbers are its cumulative sum, in percent, and the limit at which it raises an alarm. ``correlation`` is
    that of neighbouring nights; None if it is unknown.
    """
    state = "ALARM" if drift.alarm else "quiet"
    correlation = "" if drift.correlation is None else f" (correlation of nights {drift.correlation:.2f})"
    return f"{state}: {drift.value_pct:.2g} of {drift.limit_pct:.2g} after {count(drift.nights, 'night')}{correlation}"
