"""JSON as GitHub writes it. Only what regbot, its workflows or a test reads."""

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
    return {"login": login, "id": int.from_bytes(login.encode()[-6:]), "type": kind}


def repository(repo: "Repository") -> Json:
    return {
        "id": repo.id, "name": repo.name, "full_name": repo.full_name, "owner": user(repo.hub, repo.owner),
        "private": True, "fork": repo.source is not None, "default_branch": repo.default_branch,
        "clone_url": repo.clone_url,
    }  # fmt: skip


def label(name: str) -> Json:
    return {"id": int.from_bytes(name.encode()[-6:]), "name": name}


def association(repo: "Repository", login: str) -> str:
    if login == repo.owner:
        return "OWNER"
    return "COLLABORATOR" if repo.members.get(login, "none") != "none" else "NONE"


def comment(repo: "Repository", one: "Comment") -> Json:
    return {
        "id": one.id, "body": one.body, "user": user(repo.hub, one.author), "created_at": one.created,
        "updated_at": one.updated, "author_association": association(repo, one.author),
    }  # fmt: skip


def issue(one: "Issue") -> Json:
    repo = one.repository
    return {
        "id": repo.id * 10_000 + one.number, "number": one.number, "title": one.title, "body": one.body or None,
        "state": one.state, "user": user(repo.hub, one.author), "labels": [label(name) for name in one.labels],
        "created_at": one.created, "updated_at": one.updated, "closed_at": one.closed, "locked": False,
        "author_association": association(repo, one.author),
        **({"pull_request": {"url": f"{repo.url}/pulls/{one.number}"}} if one.number in repo.pulls else {}),
    }  # fmt: skip


def pull(one: "Pull") -> Json:
    repo = one.repository
    base = (one.merged and repo.git.describe(one.merged)["parents"][0]) or repo.git.branch(one.base)
    about = {key: value for key, value in issue(one).items() if key != "pull_request"}
    return about | {
        "merged": one.merged is not None, "merged_at": one.closed if one.merged else None,
        "merge_commit_sha": one.merged, "head": _end(one.head_repository, one.head, one.head_sha),
        "base": _end(repo, one.base, base), "draft": False,
    }  # fmt: skip


def _end(repo: "Repository", branch: str, sha: str | None) -> Json:
    owner = user(repo.hub, repo.owner)
    return {"label": f"{repo.owner}:{branch}", "ref": branch, "sha": sha, "user": owner, "repo": repository(repo)}


def commit(repo: "Repository", sha: str) -> Json:
    git = repo.git.describe(sha)
    who = user(repo.hub, git["author"]["name"])
    return {
        "sha": sha, "author": who, "committer": who, "parents": [{"sha": one} for one in git["parents"]],
        "commit": {"message": git["message"], "author": git["author"], "committer": git["author"]},
    }  # fmt: skip


def head_commit(repo: "Repository", sha: str) -> Json:
    """The short form in workflow runs and merge groups."""
    git = repo.git.describe(sha)
    who = {name: git["author"][name] for name in ("name", "email")}
    short = {"id": sha, "tree_id": git["tree"], "message": git["message"], "timestamp": git["author"]["date"]}
    return short | {"author": who, "committer": who}


def check_run(repo: "Repository", one: "CheckRun") -> Json:
    slug = one.app.removesuffix("[bot]")
    return {
        "id": one.id, "name": one.name, "head_sha": one.sha, "external_id": one.external_id, "status": one.status,
        "conclusion": one.conclusion, "details_url": one.details_url, "started_at": one.started,
        "completed_at": one.completed, "pull_requests": [],
        "output": {"title": one.title, "summary": one.summary, "text": one.text, "annotations_count": 0},
        "app": {"id": int.from_bytes(slug.encode()[-6:]), "slug": slug, "name": slug.replace("-", " ").title()},
    }  # fmt: skip


def run(one: "Run") -> Json:
    repo, started = one.repository, one.started or one.created
    # GitHub leaves out the pull requests of forks here; that is why one must not rely on the list.
    own = [pull for pull in repo.pulls.values() if one.head_repository is repo and pull.head == one.head_branch]
    return {
        "id": one.id, "name": one.path.rpartition("/")[2].partition(".")[0], "path": one.path, "event": one.event,
        "head_branch": one.head_branch, "head_sha": one.head_sha, "display_title": one.title, "status": one.status,
        "conclusion": one.conclusion, "run_attempt": one.attempt, "workflow_id": workflow_id(one.path),
        "created_at": one.created, "updated_at": later(started, one.seconds), "run_started_at": started,
        "repository": _minimal(repo), "head_repository": _minimal(one.head_repository),
        "head_commit": head_commit(repo, one.head_sha), "actor": user(repo.hub, one.actor),
        "html_url": f"{repo.hub.server_url}/{repo.full_name}/actions/runs/{one.id}",
        "pull_requests": [{"number": pull.number, "url": f"{repo.url}/pulls/{pull.number}"} for pull in own],
    }  # fmt: skip


def _minimal(repo: "Repository") -> Json:
    """The form in workflow runs."""
    return {key: value for key, value in repository(repo).items() if key not in ("default_branch", "clone_url")}


def job(run: "Run", one: "Job") -> Json:
    return {
        "id": run.id * 100 + run.jobs.index(one), "run_id": run.id, "run_attempt": one.attempt, "name": one.name,
        "status": run.status, "conclusion": run.conclusion, "started_at": one.started,
        "completed_at": later(one.started, one.seconds) if run.status == "completed" else None,
    }  # fmt: skip


def later(time: str, seconds: float) -> str:
    form = "%Y-%m-%dT%H:%M:%SZ"
    return (datetime.strptime(time, form) + timedelta(seconds=round(seconds))).strftime(form)


def workflow_id(path: str) -> int:
    return int.from_bytes(path.removeprefix(".github/workflows/").encode()[:6])


def workflow(path: str) -> Json:
    return {"id": workflow_id(path), "name": path.rpartition("/")[2].partition(".")[0], "path": path, "state": "active"}


def artifact(one: "Artifact") -> Json:
    size = len(one.content) if one.size is None else one.size
    return {"id": one.id, "name": one.name, "size_in_bytes": size, "expired": one.expired, "created_at": one.created}
