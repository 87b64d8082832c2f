"""Repositories, pull requests, and what is answered from their git data."""

import base64
from typing import Any

from . import shapes
from .call import Answer, Call, Refused, invalid, route
from .records import Pull
from .routes_issues import text

_REPO = "/repos/{owner}/{repo}"


@route("GET", "/rate_limit")
def rate_limit(call: Call) -> Any:
    core = {"limit": 5000, "remaining": 4999, "reset": 1_800_000_000, "used": 1}
    return {"resources": {"core": core, "search": core}, "rate": core}


@route("GET", _REPO, "metadata:read")
def get_repository(call: Call) -> Any:
    return shapes.full_repository(call.repo)


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
    ahead, behind = git.commits(merge_base, two), git.commits(merge_base, one)
    names = {(False, False): "identical", (True, False): "ahead", (False, True): "behind", (True, True): "diverged"}
    return {
        "url": f"{call.repo.url}/compare/{call.path['basehead']}", "status": names[bool(ahead), bool(behind)],
        "base_commit": shapes.commit(call.repo, one), "merge_base_commit": shapes.commit(call.repo, merge_base),
        "ahead_by": len(ahead), "behind_by": len(behind), "total_commits": len(ahead),
        "commits": [shapes.commit(call.repo, sha) for sha in ahead],
        "files": [shapes.file(call.repo, file, two) for file in git.files(merge_base, two)][:300],
    }  # fmt: skip


@route("GET", f"{_REPO}/contents/{{path}}", "contents:read")
def contents(call: Call) -> Any:
    sha, path = _sha(call, call.query.get("ref", call.repo.default_branch)), call.path["path"].strip("/")
    found = [_entry(call, *row) for row in call.repo.git.listing(sha, path)]
    if not found:
        raise Refused(404, "Not Found")
    if found[0]["path"] != path:
        return found
    data = call.repo.git.blob(found[0]["sha"])
    return found[0] | {"encoding": "base64", "content": base64.encodebytes(data).decode(), "size": len(data)}


def _entry(call: Call, kind: str, sha: str, path: str) -> dict[str, Any]:
    kinds = {"blob": "file", "tree": "dir", "commit": "submodule"}
    here = f"{call.repo.url}/contents/{path}"
    return {"type": kinds[kind], "name": path.rpartition("/")[2], "path": path, "sha": sha, "url": here}


@route("GET", f"{_REPO}/git/ref/{{ref}}", "contents:read")
def get_ref(call: Call) -> Any:
    return _ref(call, f"refs/{call.path['ref']}")


@route("GET", f"{_REPO}/git/matching-refs/{{ref}}", "contents:read")
def matching_refs(call: Call) -> Answer:
    wanted = f"refs/{call.path['ref']}"
    return call.page(
        [name for name in call.repo.git.refs("refs") if name.startswith(wanted)], lambda name: _ref(call, name)
    )


@route("POST", f"{_REPO}/git/refs", "contents:write")
def create_ref(call: Call) -> Answer:
    name = call.body["ref"]
    if not name.startswith("refs/") or name.count("/") < 2:
        raise Refused(422, "Reference name must start with 'refs/' and have at least two slashes")
    if name in call.repo.git.refs(name):
        raise Refused(422, "Reference already exists")
    _move(call, name)
    return Answer(201, _ref(call, name))


@route("PATCH", f"{_REPO}/git/refs/{{ref}}", "contents:write")
def move_ref(call: Call) -> Any:
    name = f"refs/{call.path['ref']}"
    old = call.repo.git.refs(name).get(name)
    if old is None:
        raise Refused(422, "Reference does not exist")
    if not call.body.get("force") and call.repo.git.resolve(call.body["sha"]) and (
        call.repo.git.merge_base(old, call.body["sha"]) != old
    ):  # fmt: skip
        raise Refused(422, "Update is not a fast forward")
    _move(call, name)
    return _ref(call, name)


@route("DELETE", f"{_REPO}/git/refs/{{ref}}", "contents:write")
def delete_ref(call: Call) -> Answer:
    name = f"refs/{call.path['ref']}"
    if name not in call.repo.git.refs(name):
        raise Refused(422, "Reference does not exist")
    call.repo.follow_heads()  # a pull request keeps the last commit of a branch that goes
    call.repo.git.set_ref(name, None)
    return Answer(204)


def _move(call: Call, name: str) -> None:
    if call.repo.git.resolve(call.body["sha"]) != call.body["sha"]:
        raise Refused(422, "Object does not exist")
    call.repo.git.set_ref(name, call.body["sha"])


def _ref(call: Call, name: str) -> dict[str, Any]:
    sha = call.repo.git.refs(name).get(name)
    if sha is None:
        raise Refused(404, "Not Found")
    target = {"type": "commit", "sha": sha, "url": f"{call.repo.url}/git/commits/{sha}"}
    return {"ref": name, "url": f"{call.repo.url}/git/{name}", "object": target}


@route("GET", f"{_REPO}/pulls", "pull_requests:read")
def list_pulls(call: Call) -> Answer:
    """``head`` filters only as ``owner:branch``; GitHub takes no notice of a bare branch."""
    query, found = call.query, list(call.repo.pulls.values())
    state, head = query.get("state", "open"), query.get("head", "")
    found = [one for one in found if state in ("all", one.state) and query.get("base", one.base) == one.base]
    if ":" in head:
        found = [one for one in found if f"{one.head_repository.owner}:{one.head}" == head]
    newest_first = query.get("direction", "desc" if query.get("sort", "created") == "created" else "asc") == "desc"
    when = {"updated": lambda one: one.updated}.get(query.get("sort", ""), lambda one: one.created)
    return call.page(sorted(found, key=when, reverse=newest_first), shapes.pull)


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
    if any(
        (one.head_repository, one.head, one.base, one.state) == (where, branch, base, "open")
        for one in repo.pulls.values()
    ):
        raise invalid("PullRequest", "", f"A pull request already exists for {where.owner}:{branch}.")
    if not repo.git.commits(repo.git.branch(base) or "", where.git.branch(branch) or ""):
        raise invalid("PullRequest", "", f"No commits between {base} and {branch}")
    body, draft = text(call, "PullRequest"), call.body.get("draft", False)
    number = repo.open_pull(head, base, call.body["title"], call.login, body, draft)
    return Answer(201, shapes.pull(repo.pulls[number]))


def _pull(call: Call) -> Pull:
    found = call.repo.pulls.get(int(call.path["pull_number"]))
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", f"{_REPO}/pulls/{{pull_number}}", "pull_requests:read")
def get_pull(call: Call) -> Any:
    return shapes.pull(_pull(call))


@route("PATCH", f"{_REPO}/pulls/{{pull_number}}", "pull_requests:write")
def edit_pull(call: Call) -> Any:
    one, given = _pull(call), call.body
    one.body = text(call, "PullRequest") if "body" in given else one.body
    one.title, one.base = given.get("title", one.title), given.get("base", one.base)
    if given.get("state") == "closed" and one.state == "open":
        call.repo.close(one.number)
    elif given.get("state") == "open":
        one.state, one.closed = "open", None
    one.updated = call.hub.tick()
    return shapes.pull(one)


@route("GET", f"{_REPO}/pulls/{{pull_number}}/files", "pull_requests:read")
def list_files(call: Call) -> Answer:
    """Against the merge base; GitHub shows no more than 3000, and does not say that there are more."""
    one, git = _pull(call), call.repo.git
    base = git.merge_base(git.branch(one.base) or "", one.head_sha)
    return call.page(git.files(base, one.head_sha)[:3000], lambda file: shapes.file(call.repo, file, one.head_sha))
