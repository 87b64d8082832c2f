"""The fake GitHub does what the real one is documented to do, as a client and as git see it."""

import io
import json
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from github import Auth, Github
from github.GithubException import GithubException
from github.Repository import Repository as Remote

from git_repos import Repository as Worktree
from github_fake import FakeGitHub, Repository
from github_fake.call import ROUTES
from github_fake.fixtures import hub
from github_fake.git import ENVIRONMENT
from github_fake.openapi import Description
from github_fake.slim import leaves

__all__ = ["hub"]  # the fixture

BOT = "github-actions[bot]"
EVERYTHING = dict.fromkeys(("actions", "checks", "contents", "issues", "pull_requests"), "write")
LONG = {"title": "t", "summary": "s" * 65_536}
MANY = {str(number): "" for number in range(26)}
WORKFLOW = """
on:
  workflow_dispatch:
    inputs:
      pr: {required: true}
      nonce: {required: false}
jobs: {}
"""


def client(hub: FakeGitHub, token: str, **options: Any) -> Remote:
    github = Github(
        auth=Auth.Token(token),
        base_url=hub.url,
        retry=None,
        seconds_between_requests=0,
        seconds_between_writes=0,
        **options,
    )
    return github.get_repo("acme/moe")


def call(hub: FakeGitHub, token: str | None, method: str, path: str, **options: Any) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return requests.request(method, hub.url + path, headers=headers, timeout=10, **options)


def refusal(act: Callable[[], Any]) -> GithubException:
    with pytest.raises(GithubException) as caught:
        act()
    return caught.value


@pytest.fixture
def repo(hub: FakeGitHub) -> Repository:
    """acme/moe with a workflow, a maintainer, and an open pull request (number 1) from a fork."""
    made = hub.repository("acme/moe")
    made.commit({".github/workflows/m.yml": WORKFLOW, "old.py": "x = 1\n" * 20})
    made.member("ann", "maintain")
    made.member("mallory", "read")
    fork = made.fork("mallory")
    fork.commit({"old.py": None, "new.py": "x = 1\n" * 20, "more.py": "y\n"}, branch="topic")
    assert made.open_pull("mallory:topic") == 1
    return made


@pytest.fixture
def remote(hub: FakeGitHub, repo: Repository) -> Remote:
    return client(hub, hub.token(BOT, **EVERYTHING), per_page=2)


def zipped(**members: str) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return whole.getvalue()


# Comments, labels, people


def test_a_comment_is_made_edited_answered_and_deleted(repo: Repository, remote: Remote) -> None:
    issue = remote.get_pull(1)
    comment = issue.create_issue_comment("first")
    comment.edit("second")
    comment.create_reaction("eyes")
    [kept] = repo.comments(1)
    assert (kept.author, kept.body, kept.reactions) == (BOT, "second", [(BOT, "eyes")])
    assert kept.updated > kept.created
    assert [one.content for one in comment.get_reactions()] == ["eyes"]
    comment.delete()
    assert repo.comments(1) == []
    assert refusal(lambda: issue.get_issue_comment(comment.id)).status == 404


def test_a_list_longer_than_a_page_is_linked_from_page_to_page(
    hub: FakeGitHub, repo: Repository, remote: Remote
) -> None:
    for number in range(5):
        repo.comment(1, "bob", f"text {number}")
    assert [one.body for one in remote.get_pull(1).get_issue_comments()] == [f"text {number}" for number in range(5)]
    token = hub.token(BOT, pull_requests="read")
    middle = call(hub, token, "GET", "/repos/acme/moe/issues/1/comments?per_page=2&page=2").links
    assert set(middle) == {"prev", "next", "first", "last"}
    assert "per_page=2&page=3" in middle["last"]["url"]


@pytest.mark.parametrize(("length", "status"), [(65_536, 201), (65_537, 422)])
def test_a_comment_may_be_as_long_as_github_lets_it(
    hub: FakeGitHub, repo: Repository, length: int, status: int
) -> None:
    token = hub.token(BOT, pull_requests="write")
    made = call(hub, token, "POST", "/repos/acme/moe/issues/1/comments", json={"body": "é" * length})
    assert made.status_code == status
    assert len(repo.comments(1)) == (status == 201)


def test_labels_are_set_listed_and_taken_off(repo: Repository, remote: Remote) -> None:
    pull = remote.get_pull(1)
    pull.add_to_labels("regbot: measure", "b")
    assert [one.name for one in pull.get_labels()] == repo.labels(1) == ["regbot: measure", "b"]
    pull.remove_from_labels("regbot: measure")
    assert repo.labels(1) == ["b"]
    assert refusal(lambda: pull.remove_from_labels("regbot: measure")).status == 404


@pytest.mark.parametrize(
    ("login", "coarse", "role"), [("ann", "write", "maintain"), ("mallory", "read", "read"), ("nobody", "none", "none")]
)
def test_a_role_is_told_apart_by_its_name_only(remote: Remote, login: str, coarse: str, role: str) -> None:
    assert remote.get_collaborator_permission(login) == coarse
    assert remote.get_collaborator_role_name(login) == role


# Check runs


def test_a_check_run_is_begun_completed_and_found_by_commit_and_name(repo: Repository, remote: Remote) -> None:
    sha = repo.pulls[1].head_sha
    begun = remote.create_check_run("regbot", sha, status="in_progress", external_id="1:2:3")
    assert begun.conclusion is None
    remote.create_check_run("other", sha)
    begun.edit(conclusion="success", output={"title": "PASS", "summary": "all is well"})
    [found] = remote.get_commit(sha).get_check_runs(check_name="regbot")
    assert (found.id, found.status, found.conclusion, found.external_id) == (begun.id, "completed", "success", "1:2:3")
    assert (found.output.title, found.app.slug) == ("PASS", "github-actions")


def test_of_two_check_runs_of_one_name_a_plain_list_shows_the_later(repo: Repository, remote: Remote) -> None:
    sha = repo.pulls[1].head_sha
    first, second = (remote.create_check_run("regbot", sha).id for _ in range(2))
    commit = remote.get_commit(sha)
    assert [one.id for one in commit.get_check_runs()] == [second]
    assert [one.id for one in commit.get_check_runs(filter="all")] == [second, first]


def test_annotations_are_added_and_no_more_than_fifty_at_once(
    hub: FakeGitHub, repo: Repository, remote: Remote
) -> None:
    one = {"path": "a.py", "start_line": 1, "end_line": 1, "annotation_level": "notice", "message": "m"}
    check = remote.create_check_run("regbot", repo.pulls[1].head_sha)
    for _ in range(2):
        check.edit(output={"title": "t", "summary": "s", "annotations": [one] * 50})
    assert check.get_annotations().totalCount == 100
    output = {"title": "t", "summary": "s", "annotations": [one] * 51}
    assert refusal(lambda: check.edit(output=output)).status == 422
    assert "annotations" in hub.forgive()[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "completed"},
        {"conclusion": "stale"},
        {"head_sha": "0" * 40},
        {"output": {"title": "t", "summary": "s", "annotations": [{"start_line": 2, "end_line": 1}]}},
        {
            "output": {
                "title": "t",
                "summary": "s",
                "annotations": [{"start_line": 1, "end_line": 2, "start_column": 1}],
            }
        },
    ],
)
def test_what_the_description_leaves_open_about_check_runs_is_refused_too(
    hub: FakeGitHub, repo: Repository, wrong: dict[str, Any]
) -> None:
    for annotation in wrong.get("output", {}).get("annotations", []):
        annotation |= {"path": "a.py", "annotation_level": "notice", "message": "m"}
    body = {"name": "regbot", "head_sha": repo.pulls[1].head_sha} | wrong
    assert call(hub, hub.token(BOT, checks="write"), "POST", "/repos/acme/moe/check-runs", json=body).status_code == 422
    assert repo.all_checks == {}


def test_check_runs_are_written_by_apps_and_changed_by_their_own(
    hub: FakeGitHub, repo: Repository, remote: Remote
) -> None:
    check, body = remote.create_check_run("regbot", repo.pulls[1].head_sha), {"status": "in_progress"}
    another = hub.token("another[bot]", checks="write")
    assert call(hub, another, "PATCH", f"/repos/acme/moe/check-runs/{check.id}", json=body).status_code == 403
    person = client(hub, hub.token("ann", checks="write"))
    assert refusal(lambda: person.create_check_run("regbot", check.head_sha)).status == 403


# Pull requests and git data


def test_files_of_a_pull_request_tell_their_old_names(remote: Remote) -> None:
    files = {one.filename: (one.status, one.previous_filename) for one in remote.get_pull(1).get_files()}
    assert files == {"more.py": ("added", None), "new.py": ("renamed", "old.py")}


def test_a_pull_request_of_a_fork_names_its_repository_and_is_found_by_its_head(
    repo: Repository, remote: Remote
) -> None:
    [found] = remote.get_pulls(head="mallory:topic")
    assert (found.number, found.head.repo.full_name, found.base.repo.full_name) == (1, "mallory/moe", "acme/moe")
    assert found.base.sha == repo.git.branch("main")
    assert list(remote.get_pulls(head="mallory:other")) == []
    repo.close(1)
    assert list(remote.get_pulls(head="mallory:topic")) == []


def test_a_pull_request_outlives_its_fork(repo: Repository, remote: Remote) -> None:
    pull = repo.pulls[1]
    sha = pull.head_sha
    pull.head_repository.delete()
    found = remote.get_pull(1)
    assert not found.head.repo
    assert (found.head.sha, found.state) == (sha, "open")
    assert list(found.get_files())


def test_a_comparison_gives_the_merge_base(repo: Repository, remote: Remote) -> None:
    before, head = repo.git.branch("main"), repo.pulls[1].head_sha
    now = repo.commit({"later.py": "z\n"})
    compared = remote.compare(now, head)
    assert (compared.merge_base_commit.sha, compared.status) == (before, "diverged")
    assert (compared.ahead_by, compared.behind_by) == (1, 1)


def test_a_pull_request_is_opened_once_and_edited(hub: FakeGitHub, repo: Repository) -> None:
    repo.commit({"baselines/a.json": "{}"}, branch="refresh")
    remote = client(hub, hub.token("regbot-app[bot]", pull_requests="write"))
    new = {"base": "main", "head": "refresh", "title": "Refresh", "body": "evidence"}
    remote.create_pull(**new).edit(title="Refresh of Monday")  # type: ignore[arg-type]
    assert (repo.pulls[2].title, repo.pulls[2].body, repo.pulls[2].author) == (
        "Refresh of Monday",
        "evidence",
        "regbot-app[bot]",
    )
    assert "already exists for acme:refresh" in str(refusal(lambda: remote.create_pull(**new)))  # type: ignore[arg-type]
    assert refusal(lambda: remote.create_pull(base="main", head="nowhere", title="t")).status == 422


def test_the_token_of_actions_opens_no_pull_request(repo: Repository, remote: Remote) -> None:
    repo.commit({"a.py": ""}, branch="refresh")
    assert refusal(lambda: remote.create_pull(base="main", head="refresh", title="t")).status == 403


def test_files_and_folders_are_read_from_a_commit(repo: Repository, remote: Remote) -> None:
    file = remote.get_contents("old.py")
    assert not isinstance(file, list)
    assert file.decoded_content == b"x = 1\n" * 20
    folder = remote.get_contents(".github/workflows", ref=str(repo.git.branch("main")))
    assert isinstance(folder, list)
    assert [one.path for one in folder] == [".github/workflows/m.yml"]
    assert refusal(lambda: remote.get_contents("nowhere.py")).status == 404


def test_refs_are_made_moved_forward_and_deleted(repo: Repository, remote: Remote) -> None:
    old, new = repo.git.branch("main"), repo.commit({"a.py": ""}, branch="ahead")
    assert old is not None
    ref = remote.create_git_ref("refs/heads/mine", old)
    ref.edit(new)
    assert repo.git.branch("mine") == remote.get_git_ref("heads/mine").object.sha == new
    assert refusal(lambda: ref.edit(old)).status == 422
    ref.edit(old, force=True)
    ref.delete()
    assert repo.git.branch("mine") is None


def test_a_merge_group_has_a_branch_with_the_merge_that_would_come_of_it(repo: Repository) -> None:
    group = repo.event_of("merge_group", number=1)["merge_group"]
    assert repo.git.refs(group["head_ref"])[group["head_ref"]] == group["head_sha"]
    assert repo.git.describe(group["head_sha"])["parents"] == [group["base_sha"], repo.pulls[1].head_sha]


# Workflows


def test_a_workflow_is_started_with_the_inputs_that_it_declares(repo: Repository, remote: Remote) -> None:
    workflow = remote.get_workflow("m.yml")
    workflow.create_dispatch("main", {"pr": "1"})
    [started] = repo.dispatched
    assert (started.workflow, started.ref, started.inputs, started.by) == (
        ".github/workflows/m.yml",
        "main",
        {"pr": "1"},
        BOT,
    )


@pytest.mark.parametrize(
    ("workflow", "body", "status"),
    [
        ("none.yml", {"ref": "main"}, 404),
        ("m.yml", {"ref": "nowhere", "inputs": {"pr": "1"}}, 422),
        ("m.yml", {"ref": "main"}, 422),
        ("m.yml", {"ref": "main", "inputs": {"pr": "1", "typo": "2"}}, 422),
        ("m.yml", {"ref": "main", "inputs": {"pr": "1", "nonce": "x" * 65_535}}, 422),
    ],
)
def test_a_dispatch_that_github_refuses_starts_nothing(
    hub: FakeGitHub, repo: Repository, workflow: str, body: dict[str, Any], status: int
) -> None:
    token = hub.token(BOT, actions="write")
    done = call(hub, token, "POST", f"/repos/acme/moe/actions/workflows/{workflow}/dispatches", json=body)
    assert (done.status_code, repo.dispatched) == (status, [])


def test_an_artifact_is_downloaded_from_a_storage_that_is_not_to_see_the_token(
    hub: FakeGitHub, repo: Repository
) -> None:
    run = repo.workflow_run(".github/workflows/m.yml", "workflow_dispatch", "main", str(repo.git.branch("main")))
    content, token = zipped(**{"session.jsonl": "{}"}), hub.token(BOT, actions="read")
    artifact = run.artifact("regbot-session", content)
    [listed] = call(hub, token, "GET", f"/repos/acme/moe/actions/runs/{run.id}/artifacts").json()["artifacts"]
    assert (listed["id"], listed["size_in_bytes"]) == (artifact.id, len(content))
    path = f"/repos/acme/moe/actions/artifacts/{artifact.id}/zip"
    assert call(hub, token, "GET", path).content == content  # requests drops the header on the way to another port
    storage = call(hub, token, "GET", path, allow_redirects=False).headers["Location"]
    assert requests.get(storage, headers={"Authorization": f"Bearer {token}"}, timeout=10).status_code == 400
    assert "token was sent to the storage" in hub.forgive()[0]
    artifact.expired = True
    assert call(hub, token, "GET", path).status_code == 410


def test_runs_are_found_by_event_and_head(repo: Repository, remote: Remote) -> None:
    head = repo.pulls[1].head_sha
    fork = repo.pulls[1].head_repository
    run = repo.workflow_run(".github/workflows/m.yml", "pull_request", "topic", head, "a title", head_repository=fork)
    repo.workflow_run(".github/workflows/m.yml", "push", "main", str(repo.git.branch("main")))
    [found] = remote.get_workflow_runs(event="pull_request", head_sha=head)
    assert (found.id, found.display_title, found.head_repository.full_name) == (run.id, "a title", "mallory/moe")
    assert (found.path, found.pull_requests) == (".github/workflows/m.yml", [])


# Tokens


def test_every_route_is_open_to_the_permission_that_github_documents_and_to_no_less(
    hub: FakeGitHub, repo: Repository
) -> None:
    stand_ins = {"{ref}": "heads/x", "{path}": "old.py", "{branch}": "x", "{archive_format}": "zip"}
    for route in [one for one in ROUTES if one.access]:
        path = route.path.replace("{owner}/{repo}", "acme/moe").replace("{basehead}", "main...main")
        for name, value in stand_ins.items():
            path = path.replace(name, value)
        path = "/".join("1" if part.startswith("{") else part for part in path.split("/"))
        body = Description().least_body(route.method, route.path)
        for permission, level in (one.split(":") for one in route.access):
            allowed = hub.token("regbot[bot]", **{permission: level})
            assert call(hub, allowed, route.method, path, json=body).status_code != 403, route
            if permission != "metadata":  # every token has that
                weaker = hub.token(BOT, **({} if level == "read" else {permission: "read"}))
                refused = call(hub, weaker, route.method, path, json=body)
                assert refused.status_code == 403, route
                assert permission in refused.headers["X-Accepted-GitHub-Permissions"]


def test_what_changes_something_needs_a_permission_to_write_and_what_reads_does_not() -> None:
    for route in [one for one in ROUTES if one.access]:
        levels = {one.partition(":")[2] for one in route.access}
        assert levels == {"read" if route.method == "GET" else "write"}, route


def test_with_a_permission_for_pull_requests_one_comments_but_does_not_react(hub: FakeGitHub, repo: Repository) -> None:
    token, issue = hub.token(BOT, pull_requests="write"), repo.open_issue("A question", "bob")
    made = call(hub, token, "POST", "/repos/acme/moe/issues/1/comments", json={"body": "b"})
    react = f"/repos/acme/moe/issues/comments/{made.json()['id']}/reactions"
    assert made.status_code == 201
    assert call(hub, token, "POST", react, json={"content": "eyes"}).status_code == 403
    assert call(hub, token, "POST", f"/repos/acme/moe/issues/{issue}/comments", json={"body": "b"}).status_code == 403


def test_a_private_repository_is_not_there_for_those_who_may_not_see_it(hub: FakeGitHub, repo: Repository) -> None:
    hub.repository("acme/other")
    strangers = [hub.token("nobody", contents="read"), hub.token(BOT, repositories=["acme/other"]), None]
    assert [call(hub, one, "GET", "/repos/acme/moe").status_code for one in strangers] == [404, 404, 404]
    assert call(hub, hub.token("mallory"), "GET", "/repos/acme/moe").status_code == 200


def test_a_person_needs_the_role_besides_the_permission(hub: FakeGitHub, repo: Repository) -> None:
    path, body = "/repos/acme/moe/actions/workflows/m.yml/dispatches", {"ref": "main", "inputs": {"pr": "1"}}
    done = {who: call(hub, hub.token(who, actions="write"), "POST", path, json=body) for who in ("mallory", "ann")}
    assert {who: answer.status_code for who, answer in done.items()} == {"mallory": 403, "ann": 204}


def test_a_public_repository_is_read_by_anyone_and_written_by_the_permitted(hub: FakeGitHub) -> None:
    hub.repository("acme/open", private=False)
    assert call(hub, None, "GET", "/repos/acme/open/pulls").json() == []
    body = {"ref": "refs/heads/x", "sha": "0" * 40}
    assert call(hub, None, "POST", "/repos/acme/open/git/refs", json=body).status_code == 401
    assert call(hub, hub.token(BOT), "POST", "/repos/acme/open/git/refs", json=body).status_code == 403


def test_a_bad_and_an_expired_token_are_told_apart_from_nothing(hub: FakeGitHub, repo: Repository) -> None:
    token = hub.token(BOT, contents="read")
    assert call(hub, token, "GET", "/repos/acme/moe").status_code == 200
    hub.expire(token)
    for bad in (token, "made-up"):
        assert call(hub, bad, "GET", "/repos/acme/moe").json()["message"] == "Bad credentials"


# What GitHub's description says


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("POST", "issues/1/comments", {}, "'body' is a required property"),
        ("POST", "issues/1/comments", {"body": "b", "bodi": "c"}, "GitHub knows no property bodi"),
        ("POST", "check-runs", {"name": "n"}, "'head_sha' is a required property"),
        ("POST", "check-runs", {"name": "n", "head_sha": "x", "status": "done"}, "'done' is not one of"),
        ("POST", "check-runs", {"name": "n", "head_sha": "x", "output": LONG}, "maxLength: 65535"),
        ("POST", "actions/workflows/m.yml/dispatches", {"inputs": {}}, "'ref' is a required property"),
        ("POST", "actions/workflows/m.yml/dispatches", {"ref": "m", "inputs": MANY}, "too many properties"),
        ("GET", "issues/one/comments", None, "'one' is not of type 'integer'"),
        ("GET", "pulls?stat=all", None, "stat: GitHub knows no such parameter"),
        ("GET", "pulls?state=merged", None, "'merged' is not one of"),
        ("DELETE", "issues/comments/1", {"body": "b"}, "the route takes none"),
    ],
)
def test_a_request_that_the_description_does_not_allow_is_refused_and_recorded(
    hub: FakeGitHub, repo: Repository, method: str, path: str, body: Any, reason: str
) -> None:
    refused = call(hub, hub.token(BOT, **EVERYTHING), method, f"/repos/acme/moe/{path}", json=body)
    assert refused.status_code == 422
    assert reason in refused.json()["message"]
    with pytest.raises(AssertionError, match="GitHub does not take"):
        hub.check()
    assert reason in hub.forgive()[0]
    assert (repo.comments(1), repo.all_checks, repo.dispatched) == ([], {}, [])


def test_the_description_is_githubs_small_and_has_its_licence() -> None:
    folder = Path(__file__).parent / "github_fake"
    for name in ("openapi.json", "events.json"):
        text = (folder / name).read_text()
        assert len(text) < 600_000
        assert "MIT License Copyright" in json.loads(text)["notice"]["text"]
    described = json.loads((folder / "openapi.json").read_text())["paths"]
    assert {(one.path, one.method.lower()) for one in ROUTES} == {
        (path, name) for path in described for name in described[path]
    }


def test_answers_are_held_against_the_description_too(hub: FakeGitHub, repo: Repository) -> None:
    repo.pulls[1].draft = "no"  # type: ignore[assignment]
    call(hub, hub.token(BOT, pull_requests="read"), "GET", "/repos/acme/moe/pulls/1")
    assert "the fake's own answer" in hub.forgive()[0]


@pytest.mark.parametrize(
    ("event", "subject"),
    [
        ("issue_comment", {"action": "created"}),
        ("issue_comment", {"action": "edited", "before": "old"}),
        ("pull_request_target", {"action": "opened", "number": 1}),
        ("pull_request_target", {"action": "labeled", "number": 1, "label": "l", "sender": "ann"}),
        ("pull_request", {"action": "synchronize", "number": 1, "before": "0" * 40}),
        ("workflow_run", {}),
        ("workflow_dispatch", {"workflow": "m.yml", "inputs": {"pr": "1"}}),
        ("merge_group", {"number": 1}),
    ],
)
def test_a_payload_has_fields_that_githubs_examples_have(repo: Repository, event: str, subject: dict[str, Any]) -> None:
    if event == "issue_comment":
        subject = subject | {"comment": repo.comment(1, "bob", "/regbot run")}
    if event == "workflow_run":
        subject = {"run": repo.workflow_run(".github/workflows/m.yml", "push", "main", str(repo.git.branch("main")))}
    repo.label(1, "ann", "l")
    examples = json.loads((Path(__file__).parent / "github_fake/events.json").read_text())
    known = examples[event.removesuffix("_target")]
    payload = repo.event_of(event, **subject)
    inputs = payload.pop("inputs", None)  # their names are the workflow's
    for path, value in leaves(payload):
        if not path.startswith("issue.pull_request."):  # which none of the examples has: they are of issues
            assert path in known, f"{event}: no example of GitHub's has {path}"
            assert type(value).__name__ in {*known[path], "NoneType"}, path
    assert inputs == subject.get("inputs")
    assert payload["repository"]["full_name"] == "acme/moe"


# Faults


@pytest.mark.parametrize(
    ("kind", "status", "made"),
    [
        ("502-before", 502, 0),
        ("502-after", 502, 1),
        ("503-before", 503, 0),
        ("503-after", 503, 1),
        ("reset-before", 0, 0),
        ("reset-after", 0, 1),
        ("secondary-403", 403, 0),
        ("secondary-429", 429, 0),
        ("slow", 201, 1),
    ],
)
def test_a_fault_after_the_commit_really_committed_and_one_before_did_not(
    hub: FakeGitHub, repo: Repository, kind: str, status: int, made: int
) -> None:
    path, token = "/repos/acme/moe/issues/1/comments", hub.token(BOT, pull_requests="write")
    hub.faults.next(kind, method="POST", path="*/comments")
    try:
        seen = call(hub, token, "POST", path, json={"body": "b"}).status_code
    except requests.ConnectionError:
        seen = 0
    assert (seen, len(repo.comments(1))) == (status, made)
    assert hub.faults.happened == [(kind, "POST", path)]
    assert hub.requests[-1] == ("POST", path, status)
    assert call(hub, token, "POST", path, json={"body": "b"}).status_code == 201  # it was to happen once


def test_what_was_just_made_may_not_be_found_once(hub: FakeGitHub, repo: Repository) -> None:
    hub.faults.plan(share=1, kinds=["404-once"])
    token = hub.token(BOT)
    assert [call(hub, token, "GET", "/repos/acme/moe").status_code for _ in range(3)] == [404, 200, 200]


def test_a_secondary_limit_says_when_to_come_back(hub: FakeGitHub, repo: Repository) -> None:
    hub.faults.retry_after_s = 7
    hub.faults.next("secondary-403")
    limited = call(hub, hub.token(BOT), "GET", "/repos/acme/moe")
    assert (limited.status_code, limited.headers["Retry-After"]) == (403, "7")
    assert "secondary rate limit" in limited.json()["message"]


def test_github_can_be_down_and_come_back(hub: FakeGitHub, repo: Repository) -> None:
    token = hub.token(BOT)
    hub.faults.down = True
    assert [call(hub, token, "GET", "/repos/acme/moe").status_code for _ in range(3)] == [503] * 3
    hub.faults.down = False
    assert call(hub, token, "GET", "/repos/acme/moe").status_code == 200


def test_planned_faults_hit_their_share_the_same_at_every_run_of_a_seed(hub: FakeGitHub) -> None:
    def hits(seed: int) -> list[str | None]:
        with_seed = FakeGitHub(hub.folder / str(seed)).faults
        with_seed.plan(share=0.3, seed=seed)
        return [with_seed.pick("POST", f"/{number}") for number in range(1000)]

    first, again, other = hits(1), hits(1), hits(2)
    assert first == again != other
    kinds = Counter(one for one in first if one)
    assert 220 <= kinds.total() <= 330  # of a third kind, 404, a POST is never hit
    assert set(kinds) == {"502-before", "502-after", "503-before", "503-after", "reset-before", "reset-after"} | {
        "secondary-403", "secondary-429", "slow",
    }  # fmt: skip


def test_many_clients_at_once_lose_nothing(hub: FakeGitHub, repo: Repository) -> None:
    token = hub.token(BOT, pull_requests="write")

    def post(number: int) -> int:
        body = {"body": f"text {number}"}
        return int(call(hub, token, "POST", "/repos/acme/moe/issues/1/comments", json=body).json()["id"])

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(post, range(40)))
    assert {one.id for one in repo.comments(1)} == set(ids)
    assert len(set(ids)) == 40


def test_an_enterprise_server_has_its_api_under_a_path(tmp_path: Path) -> None:
    with FakeGitHub(tmp_path, prefix="/api/v3") as hub:
        repo = hub.repository("acme/moe")
        repo.commit({"a.py": ""}, branch="topic")
        repo.open_pull("topic")
        pull = client(hub, hub.token(BOT, pull_requests="write"), per_page=1).get_pull(1)
        for text in ("one", "two"):
            pull.create_issue_comment(text)
        assert [one.body for one in pull.get_issue_comments()] == ["one", "two"]
        hub.check()


# Git


def url(repo: Repository, token: str = "") -> str:
    return repo.clone_url.replace("://", f"://x-access-token:{token}@") if token else repo.clone_url


def git_refuses(folder: Worktree, *arguments: str) -> str:
    command = ("git", "-c", "credential.helper=", *arguments)
    environment = ENVIRONMENT | {"GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(command, cwd=folder.path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


def test_a_push_to_a_fork_moves_the_head_of_its_pull_request(
    hub: FakeGitHub, repo: Repository, remote: Remote, tmp_path: Path
) -> None:
    fork, token = repo.pulls[1].head_repository, hub.token("mallory", contents="write")
    work = Worktree.create(tmp_path / "work")
    work.git("fetch", "--quiet", url(fork, token), "topic")
    work.git("checkout", "--quiet", "-b", "topic", "FETCH_HEAD")
    sha = work.commit("more", {"most.py": "z\n"})
    work.git("push", "--quiet", url(fork, token), "topic")
    assert remote.get_pull(1).head.sha == sha
    reader = url(repo, hub.token(BOT, contents="read"))
    assert work.git("ls-remote", reader, "refs/pull/1/head").split()[0] == sha
    other = Worktree.create(tmp_path / "other")
    before = work.git("rev-parse", "HEAD~1")  # by its id, no branch's head, from the repository that it is to go into
    other.git("-c", "protocol.version=0", "fetch", "--quiet", "--depth=1", reader, before)
    assert other.git("rev-parse", "FETCH_HEAD") == before


def test_who_may_not_push_is_refused_by_git_too(hub: FakeGitHub, repo: Repository, tmp_path: Path) -> None:
    work = Worktree.create(tmp_path / "work")
    work.commit("mine", {"a.py": ""})
    push = ("push", "--force")
    assert "could not read Username" in git_refuses(work, *push, url(repo), "main")
    assert "403" in git_refuses(work, *push, url(repo, hub.token(BOT, contents="read")), "main")
    assert "403" in git_refuses(work, *push, url(repo, hub.token("mallory", contents="write")), "main")
    expired = hub.token(BOT, contents="write")
    hub.expire(expired)
    assert "Authentication failed" in git_refuses(work, *push, url(repo, expired), "main")
    allowed = url(repo, hub.token(BOT, contents="write"))
    assert "hidden" in git_refuses(work, *push, allowed, "main:refs/pull/1/head")
    work.git("push", "--quiet", allowed, "main:mine")
    assert repo.git.branch("mine") == work.git("rev-parse", "HEAD")


def test_a_public_repository_is_cloned_without_a_token_and_a_private_one_is_not(
    hub: FakeGitHub, tmp_path: Path
) -> None:
    public, private = hub.repository("acme/open", private=False), hub.repository("acme/shut")
    here = Worktree.create(tmp_path / "here")
    here.git("clone", "--quiet", public.clone_url.removesuffix(".git"), str(tmp_path / "open"))
    assert (tmp_path / "open/README.md").read_text() == "open\n"
    assert "could not read Username" in git_refuses(here, "clone", private.clone_url, str(tmp_path / "shut"))


def test_branches_of_a_real_repository_are_taken_over(repo: Repository, tmp_path: Path) -> None:
    work = Worktree.create(tmp_path / "work")
    sha = work.commit("real", {"a.py": "real\n"})
    repo.take(work.path)
    assert repo.git.branch("main") == sha
