"""Permissions of the fake GitHub, and its conformance with GitHub's examples of events."""

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from github_fake import FakeGitHub, Repository
from github_fake.call import ROUTES
from github_fake.fixtures import hub as hub
from github_fake.openapi import Description

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


# Tokens


def test_every_route_is_open_to_the_permission_that_github_documents_and_to_no_less(
    hub: FakeGitHub, repo: Repository
) -> None:
    stand_ins = {"{ref}": "heads/x", "{path}": "old.py", "{branch}": "x", "{archive_format}": "zip"}
    for route in [candidate for candidate in ROUTES if candidate.access]:
        path = route.path.replace("{owner}/{repo}", "acme/moe").replace("{basehead}", "main...main")
        for name, value in stand_ins.items():
            path = path.replace(name, value)
        path = "/".join("1" if part.startswith("{") else part for part in path.split("/"))
        body = Description().least_body(route.method, route.path)
        for permission, level in (access.split(":") for access in route.access):
            allowed = hub.token("regbot[bot]", **{permission: level})
            assert call(hub, allowed, route.method, path, json=body).status_code != 403, route
            if permission != "metadata":  # every token has that
                weaker = hub.token(BOT, **({} if level == "read" else {permission: "read"}))
                refused = call(hub, weaker, route.method, path, json=body)
                assert refused.status_code == 403, route
                assert permission in refused.headers["X-Accepted-GitHub-Permissions"]


# What GitHub's description says


def leaves(node: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value that is no object and no list, with the names on the way to it ("pull_request.labels[].name")."""
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]
    if isinstance(node, list):
        return [leaf for value in node for leaf in leaves(value, f"{path}[]")]
    return [(path, node)]


@pytest.mark.parametrize(
    ("event", "subject"),
    [
        ("issue_comment", {}),
        ("pull_request_target", {"action": "opened", "number": 1}),
        ("pull_request_target", {"action": "labeled", "number": 1, "label": "l", "sender": "ann"}),
        ("pull_request", {"action": "synchronize", "number": 1, "before": "0" * 40}),
        ("workflow_run", {}),
        ("workflow_dispatch", {"workflow": "m.yml", "inputs": {"pr": "1"}}),
        ("merge_group", {"number": 1}),
    ],
)
def test_a_payload_has_the_fields_of_githubs_examples(
    hub: FakeGitHub, repo: Repository, event: str, subject: dict[str, Any]
) -> None:
    if event == "issue_comment":
        subject = subject | {"comment": repo.comment(1, "bob", "/regbot run")}
    if event == "workflow_run":
        subject = {"run": repo.workflow_run(".github/workflows/m.yml", "push", "main", str(repo.git.branch("main")))}
    repo.label(1, "ann", "l")
    examples = json.loads((Path(__file__).parents[1] / "github_fake/events.json").read_text())
    known = examples[event.removesuffix("_target")]
    payload = repo.event_of(event, **subject)
    inputs = payload.pop("inputs", None)  # their names are the workflow's
    for path, value in leaves(payload):
        if not path.startswith("issue.pull_request."):  # which none of the examples has: they are of issues
            assert path in known, f"{event}: no example of GitHub's has {path}"
            assert type(value).__name__ in {*known[path], "NoneType"}, path
    assert inputs == subject.get("inputs")
    assert payload["repository"]["full_name"] == "acme/moe"
