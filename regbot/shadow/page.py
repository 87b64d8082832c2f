"""Shadow checks as a terminal shows them: one sentence after a check, the list, one commit, the scoreboard."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from regbot.records.shadow import (
    Claims,
    Scoreboard,
    ShadowListing,
    ShadowRow,
    ShadowThroughput,
    ShadowWorkload,
    Share,
    Silences,
)
from regbot.records.verdict import Status
from regbot.text import printable

WIDTH = 110
SUBJECT_CHARACTERS = 60
NOTHING = "no shadow check is recorded here; run 'regbot check --shadow'"

WOULD: dict[Status, str] = {
    "PASS": "would have passed",
    "FAIL": "would have failed",
    "INVALID": "could not have measured",
    "REVIEW": "would have asked for a review of",
    "INCONCLUSIVE": "would have decided nothing about",
}


def shadow_sentence(status: Status, would_block: bool, path: Path) -> str:
    """What follows the verdict of a shadow check."""
    stopped = ", which stops a merge" if would_block else ""
    return f"shadow: regbot {WOULD[status]} this change ({status}{stopped}). Nothing is blocked. Recorded in {path}"


def list_page(found: ShadowListing) -> str:
    """One line a check."""
    if not found.checks:
        return NOTHING
    return "\n".join(_line(row, _outcome(row)) for row in found.checks)


def entry_page(rows: Sequence[ShadowRow]) -> str:
    """The checks of one commit in full."""
    parts = []
    for row in rows:
        entry = row.entry
        lines = [
            f"{entry.verdict}  {entry.base[:12]} -> {entry.head[:12]}  {printable(entry.subject)}".rstrip(),
            f"  checked  {entry.created} by regbot {printable(entry.regbot)}, {entry.minutes:.0f} minutes timed",
            f"  gate     {'would have stopped it' if entry.would_block else 'would have let it through'}",
            *([f"  settled  {_told(row)}"] if row.outcome else []),
        ]
        for each in entry.workloads:
            pace = f", throughput {_pace(each.throughput)}" if each.throughput else ""
            found = f" ({', '.join(each.findings)})" if each.findings else ""
            said = f"sharding {each.sharding or '-'}{found}{pace}, validity {each.validity}"
            lines.append(printable(f"  {each.name}: {said}"))
            lines += [_wrapped(each.reason)] if each.reason else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def scoreboard_page(found: Scoreboard) -> str:
    """The scoreboard."""
    if found.first is None or found.last is None:
        since = f" since {found.since}" if found.since else ""
        return f"no shadow check is recorded{since}" if since else NOTHING
    commits = _count(found.commits, "commit")
    lines = [
        f"shadow scoreboard, {found.first[:10]} to {found.last[:10]}",
        f"{_count(found.checks, 'check')} of {commits}, {found.minutes:.0f} minutes of timed runs",
        f"would have stopped {found.would_block} of {commits}",
        "",
        f"  {'said':<13} {'commits':>7}",
        _claimed("FAIL", found.fail),
        _claimed("REVIEW", found.review),
        _silent("INVALID", found.invalid),
        _silent("INCONCLUSIVE", found.inconclusive),
        _silent("PASS", found.passed),
        "",
        _share("of settled FAILs, right", found.precision, "no FAIL is settled"),
        _share("of known regressions, called FAIL", found.recall, "no regression is known"),
    ]
    if found.open:
        lines += ["", "open: settle each with 'regbot shadow settle COMMIT confirmed|refuted|unknown --why TEXT'"]
        for row in found.open:
            lines += [_line(row, ""), *_reasons(row)]
    if found.settled:
        lines += ["", "settled"]
        for row in found.settled:
            lines += [_line(row, ""), _wrapped(_told(row))]
    return "\n".join(lines)


def _claimed(name: str, found: Claims) -> str:
    told = f"{found.confirmed} confirmed, {found.refuted} refuted, {found.unknown} unknown, {found.open} open"
    return f"  {name:<13} {found.commits:>7}   {told}" if found.commits else f"  {name:<13} {0:>7}"


def _silent(name: str, found: Silences) -> str:
    return f"  {name:<13} {found.commits:>7}" + (f"   {found.missed} missed, as far as known" if found.commits else "")


def _share(words: str, share: Share | None, none: str) -> str:
    if share is None:
        return f"  {words}: {none}"
    bounds = f"95% interval {share.low:.0%} to {share.high:.0%}"
    return f"  {words}: {share.count} of {share.total} ({bounds})"


def _line(row: ShadowRow, outcome: str) -> str:
    subject = textwrap.shorten(printable(row.entry.subject), SUBJECT_CHARACTERS, placeholder=" ...")
    cells = f"{row.entry.created[:10]}  {row.entry.head[:12]}  {row.entry.verdict:<12}"
    return "  ".join(part for part in (f"  {cells}", f"{outcome:<9}" if outcome else "", subject) if part).rstrip()


def _outcome(row: ShadowRow) -> str:
    return row.outcome.outcome if row.outcome else "-"


def _reasons(row: ShadowRow) -> list[str]:
    """What a check found that made it say so, and in which workloads."""
    found: dict[str, list[str]] = {}
    for each in row.entry.workloads:
        if (what := _found(each, row.entry.verdict)) is not None:
            found.setdefault(what or "no reason was given", []).append(each.name)
    return [_wrapped(f"{what} ({', '.join(names)})") for what, names in found.items()]


def _found(each: ShadowWorkload, status: Status) -> str | None:
    """Of the sections that have ``status``; None where none has."""
    parts = []
    if each.sharding == status:
        parts += each.findings or [each.reason]
    if each.throughput is not None and each.throughput.status == status:
        parts.append(f"throughput {_pace(each.throughput)}")
    if each.validity == status:
        parts.append(each.reason)
    return ", ".join(part for part in parts if part) if parts else None


def _told(row: ShadowRow) -> str:
    """What was decided about its commit, by whom, when and why; '' where nothing was."""
    told = row.outcome
    return printable(f"{told.outcome} by {told.who} on {told.when[:10]}: {told.why}") if told else ""


def _pace(found: ShadowThroughput) -> str:
    """``FAIL +3.1% [+2.2, +4.1]``."""
    if found.estimate_pct is None or found.low_pct is None or found.high_pct is None:
        return found.status
    return f"{found.status} {found.estimate_pct:+.1f}% [{found.low_pct:+.1f}, {found.high_pct:+.1f}]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        printable(text), WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
