"""Declared changes. The rule ``--expect "pattern@axis@workload: reason"`` accepts the findings that it covers.

The reason is mandatory, because the comment shows it in place of the failure. This module does not check who may
declare a change.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from regbot.errors import UserError
from regbot.ledgers.catalogue import PATTERNS
from regbot.records.text.clip import clip
from regbot.records.verdict import Finding, Status

FORM = "pattern@axis@workload: reason"
REASON_CHARACTERS = 4000
_AXIS_SEPARATORS = re.compile(r" -> |, ")


class ExpectationError(UserError):
    """An invalid ``--expect`` rule. ``problem`` says what is wrong and how to fix it, without repeating the rule."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"--expect {rule!r}: {problem}")
        self.problem = problem


@dataclass(frozen=True)
class Expectation:
    """Findings of ``pattern`` on ``axis`` of ``workload`` expected for ``reason``. Axis and workload may be globs."""

    pattern: str
    axis: str
    workload: str
    reason: str

    def covers(self, finding: Finding, workload: str) -> bool:
        """Return whether the rule covers the finding. If it has several axes, such as 'ep -> dp', the rule must match
        this whole text, or every single axis."""

        def matches(name: str, pattern: str) -> bool:
            return name == pattern or fnmatchcase(name, pattern)

        single_axes = _AXIS_SEPARATORS.split(finding.axis)
        return (
            finding.pattern == self.pattern
            and matches(workload, self.workload)
            and (matches(finding.axis, self.axis) or all(matches(axis, self.axis) for axis in single_axes))
        )

    def __str__(self) -> str:
        return f"{self.pattern}@{self.axis}@{self.workload}"


def parse_expectation(text: str) -> Expectation:
    """Parse ``text``. The first two '@' are separators. A workload may contain '@' ('qwen3-30b-a3b@1/ep'); it ends at
    the first colon after the second '@'. Raises ExpectationError."""
    # Earlier colons may belong to an axis that is a rank list ('[0-8:4]'). Without a second '@', all of it is searched.
    second_at = text.find("@", text.find("@") + 1)
    workload_text, _, reason_text = text[second_at + 1 :].partition(":")
    rule, reason = text[: second_at + 1] + workload_text, reason_text.strip()
    if not reason:
        raise ExpectationError(text, f"the reason is missing; write '{FORM}'")
    parts = [part.strip() for part in rule.split("@", 2)]
    if len(parts) != 3 or not all(parts):
        raise ExpectationError(text, f"write '{FORM}'; axis and workload may be '*'")
    pattern, axis, workload = parts
    name = next((name for name in PATTERNS if _normalise(name) == _normalise(pattern)), None)
    if name is None:
        raise ExpectationError(text, f"unknown pattern {pattern!r}; the patterns are: {'; '.join(PATTERNS)}")
    return Expectation(name, axis, workload, reason)


def accept(findings: Iterable[Finding], expectations: Iterable[Expectation], workload: str) -> list[Finding]:
    """Return the findings of one workload. A finding that a rule covers becomes PASS, with the reason of the first such
    rule."""
    rules, judged = list(expectations), []
    for finding in findings:
        reason = next((rule.reason for rule in rules if rule.covers(finding, workload)), None)
        accepted = {} if reason is None else {"status": "PASS", "accepted": clip(reason, REASON_CHARACTERS)}
        judged.append(finding.model_copy(update=accepted))
    return judged


def list_reasons(findings: Iterable[Finding], status: Status) -> list[str]:
    """Return what the findings with ``status`` say. For an accepted finding, it is the reason of its rule."""
    return [
        f"{finding.pattern}{f': {finding.text}' if finding.accepted is None else f', accepted: {finding.accepted}'}"
        for finding in findings
        if finding.status == status
    ]


def _normalise(name: str) -> str:
    return " ".join(name.replace("-", " ").casefold().split())
