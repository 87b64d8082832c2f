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
    base = (one.merged and repo.git.parents(one.merged)[0]) or repo.git.branch(one.base)
    about = {key: value for key, value in issue(one).items() if key != "pull_request"}
    return about | {
        "merged_at": one.closed if one.merged else None, "base": _end(repo, one.base, base),
        "head": _end(one.head_repository, one.head, one.head_sha),
    }  # fmt: skip


def _end(repo: "Repository", branch: str, sha: str | None) -> Json:
    return {"ref": branch, "sha": sha, "repo": repository(repo)}


def commit(repo: "Repository", sha: str) -> Json:
    return {"sha": sha, "parents": [{"sha": parent} for parent in repo.git.parents(sha)]}


def check_run(repo: "Repository", one: "CheckRun") -> Json:
    slug = one.app.removesuffix("[bot]")
    return {
        "id": one.id, "name": one.name, "head_sha": one.sha, "external_id": one.external_id, "status": one.status,
        "conclusion": one.conclusion, "app": {"slug": slug},
        "output": {
            "title": one.title, "summary": one.summary, "text": one.text, "annotations_count": len(one.annotations),
        },
    }  # fmt: skip


def run(one: "Run") -> Json:
    repo, started = one.repository, one.started or one.created
    return {
        "id": one.id, "name": one.path.rpartition("/")[2].partition(".")[0], "path": one.path, "event": one.event,
        "head_branch": one.head_branch, "head_sha": one.head_sha, "display_title": one.title, "status": one.status,
        "conclusion": one.conclusion, "run_attempt": one.attempt, "updated_at": later(started, one.seconds),
        "run_started_at": started, "repository": repository(repo), "head_repository": repository(one.head_repository),
        "html_url": f"{repo.hub.server_url}/{repo.full_name}/actions/runs/{one.id}",
    }  # fmt: skip


def job(run: "Run", one: "Job") -> Json:
    return {
        "id": run.id * 100 + run.jobs.index(one), "run_id": run.id, "run_attempt": one.attempt, "name": one.name,
        "status": run.status, "conclusion": run.conclusion, "started_at": one.started,
        "completed_at": later(one.started, one.seconds) if run.status == "completed" else None,
    }  # fmt: skip


def later(time: str, seconds: float) -> str:
    form = "%Y-%m-%dT%H:%M:%SZ"
    return (datetime.strptime(time, form) + timedelta(seconds=round(seconds))).strftime(form)


def artifact(one: "Artifact") -> Json:
    return {"id": one.id, "name": one.name, "expired": one.expired}
