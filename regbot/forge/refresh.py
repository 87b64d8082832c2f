"""``regbot github refresh``: one open pull request with the references of the last nights, kept up to date.

A node measures and has no token; this job has one and measures nothing. What crosses is ``regbot.records.proposal``.
Each night is one commit on top of the branch, so nothing that stands there is overwritten, a person's commits least of
all; the branch begins anew where its pull request was merged or closed. The text is worded here, from the records.

Whatever was done before a fault is found again: the commit of a night is the same whenever it is made, a push is asked
after, and GitHub has no two open pull requests from one branch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from regbot.baselines.intake import FUTURE_TOLERANCE
from regbot.checkout import CheckoutError
from regbot.checkout.git import DEEPEN, git, is_shallow
from regbot.config import FILE_NAME, Config, parse_config
from regbot.forge.client import AwayError, Forge, ForgeError
from regbot.forge.labels import set_label
from regbot.forge.proposal import ARTIFACT, ProposalError, read_proposal, unpack
from regbot.forge.refresh_commit import (
    TRAILER,
    Branch,
    check_night,
    last_night,
    make,
    reaches,
    sessions_at,
    subjects,
)
from regbot.forge.refresh_text import pull_body, unmeasured, unmeasured_text
from regbot.forge.remote import Remote
from regbot.forge.types import ClosedPull, Pull
from regbot.records.baseline import moment
from regbot.records.files import MAX_RECORD_BYTES
from regbot.records.proposal import Proposal
from regbot.records.refresh import Refreshed
from regbot.records.verdict import gravest
from regbot.refresh.words import commit_message, proposal_body, proposal_title
from regbot.text import printable

BRANCH = "regbot/refresh"
ATTEMPTS = 4
"""At a push, where somebody else pushes to the branch meanwhile."""
NIGHTS_SHOWN = 30


class Given(NamedTuple):
    """One node's proposal as it came: where from, for messages, and the bytes of its JSON."""

    origin: str
    data: bytes


@dataclass(frozen=True)
class Posted:
    """What was done. ``number``: of the pull request that is open, None where none is."""

    number: int | None
    said: str
    """In a sentence, as markdown."""
    summary: str
    """For the job's page, as markdown."""
    unmeasured: tuple[str, ...] = ()
    """Of which workloads nothing is stored tonight, and why, as plain text."""


@dataclass(frozen=True)
class _Night:
    """Tonight, and the repository it goes to."""

    forge: Forge
    remote: Remote
    proposals: Sequence[Proposal]
    now: datetime
    run_url: str
    main_name: str

    @property
    def measured(self) -> str:
        return self.proposals[0].commit

    @property
    def found(self) -> Refreshed:
        """All nodes' nights as one."""
        each = [proposal.refreshed for proposal in self.proposals]
        return each[0].model_copy(
            update={
                "status": gravest(one.status for one in each),
                "workloads": [night for one in each for night in one.workloads],
                "warnings": list(dict.fromkeys(warning for one in each for warning in one.warnings)),
                "files": [],
                "branch": None,
                "proposal": None,
            }
        )

    @property
    def digest(self) -> str:
        texts = sorted(proposal.to_json() for proposal in self.proposals)
        return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def fetch_proposals(forge: Forge, run: int) -> list[Given]:
    """The proposals that the nodes of a run left, the last of each name. Raises ForgeError, ProposalError."""
    left = [each for each in forge.artifacts(run) if not each.expired]
    ours = {each.name: each for each in left if each.name == ARTIFACT or each.name.startswith(f"{ARTIFACT}-")}
    found = []
    for name, artifact in sorted(ours.items()):
        origin = f"artifact {printable(name)[:80]}"
        found.append(Given(origin, unpack(forge.download(artifact.id, MAX_RECORD_BYTES), origin)))
    return found


def post_refresh(forge: Forge, remote: Remote, given: Sequence[Given], now: datetime, run_url: str = "") -> Posted:
    """Bring the pull request up to date with one night, or open it. One that stays as it is, because the night measured
    nothing, gets a comment that says so.

    ``run_url``: of the run that measured. Raises ProposalError where nothing may be taken of it (nothing was changed
    then), ForgeError, CheckoutError, ConfigError.
    """
    proposals = [read_proposal(each.data, each.origin) for each in given]
    if not proposals:
        raise ProposalError("no node left a proposal; see the job that measures")
    if len(commits := {each.commit for each in proposals}) > 1:
        raise ProposalError(f"the nodes measured different commits: {', '.join(sorted(one[:12] for one in commits))}")
    if any(moment(each.created) > now + FUTURE_TOLERANCE for each in proposals):
        raise ProposalError("the proposal is of a time to come: one of the clocks is wrong")
    if is_shallow(remote.repo):
        raise CheckoutError(f"{remote.repo}: the repository is shallow; {DEEPEN}")
    night = _Night(forge, remote, proposals, now, run_url, forge.default_branch())
    missing = unmeasured(proposals)
    if all(each.empty for each in proposals):
        pull = _open(night)
        if pull is not None and missing:
            _comment(night, pull, missing)
        said = "Tonight there is nothing to store."
        return replace(_unchanged(night, pull, said), unmeasured=missing)
    for _ in range(ATTEMPTS):
        done = _attempt(night)
        if done is not None:
            return replace(done, unmeasured=missing)
    raise AwayError(f"the branch {BRANCH} was moved {ATTEMPTS} times while this ran; run the job again")


def _attempt(night: _Night) -> Posted | None:
    """Commit, push, pull request; None where the branch has moved before the push."""
    remote, measured = night.remote, night.measured
    tips = remote.tips(night.main_name, BRANCH)
    if night.main_name not in tips:
        raise ForgeError(f"the repository has no branch {night.main_name}, which GitHub calls its default branch")
    remote.fetch(*tips.values())
    main, tip = tips[night.main_name], tips.get(BRANCH)
    if not reaches(remote.repo, measured, main):
        raise ProposalError(f"{measured[:12]} was measured, which is not in the history of {night.main_name}")
    config, then = _configs(night, main)
    pull = _open(night)
    closed = [each for each in night.forge.closed_pulls_from(BRANCH) if each.base_ref == night.main_name]
    if pull is None and closed and not closed[0].merged and not _is_new(night, closed[0], config.baselines.folder):
        said = f"#{closed[0].number} was closed without merging, and this night shows nothing that it did not."
        return _unchanged(night, None, said)
    anew = tip is None or (pull is None and tip in {each.head_sha for each in closed})
    branch = Branch(remote.repo, main, config.baselines.folder, measured if anew or tip is None else tip)
    check_night(branch, night.proposals, then)
    message = f"{commit_message(night.found)}\n\n{TRAILER}: {night.digest}"
    made = make(branch, night.proposals, message, moment(night.proposals[0].created), night.now)
    if made.in_main and pull is None:
        return _unchanged(night, None, "Main holds all of it already.")
    found = night.found.model_copy(update={"files": list(made.files)})
    rejected = closed[0].number if closed and not closed[0].merged and pull is None else None
    commits = subjects(replace(branch, parent=made.commit), NIGHTS_SHOWN)
    body = pull_body(night.proposals, found, made, commits, rejected, night.run_url)
    if made.commit != branch.parent:
        if not remote.push(made.commit, BRANCH, tip):
            return None
    elif last_night(branch) != night.digest:
        return _unchanged(night, pull, "A later night stands in the pull request.")
    return _posted(night, proposal_title(found), body, pull, config)


def _posted(night: _Night, title: str, body: str, pull: Pull | None, config: Config) -> Posted:
    """The pull request, opened or brought up to date."""
    if pull is None:
        pull = night.forge.create_pull(title, body, BRANCH, night.main_name)
        said = f"Opened #{pull.number}."
    else:
        night.forge.edit_pull(pull.number, title, body)
        said = f"Brought #{pull.number} up to date."
    set_label(night.forge, pull.number, night.found.status, config.github.labels)
    return Posted(pull.number, said, f"# {title}\n\n{said}\n\n{body}")


def _unchanged(night: _Night, pull: Pull | None, said: str) -> Posted:
    found = night.found
    where = f" #{pull.number} stays as it is." if pull is not None else ""
    told = f"{said}{where}"
    return Posted(pull.number if pull else None, told, f"# {proposal_title(found)}\n\n{told}\n\n{proposal_body(found)}")


def _open(night: _Night) -> Pull | None:
    """The pull request that is open from the branch into main; from one branch there may be others, into others."""
    return next((pull for pull in night.forge.pulls_from(BRANCH) if pull.base_ref == night.main_name), None)


def _comment(night: _Night, pull: Pull, missing: Sequence[str]) -> None:
    """Say once that tonight is not in the pull request."""
    text = unmeasured_text(night.measured, missing)
    if all(each.body.strip() != text.strip() for each in night.forge.comments(pull.number)):
        night.forge.create_comment(pull.number, text)


def _is_new(night: _Night, closed: ClosedPull, folder: str) -> bool:
    """Whether tonight says something that a pull request which a person closed did not: of another commit of main, of
    another workload or class, or that it is held back, or taken in, where it was not."""
    try:
        night.remote.fetch(closed.head_sha)
    except AwayError:
        raise
    except ForgeError:
        return True
    there = sessions_at(night.remote.repo, closed.head_sha, folder, night.measured)
    known = {(each.workload, each.variant, each.node_class, each.series) for each in there}
    tonight = (each for proposal in night.proposals for each in proposal.sessions if each.commit == night.measured)
    shown = {(each.workload, each.variant, each.node_class, each.series) for each in tonight if each.tier == "timed"}
    return not shown <= known


def _configs(night: _Night, main: str) -> tuple[Config, Config]:
    """Main's configuration, and that of the commit that was measured. Raises ConfigError, and ProposalError where the
    folder is another by now."""
    repo = night.remote.repo
    now, then = (
        parse_config(git(repo, "show", f"{at}:{FILE_NAME}"), f"{FILE_NAME} of {at[:12]}")
        for at in (main, night.measured)
    )
    if now.baselines.folder != then.baselines.folder:
        raise ProposalError("main keeps its references in another folder by now; measure again")
    return now, then
