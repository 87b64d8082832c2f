"""The scoreboard: results of shadow checks compared with later outcomes.

Each commit counts once, by its last check. If a check was run again, the earlier check does not count. The truth about
a commit is its last outcome, no matter for which of the commit's checks that outcome was given. If a regression was
confirmed and the last check of the commit passed, the commit therefore counts as missed.

Shares have exact 95% intervals, because there are few commits in a trial of two weeks. For example, a gate that is
wrong half of the time may still be right in three of three cases. A missed regression is known only if somebody looked
for regressions in that commit.
"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from regbot.records.shadow import ClaimCounts, Scoreboard, ShadowRow, ShareInterval, UnflaggedCounts
from regbot.records.verdict import Status
from regbot.shadow.entries import REGRESSION_STATUSES, load_checks


def compute_scoreboard(folder: Path, since: date | None = None) -> Scoreboard:
    """Return the scoreboard of the checks in ``folder`` that ended on the day ``since`` (UTC) or later.

    ``since`` is None for all checks. Raises RecordError.
    """
    rows = [row for row in load_checks(folder) if since is None or _ended_since(row, since)]
    last_row_by_commit = {row.entry.head: row for row in rows}  # a later row of the same commit replaces the earlier
    last_rows = sorted(last_row_by_commit.values(), key=lambda row: (row.entry.created, row.name))
    failed = [row for row in last_rows if row.entry.verdict == "FAIL"]
    # Whether a commit has a regression is known only from its outcome. A FAIL is confirmed if its commit has one.
    confirmed = sum(_is_regression(row) is True for row in failed)
    fails_with_known_truth = sum(_is_regression(row) is not None for row in failed)
    known_regressions = sum(_is_regression(row) is True for row in last_rows)
    return Scoreboard(
        since=since.isoformat() if since else None,
        first=rows[0].entry.created if rows else None,
        last=rows[-1].entry.created if rows else None,
        checks=len(rows),
        commits=len(last_rows),
        would_block=sum(row.entry.would_block for row in last_rows),
        fail=_count_reported(last_rows, "FAIL"),
        review=_count_reported(last_rows, "REVIEW"),
        passed=_count_unreported(last_rows, "PASS"),
        inconclusive=_count_unreported(last_rows, "INCONCLUSIVE"),
        invalid=_count_unreported(last_rows, "INVALID"),
        precision=_compute_share(confirmed, fails_with_known_truth),
        recall=_compute_share(confirmed, known_regressions),
        minutes=sum(row.entry.minutes for row in rows),
        open=[row for row in last_rows if row.entry.verdict in REGRESSION_STATUSES and row.outcome is None],
        settled=[row for row in last_rows if row.outcome is not None],
    )


def _ended_since(row: ShadowRow, since: date) -> bool:
    """Return whether the check ended on the day ``since`` (UTC) or later."""
    day = row.entry.created[:10]
    return day >= since.isoformat()


def _is_regression(row: ShadowRow) -> bool | None:
    """Return whether the commit has a regression, by its outcome; None if nobody settled it or the truth is unknown."""
    outcome = row.outcome.outcome if row.outcome else "unknown"
    return {"confirmed": True, "missed": True, "refuted": False, "unknown": None}[outcome]


def _count_reported(rows: Sequence[ShadowRow], status: Status) -> ClaimCounts:
    """Count commits with ``status``, which reports a regression (FAIL) or a possible one (REVIEW), by outcome.

    ``rows`` has the last check of each commit.
    """
    matching = [row for row in rows if row.entry.verdict == status]
    return ClaimCounts(
        commits=len(matching),
        confirmed=sum(_is_regression(row) is True for row in matching),
        refuted=sum(_is_regression(row) is False for row in matching),
        unknown=sum(row.outcome is not None and row.outcome.outcome == "unknown" for row in matching),
        open=sum(row.outcome is None for row in matching),
    )


def _count_unreported(rows: Sequence[ShadowRow], status: Status) -> UnflaggedCounts:
    """Count commits with ``status``, which reports no regression, and those of them that have a known regression.

    ``rows`` has the last check of each commit. INVALID belongs here too: it says nothing about the commit.
    """
    matching = [row for row in rows if row.entry.verdict == status]
    return UnflaggedCounts(commits=len(matching), missed=sum(_is_regression(row) is True for row in matching))


def _compute_share(count: int, total: int) -> ShareInterval | None:
    """Return ``count`` of ``total`` with its exact 95% interval; None if ``total`` is 0."""
    if not total:
        return None
    from regbot.stats.calibration import RateEstimate  # loads scipy, which listing checks does not need

    rate = RateEstimate.from_counts(count, total)
    return ShareInterval(count=count, total=total, low=rate.low, high=rate.high)
