"""The client against the fake GitHub: its requests, its retries, and its errors."""

import io
import logging
import re
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from github_fake import FakeGitHub, Repository
from regbot.github.client import AwayError, Forge, ForgeError, RefusedError, TooLargeError
from regbot.github.types import NewCheck

BOT = "github-actions[bot]"
DISPATCHED = """on:
  workflow_dispatch:
    inputs: {pr: {}, nonce: {}}
"""


@pytest.fixture
def repo(hub: FakeGitHub) -> Repository:
    return hub.repository("acme/moe")


@pytest.fixture
def naps() -> list[float]:
    return []


@pytest.fixture
def forge(hub: FakeGitHub, repo: Repository, naps: list[float]) -> Forge:
    token = hub.token(BOT, checks="write", pull_requests="write", issues="write", actions="write", contents="read")
    return Forge(token, "acme/moe", hub.url, naps.append)


@pytest.fixture
def number(repo: Repository) -> int:
    repo.commit({"moe.py": "x = 1\n"}, branch="topic")
    return repo.open_pull(head="topic", title="A *change*", author="ann")


def check(sha: str) -> NewCheck:
    return NewCheck("regbot", sha, f"1:{sha}:static", "in_progress", None, "t", "s")


def posts(hub: FakeGitHub, end: str) -> int:
    return sum(method == "POST" and path.endswith(end) for method, path, _ in hub.requests)


# What it reads


@pytest.mark.parametrize("login", ["nobody", "", "../issues", "a b", "ann?x=1"])
def test_a_person_who_is_not_a_member_has_no_role(forge: Forge, login: str) -> None:
    assert forge.role(login) == "none"


def test_an_artifact_is_read_from_storage_that_does_not_get_the_token(forge: Forge, repo: Repository) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("session.jsonl", "{}\n")
    run = repo.workflow_run(".github/workflows/x.yml", "pull_request", "main", str(repo.git.branch("main")))
    run.artifact("regbot-session", made.getvalue())
    (artifact,) = forge.artifacts(run.id)
    assert forge.download(artifact.id, 10_000) == made.getvalue()  # the fake records a violation for a token


def test_an_artifact_above_the_limit_is_not_read(forge: Forge, repo: Repository) -> None:
    run = repo.workflow_run(".github/workflows/x.yml", "pull_request", "main", str(repo.git.branch("main")))
    run.artifact("regbot-session", b"x" * 5000)
    (artifact,) = forge.artifacts(run.id)
    with pytest.raises(TooLargeError, match="4,000"):
        forge.download(artifact.id, 4000)


# A bad day


@pytest.mark.parametrize("fault", ["502-before", "502-after", "reset-before", "reset-after", "secondary-403"])
def test_a_comment_is_created_once_even_if_the_reply_is_lost(
    forge: Forge, hub: FakeGitHub, repo: Repository, number: int, fault: str
) -> None:
    repo.comment(number, BOT, "hello")  # of an earlier time, with the very same text

    def find_comment() -> object:
        return next((comment for comment in forge.comments(number)[1:] if comment.body == "hello"), None)

    hub.faults.next(fault, "POST", "*/comments")
    made = forge.create_comment(number, "hello", find_comment)  # type: ignore[arg-type]
    assert [comment.body for comment in repo.comments(number)] == ["hello", "hello"]
    assert made.id == repo.comments(number)[1].id


@pytest.mark.parametrize("fault", ["503-after", "secondary-429"])
def test_a_check_run_a_pull_request_and_a_workflow_are_made_once(
    forge: Forge, hub: FakeGitHub, repo: Repository, number: int, fault: str
) -> None:
    repo.commit({"b.json": "1"}, branch="regbot/refresh")
    repo.actions_may_open_pulls = True
    sha, main = forge.pull(number).head_sha, repo.commit({".github/workflows/m.yml": DISPATCHED})
    repo.workflow_run(".github/workflows/m.yml", "workflow_dispatch", "main", main, title="regbot 1 abc")
    for path in ("*/check-runs", "*/pulls", "*/dispatches"):
        hub.faults.next(fault, "POST", path)
    forge.create_check(check(sha))
    made = forge.create_pull("New baselines", "text", "regbot/refresh", "main")
    forge.dispatch("m.yml", "main", {"pr": "1", "nonce": "abc"})
    assert (len(repo.check_runs(sha)), list(repo.pulls)) == (1, [number, made.number])
    assert len(repo.dispatched) == (fault == "503-after")  # the other run shows the nonce already
    assert len(hub.faults.happened) == 3


@pytest.mark.parametrize("fault", ["502-before", "502-after", "reset-before", "reset-after", "404-once"])
def test_a_failed_read_is_repeated(forge: Forge, hub: FakeGitHub, number: int, fault: str) -> None:
    hub.faults.next(fault, "GET")
    assert forge.pull(number).number == number


def test_the_client_waits_as_long_as_github_asks(forge: Forge, hub: FakeGitHub, number: int, naps: list[float]) -> None:
    hub.faults.retry_after_s = 37
    hub.faults.next("secondary-403", "GET")
    forge.pull(number)
    assert naps == [37]


def test_the_client_waits_for_the_reset_of_the_primary_limit(forge: Forge) -> None:
    from regbot.github.transport import read_rate_limit_wait, read_requested_wait

    soon = datetime.now(UTC) + timedelta(seconds=90)
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(soon.timestamp()))}
    assert 80 < (read_rate_limit_wait(headers, "") or 0) < 100
    assert read_rate_limit_wait({}, ": You have exceeded a secondary rate limit.") == 60
    assert read_rate_limit_wait({}, ": Resource not accessible by integration") is None
    assert read_requested_wait({"retry-after": "soon"}, 60) == 60


def test_a_truncated_artifact_is_fetched_again(forge: Forge, hub: FakeGitHub, repo: Repository) -> None:
    run = repo.workflow_run(".github/workflows/x.yml", "pull_request", "main", str(repo.git.branch("main")))
    run.artifact("regbot-session", b"zip")
    for fault in ("502-after", "reset-after", "404-once"):
        hub.faults.next(fault, "GET", "/artifacts/*")
    (artifact,) = forge.artifacts(run.id)
    assert forge.download(artifact.id, 10_000) == b"zip"


def test_github_that_is_down_for_five_minutes_ends_with_a_message_and_a_rerun_completes(
    forge: Forge, hub: FakeGitHub, repo: Repository, number: int, naps: list[float]
) -> None:
    hub.faults.down = True
    with pytest.raises(AwayError) as away:
        forge.create_comment(number, "hello", lambda: None)
    assert 200 < sum(naps) <= 300
    assert "503" in str(away.value)
    assert "5 minutes" in str(away.value)
    assert "Run this job again when GitHub answers" in str(away.value)
    hub.faults.stop()
    Forge(next(iter(hub.tokens)), "acme/moe", hub.url, naps.append).create_comment(number, "hello", lambda: None)
    assert [comment.body for comment in repo.comments(number)] == ["hello"]


def test_a_wait_above_the_limit_is_not_started(
    hub: FakeGitHub, repo: Repository, number: int, naps: list[float]
) -> None:
    hub.faults.retry_after_s = 5000
    hub.faults.next("secondary-429", "GET")
    before = datetime.now(UTC)
    with pytest.raises(AwayError, match="asks to wait 5000 s") as away:
        Forge(hub.token(BOT, pull_requests="read"), "acme/moe", hub.url, naps.append).pull(number)
    assert naps == []
    moment = re.search(r"Run this job again after (\d{4}-\d\d-\d\d \d\d:\d\d) UTC", str(away.value))
    assert moment is not None
    wait = datetime.strptime(f"{moment[1]}+0000", "%Y-%m-%d %H:%M%z") - before
    assert timedelta(seconds=4_990) < wait < timedelta(seconds=5_120)


def test_a_job_without_request_quota_ends_at_once_and_names_the_time_of_the_reset(
    hub: FakeGitHub, repo: Repository, number: int, naps: list[float]
) -> None:
    hub.faults.reset_after_s = 2_400
    hub.faults.next("primary-403", "GET")
    with pytest.raises(AwayError, match=r"Run this job again after \d{4}-\d\d-\d\d \d\d:\d\d UTC"):
        Forge(hub.token(BOT, pull_requests="read"), "acme/moe", hub.url, naps.append).pull(number)
    assert naps == []


# Refusals


def test_an_expired_token_is_reported_with_advice(
    hub: FakeGitHub, repo: Repository, number: int, naps: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = hub.token(BOT, pull_requests="write")
    forge = Forge(token, "acme/moe", hub.url, naps.append)
    hub.tokens[token].expired = True
    with pytest.raises(RefusedError) as refused:
        forge.pull(number)
    assert refused.value.status == 401
    assert "expired or was revoked" in str(refused.value)
    assert "Run the job again" in str(refused.value)
    error: BaseException | None = refused.value
    while error is not None:
        assert token not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__
    assert token not in caplog.text
    assert token not in repr(forge)
    assert naps == []


def test_a_missing_permission_is_named_and_not_retried(
    hub: FakeGitHub, repo: Repository, number: int, naps: list[float]
) -> None:
    forge = Forge(hub.token(BOT, pull_requests="read"), "acme/moe", hub.url, naps.append)
    with pytest.raises(RefusedError, match="may not do this") as refused:
        forge.create_check(check(forge.pull(number).head_sha))
    assert refused.value.status == 403
    assert posts(hub, "/check-runs") <= 1


def test_a_missing_object_is_requested_twice_and_then_reported(forge: Forge, naps: list[float]) -> None:
    with pytest.raises(RefusedError, match="this object does not exist") as refused:
        forge.pull(99)
    assert refused.value.status == 404
    assert naps == [1.0]


def test_a_file_without_https_is_not_fetched(forge: Forge) -> None:
    from regbot.github.transport import Transport

    api = Transport("token", "https://api.github.com", "", lambda _: None, 1)
    with pytest.raises(ForgeError, match="no URL that begins with https"):
        api._fetch("http://storage.example/zip", 10)
    with pytest.raises(ForgeError, match="no URL that begins with https"):
        api._fetch("file:///etc/passwd", 10)


# A refused request never counts as done


WRITES: dict[str, Callable[[Forge], object]] = {
    "dispatch": lambda forge: forge.dispatch("m.yml", "main", {"nonce": "0" * 16}),
    "edit": lambda forge: forge.edit_comment(5, "x"),
    "label": lambda forge: forge.remove_label(5, "x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("status", [302, 307, 308])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_a_renamed_repository_is_an_error(forge: Forge, hub: FakeGitHub, name: str, status: int) -> None:
    for method in ("POST", "PATCH", "DELETE"):
        hub.faults.next(f"moved-{status}", method)
    with pytest.raises(ForgeError, match="been renamed"):
        WRITES[name](forge)
