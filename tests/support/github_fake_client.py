"""A repository on the fake GitHub for its own tests, PyGithub over it, and plain requests."""

from typing import Any

import pytest
import requests
from github.Repository import Repository as Remote

from github import Auth, Github
from github_fake import FakeGitHub, Repository

BOT = "github-actions[bot]"
EVERYTHING = dict.fromkeys(("actions", "checks", "contents", "issues", "pull_requests"), "write")
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
