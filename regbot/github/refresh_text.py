"""Text of the refresh pull request: the evidence of its nights, and the workloads for which tonight has no session."""

from collections.abc import Iterator, Sequence

from regbot.check.refresh.text import describe_outcome, files_section, proposal_body
from regbot.github.refresh_commit import NightCommit
from regbot.records.proposal import Proposal
from regbot.records.refresh import RefreshReport, WorkloadRefresh
from regbot.records.text.printable import printable
from regbot.report.markdown import code

MAX_NOTES = 5
REASON_CHARACTERS = 300
MAX_CHARACTERS = 60_000


def write_pull_body(
    proposals: Sequence[Proposal], report: RefreshReport, night_commit: NightCommit, run_url: str
) -> str:
    """Return the text of the pull request as markdown: obstacles to merging, and tonight's evidence.

    ``report`` combines the reports of all ``proposals`` and has the files of ``night_commit``. ``run_url`` is the URL
    of the run that measured; '' if unknown.
    """
    lines = []
    if night_commit.conflicts:
        names = ", ".join(code(name) for name in night_commit.conflicts[:MAX_NOTES])
        lines.append(
            f"> **This pull request conflicts with main:** both changed {names}. Somebody has to resolve the conflict."
        )
    if len(proposals) == 1:
        lines.append(proposal_body(report))
    else:
        for proposal in proposals:
            heading = f"# {code(_list_node_classes(proposal), 200)}"
            lines.append(f"{heading}\n\n{_write_single_body(proposal)}")
        lines.append(files_section(report.files))
    if run_url:
        lines.append(f"Measured by [this run]({run_url}).")
    text = "\n\n".join(line.strip() for line in lines)
    if len(text) <= MAX_CHARACTERS:
        return text
    whole_lines, _, _ = text[:MAX_CHARACTERS].rpartition("\n")
    return f"{whole_lines}\n\n…The text is cut off here. The files have all numbers."


def list_unmeasured(proposals: Sequence[Proposal]) -> tuple[str, ...]:
    """Return one line of plain text for each workload of which no session is stored, with the reason."""
    return tuple(line for proposal in proposals for line in _find_unmeasured(proposal))


def _find_unmeasured(proposal: Proposal) -> Iterator[str]:
    stored_keys = {(session.workload, session.variant) for session in proposal.sessions if session.tier == "timed"}
    for night in proposal.refreshed.workloads:
        # A night without a valid measurement has no series.
        if night.series is None or (night.name, night.variant) not in stored_keys:
            reason = "; ".join(_explain_missing_session(night)) or "the proposal contains no session of this workload"
            yield printable(f"{night.name} ({night.variant}): {reason}")[:REASON_CHARACTERS]


def _explain_missing_session(night: WorkloadRefresh) -> list[str]:
    if night.series is None:  # there is no valid measurement
        return [describe_outcome(night), *night.reasons]
    # ``not_stored`` says why a valid session was not stored; '' if there is no such reason.
    return [night.not_stored] if night.not_stored else []


def _write_single_body(proposal: Proposal) -> str:
    return proposal_body(proposal.refreshed.model_copy(update={"files": []}))


def _list_node_classes(proposal: Proposal) -> str:
    classes = dict.fromkeys(session.node_class for session in proposal.sessions if session.tier == "timed")
    return ", ".join(classes) or "no node"
