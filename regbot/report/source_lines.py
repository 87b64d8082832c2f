"""Sentences about the source lines of a finding, and the first of them in the diff."""

from collections.abc import Iterable, Mapping

from regbot.records.ledger import Kind
from regbot.records.text.words import listed
from regbot.records.verdict import Finding, FindingLine, Volume
from regbot.report.markdown import Name, Words
from regbot.report.workload_section import kind_words

PLACE_CHARACTERS = 100
"""Largest length of a path with its line. Of a longer one, the end is kept, which has the line."""


def name_place(line: FindingLine) -> Name:
    place = f"{line.path}:{line.line}"
    return Name(place if len(place) <= PLACE_CHARACTERS else f"…{place[1 - PLACE_CHARACTERS :]}")


def find_first_in_diff(findings: Iterable[Finding]) -> FindingLine | None:
    """Return the first line of the findings that the diff changes, in head if there is one."""
    sides = [side for finding in findings for side in (finding.lines.head, finding.lines.base)]
    return next((line for lines in sides for line in lines if line.in_diff), None)


def describe_lines(finding: Finding) -> Words:
    """Return where the collectives of a finding went and came; () if no line is known. An example is "All-to-all issued
    at `dispatch.py:41` (base) is gone; all-gather at `collectives.py:57` (head, in this diff)."
    """
    went, came = _list_grown(finding.head, finding.base), _list_grown(finding.base, finding.head)
    issued = "issued at "
    if finding.amounts is not None:
        went, came, issued = "line", "line", ""
    is_gone = not any(finding.head[kind].count for kind in went if kind in finding.head)
    base = _describe_side(finding.lines.base, "base", went or came, issued)
    head = _describe_side(finding.lines.head, "head", came or went, "at " if base and issued else issued)
    end = (" is gone" if is_gone else " has changed",) if base and went and issued else ()
    words = (*base, *end, *(("; ",) if base and head else ()), *head)
    return (words[0][:1].upper() + words[0][1:], *words[1:], ".") if words else ()


def _describe_side(lines: list[FindingLine], arm: str, kinds: str, verb: str) -> Words:
    if not lines:
        return ()
    issuer, first = next((line for line in lines if not line.in_diff), lines[0]), lines[0]
    place: Words = (f"{kinds} {verb}", name_place(issuer), f" ({arm}")
    if not first.in_diff:
        return (*place, ")")
    change: Words = ("in this diff",) if issuer is first else ("changed in this diff at ", name_place(first))
    return (*place, ", ", *change, ")")


def _list_grown(before: Mapping[Kind, Volume], after: Mapping[Kind, Volume]) -> str:
    """Return the kinds of collectives of which ``after`` has more, in calls or bytes."""
    nothing = Volume(count=0, bytes=0)
    grown = [
        kind_words(kind)
        for kind, volume in after.items()
        if (volume.bytes, volume.count) > (before.get(kind, nothing).bytes, before.get(kind, nothing).count)
    ]
    return listed(grown, len(grown))
