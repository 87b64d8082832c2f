"""Faults of the fake GitHub on demand, concurrent clients, and another API path."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from github_fake import FakeGitHub, Repository
from github_fake.fixtures import hub as hub
from support.github_fake_client import BOT, call, client
from support.github_fake_client import repo as repo


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


def test_a_new_object_may_be_missing_once(hub: FakeGitHub, repo: Repository) -> None:
    hub.faults.plan(share=1, kinds=["404-once"])
    token = hub.token(BOT)
    assert [call(hub, token, "GET", "/repos/acme/moe").status_code for _ in range(3)] == [404, 200, 200]


def test_a_secondary_limit_names_the_time_to_wait(hub: FakeGitHub, repo: Repository) -> None:
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


def test_planned_faults_are_equal_for_equal_seeds(hub: FakeGitHub) -> None:
    def hits(seed: int) -> list[str | None]:
        with_seed = FakeGitHub(hub.folder / str(seed)).faults
        with_seed.plan(share=0.3, seed=seed)
        return [with_seed.pick("POST", f"/{number}") for number in range(1000)]

    first, again, other = hits(1), hits(1), hits(2)
    assert first == again != other
    kinds = Counter(fault for fault in first if fault)
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
    assert {comment.id for comment in repo.comments(1)} == set(ids)
    assert len(set(ids)) == 40


def test_an_enterprise_server_has_its_api_under_a_path(tmp_path: Path) -> None:
    with FakeGitHub(tmp_path, prefix="/api/v3") as hub:
        repo = hub.repository("acme/moe")
        repo.commit({"a.py": ""}, branch="topic")
        repo.open_pull("topic")
        pull = client(hub, hub.token(BOT, pull_requests="write"), per_page=1).get_pull(1)
        for text in ("one", "two"):
            pull.create_issue_comment(text)
        assert [issue_comment.body for issue_comment in pull.get_issue_comments()] == ["one", "two"]
        hub.check()
