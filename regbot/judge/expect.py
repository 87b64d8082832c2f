"""Declared changes: ``--expect "pattern@axis@workload: reason"`` turns findings it covers into accepted ones.

A declaration is narrow on purpose: the pattern must be one of the known names, axis and workload may be globs, and the
reason is mandatory, because it is what the comment shows instead of the alarm. Who may declare is not decided here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from regbot.ledgers.patterns import EXPLANATIONS
from regbot.records.verdict import Finding

FORM = "pattern@axis@workload: reason"
REASON_CHARACTERS = 4000
_AXIS_SEPARATORS = re.compile(r" -> |, ")


class ExpectationError(ValueError):
    """An ``--expect`` rule cannot be used. The message says what is wrong and how to write it."""


@dataclass(frozen=True)
class Expectation:
    """One declared change."""

    pattern: str
    axis: str
    workload: str
    reason: str

    def covers(self, finding: Finding, workload: str) -> bool:
        """A finding on several axes is covered only where every one of them is."""
        return (
            finding.pattern == self.pattern
            and _matches(workload, self.workload)
            and (
                _matches(finding.axis, self.axis)
                or all(_matches(axis, self.axis) for axis in _AXIS_SEPARATORS.split(finding.axis))
            )
        )

    def __str__(self) -> str:
        return f"{self.pattern}@{self.axis}@{self.workload}"


def parse_expectation(text: str) -> Expectation:
    """``text`` as an expectation. Raises ExpectationError.

    Patterns and axes hold no '@', workloads do ('qwen3-30b-a3b@1/ep'): the first two separate, the rest is the
    workload's, up to the first colon.
    """
    rule, colon, reason = _split_reason(text)
    if not colon or not reason:
        raise ExpectationError(f"--expect {text!r}: the reason is missing; write '{FORM}'")
    parts = [part.strip() for part in rule.split("@", 2)]
    if len(parts) != 3 or not all(parts):
        raise ExpectationError(f"--expect {text!r}: write '{FORM}'; axis and workload may be '*'")
    pattern, axis, workload = parts
    names = {_plain(name): name for name in EXPLANATIONS}
    if _plain(pattern) not in names:
        raise ExpectationError(
            f"--expect {text!r}: there is no pattern {pattern!r}; there are: {'; '.join(EXPLANATIONS)}"
        )
    return Expectation(names[_plain(pattern)], axis, workload, reason)


def accept(findings: Iterable[Finding], expectations: Iterable[Expectation], workload: str) -> list[Finding]:
    """The findings of one workload, those that were declared PASS with the first reason that covers them."""
    rules = list(expectations)
    judged = []
    for finding in findings:
        covering = next((rule for rule in rules if rule.covers(finding, workload)), None)
        accepted = {"status": "PASS", "accepted": covering.reason[:REASON_CHARACTERS]} if covering else {}
        judged.append(finding.model_copy(update=accepted))
    return judged


def _split_reason(text: str) -> tuple[str, str, str]:
    """At the first colon behind the second '@': axes that are rank lists ('[0-8:4]') have colons of their own."""
    second = text.find("@", text.find("@") + 1) if "@" in text else -1
    start = second + 1 if second > 0 else 0
    rule, colon, reason = text[start:].partition(":")
    return text[:start] + rule, colon, reason.strip()


def _plain(name: str) -> str:
    return " ".join(name.replace("-", " ").casefold().split())


def _matches(name: str, pattern: str) -> bool:
    """Glob, or the very name: '[0-3]' is the label of a group before it is a set of characters."""
    return name == pattern or fnmatchcase(name, pattern)
