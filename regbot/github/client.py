"""Client for the parts of GitHub's REST API that regbot uses. Methods take and return plain data.

The client makes no decisions. A request that creates an object takes effect once, however often GitHub's reply is lost
(``regbot.github.transport``). Every other call can be repeated with the same result.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from regbot.github.git_remote import Remote
from regbot.github.transport import (
    MAX_LOOKUPS,
    PATIENCE_S,
    AwayError,
    ForgeError,
    RefusedError,
    TooLargeError,
    Transport,
)
from regbot.github.types import (
    ROLES,
    Artifact,
    CheckRun,
    Comment,
    CommitComparison,
    NewCheck,
    Pull,
    Role,
    WorkflowJob,
    WorkflowRun,
)
from regbot.records.text.clip import clip

__all__ = ["AwayError", "Forge", "ForgeError", "RefusedError", "TooLargeError"]

MAX_DISPATCH_LOOKUPS = 6
"""If the reply to a workflow start is lost, the list of runs is read up to this many times to see whether the workflow
started. GitHub lists a new run only after some seconds."""
MAX_END_POLLS, END_POLL_INTERVAL_S = 60, 10.0
"""Limits of ``Forge.ended_run``: number of polls, and seconds between two polls. Without a limit, a job that waits for
the end of its own run would wait forever."""
UNKNOWN_OBJECT, DELETED_OBJECT = 404, 410
"""HTTP statuses of an object that does not exist, or that was deleted."""
MAX_CLOCK_SKEW = timedelta(minutes=10)
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")

T = TypeVar("T")


class Forge:
    """One repository on GitHub or GitHub Enterprise, accessed with one token. All methods raise ForgeError.

    ``repository`` is "owner/name". ``url`` is the address of the REST API, as in GITHUB_API_URL. ``patience_s`` is the
    total number of seconds to wait while GitHub is down or asks the client to wait.
    """

    def __init__(
        self,
        token: str,
        repository: str,
        url: str = "https://api.github.com",
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise ForgeError(f"{repository!r} is not a repository", "write it as OWNER/NAME")
        self.repository = repository
        self._root = f"/repos/{repository}"
        self._token, self._sleep = token, sleep
        self._api = Transport(token, url, sleep, patience_s)

    # Pull requests

    def pull(self, number: int) -> Pull:
        return _parse(Pull.from_json, self._api.get(f"{self._root}/pulls/{number}"))

    def pulls_from(self, ref: str, state: str = "open") -> list[Pull]:
        """Return the pull requests whose head is the branch ``ref`` of this repository, newest first. ``state`` is
        "open", or "closed" also for merged ones."""
        owner = self.repository.partition("/")[0]
        parameters = {"state": state, "head": f"{owner}:{ref}", "sort": "created", "direction": "desc"}
        pulls = _parse_all(Pull.from_json, self._api.pages(f"{self._root}/pulls", parameters))
        return [pull for pull in pulls if (pull.head_repository, pull.head_ref) == (self.repository, ref)]

    def create_pull(self, title: str, body: str, head: str, base: str) -> Pull:
        """Open a pull request from the branch ``head`` of this repository into the branch ``base``. If GitHub's reply
        is lost, return the pull request that the request has opened."""

        def find_created() -> Pull | None:
            return next((pull for pull in self.pulls_from(head) if pull.base_ref == base), None)

        content = {"title": title, "body": body, "head": head, "base": base}
        return self._api.create(f"{self._root}/pulls", content, lambda data: _parse(Pull.from_json, data), find_created)

    def edit_pull(self, number: int, title: str, body: str) -> None:
        self._api.change("PATCH", f"{self._root}/pulls/{number}", {"title": title, "body": body})

    # Commits and branches

    def merge_base(self, base: str, head: str) -> str:
        return self.compare(base, head).merge_base

    def compare(self, base: str, head: str) -> CommitComparison:
        """Return what ``head`` changes since the merge base of ``base`` and ``head``."""
        path = f"{self._root}/compare/{_quote_part(base)}...{_quote_part(head)}"
        compared = self._api.get(path, {"per_page": 1})  # limits the commits; the first page lists the changed files
        return _parse(CommitComparison.from_json, compared)

    def git_remote(self, repo: Path) -> Remote:
        return Remote(repo, _parse(lambda data: str(data["clone_url"]), self._repository), self._token, self._sleep)

    def default_branch(self) -> str:
        return _parse(lambda data: str(data["default_branch"]), self._repository)

    @cached_property
    def _repository(self) -> Any:
        return self._api.get(self._root)

    def tip(self, branch: str) -> str:
        """Return the newest commit of a branch. A tag with the same name is ignored."""
        branch_data = self._api.get(f"{self._root}/branches/{_quote_part(branch)}")
        return _parse(lambda data: str(data["commit"]["sha"]), branch_data)

    def parents(self, sha: str) -> list[str]:
        commit = self._api.get(f"{self._root}/commits/{_quote_part(sha)}", {"per_page": 1})
        return _parse(lambda data: [str(parent["sha"]) for parent in data["parents"]], commit)

    def role(self, login: str) -> Role:
        """Return the present role of the account ``login`` in this repository; "none" for an unknown account."""
        if not _LOGIN.fullmatch(login):
            return "none"
        try:
            data = self._api.get(f"{self._root}/collaborators/{_quote_part(login)}/permission")
        except RefusedError as error:
            if error.status == UNKNOWN_OBJECT:
                return "none"
            raise
        return _parse(_parse_role, data)

    # Comments

    def comments(self, number: int) -> list[Comment]:
        """Return the comments of a pull request, oldest first."""
        return _sort_comments(self._api.pages(f"{self._root}/issues/{number}/comments"))

    def recent_comments(self, number: int, max_pages: int) -> tuple[list[Comment], bool]:
        """Return comments of a pull request, oldest first, and whether these are all its comments.

        At most ``max_pages`` pages of 100 comments are read: the oldest page and the newest pages. For example, of 10
        pages and with ``max_pages`` 5, these are page 1 and the pages 7 to 10.
        """
        path = f"{self._root}/issues/{number}/comments"
        first_page = self._api.page(path, number=1)
        # If another page follows, there are at least two pages, even if GitHub does not name the last one.
        last_number = max(first_page.last_page, 2) if first_page.more else 1
        # The number of the first page to read after page 1.
        resume_number = max(2, last_number - max_pages + 2)
        items = list(first_page.data)
        for page_number in range(resume_number, last_number + 1):
            items += self._api.page(path, page_number).data
        is_complete = resume_number == 2  # no page after the first one is left out
        return _sort_comments(items), is_complete

    def comment(self, id: int) -> Comment | None:
        """Return one comment; None if the comment was deleted."""
        try:
            return _parse(Comment.from_json, self._api.get(f"{self._root}/issues/comments/{id}"))
        except RefusedError as error:
            if error.status in (UNKNOWN_OBJECT, DELETED_OBJECT):
                return None
            raise

    def create_comment(self, number: int, body: str, find_created: Callable[[], Comment | None]) -> Comment:
        """Create a comment. If GitHub's reply is lost, ``find_created`` looks for the created comment, and returns None
        if there is none."""
        path = f"{self._root}/issues/{number}/comments"
        return self._api.create(path, {"body": body}, lambda data: _parse(Comment.from_json, data), find_created)

    def edit_comment(self, id: int, body: str) -> None:
        """Change the text of a comment. Raises RefusedError with status 404 if the comment was deleted."""
        self._api.change("PATCH", f"{self._root}/issues/comments/{id}", {"body": body})

    def react(self, id: int, content: str) -> None:
        """Add a reaction ("+1", "eyes", "confused", ...) to a comment. Adding the same reaction again changes
        nothing."""
        self._api.change("POST", f"{self._root}/issues/comments/{id}/reactions", {"content": content})

    def reactions(self, id: int, login: str) -> list[str]:
        """Return the reactions of the account ``login`` to a comment ("+1", "eyes", "confused", ...)."""
        listed = self._api.pages(f"{self._root}/issues/comments/{id}/reactions")
        reactions = _parse_all(lambda data: ((data["user"] or {}).get("login"), str(data["content"])), listed)
        return [content for author, content in reactions if author == login]

    # Check runs

    def checks(self, sha: str, name: str) -> tuple[list[CheckRun], bool]:
        """Return the check runs called ``name`` on a commit, oldest first, and whether these are all of them.

        At most the 100 newest are returned. Check runs of other apps and of jobs are included. Jobs of a pull request
        can create any number of check runs, so only the first page is read, on which GitHub lists the newest.
        """
        path = f"{self._root}/commits/{_quote_part(sha)}/check-runs"
        # By default, GitHub lists only the latest check runs. The filter "all" also lists the earlier ones.
        first_page = self._api.page(path, number=1, parameters={"check_name": name, "filter": "all"})
        listed = _parse(lambda data: [CheckRun.from_json(item) for item in data["check_runs"]], first_page.data)
        is_complete = not first_page.more
        return sorted(listed, key=lambda check: check.id), is_complete

    def check(self, id: int) -> CheckRun:
        return _parse(CheckRun.from_json, self._api.get(f"{self._root}/check-runs/{id}"))

    def create_check(self, check: NewCheck) -> CheckRun:
        """Create a check run. If GitHub's reply is lost, return the existing check run with the same external id."""

        def find_created() -> CheckRun | None:
            listed, _ = self.checks(check.sha, check.name)
            return next((run for run in listed if run.external_id == check.external_id), None)

        body = {**check.body(), "head_sha": check.sha}
        return self._api.create(
            f"{self._root}/check-runs", body, lambda data: _parse(CheckRun.from_json, data), find_created
        )

    def update_check(self, id: int, check: NewCheck) -> None:
        """Change the content of a check run. GitHub *adds* the annotations to the existing annotations, so the caller
        must send annotations only once.

        If GitHub's reply to a request with annotations is lost, the number of annotations shows whether GitHub has
        added them. The request is repeated only if it has not.
        """
        path = f"{self._root}/check-runs/{id}"
        body = check.body()
        if not check.annotations:
            self._api.change("PATCH", path, body)
            return

        def find_created() -> CheckRun | None:
            run = self.check(id)
            # ``run.annotations`` is GitHub's number of annotations. ``check.annotations`` are the annotations to add.
            return run if run.annotations >= len(check.annotations) else None

        self._api.create(path, body, lambda data: _parse(CheckRun.from_json, data), find_created, verb="PATCH")

    # Labels

    def labels(self, number: int) -> list[str]:
        return _parse_all(lambda data: str(data["name"]), self._api.pages(f"{self._root}/issues/{number}/labels"))

    def add_label(self, number: int, name: str) -> None:
        """Add a label to a pull request. If the repository has no label of this name, GitHub creates the label."""
        self._api.change("POST", f"{self._root}/issues/{number}/labels", {"labels": [name]})

    def remove_label(self, number: int, name: str) -> None:
        """Remove a label from a pull request. A missing label is no error."""
        self._delete(f"{self._root}/issues/{number}/labels/{_quote_part(name)}")

    # Workflows

    def dispatch(self, workflow: str, ref: str, inputs: Mapping[str, str]) -> None:
        """Start the workflow with the file name ``workflow``.

        If GitHub's reply is lost, this method looks for the nonce of ``inputs`` in the titles of the runs. If a run has
        this nonce, the workflow has started. Without a nonce in ``inputs``, the workflow is started again.
        """
        path = f"{self._root}/actions/workflows/{_quote_part(workflow)}/dispatches"
        nonce = inputs.get("nonce", "")
        since = datetime.now(UTC) - MAX_CLOCK_SKEW

        def find_started() -> bool | None:
            """Return True if a run has the nonce; None if no run has it, or if there is no nonce to look for."""
            if not nonce:
                return None
            return True if any(nonce in run.title.split() for run in self.runs(workflow, since)) else None

        self._api.create(
            path,
            {"ref": ref, "inputs": dict(inputs)},
            read=lambda _: True,  # GitHub returns nothing about the started run
            find_created=find_started,
            max_lookups=MAX_DISPATCH_LOOKUPS if nonce else MAX_LOOKUPS,
        )

    def runs(self, workflow: str, since: datetime) -> list[WorkflowRun]:
        """Return the runs of a workflow that were dispatched at or after ``since``, newest first."""
        created = f">={since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        parameters = {"event": "workflow_dispatch", "created": created}
        path = f"{self._root}/actions/workflows/{_quote_part(workflow)}/runs"
        listed = _parse_all(WorkflowRun.from_json, self._api.pages(path, parameters, key="workflow_runs"))
        return sorted(listed, key=lambda run: -run.id)

    def head_runs(self, workflow: str, event: str, sha: str) -> list[WorkflowRun]:
        """Return the newest runs of a workflow for an event of the commit ``sha``, at most 100, newest first."""
        path = f"{self._root}/actions/workflows/{_quote_part(workflow)}/runs"
        listed = self._api.page(path, number=1, parameters={"event": event, "head_sha": sha}).data
        runs = _parse(lambda data: [WorkflowRun.from_json(item) for item in data["workflow_runs"]], listed)
        return sorted(runs, key=lambda run: -run.id)

    def run(self, id: int) -> WorkflowRun:
        return _parse(WorkflowRun.from_json, self._api.get(f"{self._root}/actions/runs/{id}"))

    def ended_run(self, run: WorkflowRun) -> WorkflowRun:
        """Wait at most ten minutes for the end of a run, and return the newest state of the run."""
        for _ in range(MAX_END_POLLS):
            if run.status == "completed":
                break
            self._sleep(END_POLL_INTERVAL_S)
            run = self.run(run.id)
        return run

    def jobs(self, run_id: int) -> list[WorkflowJob]:
        """Return the jobs of all attempts of a run, at most 100, in the order in which they started."""
        path = f"{self._root}/actions/runs/{run_id}/jobs"
        first_page = self._api.page(path, number=1, parameters={"filter": "all"})  # "all" stands for all attempts
        jobs = _parse(lambda data: [WorkflowJob.from_json(item) for item in data["jobs"]], first_page.data)
        return sorted(jobs, key=lambda job: job.started)

    def artifacts(self, run_id: int, name: str = "") -> list[Artifact]:
        """Return the artifacts of all attempts of a run, oldest first. With ``name``, GitHub lists only artifacts of
        this name, so that thousands of other artifacts cost no further requests."""
        parameters = {"name": name} if name else None
        listed = self._api.pages(f"{self._root}/actions/runs/{run_id}/artifacts", parameters, key="artifacts")
        return sorted(_parse_all(Artifact.from_json, listed), key=lambda artifact: artifact.id)

    def download(self, artifact_id: int, limit: int) -> bytes:
        """Return the zip archive of an artifact. Raises TooLargeError if the archive has more than ``limit`` bytes,
        without reading the rest."""
        return self._api.download(f"{self._root}/actions/artifacts/{artifact_id}/zip", limit)

    def _delete(self, path: str) -> None:
        try:
            self._api.change("DELETE", path)
        except RefusedError as error:
            if error.status not in (UNKNOWN_OBJECT, DELETED_OBJECT):
                raise


def _sort_comments(items: Iterable[Any]) -> list[Comment]:
    """Parse comments, and return them oldest first."""
    return sorted(_parse_all(Comment.from_json, items), key=lambda comment: (comment.created, comment.id))


def _parse_role(data: Mapping[str, Any]) -> Role:
    """Return the role in GitHub's answer. For a custom role of an organisation, return the standard role that the
    custom role extends."""
    # ``role_name`` may be a custom role. ``permission`` is always one of admin, write, read and none.
    for name in (data.get("role_name"), data["permission"]):
        for role in ROLES:
            if name == role:
                return role
    return "none"


def _quote_part(text: str) -> str:
    return quote(text, safe="")


def _parse_all(parse: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    return [_parse(parse, item) for item in items]


def _parse(parse: Callable[[Any], T], data: Any) -> T:
    """Return ``parse(data)``. Raises ForgeError if GitHub's answer lacks a field or has an unexpected form."""
    try:
        return parse(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForgeError(clip(f"GitHub's answer cannot be read ({type(error).__name__}: {error})", 300)) from error
