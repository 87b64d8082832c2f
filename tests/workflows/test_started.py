"""What starts what, with shipped workflows executed here: a measurement its own post, another base another trace."""

from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub, Repository
from github_fake.fixtures import hub as hub
from support.workflow_rules import SHIPPED
from support.workflows_act import Actions, Ran, needs_act

pytestmark = needs_act

NONCE = "0123456789abcdef"


@pytest.fixture
def repo(hub: FakeGitHub) -> Repository:
    made = hub.repository("acme/moe", default_branch="trunk")
    workflows = {f".github/workflows/{path.name}": path.read_text() for path in SHIPPED}
    made.commit({**workflows, "regbot.toml": "version = 1\n"}, branch="trunk", message="regbot")
    made.commit({"a.py": "x = 1\n"}, branch="topic", message="a change")
    return made


@pytest.fixture
def actions(hub: FakeGitHub, repo: Repository, tmp_path: Path) -> Actions:
    return Actions(hub, repo, tmp_path / "runs", record=True)


def measured(repo: Repository, actions: Actions, code: int) -> Ran:
    actions.environment["STUB_CODE"] = str(code)
    head, base = str(repo.git.branch("topic")), str(repo.git.branch("trunk"))
    inputs = {"pr": "1", "sha": head, "base": base, "nonce": NONCE, "more": "0"}
    payload = repo.event_of("workflow_dispatch", workflow="regbot-measure.yml", inputs=inputs)
    return actions.execute("regbot-measure", "workflow_dispatch", payload, "hand-over")


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 2])
def test_a_measurement_starts_its_post_however_it_ended(repo: Repository, actions: Actions, code: int) -> None:
    ran = measured(repo, actions, code)
    (dispatch,) = repo.dispatched
    assert (dispatch.workflow, dispatch.ref) == (".github/workflows/regbot-post.yml", "trunk")
    assert dispatch.inputs == {"change": "1", "run": str(ran.run.id)}
    assert (ran.code != 0) == bool(code)
    actions.environment["STUB_CODE"] = "0"
    (post,) = actions.follow()
    assert [call["words"][:2] for call in post.calls] == [["github", "post"]]
    assert post.code == 0


def test_who_starts_the_post_may_do_nothing_else(repo: Repository, actions: Actions, hub: FakeGitHub) -> None:
    measured(repo, actions, 0)
    asked = [(method, path.rpartition("/")[2], status) for method, path, status in hub.requests]
    assert asked == [("POST", "dispatches", 204)]


EDITS: list[tuple[dict[str, Any], bool]] = [
    ({"changes": {"title": {"from": "old"}}}, False),
    ({"changes": {"title": {"from": "old"}, "base": {"ref": {"from": "old"}, "sha": {"from": "a" * 40}}}}, True),
]


@pytest.mark.parametrize(("changes", "traced"), EDITS)
def test_another_base_is_traced_and_another_title_is_not(
    repo: Repository, actions: Actions, changes: dict[str, Any], traced: bool
) -> None:
    number = repo.open_pull(head="topic", title="A change", author="ann")
    payload = {**repo.event_of("pull_request", number=number, action="edited"), **changes}
    of_pull = {"head_sha": str(repo.git.branch("topic")), "head_branch": "topic"}
    ran = actions.execute("regbot-static", "pull_request", payload, "trace", **of_pull)
    assert [call["words"][0] for call in ran.calls] == (["check"] if traced else [])
    assert ran.code == 0


BASE_CHANGE = {"changes": {"base": {"ref": {"from": "old"}, "sha": {"from": "a" * 40}}}}
PULL_EVENTS: list[tuple[dict[str, Any], bool]] = [
    ({"action": "labeled", "label": "regbot: measure"}, True),
    ({"action": "labeled", "label": "documentation"}, False),
    ({"action": "synchronize"}, True),
    ({"action": "edited", **BASE_CHANGE}, True),
    ({"action": "edited", "changes": {"title": {"from": "old"}}}, False),
]


@pytest.mark.parametrize(("event", "starts"), PULL_EVENTS)
def test_the_gate_starts_only_for_its_label_pushes_and_base_changes(
    repo: Repository, actions: Actions, event: dict[str, Any], starts: bool
) -> None:
    number = repo.open_pull(head="topic", title="A change", author="ann")
    about = {key: value for key, value in event.items() if key != "changes"}
    payload = {**repo.event_of("pull_request_target", number=number, **about), "changes": event.get("changes", {})}
    ran = actions.execute("regbot-gate", "pull_request_target", payload, "gate")
    assert [call["words"][:2] for call in ran.calls] == ([["github", "gate"]] if starts else [])


@pytest.mark.parametrize(
    ("login", "body", "starts"),
    [
        ("stranger", "/regbot run " + "a" * 40, True),
        ("stranger", "/regbot accept " + "a" * 40 + ": fine", True),
        ("stranger", "/regbot please", False),
        ("stranger", "/regbotany", False),
        ("walt", "/regbot please", True),
        ("walt", "Look at /regbot run", False),
    ],
)
def test_the_gate_starts_only_for_known_commands_and_for_members_who_mistype_one(
    repo: Repository, actions: Actions, login: str, body: str, starts: bool
) -> None:
    repo.member("walt", "write")
    number = repo.open_pull(head="topic", title="A change", author="ann")
    payload = repo.event_of("issue_comment", comment=repo.comment(number, login, body))
    ran = actions.execute("regbot-gate", "issue_comment", payload, "command")
    assert [call["words"][:2] for call in ran.calls] == ([["github", "command"]] if starts else [])


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({}, True),
        ({"conclusion": "failure"}, True),
        ({"conclusion": "cancelled"}, True),
        ({"conclusion": "skipped"}, False),
        ({"conclusion": "action_required"}, False),
        ({"path": ".github/workflows/evil.yml"}, False),
        ({"event": "push"}, False),
    ],
)
def test_the_post_starts_only_for_runs_that_have_a_result(
    repo: Repository, actions: Actions, changes: dict[str, Any], starts: bool
) -> None:
    of_run = {"path": ".github/workflows/regbot-static.yml", "event": "pull_request", **changes}
    run = repo.workflow_run(head_branch="topic", head_sha=str(repo.git.branch("topic")), **of_run)
    payload = repo.event_of("workflow_run", run=run)
    ran = actions.execute("regbot-post", "workflow_run", payload, "post")
    assert [call["words"][:2] for call in ran.calls] == ([["github", "post"]] if starts else [])
