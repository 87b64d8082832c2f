"""A repository on the fake GitHub for its own tests, PyGithub over it, and plain requests."""

from typing import Any

import pytest
import requests

from github_fake import FakeGitHub, Repository

BOT = "github-actions[bot]"
WORKFLOW = """
on:
  workflow_dispatch:
    inputs:
      pr: {required: true}
      nonce: {required: false}
jobs: {}
"""


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
