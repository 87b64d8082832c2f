"""Check run annotations. If head hangs, an annotation marks each source line at which ranks stopped.

Findings about collectives get no annotation: a ledger names the module of a collective, but no source line. Hang
reports contain stack frames with line numbers.
"""

import re
from collections import Counter

from regbot.github.types import Annotation
from regbot.records.session import Session
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable
from regbot.records.text.words import count
from regbot.records.verdict import Verdict

MAX_ANNOTATIONS = 50
_SOURCE_PATH = re.compile(r"(?!/)(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_./+ -]{1,200}\.py")


def collect_annotations(verdict: Verdict, session: Session) -> list[Annotation]:
    """Return one annotation for each source line at which ranks of head hung, at most ``MAX_ANNOTATIONS``.

    Paths and function names come from the code under test. They are shown as text, and no path is opened.
    """
    judged_names = {entry.name for entry in verdict.workloads}
    own_head_runs = [run for run in session.runs if run.arm.name == "head" and not run.is_from_earlier_session]
    hangs = [run.hang for run in own_head_runs if run.hang is not None and run.workload in judged_names]
    stopped_ranks: Counter[tuple[str, int, str]] = Counter()
    for hang in hangs:
        for rank in hang.ranks:
            frame = rank.code_frame  # innermost frame of the code under test; None if there is none
            if frame is not None and frame.line > 0 and _SOURCE_PATH.fullmatch(frame.file):
                stopped_ranks[frame.file, frame.line, frame.function] += 1
    return [
        Annotation(
            path=path,
            line=line,
            level="warning",
            title="The head hung here",
            message=f"{count(rank_count, 'rank')} stopped in {clip(printable(function), 100)}, as the ranks "
            "themselves report. regbot ended the run at its time limit.",
        )
        for (path, line, function), rank_count in stopped_ranks.most_common(MAX_ANNOTATIONS)
    ]
