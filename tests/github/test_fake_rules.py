"""Permissions of the fake GitHub, and its conformance with GitHub's description of requests, answers and events."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from github_fake import UNVALIDATED, FakeGitHub, Repository
from github_fake.call import ROUTES, Answer
from github_fake.fixtures import hub as hub
from github_fake.openapi import Description
from github_fake.slim import leaves
from support.github_fake_client import BOT, EVERYTHING, call
from support.github_fake_client import repo as repo

LONG = {"title": "t", "summary": "s" * 65_536}
MANY = {str(number): "" for number in range(26)}


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


def test_what_changes_something_needs_a_permission_to_write_and_what_reads_does_not() -> None:
    for route in [candidate for candidate in ROUTES if candidate.access]:
        levels = {access.partition(":")[2] for access in route.access}
        assert levels == {"read" if route.method == "GET" else "write"}, route


def test_with_a_permission_for_pull_requests_one_comments_but_does_not_react(hub: FakeGitHub, repo: Repository) -> None:
    token, issue = hub.token(BOT, pull_requests="write"), repo.open_issue("A question", "bob")
    made = call(hub, token, "POST", "/repos/acme/moe/issues/1/comments", json={"body": "b"})
    react = f"/repos/acme/moe/issues/comments/{made.json()['id']}/reactions"
    assert made.status_code == 201
    both = hub.token(BOT, issues="write", pull_requests="write")
    statuses = [
        call(hub, each, "POST", react, json={"content": "eyes"}).status_code
        for each in (token, hub.token(BOT, issues="write"), both)
    ]
    assert statuses == [403, 403, 201]
    assert call(hub, token, "POST", f"/repos/acme/moe/issues/{issue}/comments", json={"body": "b"}).status_code == 403


def test_a_private_repository_is_not_there_for_those_who_may_not_see_it(hub: FakeGitHub, repo: Repository) -> None:
    hub.repository("acme/other")
    strangers = [hub.token("nobody", contents="read"), hub.token(BOT, repositories=["acme/other"]), None]
    assert [call(hub, stranger, "GET", "/repos/acme/moe").status_code for stranger in strangers] == [404, 404, 404]
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


def test_an_invalid_token_gives_another_error_than_no_token(hub: FakeGitHub, repo: Repository) -> None:
    token = hub.token(BOT, contents="read")
    assert call(hub, token, "GET", "/repos/acme/moe").status_code == 200
    hub.expire(token)
    for bad in (token, "made-up"):
        assert call(hub, bad, "GET", "/repos/acme/moe").json()["message"] == "Bad credentials"


# What GitHub's description says


@pytest.mark.slow
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
    folder = Path(__file__).parents[1] / "github_fake"
    for name in ("openapi.json", "events.json"):
        text = (folder / name).read_text()
        assert len(text) < 600_000
        assert "MIT License Copyright" in json.loads(text)["notice"]["text"]
    described = json.loads((folder / "openapi.json").read_text())["paths"]
    assert {(route.path, route.method.lower()) for route in ROUTES} == {
        (path, name) for path in described for name in described[path]
    }


FAKE = Path(__file__).parents[1] / "github_fake"
STARTS = "../support/workflows_act.py"
"""What starts what is not in the fake's folder, because other tests do without it."""
BY_HAND = {"strongest", "session"}
"""Public names there that follow no rule of GitHub."""


def rules() -> list[tuple[str, str, str]]:
    """The rows of rules.md: the rule, file and function, the source."""
    rows = [line for line in (FAKE / "rules.md").read_text().splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [(rule, where.strip("`"), source) for rule, where, source in cells]


def functions(file: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


def refusals() -> Iterator[tuple[str, str]]:
    """File and function, and the status of each answer that refuses something, except 404 and those of faults."""
    for file in sorted(FAKE.glob("*.py")):
        for function in functions(file):
            for node in ast.walk(function):
                name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
                if name == "invalid":
                    yield f"{file.name}:{function.name}", "422"
                if name in ("Refused", "Answer") and isinstance(status := node.args[0], ast.Constant):  # type: ignore[attr-defined]
                    yield f"{file.name}:{function.name}", str(status.value)


def test_each_rule_beyond_the_description_has_a_source_or_is_assumed() -> None:
    for rule, where, source in rules():
        file, _, name = where.partition(":")
        assert re.search(rf"^ *(def|class) {name}\b", (FAKE / file).read_text(), re.MULTILINE), where
        assert re.search(r"https://|\bdocs/|\bevents#|\bassumed\b", source), rule


def test_each_refusal_of_the_fake_is_a_rule_of_the_table() -> None:
    known = {(where, status) for rule, where, _ in rules() for status in re.findall(r"\b4\d\d\b", rule)}
    own = {("call.py:invalid", "422")}  # the form of such an answer, not a rule
    wanted = {refusal for refusal in refusals() if refusal[1].startswith("4") and refusal[1] != "404"} - own
    assert len(wanted) > 20
    assert wanted - known == set(), "there is no row in rules.md"


def test_each_event_and_each_start_of_a_workflow_is_a_rule_of_the_table() -> None:
    known = {where for _, where, _ in rules()}
    events = {f"events.py:{function.name}" for function in functions(FAKE / "events.py")} - {"events.py:payload"}
    public = {function.name for function in functions(FAKE / STARTS) if not function.name.startswith("_")}
    assert events | {f"{STARTS}:{name}" for name in public - BY_HAND} <= known


@pytest.mark.parametrize("path", ["/repos/acme/moe/isues/1/comments", "/api/v3/repos/acme/moe"])
def test_a_request_to_a_route_that_github_does_not_have_is_refused_and_recorded(
    hub: FakeGitHub, repo: Repository, path: str
) -> None:
    assert call(hub, hub.token(BOT, **EVERYTHING), "GET", path).status_code == 404
    assert hub.forgive() == [f"GET {path}: there is no such route"]


def test_an_answer_with_an_undocumented_status_is_recorded(
    hub: FakeGitHub, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (route,) = [
        candidate
        for candidate in ROUTES
        if (candidate.method, candidate.path) == ("GET", "/repos/{owner}/{repo}/pulls")
    ]
    monkeypatch.setitem(vars(route), "handler", lambda _: Answer(202, []))
    call(hub, hub.token(BOT, pull_requests="read"), "GET", "/repos/acme/moe/pulls")
    assert "202, unknown" in hub.forgive()[0]


def test_requests_without_a_description_are_few_and_all_listed(hub: FakeGitHub) -> None:
    git = {f"/*/*/{name}" for name in ("info/refs", "git-upload-pack", "git-receive-pack")}
    assert set(UNVALIDATED) == {*git, "/artifacts/*", "* 4xx"}
    assert all(len(why) > 10 for why in UNVALIDATED.values())
    hub.unheld("/acme/moe.git/info/refs")
    hub.unheld("/repos/acme/moe/pulls")
    assert hub.forgive() == ["/repos/acme/moe/pulls: is not held against GitHub's description, and is not listed"]


def test_the_fake_reports_violations_to_every_user(tmp_path: Path) -> None:
    def used(name: str, error: Exception | None = None) -> FakeGitHub:
        with FakeGitHub(tmp_path / name) as hub:
            call(hub, None, "GET", "/nowhere")
            if error is not None:
                raise error
            return hub

    with pytest.raises(AssertionError, match="there is no such route"):
        used("silent")
    with pytest.raises(ZeroDivisionError):  # it is this that has to be seen
        used("failing", ZeroDivisionError())


def test_answers_are_checked_against_the_description(hub: FakeGitHub, repo: Repository) -> None:
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
        ("check_run", {"sender": "ann"}),
    ],
)
def test_a_payload_has_the_fields_of_githubs_examples(
    hub: FakeGitHub, repo: Repository, event: str, subject: dict[str, Any]
) -> None:
    if event == "issue_comment":
        subject = subject | {"comment": repo.comment(1, "bob", "/regbot run")}
    if event == "workflow_run":
        subject = {"run": repo.workflow_run(".github/workflows/m.yml", "push", "main", str(repo.git.branch("main")))}
    if event == "check_run":
        sha, token = repo.git.branch("main"), hub.token("regbot[bot]", checks="write")
        body = {"name": "regbot", "head_sha": sha, "conclusion": "success", "output": {"title": "t", "summary": "s"}}
        subject = subject | {"check": call(hub, token, "POST", "/repos/acme/moe/check-runs", json=body).json()["id"]}
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
