"""What the refresh pull request says: the evidence of the nights in it, and of which workloads tonight has none."""

from collections.abc import Iterator, Sequence

from regbot.forge.refresh_commit import Made
from regbot.records.proposal import Proposal
from regbot.records.refresh import Refreshed, RefreshedWorkload
from regbot.refresh.words import files_section, outcome, proposal_body
from regbot.report.markdown import code, prose
from regbot.text import printable

NOTES_SHOWN = 5
REASON_CHARACTERS = 300
MAX_CHARACTERS = 60_000
"""Of a pull request's text GitHub takes 65,536."""


def pull_body(
    proposals: Sequence[Proposal],
    found: Refreshed,
    made: Made,
    commits: Sequence[tuple[str, str, str]],
    rejected: int | None,
    run_url: str,
) -> str:
    """The text as markdown: what stands in the way, tonight's evidence, the nights before it.

    ``found``: all ``proposals`` as one, with the files of ``made``. ``commits``: of the branch, as
    ``regbot.forge.refresh_commit.subjects`` gives them. ``rejected``: the pull request that a person closed before.
    """
    lines = []
    if made.conflicts:
        names = ", ".join(code(name) for name in made.conflicts[:NOTES_SHOWN])
        lines.append(f"> **Main has moved and this does not merge:** both changed {names}. Somebody has to decide.")
    if rejected is not None:
        lines.append(f"> #{rejected} was closed without merging. This one has new evidence.")
    if made.unsound:
        told = "".join(f"\n> - {prose(problem, 300)}" for problem in made.unsound[:NOTES_SHOWN])
        lines.append(f"> **The store on main is not sound,** see `regbot baseline verify`:{told}")
    if len(proposals) == 1:
        lines.append(proposal_body(found))
    else:
        lines += [f"# {code(_class(each), 200)}\n\n{_of_one(each)}" for each in proposals]
        lines.append(files_section(found.files))
    if run_url:
        lines.append(f"Measured by [this run]({run_url}).")
    if len(commits) > 1:
        told = "\n".join(f"- {code(commit[:12])} {prose(subject, 160)}" for commit, _, subject in commits)
        lines.append(f"## All commits, the newest first\n\n{told}")
    text = "\n\n".join(line.strip() for line in lines)
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[:MAX_CHARACTERS].rpartition("\n")[0] + "\n\n…cut here: the rest is in the files."


def unmeasured(proposals: Sequence[Proposal]) -> tuple[str, ...]:
    """The workloads of which nothing is stored, and why, as plain text."""
    return tuple(said for proposal in proposals for said in _unmeasured(proposal))


def unmeasured_text(commit: str, missing: Sequence[str]) -> str:
    """A comment, as markdown. ``missing``: as ``unmeasured`` says it."""
    shown = [f"- {prose(each, REASON_CHARACTERS)}" for each in missing[:NOTES_SHOWN]]
    shown += [f"- …and {len(missing) - NOTES_SHOWN} more"] if len(missing) > NOTES_SHOWN else []
    told = "\n".join(shown)
    return f"Main at {code(commit[:12])} is not in this pull request: of that night nothing can be stored.\n\n{told}"


def _unmeasured(proposal: Proposal) -> Iterator[str]:
    there = {(each.workload, each.variant) for each in proposal.sessions if each.tier == "timed"}
    for night in proposal.refreshed.workloads:
        if night.series is None or (night.name, night.variant) not in there:
            why = "; ".join(_why(night, proposal.refreshed.warnings)) or "the proposal holds no session of it"
            yield printable(f"{night.name} ({night.variant}): {why}")[:REASON_CHARACTERS]


def _why(night: RefreshedWorkload, warnings: Sequence[str]) -> list[str]:
    if night.series is None:
        return [outcome(night), *night.reasons]
    opening = f"{night.name}: not stored: "
    return [warning.removeprefix(opening) for warning in warnings if warning.startswith(opening)]


def _of_one(proposal: Proposal) -> str:
    return proposal_body(proposal.refreshed.model_copy(update={"files": []}))


def _class(proposal: Proposal) -> str:
    classes = dict.fromkeys(each.node_class for each in proposal.sessions if each.tier == "timed")
    return ", ".join(classes) or "no node"
