"""JSON as GitHub writes it. Only what has a meaning here; what else the description requires, openapi.py fills in."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import Artifact, CheckRun, Comment, Issue, Job, Pull, Run
    from .state import Hub, Repository

Json = dict[str, Any]


def user(hub: "Hub", login: str) -> Json:
    owners = {repository.owner for repository in hub.repositories.values() if repository.source is None}
    kind = "Bot" if login.endswith("[bot]") else "Organization" if login in owners else "User"
    # A number that is the same at every run, so that two of the same login are the same user.
    number = int.from_bytes(login.encode()[-6:])
    return {
        "login": login, "id": number, "type": kind, "site_admin": False,
        "url": f"{hub.url}/users/{login}", "html_url": f"{hub.server_url}/{login}",
    }  # fmt: skip


def app(login: str) -> Json:
    slug = login.removesuffix("[bot]")
    return {"id": int.from_bytes(slug.encode()[-6:]), "slug": slug, "name": slug.replace("-", " ").title()}


def minimal_repository(repo: "Repository") -> Json:
    """The form in workflow runs."""
    return {
        "id": repo.id, "name": repo.name, "full_name": repo.full_name, "owner": user(repo.hub, repo.owner),
        "private": repo.private, "fork": repo.source is not None, "url": repo.url,
        "html_url": f"{repo.hub.server_url}/{repo.full_name}",
    }  # fmt: skip


def repository(repo: "Repository") -> Json:
    return minimal_repository(repo) | {"default_branch": repo.default_branch, "clone_url": repo.clone_url}


def full_repository(repo: "Repository") -> Json:
    above = {"parent": repository(repo.source), "source": repository(repo.source)} if repo.source else {}
    return repository(repo) | above | {"visibility": "private" if repo.private else "public"}


def label(repo: "Repository", name: str) -> Json:
    number = int.from_bytes(name.encode()[-6:])
    return {
        "id": number,
        "name": name,
        "color": "ededed",
        "default": False,
        "url": f"{repo.url}/labels/{name}",
        "description": "",
    }


def association(repo: "Repository", login: str) -> str:
    if login == repo.owner:
        return "OWNER"
    return "COLLABORATOR" if repo.members.get(login, "none") != "none" else "NONE"


def comment(repo: "Repository", one: "Comment") -> Json:
    where = "pull" if one.number in repo.pulls else "issues"
    return {
        "id": one.id, "body": one.body, "user": user(repo.hub, one.author), "created_at": one.created,
        "updated_at": one.updated, "author_association": association(repo, one.author),
        "url": f"{repo.url}/issues/comments/{one.id}", "issue_url": f"{repo.url}/issues/{one.number}",
        "html_url": f"{repo.hub.server_url}/{repo.full_name}/{where}/{one.number}#issuecomment-{one.id}",
    }  # fmt: skip


def issue(one: "Issue") -> Json:
    repo = one.repository
    shown = _headline(one) | {
        "comments": len(repo.comments(one.number)), "url": f"{repo.url}/issues/{one.number}",
        "repository_url": repo.url, "html_url": f"{repo.hub.server_url}/{repo.full_name}/issues/{one.number}",
    }  # fmt: skip
    if one.number in repo.pulls:
        page = f"{repo.hub.server_url}/{repo.full_name}/pull/{one.number}"
        ways = {"url": f"{repo.url}/pulls/{one.number}", "diff_url": f"{page}.diff", "patch_url": f"{page}.patch"}
        shown |= {"pull_request": ways | {"html_url": page}, "html_url": page}
    return shown


def _headline(one: "Issue") -> Json:
    repo = one.repository
    return {
        "id": repo.id * 10_000 + one.number, "number": one.number, "title": one.title, "body": one.body or None,
        "state": one.state, "user": user(repo.hub, one.author), "labels": [label(repo, name) for name in one.labels],
        "created_at": one.created, "updated_at": one.updated, "closed_at": one.closed, "locked": False,
        "author_association": association(repo, one.author),
    }  # fmt: skip


def pull(one: "Pull") -> Json:
    repo, here = one.repository, f"{one.repository.url}/pulls/{one.number}"
    base = (one.merged and repo.git.describe(one.merged)["parents"][0]) or repo.git.branch(one.base)
    return _headline(one) | {
        "url": here, "html_url": f"{repo.hub.server_url}/{repo.full_name}/pull/{one.number}", "draft": one.draft,
        "issue_url": f"{repo.url}/issues/{one.number}", "comments_url": f"{repo.url}/issues/{one.number}/comments",
        "merged": one.merged is not None, "merged_at": one.closed if one.merged else None,
        "merge_commit_sha": one.merged, "head": _end(one.head_repository, one.head, one.head_sha),
        "base": _end(repo, one.base, base),
    }  # fmt: skip


def _end(repo: "Repository", branch: str, sha: str | None) -> Json:
    where, owner = None if repo.deleted else repository(repo), user(repo.hub, repo.owner)
    return {"label": f"{repo.owner}:{branch}", "ref": branch, "sha": sha, "user": owner, "repo": where}


def file(repo: "Repository", one: Json, head: str) -> Json:
    page, path = f"{repo.hub.server_url}/{repo.full_name}", one["filename"]
    ways = {"blob_url": f"{page}/blob/{head}/{path}", "raw_url": f"{page}/raw/{head}/{path}"}
    return one | ways | {"contents_url": f"{repo.url}/contents/{path}?ref={head}"}


def commit(repo: "Repository", sha: str) -> Json:
    git = repo.git.describe(sha)
    here = f"{repo.url}/git/commits/{sha}"
    return {
        "sha": sha, "url": f"{repo.url}/commits/{sha}",
        "html_url": f"{repo.hub.server_url}/{repo.full_name}/commit/{sha}",
        "author": user(repo.hub, git["author"]["name"]), "committer": user(repo.hub, git["author"]["name"]),
        "commit": {
            "message": git["message"], "tree": {"sha": git["tree"], "url": f"{repo.url}/git/trees/{git['tree']}"},
            "author": git["author"], "committer": git["author"], "url": here,
        },
        "parents": [{"sha": one, "url": f"{repo.url}/commits/{one}"} for one in git["parents"]],
    }  # fmt: skip


def head_commit(repo: "Repository", sha: str) -> Json:
    """The short form in workflow runs and merge groups."""
    git = repo.git.describe(sha)
    who = {name: git["author"][name] for name in ("name", "email")}
    short = {"id": sha, "tree_id": git["tree"], "message": git["message"], "timestamp": git["author"]["date"]}
    return short | {"author": who, "committer": who}


def check_run(repo: "Repository", one: "CheckRun") -> Json:
    here = f"{repo.url}/check-runs/{one.id}"
    return {
        "id": one.id, "name": one.name, "head_sha": one.sha, "external_id": one.external_id, "url": here,
        "html_url": f"{repo.hub.server_url}/{repo.full_name}/runs/{one.id}", "details_url": one.details_url,
        "status": one.status, "conclusion": one.conclusion, "started_at": one.started, "completed_at": one.completed,
        "output": {
            "title": one.title, "summary": one.summary, "text": one.text, "annotations_count": 0,
            "annotations_url": f"{here}/annotations",
        },
        "check_suite": {"id": one.id * 10}, "app": app(one.app), "pull_requests": [],
    }  # fmt: skip


def run(one: "Run") -> Json:
    repo, here, started = one.repository, f"{one.repository.url}/actions/runs/{one.id}", one.started or one.created
    # GitHub leaves out the pull requests of forks here; that is why one must not rely on the list.
    own = [pull for pull in repo.pulls.values() if one.head_repository is repo and pull.head == one.head_branch]
    return {
        "id": one.id, "name": one.path.rpartition("/")[2].partition(".")[0], "path": one.path, "event": one.event,
        "head_branch": one.head_branch, "head_sha": one.head_sha, "display_title": one.title, "status": one.status,
        "conclusion": one.conclusion, "run_attempt": one.attempt, "run_number": 1, "workflow_id": workflow_id(one.path),
        "created_at": one.created, "updated_at": later(started, one.seconds), "run_started_at": started,
        "repository": minimal_repository(repo), "head_repository": minimal_repository(one.head_repository),
        "head_commit": head_commit(repo, one.head_sha), "actor": user(repo.hub, one.actor),
        "triggering_actor": user(repo.hub, one.actor), "url": here, "artifacts_url": f"{here}/artifacts",
        "html_url": f"{repo.hub.server_url}/{repo.full_name}/actions/runs/{one.id}",
        "pull_requests": [{"number": pull.number, "url": f"{repo.url}/pulls/{pull.number}"} for pull in own],
    }  # fmt: skip


def job(run: "Run", one: "Job") -> Json:
    id = run.id * 100 + run.jobs.index(one)
    return {
        "id": id, "run_id": run.id, "run_attempt": one.attempt, "name": one.name, "head_sha": run.head_sha,
        "url": f"{run.repository.url}/actions/jobs/{id}", "status": run.status, "conclusion": run.conclusion,
        "created_at": one.started, "started_at": one.started,
        "completed_at": later(one.started, one.seconds) if run.status == "completed" else None,
    }  # fmt: skip


def later(time: str, seconds: float) -> str:
    form = "%Y-%m-%dT%H:%M:%SZ"
    return (datetime.strptime(time, form) + timedelta(seconds=round(seconds))).strftime(form)


def workflow_id(path: str) -> int:
    return int.from_bytes(path.removeprefix(".github/workflows/").encode()[:6])


def workflow(repo: "Repository", path: str) -> Json:
    name, here = path.rpartition("/")[2], f"{repo.url}/actions/workflows/{workflow_id(path)}"
    page = f"{repo.hub.server_url}/{repo.full_name}/blob/{repo.default_branch}/{path}"
    return {
        "id": workflow_id(path),
        "name": name.partition(".")[0],
        "path": path,
        "state": "active",
        "url": here,
        "html_url": page,
    }


def artifact(repo: "Repository", one: "Artifact") -> Json:
    here = f"{repo.url}/actions/artifacts/{one.id}"
    run = {"id": one.run.id, "head_branch": one.run.head_branch, "head_sha": one.run.head_sha}
    both = {"repository_id": repo.id, "head_repository_id": one.run.head_repository.id}
    return {
        "id": one.id, "name": one.name, "size_in_bytes": len(one.content) if one.size is None else one.size,
        "expired": one.expired, "created_at": one.created, "updated_at": one.created, "expires_at": one.created,
        "url": here, "archive_download_url": f"{here}/zip", "workflow_run": run | both,
    }  # fmt: skip
