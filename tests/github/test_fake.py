"""The fake GitHub does what the real one is documented to do, as a client sees it."""

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import requests
from github.GithubException import GithubException
from github.Repository import Repository as Remote

from github_fake import FakeGitHub, Repository
from github_fake.fixtures import hub as hub
from support.github_fake_client import BOT, call, client
from support.github_fake_client import remote as remote
from support.github_fake_client import repo as repo


def refusal(act: Callable[[], Any]) -> GithubException:
    with pytest.raises(GithubException) as caught:
        act()
    return caught.value


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
    assert [reaction.content for reaction in comment.get_reactions()] == ["eyes"]
    comment.delete()
    assert repo.comments(1) == []
    assert refusal(lambda: issue.get_issue_comment(comment.id)).status == 404


def test_a_list_longer_than_a_page_is_linked_from_page_to_page(
    hub: FakeGitHub, repo: Repository, remote: Remote
) -> None:
    for number in range(5):
        repo.comment(1, "bob", f"text {number}")
    assert [issue_comment.body for issue_comment in remote.get_pull(1).get_issue_comments()] == [
        f"text {number}" for number in range(5)
    ]
    token = hub.token(BOT, pull_requests="read")
    middle = call(hub, token, "GET", "/repos/acme/moe/issues/1/comments?per_page=2&page=2").links
    assert set(middle) == {"prev", "next", "first", "last"}
    assert "per_page=2&page=3" in middle["last"]["url"]


@pytest.mark.parametrize(("length", "status"), [(65_536, 201), (65_537, 422)])
def test_a_comment_may_have_githubs_maximum_length(hub: FakeGitHub, repo: Repository, length: int, status: int) -> None:
    token = hub.token(BOT, pull_requests="write")
    made = call(hub, token, "POST", "/repos/acme/moe/issues/1/comments", json={"body": "é" * length})
    assert made.status_code == status
    assert len(repo.comments(1)) == (status == 201)


def test_labels_are_set_listed_and_taken_off(repo: Repository, remote: Remote) -> None:
    pull = remote.get_pull(1)
    pull.add_to_labels("regbot: measure", "b")
    assert [label.name for label in pull.get_labels()] == repo.labels(1) == ["regbot: measure", "b"]
    pull.remove_from_labels("regbot: measure")
    assert repo.labels(1) == ["b"]
    assert refusal(lambda: pull.remove_from_labels("regbot: measure")).status == 404


@pytest.mark.parametrize(
    ("login", "coarse", "role"), [("ann", "write", "maintain"), ("mallory", "read", "read"), ("nobody", "none", "none")]
)
def test_roles_differ_by_their_names_only(remote: Remote, login: str, coarse: str, role: str) -> None:
    assert remote.get_collaborator_permission(login) == coarse
    assert remote.get_collaborator_role_name(login) == role


# Check runs


def test_a_check_run_is_created_completed_and_listed_by_commit_and_name(repo: Repository, remote: Remote) -> None:
    sha = repo.pulls[1].head_sha
    begun = remote.create_check_run("regbot", sha, status="in_progress", external_id="1:2:3")
    assert begun.conclusion is None
    remote.create_check_run("other", sha)
    begun.edit(conclusion="success", output={"title": "PASS", "summary": "all is well"})
    [check_run] = remote.get_commit(sha).get_check_runs(check_name="regbot")
    assert (check_run.id, check_run.status, check_run.conclusion, check_run.external_id) == (
        begun.id,
        "completed",
        "success",
        "1:2:3",
    )
    assert (check_run.output.title, check_run.app.slug) == ("PASS", "github-actions")


def test_a_completed_check_run_stays_completed_and_takes_another_conclusion(repo: Repository, remote: Remote) -> None:
    check = remote.create_check_run("regbot", repo.pulls[1].head_sha, conclusion="success")
    check.edit(status="in_progress", output={"title": "Measuring", "summary": "s"})  # GitHub answers 200
    (kept,) = repo.check_runs(repo.pulls[1].head_sha)
    assert (kept.status, kept.conclusion, kept.title) == ("completed", "success", "Measuring")
    check.edit(conclusion="failure")
    assert (kept.status, kept.conclusion) == ("completed", "failure")


def test_a_plain_list_shows_the_later_of_two_check_runs_with_one_name(repo: Repository, remote: Remote) -> None:
    sha = repo.pulls[1].head_sha
    first, second = (remote.create_check_run("regbot", sha).id for _ in range(2))
    commit = remote.get_commit(sha)
    assert [check_run.id for check_run in commit.get_check_runs()] == [second]
    assert [check_run.id for check_run in commit.get_check_runs(filter="all")] == [second, first]


def test_annotations_are_added_at_most_fifty_at_once(hub: FakeGitHub, repo: Repository, remote: Remote) -> None:
    annotation = {"path": "a.py", "start_line": 1, "end_line": 1, "annotation_level": "notice", "message": "m"}
    check = remote.create_check_run("regbot", repo.pulls[1].head_sha)
    for _ in range(2):
        check.edit(output={"title": "t", "summary": "s", "annotations": [annotation] * 50})
    assert check.get_annotations().totalCount == 100
    output = {"title": "t", "summary": "s", "annotations": [annotation] * 51}
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
def test_check_runs_that_github_refuses_beyond_its_description_are_refused(
    hub: FakeGitHub, repo: Repository, wrong: dict[str, Any]
) -> None:
    for annotation in wrong.get("output", {}).get("annotations", []):
        annotation |= {"path": "a.py", "annotation_level": "notice", "message": "m"}
    body = {"name": "regbot", "head_sha": repo.pulls[1].head_sha} | wrong
    assert call(hub, hub.token(BOT, checks="write"), "POST", "/repos/acme/moe/check-runs", json=body).status_code == 422
    assert repo.all_checks == {}


def test_only_the_app_that_created_a_check_run_can_change_it(hub: FakeGitHub, repo: Repository, remote: Remote) -> None:
    check, body = remote.create_check_run("regbot", repo.pulls[1].head_sha), {"status": "in_progress"}
    another = hub.token("another[bot]", checks="write")
    assert call(hub, another, "PATCH", f"/repos/acme/moe/check-runs/{check.id}", json=body).status_code == 403
    person = client(hub, hub.token("ann", checks="write"))
    assert refusal(lambda: person.create_check_run("regbot", check.head_sha)).status == 403


# Pull requests and git data


def test_files_of_a_pull_request_have_their_old_names(remote: Remote) -> None:
    files = {file.filename: (file.status, file.previous_filename) for file in remote.get_pull(1).get_files()}
    assert files == {"more.py": ("added", None), "new.py": ("renamed", "old.py")}


def test_a_pull_request_of_a_fork_names_its_repository_and_is_listed_by_head(repo: Repository, remote: Remote) -> None:
    [pull] = remote.get_pulls(head="mallory:topic")
    assert (pull.number, pull.head.repo.full_name, pull.base.repo.full_name) == (1, "mallory/moe", "acme/moe")
    assert pull.base.sha == repo.git.branch("main")
    assert list(remote.get_pulls(head="mallory:other")) == []
    repo.close(1)
    assert list(remote.get_pulls(head="mallory:topic")) == []


def test_a_pull_request_outlives_its_fork(repo: Repository, remote: Remote) -> None:
    pull = repo.pulls[1]
    sha = pull.head_sha
    pull.head_repository.delete()
    listed_pull = remote.get_pull(1)
    assert not listed_pull.head.repo
    assert (listed_pull.head.sha, listed_pull.state) == (sha, "open")
    assert list(listed_pull.get_files())


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


def test_the_actions_token_cannot_open_a_pull_request(repo: Repository, remote: Remote) -> None:
    repo.commit({"a.py": ""}, branch="refresh")
    assert refusal(lambda: remote.create_pull(base="main", head="refresh", title="t")).status == 403


def test_files_and_folders_are_read_from_a_commit(repo: Repository, remote: Remote) -> None:
    file = remote.get_contents("old.py")
    assert not isinstance(file, list)
    assert file.decoded_content == b"x = 1\n" * 20
    folder = remote.get_contents(".github/workflows", ref=str(repo.git.branch("main")))
    assert isinstance(folder, list)
    assert [entry.path for entry in folder] == [".github/workflows/m.yml"]
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


def test_a_merge_group_has_a_branch_with_the_resulting_merge(repo: Repository) -> None:
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


def test_an_artifact_is_downloaded_from_storage_that_must_not_see_the_token(hub: FakeGitHub, repo: Repository) -> None:
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


def test_runs_are_listed_by_event_and_head(repo: Repository, remote: Remote) -> None:
    head = repo.pulls[1].head_sha
    fork = repo.pulls[1].head_repository
    run = repo.workflow_run(".github/workflows/m.yml", "pull_request", "topic", head, "a title", head_repository=fork)
    repo.workflow_run(".github/workflows/m.yml", "push", "main", str(repo.git.branch("main")))
    [listed_run] = remote.get_workflow_runs(event="pull_request", head_sha=head)
    assert (listed_run.id, listed_run.display_title, listed_run.head_repository.full_name) == (
        run.id,
        "a title",
        "mallory/moe",
    )
    assert (listed_run.path, listed_run.pull_requests) == (".github/workflows/m.yml", [])
