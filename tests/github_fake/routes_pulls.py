"""Repositories, pull requests, and what is answered from their git data."""

from typing import Any

from . import shapes
from .call import Answer, Call, Refused, invalid, route
from .records import Pull
from .routes_issues import text

_REPO = "/repos/{owner}/{repo}"


@route("GET", _REPO, "metadata:read")
def get_repository(call: Call) -> Any:
    return shapes.repository(call.repo)


def _sha(call: Call, revision: str) -> str:
    """The commit of a branch, a tag, an id, or ``owner:branch`` of a fork."""
    owner, colon, branch = revision.rpartition(":")
    where = call.hub.repositories.get(f"{owner}/{call.repo.name}") if colon else call.repo
    found = where.git.branch(branch) if where and "/../" not in branch else None
    found = found or (where.git.resolve(branch) if where else None)
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", f"{_REPO}/branches/{{branch}}", "contents:read")
def get_branch(call: Call) -> Any:
    sha = call.repo.git.branch(call.path["branch"])
    if sha is None:
        raise Refused(404, "Branch not found")
    return {"name": call.path["branch"], "commit": shapes.commit(call.repo, sha), "protected": False}


@route("GET", f"{_REPO}/commits/{{ref}}", "contents:read")
def get_commit(call: Call) -> Any:
    return shapes.commit(call.repo, _sha(call, call.path["ref"]))


@route("GET", f"{_REPO}/compare/{{basehead}}", "contents:read")
def compare(call: Call) -> Any:
    base, dots, head = call.path["basehead"].partition("...")
    if not dots:
        raise Refused(404, "Not Found")
    one, two, git = _sha(call, base), _sha(call, head), call.repo.git
    merge_base = git.merge_base(one, two)
    return {"merge_base_commit": shapes.commit(call.repo, merge_base), "files": git.files(merge_base, two)[:300]}


@route("GET", f"{_REPO}/pulls", "pull_requests:read")
def list_pulls(call: Call) -> Answer:
    """``head`` filters only as ``owner:branch``; GitHub takes no notice of a bare branch."""
    query, found = call.query, list(call.repo.pulls.values())
    state, head = query.get("state", "open"), query.get("head", "")
    found = [one for one in found if state in ("all", one.state) and query.get("base", one.base) == one.base]
    if ":" in head:
        found = [one for one in found if f"{one.head_repository.owner}:{one.head}" == head]
    return call.page(sorted(found, key=lambda one: one.created, reverse=True), shapes.pull)


@route("POST", f"{_REPO}/pulls", "pull_requests:write")
def create_pull(call: Call) -> Answer:
    repo, head, base = call.repo, call.body["head"], call.body["base"]
    if call.login == "github-actions[bot]" and not repo.actions_may_open_pulls:
        raise Refused(403, "GitHub Actions is not permitted to create or approve pull requests.")
    if not call.body.get("title"):
        raise invalid("PullRequest", "title", "", "missing_field")
    owner, _, branch = head.rpartition(":")
    where = call.hub.repositories.get(f"{owner or repo.owner}/{repo.name}")
    if where is None or where.git.branch(branch) is None:
        raise invalid("PullRequest", "head", "", "invalid")
    if repo.git.branch(base) is None:
        raise invalid("PullRequest", "base", "", "invalid")
    open_ones = [(one.head_repository, one.head, one.base) for one in repo.pulls.values() if one.state == "open"]
    if (where, branch, base) in open_ones:
        raise invalid("PullRequest", "", f"A pull request already exists for {where.owner}:{branch}.")
    if not repo.git.commits(repo.git.branch(base) or "", where.git.branch(branch) or ""):
        raise invalid("PullRequest", "", f"No commits between {base} and {branch}")
    number = repo.open_pull(head, base, call.body["title"], call.login, text(call, "PullRequest"))
    return Answer(201, shapes.pull(repo.pulls[number]))


@route("GET", f"{_REPO}/pulls/{{pull_number}}", "pull_requests:read")
def get_pull(call: Call) -> Any:
    return shapes.pull(call.found("pull_number", call.repo.pulls))


@route("PATCH", f"{_REPO}/pulls/{{pull_number}}", "pull_requests:write")
def edit_pull(call: Call) -> Any:
    one: Pull = call.found("pull_number", call.repo.pulls)
    one.title, one.body = call.body.get("title", one.title), text(call, "PullRequest")
    one.updated = call.hub.tick()
    return shapes.pull(one)
