"""Client for the parts of GitHub's REST API that regbot uses. Methods take and return plain data.

The client makes no decisions. A request that creates an object takes effect once, however often GitHub's reply is lost
(``regbot.github.transport``). Every other call can be repeated with the same result.
"""

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regbot.github.git_remote import Remote
from regbot.github.transport import (
    MAX_LOOKUPS,
    PATIENCE_S,
    AwayError,
    ForgeError,
    MissingError,
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

__all__ = ["AwayError", "Forge", "ForgeError", "MissingError", "RefusedError", "TooLargeError"]

MAX_DISPATCH_LOOKUPS = 6
"""If the reply to a workflow start is lost, the list of runs is read up to this many times to see whether the workflow
started. GitHub lists a new run only after some seconds."""
MAX_END_POLLS, END_POLL_INTERVAL_S = 60, 10.0
"""Limits of ``Forge.ended_run``: number of polls, and seconds between two polls. Without a limit, a job that waits for
the end of its own run would wait forever."""
MAX_CLOCK_SKEW = timedelta(minutes=10)
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")


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
        self.repository = repository
        self._token, self._sleep = token, sleep
        self._api = Transport(token, url, f"/repos/{repository}", sleep, patience_s)

    # Pull requests

    def pull(self, number: int) -> Pull:
        return self._api.get(f"/pulls/{number}", Pull.model_validate)

    def pulls_from(self, ref: str, state: str = "open") -> list[Pull]:
        """Return the pull requests whose head is the branch ``ref`` of this repository, newest first. ``state`` is
        "open", or "closed" also for merged ones."""
        owner = self.repository.partition("/")[0]
        query = {"state": state, "head": f"{owner}:{ref}", "sort": "created", "direction": "desc"}
        pulls = self._api.pages("/pulls", Pull.model_validate, **query)
        return [pull for pull in pulls if (pull.head_repository, pull.head_ref) == (self.repository, ref)]

    def create_pull(self, title: str, body: str, head: str, base: str) -> Pull:
        """Open a pull request from the branch ``head`` of this repository into the branch ``base``. If GitHub's reply
        is lost, return the pull request that the request has opened."""

        def find_created() -> Pull | None:
            return next((pull for pull in self.pulls_from(head) if pull.base_ref == base), None)

        content = {"title": title, "body": body, "head": head, "base": base}
        return self._api.create("/pulls", content, Pull.model_validate, find_created)

    def edit_pull(self, number: int, title: str, body: str) -> None:
        self._api.change("PATCH", f"/pulls/{number}", {"title": title, "body": body})

    # Commits and branches

    def merge_base(self, base: str, head: str) -> str | None:
        """Return the merge base of two commits or branches; None if GitHub does not know them, or finds none."""
        try:
            return self.compare(base, head).merge_base
        except MissingError:
            return None

    def is_ancestor(self, commit: str, tip: str) -> bool:
        """Return whether ``commit`` is in the history of ``tip``, a commit or branch; False for an unknown commit."""
        return self.merge_base(tip, commit) == commit

    def compare(self, base: str, head: str) -> CommitComparison:
        """Return what ``head`` changes since the merge base of ``base`` and ``head``."""
        path = f"/compare/{_quote_part(base)}...{_quote_part(head)}"
        # ``per_page`` limits the commits; the first page lists the changed files.
        return self._api.get(path, CommitComparison.model_validate, per_page=1)

    def git_remote(self, repo: Path) -> Remote:
        return Remote(repo, str(self._repository["clone_url"]), self._token, self._sleep)

    def default_branch(self) -> str:
        return str(self._repository["default_branch"])

    @cached_property
    def _repository(self) -> Mapping[str, Any]:
        return self._api.get("", dict)

    def tip(self, branch: str) -> str:
        """Return the newest commit of a branch. A tag with the same name is ignored."""
        return self._api.get(f"/branches/{_quote_part(branch)}", lambda data: str(data["commit"]["sha"]))

    def parents(self, sha: str) -> list[str]:
        path = f"/commits/{_quote_part(sha)}"
        return self._api.get(path, lambda data: [str(parent["sha"]) for parent in data["parents"]], per_page=1)

    def role(self, login: str) -> Role:
        """Return the present role of the account ``login`` in this repository; "none" for an unknown account."""
        if not _LOGIN.fullmatch(login):
            return "none"
        try:
            return self._api.get(f"/collaborators/{_quote_part(login)}/permission", _read_role)
        except MissingError:
            return "none"

    # Comments

    def comments(self, number: int) -> list[Comment]:
        """Return the comments of a pull request, oldest first."""
        return self._api.pages(f"/issues/{number}/comments", Comment.model_validate)

    def recent_comments(self, number: int, max_pages: int) -> tuple[list[Comment], bool]:
        """Return comments of a pull request, oldest first, and whether these are all its comments.

        At most ``max_pages`` pages of 100 comments are read: the oldest page and the newest pages. For example, of 10
        pages and with ``max_pages`` 5, these are page 1 and the pages 7 to 10.
        """
        path = f"/issues/{number}/comments"
        first_page = self._api.page(path, Comment.model_validate)
        # If another page follows, there are at least two pages, even if GitHub does not name the last one.
        last_number = max(first_page.last_page, 2) if first_page.more else 1
        # The number of the first page to read after page 1.
        resume_number = max(2, last_number - max_pages + 2)
        comments = first_page.items
        for page_number in range(resume_number, last_number + 1):
            comments += self._api.page(path, Comment.model_validate, number=page_number).items
        is_complete = resume_number == 2  # no page after the first one is left out
        return comments, is_complete

    def comment(self, id: int) -> Comment | None:
        """Return one comment; None if the comment was deleted."""
        try:
            return self._api.get(f"/issues/comments/{id}", Comment.model_validate)
        except MissingError:
            return None

    def create_comment(self, number: int, body: str, find_created: Callable[[], Comment | None]) -> Comment:
        """Create a comment. If GitHub's reply is lost, ``find_created`` looks for the created comment, and returns None
        if there is none."""
        return self._api.create(f"/issues/{number}/comments", {"body": body}, Comment.model_validate, find_created)

    def edit_comment(self, id: int, body: str) -> None:
        """Change the text of a comment. Raises MissingError if the comment was deleted."""
        self._api.change("PATCH", f"/issues/comments/{id}", {"body": body})

    def react(self, id: int, content: str) -> None:
        """Add a reaction ("+1", "eyes", "confused", ...) to a comment. Adding the same reaction again changes
        nothing."""
        self._api.change("POST", f"/issues/comments/{id}/reactions", {"content": content})

    def reaction_authors(self, id: int) -> list[str]:
        """Return the accounts that have reacted to a comment."""
        return self._api.pages(f"/issues/comments/{id}/reactions", lambda item: (item["user"] or {}).get("login", ""))

    # Check runs

    def checks(self, sha: str, name: str) -> tuple[list[CheckRun], bool]:
        """Return the check runs called ``name`` on a commit, oldest first, and whether these are all of them.

        At most the 100 newest are returned. Check runs of other apps and of jobs are included. Jobs of a pull request
        can create any number of check runs, so only the first page is read, on which GitHub lists the newest.
        """
        # By default, GitHub lists only the latest check runs. The filter "all" also lists the earlier ones.
        path = f"/commits/{_quote_part(sha)}/check-runs"
        first_page = self._api.page(path, CheckRun.model_validate, "check_runs", check_name=name, filter="all")
        is_complete = not first_page.more
        return sorted(first_page.items, key=lambda check: check.id), is_complete

    def create_check(self, check: NewCheck) -> CheckRun:
        """Create a check run. If GitHub's reply is lost, return the existing check run with the same external id."""

        def find_created() -> CheckRun | None:
            listed, _ = self.checks(check.sha, check.name)
            return next((run for run in listed if run.external_id == check.external_id), None)

        body = {**check.body(), "head_sha": check.sha}
        return self._api.create("/check-runs", body, CheckRun.model_validate, find_created)

    def update_check(self, id: int, check: NewCheck) -> None:
        self._api.change("PATCH", f"/check-runs/{id}", check.body())

    # Labels

    def remove_label(self, number: int, name: str) -> None:
        """Remove a label from a pull request. A missing label is no error."""
        with contextlib.suppress(MissingError):
            self._api.change("DELETE", f"/issues/{number}/labels/{_quote_part(name)}")

    # Workflows

    def dispatch(self, workflow: str, ref: str, inputs: Mapping[str, str]) -> None:
        """Start the workflow with the file name ``workflow``.

        If GitHub's reply is lost, this method looks for the nonce of ``inputs`` in the titles of the runs. If a run has
        this nonce, the workflow has started. Without a nonce in ``inputs``, the workflow is started again.
        """
        nonce = inputs.get("nonce", "")
        since = datetime.now(UTC) - MAX_CLOCK_SKEW

        def find_started() -> bool | None:
            """Return True if a run has the nonce; None if no run has it, or if there is no nonce to look for."""
            return (bool(nonce) and self.has_run(workflow, nonce, since)) or None

        self._api.create(
            f"/actions/workflows/{_quote_part(workflow)}/dispatches",
            {"ref": ref, "inputs": dict(inputs)},
            read=lambda _: True,  # GitHub returns nothing about the started run
            find_created=find_started,
            max_lookups=MAX_DISPATCH_LOOKUPS if nonce else MAX_LOOKUPS,
        )

    def has_run(self, workflow: str, nonce: str, since: datetime) -> bool:
        """Return whether a run of a workflow that was dispatched at or after ``since`` has ``nonce`` in its title."""
        return any(nonce in run.title.split() for run in self.runs(workflow, since))

    def runs(self, workflow: str, since: datetime) -> list[WorkflowRun]:
        """Return the runs of a workflow that were dispatched at or after ``since``, newest first."""
        created = f">={since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        path = f"/actions/workflows/{_quote_part(workflow)}/runs"
        query = {"event": "workflow_dispatch", "created": created}
        return sorted(
            self._api.pages(path, WorkflowRun.model_validate, "workflow_runs", **query), key=lambda run: -run.id
        )

    def head_runs(self, workflow: str, event: str, sha: str) -> list[WorkflowRun]:
        """Return the newest runs of a workflow for an event of the commit ``sha``, at most 100, newest first."""
        path = f"/actions/workflows/{_quote_part(workflow)}/runs"
        page = self._api.page(path, WorkflowRun.model_validate, "workflow_runs", event=event, head_sha=sha)
        return sorted(page.items, key=lambda run: -run.id)

    def run(self, id: int) -> WorkflowRun:
        return self._api.get(f"/actions/runs/{id}", WorkflowRun.model_validate)

    def ended_run(self, run: WorkflowRun) -> WorkflowRun:
        """Wait at most ten minutes for the end of a run, and return the newest state of the run."""
        for _ in range(MAX_END_POLLS):
            if run.status == "completed":
                break
            self._sleep(END_POLL_INTERVAL_S)
            run = self.run(run.id)
        return run

    def jobs(self, run_id: int) -> list[WorkflowJob]:
        """Return the jobs of all attempts of a run, at most 100."""
        # The filter "all" stands for all attempts.
        return self._api.page(f"/actions/runs/{run_id}/jobs", WorkflowJob.model_validate, "jobs", filter="all").items

    def artifacts(self, run_id: int, name: str = "") -> list[Artifact]:
        """Return the artifacts of all attempts of a run, oldest first. With ``name``, GitHub lists only artifacts of
        this name, so that thousands of other artifacts cost no further requests."""
        query = {"name": name} if name else {}
        listed = self._api.pages(f"/actions/runs/{run_id}/artifacts", Artifact.model_validate, "artifacts", **query)
        return sorted(listed, key=lambda artifact: artifact.id)

    def download(self, artifact_id: int, limit: int) -> bytes:
        """Return the zip archive of an artifact. Raises TooLargeError if the archive has more than ``limit`` bytes,
        without reading the rest."""
        return self._api.download(f"/actions/artifacts/{artifact_id}/zip", limit)


def _read_role(data: Mapping[str, Any]) -> Role:
    """Return the role in GitHub's answer. For a custom role of an organisation, return the standard role that the
    custom role extends."""
    # ``role_name`` may be a custom role. ``permission`` is always one of admin, write, read and none.
    names = (data.get("role_name"), data["permission"])
    return next((role for name in names for role in ROLES if name == role), "none")


def _quote_part(text: str) -> str:
    return quote(text, safe="")
