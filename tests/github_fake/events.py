"""Payloads of events, as Actions writes them to GITHUB_EVENT_PATH, in the fields of GitHub's examples (npm
@octokit/webhooks-examples)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import shapes

if TYPE_CHECKING:
    from .records import Run
    from .state import Repository

Json = dict[str, Any]


def payload(repo: "Repository", name: str, **subject: Any) -> Json:
    """The payload of event ``name``; ``subject`` is the arguments of the function of that name below."""
    made = _EVENTS[name](repo, **subject)
    sender = made.pop("sender")
    return made | {"repository": shapes.repository(repo), "sender": shapes.user(repo.hub, sender)}


def issue_comment(repo: "Repository", comment: int) -> Json:
    one = repo.all_comments[comment]
    about = {"issue": shapes.issue(repo.issues[one.number]), "comment": shapes.comment(repo, one)}
    return {"action": "created", "sender": one.author} | about


def pull_request(
    repo: "Repository", number: int, action: str = "opened", label: str = "", before: str = "", sender: str = ""
) -> Json:
    """``action``: opened, reopened, closed, synchronize (of ``before``), labeled or unlabeled (with ``label``)."""
    one = repo.pulls[number]
    made: Json = {"action": action, "number": number, "pull_request": shapes.pull(one), "sender": sender or one.author}
    if action == "synchronize":
        made |= {"before": before, "after": one.head_sha}
    return made | ({"label": shapes.label(label)} if label else {})


def workflow_run(repo: "Repository", run: "Run", action: str = "completed") -> Json:
    return {"action": action, "sender": run.actor, "workflow_run": shapes.run(run)}


def workflow_dispatch(
    repo: "Repository", workflow: str, ref: str = "", inputs: dict[str, str] | None = None, sender: str = "ann"
) -> Json:
    """``ref`` is a branch; the default branch if none is named."""
    branch = f"refs/heads/{ref or repo.default_branch}"
    return {"inputs": inputs, "ref": branch, "workflow": f".github/workflows/{workflow}", "sender": sender}


def merge_group(repo: "Repository", number: int, action: str = "checks_requested", ahead: Sequence[int] = ()) -> Json:
    """Also puts the queue's branch, with the merge commits that would come of it, into the repository. ``ahead``: pull
    requests of the same group before ``number``."""
    pull = repo.pulls[number]
    base = repo.git.branch(pull.base)
    assert base
    head = base
    for each in (repo.pulls[other] for other in (*ahead, number)):
        head = repo.git.merge(head, each.head_sha, f"Merge pull request #{each.number}", repo.hub.tick())
    branch = f"refs/heads/gh-readonly-queue/{pull.base}/pr-{number}-{base}"
    repo.git.set_ref(branch, head)
    group = {"head_sha": head, "head_ref": branch, "base_sha": base, "base_ref": f"refs/heads/{pull.base}"}
    return {"action": action, "merge_group": group, "sender": pull.author}


_EVENTS: dict[str, Callable[..., Json]] = {
    "issue_comment": issue_comment,
    "pull_request": pull_request,
    "pull_request_target": pull_request,
    "workflow_run": workflow_run,
    "workflow_dispatch": workflow_dispatch,
    "merge_group": merge_group,
}
