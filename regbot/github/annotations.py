"""Check run annotations. When head hangs, an annotation marks each source line at which ranks stopped.

Only the stack frames in a hang report have line numbers. A collective is recorded by its module, without a line.
"""

import re
from collections import Counter

from regbot.github.types import Annotation
from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.text.clip import clip
from regbot.text.printable import printable
from regbot.text.words import count

MAX_ANNOTATIONS = 50
"""GitHub accepts at most this many annotations in one request."""
_PATH = re.compile(r"(?!/)(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_./+ -]{1,200}\.py")


def collect_annotations(verdict: Verdict, session: Session) -> list[Annotation]:
    """Return at most 50 annotations. Paths and function names come from the code under test. They are shown as text,
    and no path is opened."""
    judged_names = {entry.name for entry in verdict.workloads}
    places: Counter[tuple[str, int, str]] = Counter()
    for run in session.runs:
        if (
            run.hang is None
            or run.arm.name != "head"
            or run.workload not in judged_names
            or run.is_from_earlier_session
        ):
            continue
        for rank in run.hang.ranks:
            if rank.code_frame is not None and rank.code_frame.line > 0 and _PATH.fullmatch(rank.code_frame.file):
                places[rank.code_frame.file, rank.code_frame.line, rank.code_frame.function] += 1
    return [
        Annotation(
            path=path,
            line=line,
            level="warning",
            title="The head hung here",
            message=f"{count(ranks, 'rank')} stopped in {clip(printable(function), 100)}, as the ranks "
            "themselves report. regbot stopped the run at its time limit.",
        )
        for (path, line, function), ranks in places.most_common(MAX_ANNOTATIONS)
    ]
