"""The scoreboard: results of shadow checks compared with later outcomes.

Each commit counts once, by its last check. If a check was run again, the earlier check does not count. The truth about
a commit is its last outcome, no matter for which of the commit's checks that outcome was given. If a regression was
confirmed and the last check of the commit passed, the commit therefore counts as missed.

Shares have exact 95% intervals, because there are few commits in a trial of two weeks. For example, a gate that is
wrong half of the time may still be right in three of three cases. A missed regression is known only if somebody looked
for it.
"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from regbot.records.shadow import ClaimCounts, Scoreboard, ShadowRow, ShareInterval, UnflaggedCounts
from regbot.records.verdict import Status
from regbot.shadow.entries import CLAIMS, load_checks


def compute_scoreboard(folder: Path, since: date | None = None) -> Scoreboard:
    """Return the scoreboard of the checks in ``folder`` that ended on the day ``since`` (UTC) or later; None for all
    checks.

    Raises RecordError.
    """
    rows = [row for row in load_checks(folder) if since is None or row.entry.created[:10] >= since.isoformat()]
    last_rows = sorted({row.entry.head: row for row in rows}.values(), key=lambda row: (row.entry.created, row.name))
    fail = [row for row in last_rows if row.entry.verdict == "FAIL"]
    confirmed = sum(_is_regression(row) is True for row in fail)
    return Scoreboard(
        since=since.isoformat() if since else None,
        first=rows[0].entry.created if rows else None,
        last=rows[-1].entry.created if rows else None,
        checks=len(rows),
        commits=len(last_rows),
        would_block=sum(row.entry.would_block for row in last_rows),
        fail=_count_claims(last_rows, "FAIL"),
        review=_count_claims(last_rows, "REVIEW"),
        passed=_count_unflagged(last_rows, "PASS"),
        inconclusive=_count_unflagged(last_rows, "INCONCLUSIVE"),
        invalid=_count_unflagged(last_rows, "INVALID"),
        precision=_compute_share(confirmed, sum(_is_regression(row) is not None for row in fail)),
        recall=_compute_share(confirmed, sum(_is_regression(row) is True for row in last_rows)),
        minutes=sum(row.entry.minutes for row in rows),
        open=[row for row in last_rows if row.entry.verdict in CLAIMS and row.outcome is None],
        settled=[row for row in last_rows if row.outcome is not None],
    )


def _is_regression(row: ShadowRow) -> bool | None:
    """Return whether a commit has a regression; None if unknown."""
    outcome = row.outcome.outcome if row.outcome else "unknown"
    return {"confirmed": True, "missed": True, "refuted": False, "unknown": None}[outcome]


def _count_claims(rows: Sequence[ShadowRow], status: Status) -> ClaimCounts:
    matching = [row for row in rows if row.entry.verdict == status]
    return ClaimCounts(
        commits=len(matching),
        confirmed=sum(_is_regression(row) is True for row in matching),
        refuted=sum(_is_regression(row) is False for row in matching),
        unknown=sum(row.outcome is not None and row.outcome.outcome == "unknown" for row in matching),
        open=sum(row.outcome is None for row in matching),
    )


def _count_unflagged(rows: Sequence[ShadowRow], status: Status) -> UnflaggedCounts:
    matching = [row for row in rows if row.entry.verdict == status]
    return UnflaggedCounts(commits=len(matching), missed=sum(_is_regression(row) is True for row in matching))


def _compute_share(count: int, total: int) -> ShareInterval | None:
    if not total:
        return None
    from regbot.stats.calibration import RateEstimate  # loads scipy, which listing checks does not need

    rate = RateEstimate.from_counts(count, total)
    return ShareInterval(count=count, total=total, low=rate.low, high=rate.high)
