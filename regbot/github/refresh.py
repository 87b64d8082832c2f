"""``regbot github refresh``: maintain one open pull request with the references of the last nights.

The node that measures has no token and passes its records to this job. Each night becomes one commit on top of the
refresh branch, so that earlier commits, including commits by people, are never overwritten. After a fault, the job can
be repeated without doing anything twice: the commit of a night is always the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.check.refresh.text import commit_message, describe_outcome, files_section, proposal_body, proposal_title
from regbot.errors import UserError
from regbot.github.client import AwayError, Forge
from regbot.github.git_remote import Remote
from regbot.github.proposal import ARTIFACT, RefreshBranch, check_night, is_reachable, make_commit, read_proposal
from regbot.github.types import Pull
from regbot.records.baseline import parse_time
from regbot.records.config import FILE_NAME, load_commit
from regbot.records.files import MAX_RECORD_BYTES
from regbot.records.proposal import Proposal
from regbot.records.refresh import RefreshReport
from regbot.records.text.clip import clip, short_commit
from regbot.records.text.printable import printable
from regbot.records.verdict import select_gravest_status
from regbot.report.markdown import code
from regbot.workloads.checkout.git import DEEPEN_ADVICE, CheckoutError, file_at, is_shallow

BRANCH = "regbot/refresh"
REASON_CHARACTERS = 300
MAX_CHARACTERS = 60_000


@dataclass(frozen=True)
class RefreshPost:
    number: int | None
    """Number of the open pull request; None if no pull request is open."""
    message: str
    summary: str
    unmeasured: tuple[str, ...] = ()
    """One line of plain text for each workload of which no session was stored tonight, with the reason."""


@dataclass(frozen=True)
class _RefreshNight:
    forge: Forge
    remote: Remote
    proposals: Sequence[Proposal]
    now: datetime
    run_url: str
    """URL of the workflow run that measured; '' if unknown."""
    main_name: str

    @property
    def measured_commit(self) -> str:
        return self.proposals[0].commit

    @property
    def report(self) -> RefreshReport:
        reports = [proposal.refreshed for proposal in self.proposals]
        return reports[0].model_copy(
            update={
                "status": select_gravest_status(report.status for report in reports),
                "workloads": [workload for report in reports for workload in report.workloads],
                "warnings": list(dict.fromkeys(warning for report in reports for warning in report.warnings)),
                # The files are known only after the commit. ``branch`` and ``proposal``, its commit, describe a refresh
                # without GitHub.
                "files": [],
                "branch": None,
                "proposal": None,
            }
        )


def fetch_proposals(forge: Forge, run: int) -> list[Proposal]:
    """Return the proposals that the nodes of a run uploaded, not yet checked. If several artifacts have the same name,
    the newest is used. Raises UserError."""
    # The artifacts are listed oldest first, so a newer one replaces an older one of the same name.
    artifacts = [artifact for artifact in forge.artifacts(run) if not artifact.expired]
    newest_artifacts = {item.name: item for item in artifacts if f"{item.name}-".startswith(f"{ARTIFACT}-")}
    proposals = []
    for name, artifact in sorted(newest_artifacts.items()):
        origin = f"artifact {clip(printable(name), 80)}"
        proposals.append(read_proposal(forge.download(artifact.id, MAX_RECORD_BYTES), origin))
    return proposals


def post_refresh(
    forge: Forge, remote: Remote, proposals: Sequence[Proposal], now: datetime, run_url: str = ""
) -> RefreshPost:
    """Add one night to the open refresh pull request, or open a new one. ``run_url`` is the URL of the run that
    measured; '' if unknown. Raises UserError if a proposal is refused. In that case nothing is changed. Raises
    ForgeError, CheckoutError, ConfigError."""
    if not proposals:
        raise UserError("no node uploaded a proposal", "see the log of the job that measures")
    commits = {proposal.commit for proposal in proposals}
    if len(commits) > 1:
        commit_names = ", ".join(sorted(short_commit(commit) for commit in commits))
        raise UserError(f"the nodes measured different commits: {commit_names}")
    if any(parse_time(proposal.created) > now + FUTURE_TOLERANCE for proposal in proposals):
        raise UserError("a proposal's time is in the future: the clock of its node or of this machine is wrong")
    if is_shallow(remote.repo):
        raise CheckoutError(f"{remote.repo}: the repository is shallow", DEEPEN_ADVICE)
    night = _RefreshNight(forge, remote, proposals, now, run_url, main_name=forge.default_branch())
    if all(proposal.empty for proposal in proposals):  # a proposal without records to store
        outcome = _report_unchanged(night, _find_open_pull(night), "Tonight there is nothing to store.")
    else:
        outcome = _store_night(night)
    return replace(outcome, unmeasured=tuple(line for proposal in proposals for line in _find_unmeasured(proposal)))


def _store_night(night: _RefreshNight) -> RefreshPost:
    """Commit the night, push the commit, and open or update the pull request."""
    remote, measured_commit = night.remote, night.measured_commit
    tips = remote.tips(night.main_name, BRANCH)
    remote.fetch(*tips.values())
    # ``main`` is the newest commit of main. ``tip`` is that of the refresh branch; None if the branch does not exist.
    main, tip = tips[night.main_name], tips.get(BRANCH)
    if not is_reachable(remote.repo, measured_commit, main):
        raise UserError(
            f"the measured commit {short_commit(measured_commit)} is not in the history of {night.main_name}"
        )
    text_at = partial(file_at, remote.repo, FILE_NAME)
    config, measured_config = (load_commit(text_at, commit).config for commit in (main, measured_commit))
    if config.baselines.folder != measured_config.baselines.folder:
        raise UserError("main has moved its references to another folder since the measurement", "measure again")
    pull = _find_open_pull(night)
    closed_pulls = [other for other in night.forge.pulls_from(BRANCH, "closed") if other.base_ref == night.main_name]
    # The last pull request, if a person closed it without merging and no other pull request is open.
    is_rejected = pull is None and bool(closed_pulls) and not closed_pulls[0].merged_at
    rejected_pull = closed_pulls[0] if is_rejected else None
    if rejected_pull is not None and night.forge.is_ancestor(measured_commit, rejected_pull.head_sha):
        reason = f"#{rejected_pull.number} was closed without merging, and main has not changed since."
        return _report_unchanged(night, None, reason)
    # After its pull request was merged or closed, the branch starts again from the measured commit.
    is_finished = pull is None and tip in {closed_pull.head_sha for closed_pull in closed_pulls}
    parent = measured_commit if tip is None or is_finished else tip
    branch = RefreshBranch(repo=remote.repo, main=main, folder=config.baselines.folder, parent=parent)
    check_night(branch, night.proposals, measured_config)
    message, at = commit_message(night.report), parse_time(night.proposals[0].created)
    night_commit = make_commit(branch, night.proposals, message, at, night.now)
    if night_commit.is_already_in_main and pull is None:
        return _report_unchanged(night, None, "Main already has these baselines.")
    if night_commit.commit == branch.parent and pull is not None:
        return _report_unchanged(night, pull, "The pull request already has this night.")
    report = night.report.model_copy(update={"files": list(night_commit.files)})
    if night_commit.commit != branch.parent and not remote.push(night_commit.commit, BRANCH, tip):
        raise AwayError(f"somebody moved the branch {BRANCH} while this job ran", "run the job again")
    title, body = proposal_title(report), _write_body(night, report)
    if pull is None:
        pull = night.forge.create_pull(title, body, BRANCH, night.main_name)
        message = f"Opened #{pull.number}."
    else:
        night.forge.edit_pull(pull.number, title, body)
        message = f"Brought #{pull.number} up to date."
    return RefreshPost(pull.number, message, f"# {title}\n\n{message}\n\n{body}")


def _report_unchanged(night: _RefreshNight, pull: Pull | None, reason: str) -> RefreshPost:
    """Report that nothing was stored, with the reason. ``pull`` is the open pull request, which stays as it is; None if
    no pull request is open."""
    report = night.report
    message = f"{reason} #{pull.number} stays as it is." if pull is not None else reason
    summary = f"# {proposal_title(report)}\n\n{message}\n\n{proposal_body(report)}"
    return RefreshPost(pull.number if pull is not None else None, message, summary)


def _find_open_pull(night: _RefreshNight) -> Pull | None:
    return next((pull for pull in night.forge.pulls_from(BRANCH) if pull.base_ref == night.main_name), None)


def _write_body(night: _RefreshNight, report: RefreshReport) -> str:
    """Return the text of the pull request as markdown: tonight's evidence. ``report`` combines the reports of all
    proposals, and has the files of the commit."""
    lines = []
    if len(night.proposals) == 1:
        lines.append(proposal_body(report))
    else:
        for proposal in night.proposals:
            classes = dict.fromkeys(session.node_class for session in proposal.sessions if session.tier == "timed")
            body = proposal_body(proposal.refreshed.model_copy(update={"files": []}))
            lines.append(f"# {code(', '.join(classes) or 'no node', 200)}\n\n{body}")
        lines.append(files_section(report.files))
    if night.run_url:
        lines.append(f"Measured by [this run]({night.run_url}).")
    text = "\n\n".join(line.strip() for line in lines)
    if len(text) <= MAX_CHARACTERS:
        return text
    whole_lines, _, _ = text[:MAX_CHARACTERS].rpartition("\n")
    return f"{whole_lines}\n\n…The text is cut off here. The files have all numbers."


def _find_unmeasured(proposal: Proposal) -> Iterator[str]:
    """Yield one line of plain text for each workload of which no session is stored, with the reason."""
    stored_keys = {(session.workload, session.variant) for session in proposal.sessions if session.tier == "timed"}
    for night in proposal.refreshed.workloads:
        if night.series is None:  # there is no valid measurement
            reason = "; ".join([describe_outcome(night), *night.reasons])
        elif (night.name, night.variant) in stored_keys:
            continue
        else:
            reason = night.not_stored or "the proposal contains no session of this workload"
        yield printable(f"{night.name} ({night.variant}): {reason}")[:REASON_CHARACTERS]
