"""The scoreboard: what shadow checks would have said, against what was later found to be true.

A commit counts once, by its last check: a check that was run again because nobody believed it is not two claims. What
is true of a commit is what its last outcome says, whatever the check said that it was settled for; so a commit whose
regression was confirmed, and which a later check passed, is a miss.

Shares have exact 95% intervals, because two weeks are few commits: three right claims of three may come from a gate
that is wrong half of the time. That nothing was missed is known only as far as somebody looked.
"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from regbot.records.shadow import Claims, Scoreboard, ShadowRow, Share, Silences
from regbot.records.verdict import Status
from regbot.shadow.entries import CLAIMS, checks


def scoreboard(folder: Path, since: date | None = None) -> Scoreboard:
    """The score of the checks in ``folder`` that ended on the day ``since`` (UTC) or later. Raises RecordError."""
    rows = [row for row in checks(folder) if since is None or row.entry.created[:10] >= since.isoformat()]
    last = sorted({row.entry.head: row for row in rows}.values(), key=lambda row: (row.entry.created, row.name))
    fail = [row for row in last if row.entry.verdict == "FAIL"]
    confirmed = sum(_real(row) is True for row in fail)
    return Scoreboard(
        since=since.isoformat() if since else None,
        first=rows[0].entry.created if rows else None,
        last=rows[-1].entry.created if rows else None,
        checks=len(rows),
        commits=len(last),
        would_block=sum(row.entry.would_block for row in last),
        fail=_claims(last, "FAIL"),
        review=_claims(last, "REVIEW"),
        passed=_silences(last, "PASS"),
        inconclusive=_silences(last, "INCONCLUSIVE"),
        invalid=_silences(last, "INVALID"),
        precision=_share(confirmed, sum(_real(row) is not None for row in fail)),
        recall=_share(confirmed, sum(_real(row) is True for row in last)),
        minutes=sum(row.entry.minutes for row in rows),
        open=[row for row in last if row.entry.verdict in CLAIMS and row.outcome is None],
        settled=[row for row in last if row.outcome is not None],
    )


def _real(row: ShadowRow) -> bool | None:
    """Whether there is a regression in the commit; None where nobody has found out."""
    told = row.outcome.outcome if row.outcome else "unknown"
    return {"confirmed": True, "missed": True, "refuted": False, "unknown": None}[told]


def _claims(rows: Sequence[ShadowRow], status: Status) -> Claims:
    found = [row for row in rows if row.entry.verdict == status]
    return Claims(
        commits=len(found),
        confirmed=sum(_real(row) is True for row in found),
        refuted=sum(_real(row) is False for row in found),
        unknown=sum(row.outcome is not None and row.outcome.outcome == "unknown" for row in found),
        open=sum(row.outcome is None for row in found),
    )


def _silences(rows: Sequence[ShadowRow], status: Status) -> Silences:
    found = [row for row in rows if row.entry.verdict == status]
    return Silences(commits=len(found), missed=sum(_real(row) is True for row in found))


def _share(count: int, total: int) -> Share | None:
    if not total:
        return None
    from regbot.stats.calibration import Rate  # scipy: listing checks does not need it

    rate = Rate.of(count, total)
    return Share(count=count, total=total, low=rate.low, high=rate.high)
