"""Annotations of a check run: what changed, at the lines of the diff that changed it."""

from collections.abc import Mapping

from regbot.github.types import Annotation, AnnotationLevel
from regbot.records.verdict import Status, Verdict
from regbot.report.advice import share_findings
from regbot.report.markdown import visible
from regbot.report.source_lines import describe_lines

MAX_ANNOTATIONS = 50
"""GitHub takes no more in one request."""
MAX_LINES = 3
"""Annotated lines of one finding."""
TITLE_CHARACTERS, MESSAGE_CHARACTERS = 200, 2000
LEVELS: Mapping[Status, AnnotationLevel] = {"FAIL": "failure", "REVIEW": "warning"}


def list_annotations(verdict: Verdict) -> list[Annotation]:
    """Return the annotations of the findings, the gravest first. Only lines of head in the diff get one: git has listed
    them, so they exist in the commit.
    """
    annotations = []
    for item in share_findings(verdict.workloads):
        finding = item.finding
        text = "".join((f"In {', '.join(item.workloads)}: ", *item.text, " ", *describe_lines(finding)))
        annotations += [
            Annotation(
                path=line.path,
                line=line.line,
                level=LEVELS.get(finding.status, "notice"),
                title=visible(f"{finding.status}: {finding.pattern} on axis {finding.axis}", TITLE_CHARACTERS),
                message=visible(text, MESSAGE_CHARACTERS),
            )
            for line in [line for line in finding.lines.head if line.in_diff][:MAX_LINES]
        ]
    return annotations[:MAX_ANNOTATIONS]
