"""GitHub, as far as regbot uses it: every call takes plain data and returns plain data.

Nothing is decided here. What is created is created once, however often a reply is lost (``regbot.forge.transport``);
everything else can be called again with the same result.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from regbot.forge.transport import LOOKS, AwayError, ForgeError, RefusedError, TooLargeError, Transport
from regbot.forge.types import (
    ROLES,
    Artifact,
    CheckRun,
    ClosedPull,
    Comment,
    Comparison,
    NewCheck,
    Pull,
    Role,
    WorkflowRun,
)

__all__ = ["AwayError", "Forge", "ForgeError", "RefusedError", "TooLargeError"]

DISPATCH_LOOKS = 6
"""At whether a workflow was started after all: what was dispatched is in no list for some seconds."""
ENDING_LOOKS, ENDING_S = 60, 10.0
"""At whether a run has ended, and the seconds between two: its last job may be the one that asks."""
CLOCKS_APART = timedelta(minutes=10)
"""By which GitHub's clock may differ from this one."""
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")

T = TypeVar("T")


class Forge:
    """One repository on GitHub or GitHub Enterprise, used with one token. All methods raise ForgeError.

    ``url``: of the REST API, as Actions has it in GITHUB_API_URL. ``patience_s``: how long may be waited, in all, for a
    GitHub that is down or asks to wait.
    """

    def __init__(
        self,
        token: str,
        repository: str,
        url: str = "https://api.github.com",
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = 3600,
    ) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise ForgeError(f"{repository!r} is not a repository; write it as OWNER/NAME")
        self.repository = repository
        self._root = f"/repos/{repository}"
        self._sleep = sleep
        self._api = Transport(token, url, sleep, patience_s)

    # Pull requests

    def pull(self, number: int) -> Pull:
        """One pull request."""
        return _read(Pull.of, self._api.get(f"{self._root}/pulls/{number}"))

    def pulls_with_head(self, repository: str, ref: str) -> list[Pull]:
        """The open pull requests from a branch of ``repository`` ("owner/name"), which may be a fork."""
        owner = repository.partition("/")[0]
        found = self._pulls(head=f"{owner}:{ref}")
        return [pull for pull in found if (pull.head_repository, pull.head_ref) == (repository, ref)]

    def pulls_from(self, ref: str) -> list[Pull]:
        """The open pull requests from a branch of this repository."""
        return self.pulls_with_head(self.repository, ref)

    def closed_pulls_from(self, ref: str) -> list[ClosedPull]:
        """The merged and closed pull requests from a branch of this repository, newest first."""
        owner = self.repository.partition("/")[0]
        asked = {"state": "closed", "head": f"{owner}:{ref}", "sort": "created", "direction": "desc"}
        listed = self._api.pages(f"{self._root}/pulls", asked)
        found = [(_read(Pull.of, each), _read(ClosedPull.of, each)) for each in listed]
        return [closed for pull, closed in found if (pull.head_repository, pull.head_ref) == (self.repository, ref)]

    def _pulls(self, **parameters: str) -> list[Pull]:
        return _all(Pull.of, self._api.pages(f"{self._root}/pulls", {"state": "open", **parameters}))

    def create_pull(self, title: str, body: str, head: str, base: str) -> Pull:
        """Open a pull request from ``head``, a branch of this repository, or return the one that is open."""

        def happened() -> Pull | None:
            return next((pull for pull in self.pulls_from(head) if pull.base_ref == base), None)

        content = {"title": title, "body": body, "head": head, "base": base}
        return self._api.create(f"{self._root}/pulls", content, lambda data: _read(Pull.of, data), happened)

    def edit_pull(self, number: int, title: str, body: str) -> None:
        """Give a pull request another title and text."""
        self._api.change("PATCH", f"{self._root}/pulls/{number}", {"title": title, "body": body})

    # Commits and branches

    def merge_base(self, base: str, head: str) -> str:
        """The commit that ``base`` and ``head`` have in common."""
        return self.compare(base, head).merge_base

    def compare(self, base: str, head: str) -> Comparison:
        """What ``head`` has changed since it left ``base``, in one answer. Its files stand on the first page."""
        compared = self._api.get(f"{self._root}/compare/{_part(base)}...{_part(head)}", {"per_page": 1})
        return _read(Comparison.of, compared)

    def default_branch(self) -> str:
        """The name of the default branch."""
        return _read(lambda data: str(data["default_branch"]), self._api.get(self._root))

    def tip(self, branch: str) -> str:
        """The commit that a branch ends with, whatever tag is called as it is."""
        return _read(lambda data: str(data["commit"]["sha"]), self._api.get(f"{self._root}/branches/{_part(branch)}"))

    def role(self, login: str) -> Role:
        """What somebody may do here, now; "none" where there is no such account."""
        if not _LOGIN.fullmatch(login):
            return "none"
        try:
            data = self._api.get(f"{self._root}/collaborators/{_part(login)}/permission")
        except RefusedError as error:
            if error.status == 404:
                return "none"
            raise
        return _read(_role, data)

    # Comments

    def comments(self, number: int) -> list[Comment]:
        """The comments of a pull request, oldest first."""
        found = _all(Comment.of, self._api.pages(f"{self._root}/issues/{number}/comments"))
        return sorted(found, key=lambda comment: (comment.created, comment.id))

    def comment(self, id: int) -> Comment | None:
        """One comment; None where it is gone."""
        try:
            return _read(Comment.of, self._api.get(f"{self._root}/issues/comments/{id}"))
        except RefusedError as error:
            if error.status in (404, 410):
                return None
            raise

    def create_comment(self, number: int, body: str, happened: Callable[[], Comment | None] | None = None) -> Comment:
        """A new comment. ``happened`` finds it where a reply was lost; without it, a new one of the very same text."""
        if happened is None:
            before = {comment.id for comment in self.comments(number)}

            def happened() -> Comment | None:
                new = (comment for comment in self.comments(number) if comment.id not in before)
                return next((comment for comment in new if comment.body.strip() == body.strip()), None)

        path = f"{self._root}/issues/{number}/comments"
        return self._api.create(path, {"body": body}, lambda data: _read(Comment.of, data), happened)

    def edit_comment(self, id: int, body: str) -> None:
        """Give a comment another text. Raises RefusedError with status 404 where it is gone."""
        self._api.change("PATCH", f"{self._root}/issues/comments/{id}", {"body": body})

    def delete_comment(self, id: int) -> None:
        """Remove a comment; it is no error where it is gone."""
        self._delete(f"{self._root}/issues/comments/{id}")

    def react(self, id: int, content: str) -> None:
        """Add a reaction ("+1", "eyes", "confused", ...) to a comment; a second one changes nothing."""
        self._api.change("POST", f"{self._root}/issues/comments/{id}/reactions", {"content": content})

    def reactions(self, id: int, login: str) -> list[str]:
        """The reactions of somebody to a comment ("+1", "eyes", "confused", ...)."""
        listed = self._api.pages(f"{self._root}/issues/comments/{id}/reactions")
        given = _all(lambda data: ((data["user"] or {}).get("login"), str(data["content"])), listed)
        return [content for who, content in given if who == login]

    # Check runs

    def checks(self, sha: str, name: str) -> list[CheckRun]:
        """The check runs of one name on a commit, those of other apps and of jobs among them; oldest first."""
        asked = {"check_name": name, "filter": "all"}
        listed = self._api.pages(f"{self._root}/commits/{_part(sha)}/check-runs", asked, key="check_runs")
        return sorted(_all(CheckRun.of, listed), key=lambda check: check.id)

    def create_check(self, check: NewCheck) -> CheckRun:
        """A new check run; or that of the same external id, where a reply was lost."""

        def happened() -> CheckRun | None:
            found = self.checks(check.sha, check.name)
            return next((each for each in found if each.external_id == check.external_id), None)

        body = {**check.body(), "head_sha": check.sha}
        return self._api.create(f"{self._root}/check-runs", body, lambda data: _read(CheckRun.of, data), happened)

    def update_check(self, id: int, check: NewCheck) -> None:
        """Say something else in a check run. GitHub *adds* annotations: give them once."""
        path = f"{self._root}/check-runs/{id}"
        body = check.body()
        if not check.annotations:
            self._api.change("PATCH", path, body)
            return

        def happened() -> CheckRun | None:
            found = _read(CheckRun.of, self._api.get(path))
            return found if found.annotations >= len(check.annotations) else None

        self._api.create(path, body, lambda data: _read(CheckRun.of, data), happened, verb="PATCH")

    # Labels

    def labels(self, number: int) -> list[str]:
        """The labels of a pull request."""
        return _all(lambda data: str(data["name"]), self._api.pages(f"{self._root}/issues/{number}/labels"))

    def add_label(self, number: int, name: str) -> None:
        """Put a label on a pull request; it is made where the repository has none of that name."""
        self._api.change("POST", f"{self._root}/issues/{number}/labels", {"labels": [name]})

    def remove_label(self, number: int, name: str) -> None:
        """Take a label off; it is no error where it is not there."""
        self._delete(f"{self._root}/issues/{number}/labels/{_part(name)}")

    # Workflows

    def dispatch(self, workflow: str, ref: str, inputs: Mapping[str, str]) -> None:
        """Start a workflow by the name of its file. A lost reply is settled by the nonce in ``inputs``, which the run's
        title has to show; without a nonce it is started again."""
        path = f"{self._root}/actions/workflows/{_part(workflow)}/dispatches"
        nonce, begun = inputs.get("nonce", ""), datetime.now(UTC) - CLOCKS_APART
        looks = DISPATCH_LOOKS if nonce else LOOKS

        def happened() -> bool | None:
            return True if nonce and any(nonce in run.title.split() for run in self.runs(workflow, begun)) else None

        self._api.create(path, {"ref": ref, "inputs": dict(inputs)}, lambda _: True, happened, looks=looks)

    def runs(self, workflow: str, since: datetime) -> list[WorkflowRun]:
        """The runs of a workflow that were dispatched at or after ``since``, newest first."""
        created = f">={since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        asked = {"event": "workflow_dispatch", "created": created}
        path = f"{self._root}/actions/workflows/{_part(workflow)}/runs"
        found = _all(WorkflowRun.of, self._api.pages(path, asked, key="workflow_runs"))
        return sorted(found, key=lambda run: -run.id)

    def run(self, id: int) -> WorkflowRun:
        """One run of a workflow."""
        return _read(WorkflowRun.of, self._api.get(f"{self._root}/actions/runs/{id}"))

    def ended_run(self, id: int) -> WorkflowRun:
        """One run, waited for where it has not ended: ten minutes at most, then it is returned as it is."""
        for _ in range(ENDING_LOOKS):
            if (run := self.run(id)).status == "completed":
                return run
            self._sleep(ENDING_S)
        return self.run(id)

    def artifacts(self, run_id: int) -> list[Artifact]:
        """What a run left, of all its attempts, oldest first."""
        listed = self._api.pages(f"{self._root}/actions/runs/{run_id}/artifacts", key="artifacts")
        return sorted(_all(Artifact.of, listed), key=lambda artifact: artifact.id)

    def download(self, artifact_id: int, limit: int) -> bytes:
        """The zip archive of an artifact. Raises TooLargeError above ``limit`` bytes, of which no more are read."""
        return self._api.download(f"{self._root}/actions/artifacts/{artifact_id}/zip", limit)

    def _delete(self, path: str) -> None:
        try:
            self._api.change("DELETE", path)
        except RefusedError as error:
            if error.status not in (404, 410):
                raise


def _role(data: Mapping[str, Any]) -> Role:
    """The role by its name; of a role that an organisation made itself, what it is at least."""
    for said in (data.get("role_name"), data["permission"]):
        for role in ROLES:
            if said == role:
                return role
    return "none"


def _part(text: str) -> str:
    return quote(text, safe="")


def _all(of: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    return [_read(of, item) for item in items]


def _read(of: Callable[[Any], T], data: Any) -> T:
    """``data`` as what it should be. Raises ForgeError where GitHub's answer lacks something."""
    try:
        return of(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForgeError(f"GitHub's answer cannot be read ({type(error).__name__}: {error})"[:300]) from error
