"""Findings at a line of the source, for the check run: where a head that hung stood, as its ranks told.

Nothing else that is recorded knows a line: a collective is known by the module that issued it, and a module has none.
"""

import re
from collections import Counter

from regbot.forge.types import Annotation
from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.text import printable

MOST = 50
"""That GitHub takes in one request."""
_PATH = re.compile(r"(?!/)(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_./+ -]{1,200}\.py")


def annotations(verdict: Verdict, session: Session) -> list[Annotation]:
    """At most 50. Paths and names were told by the code under test: they are text, and lead nowhere."""
    judged = {entry.name for entry in verdict.workloads}
    places: Counter[tuple[str, int, str]] = Counter()
    for run in session.runs:
        if run.hang is None or run.arm.name != "head" or run.workload not in judged or run.joined is not None:
            continue
        for rank in run.hang.ranks:
            if rank.at is not None and rank.at.line > 0 and _PATH.fullmatch(rank.at.file):
                places[rank.at.file, rank.at.line, rank.at.function] += 1
    return [
        Annotation(
            path=path,
            line=line,
            level="warning",
            title="The head hung here",
            message=f"{ranks} rank{'s' * (ranks != 1)} stood in {printable(function)[:100]}, as the ranks themselves "
            "told, when the run was ended for its time limit.",
        )
        for (path, line, function), ranks in places.most_common(MOST)
    ]
