"""Terminal output of shadow mode: the sentence after a check, the list of checks, the checks of one commit, the
scoreboard."""

from collections.abc import Sequence
from pathlib import Path

from regbot.records.shadow import (
    ClaimCounts,
    Scoreboard,
    ShadowListing,
    ShadowRow,
    ShadowThroughput,
    ShadowWorkload,
    ShareInterval,
    UnflaggedCounts,
)
from regbot.records.verdict import Status
from regbot.text.clip import clip_line, short_commit
from regbot.text.printable import printable
from regbot.text.words import count
from regbot.text.wrap import wrapped

SUBJECT_CHARACTERS = 60
"""Largest length of a commit's subject in a list."""
DAY_CHARACTERS = len("2026-03-14")
"""Number of characters of the day in a time such as ``2026-03-14T09:26:53Z``."""
NO_CHECKS = "no shadow check is recorded here; run 'regbot check --shadow'"

CONSEQUENCES: dict[Status, str] = {
    "PASS": "would have passed",
    "FAIL": "would have failed",
    "INVALID": "could not have measured",
    "REVIEW": "would have asked for a review of",
    "INCONCLUSIVE": "would have decided nothing about",
}
"""Status of a check -> what regbot would have done, as a part of the sentence after the check."""


def write_sentence(status: Status, would_block: bool, path: Path) -> str:
    """Return the sentence that follows the verdict of a shadow check."""
    consequence = ", which stops a merge" if would_block else ""
    return (
        f"shadow: regbot {CONSEQUENCES[status]} this change ({status}{consequence}). Nothing is blocked. "
        f"Recorded in {path}"
    )


def write_list(listing: ShadowListing) -> str:
    """Return one line per check."""
    if not listing.checks:
        return NO_CHECKS
    heading = f"  {'day':<10}  {'commit':<12}  {'verdict':<12}  {'outcome':<9}  subject"
    return "\n".join([heading, *(_format_row(row, _format_outcome(row)) for row in listing.checks)])


def write_checks(rows: Sequence[ShadowRow]) -> str:
    """Return all details of the checks of one commit, a paragraph for each check."""
    paragraphs = []
    for row in rows:
        entry = row.entry
        commits = f"{short_commit(entry.base)} -> {short_commit(entry.head)}"
        lines = [
            f"{entry.verdict}  {commits}  {printable(entry.subject)}".rstrip(),
            f"  checked  {entry.created} by regbot {printable(entry.regbot)}, {entry.minutes:.0f} minutes timed",
            f"  gate     {'would have stopped it' if entry.would_block else 'would have let it through'}",
            *([f"  outcome  {_describe_outcome(row)}"] if row.outcome else []),
        ]
        for workload in entry.workloads:
            throughput = f", throughput {_format_throughput(workload.throughput)}" if workload.throughput else ""
            findings = f" ({', '.join(workload.findings)})" if workload.findings else ""
            sections = f"sharding {workload.sharding or '-'}{findings}{throughput}, validity {workload.validity}"
            lines.append(printable(f"  {workload.name}: {sections}"))
            lines += [wrapped(workload.reason, "    ")] if workload.reason else []
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def write_scoreboard(board: Scoreboard) -> str:
    """Return the scoreboard: totals, commits by verdict, the two shares, commits to settle, settled commits."""
    if board.first is None or board.last is None:
        since = f" since {board.since}" if board.since else ""
        return f"no shadow check is recorded{since}" if since else NO_CHECKS
    commits = count(board.commits, "commit")
    lines = [
        f"shadow scoreboard, {board.first[:DAY_CHARACTERS]} to {board.last[:DAY_CHARACTERS]}",
        f"{count(board.checks, 'check')} of {commits}, {board.minutes:.0f} minutes of timed runs",
        f"would have stopped {board.would_block} of {commits} (FAIL, REVIEW, INVALID)",
        "",
        f"  {'verdict':<13} {'commits':>7}",
        _format_claim_counts("FAIL", board.fail),
        _format_claim_counts("REVIEW", board.review),
        _format_unflagged_counts("INVALID", board.invalid),
        _format_unflagged_counts("INCONCLUSIVE", board.inconclusive),
        _format_unflagged_counts("PASS", board.passed),
        "",
        _format_share("settled FAILs that were right", board.precision, "no FAIL is settled"),
        _format_share("known regressions that got FAIL", board.recall, "no regression is known"),
    ]
    if board.open:
        lines += ["", "open: settle each with 'regbot shadow settle COMMIT confirmed|refuted|unknown --why TEXT'"]
        for row in board.open:
            lines += [_format_row(row, outcome=""), *_list_reasons(row)]
    if board.settled:
        lines += ["", "settled"]
        for row in board.settled:
            lines += [_format_row(row, outcome=""), wrapped(_describe_outcome(row), "    ")]
    return "\n".join(lines)


def _format_claim_counts(status: Status, counts: ClaimCounts) -> str:
    """Return the line of FAIL or REVIEW: the number of commits with this verdict, and their outcomes.
    ``counts.open`` are those without an outcome so far."""
    outcomes = f"{counts.confirmed} confirmed, {counts.refuted} refuted, {counts.unknown} unknown, {counts.open} open"
    return _format_status_row(status, counts.commits, outcomes)


def _format_unflagged_counts(status: Status, counts: UnflaggedCounts) -> str:
    """Return the line of a status that reports no regression: the commits with it, and those with a regression."""
    return _format_status_row(status, counts.commits, f"{counts.missed} missed, as far as known")


def _format_status_row(status: Status, commits: int, outcomes: str) -> str:
    """Return a line of the table of verdicts. A line without commits has no outcomes."""
    row = f"  {status:<13} {commits:>7}"
    return f"{row}   {outcomes}" if commits else row


def _format_share(label: str, share: ShareInterval | None, fallback: str) -> str:
    """Return a share with its interval; ``fallback`` in place of the numbers if there is no share."""
    if share is None:
        return f"  {label}: {fallback}"
    bounds = f"95% interval {share.low:.0%} to {share.high:.0%}"
    return f"  {label}: {share.count} of {share.total} ({bounds})"


def _format_row(row: ShadowRow, outcome: str) -> str:
    """Return a check on one line: day, head, verdict, ``outcome`` (left out if '') and the subject of the commit."""
    subject = clip_line(printable(row.entry.subject), SUBJECT_CHARACTERS)
    cells = f"{row.entry.created[:DAY_CHARACTERS]}  {short_commit(row.entry.head)}  {row.entry.verdict:<12}"
    parts = [f"  {cells}", f"{outcome:<9}", subject] if outcome else [f"  {cells}", subject]
    return "  ".join(parts).rstrip()


def _format_outcome(row: ShadowRow) -> str:
    """Return the kind of the outcome; '-' if nobody has settled the commit."""
    return row.outcome.outcome if row.outcome else "-"


def _list_reasons(row: ShadowRow) -> list[str]:
    """Return the reasons for the verdict of a check, each with the names of the workloads that have this reason."""
    workloads_by_reason: dict[str, list[str]] = {}
    for workload in row.entry.workloads:
        reason = _explain_status(workload, row.entry.verdict)
        if reason is not None:
            workloads_by_reason.setdefault(reason or "no reason was given", []).append(workload.name)
    return [wrapped(f"{reason} ({', '.join(names)})", "    ") for reason, names in workloads_by_reason.items()]


def _explain_status(workload: ShadowWorkload, status: Status) -> str | None:
    """Return why sections of a workload have ``status``: findings, step times, or the stored reason.

    Returns None if no section has ``status``, and '' if sections have it without a stored reason.
    """
    parts = []
    if workload.sharding == status:
        parts += workload.findings or [workload.reason]
    if workload.throughput is not None and workload.throughput.status == status:
        parts.append(f"throughput {_format_throughput(workload.throughput)}")
    if workload.validity == status:
        parts.append(workload.reason)
    return ", ".join(part for part in parts if part) if parts else None


def _describe_outcome(row: ShadowRow) -> str:
    """Return the outcome of a row's commit with the person, the date and the reason; '' without an outcome."""
    outcome = row.outcome
    if outcome is None:
        return ""
    who_and_when = f"settled by {outcome.who} on {outcome.when[:DAY_CHARACTERS]}"
    return printable(f"{outcome.outcome} ({who_and_when}): {outcome.why}")


def _format_throughput(throughput: ShadowThroughput) -> str:
    """Return the status with the estimate and its interval: ``FAIL +3.1% [+2.2, +4.1]``."""
    if throughput.estimate_pct is None or throughput.low_pct is None or throughput.high_pct is None:
        return throughput.status
    return (
        f"{throughput.status} {throughput.estimate_pct:+.1f}% [{throughput.low_pct:+.1f}, {throughput.high_pct:+.1f}]"
    )
