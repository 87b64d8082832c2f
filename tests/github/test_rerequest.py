"""A check run whose measurement somebody requests again on GitHub. Only an App's check runs cause such an event."""

from dataclasses import replace

import pytest

from github_fake.fixtures import hub
from regbot.github.client import RefusedError
from regbot.github.command_effects import GateOutcome
from regbot.github.events import read_check_event
from regbot.github.gate import handle_rerequest
from regbot.github.types import NewCheck
from regbot.records.config import GitHub
from support.gate_scene import MEASURE, PEOPLE, Scene, client, end_runs, new_check, scene

__all__ = ["hub", "scene"]
APP = "regbot-moe[bot]"


@pytest.fixture
def app(scene: Scene) -> Scene:
    """The gate with the token of an App, as docs/security.md sets it up."""
    rights = {"actions": "write", "checks": "write", "contents": "read", "issues": "write", "pull_requests": "write"}
    scene.forge = client(scene.hub, scene.hub.token(APP, **rights))
    scene.settings = GitHub(bot=APP)
    return scene


def completed(app: Scene, check: NewCheck | None = None) -> int:
    """Create a completed check run of the head and return its id."""
    return app.forge.create_check(check or new_check(app.sha, f"{app.number}:{app.sha}:static")).id


def rerequest(app: Scene, check: int, login: str = "walt", action: str = "rerequested") -> GateOutcome:
    event = app.repo.event_of("check_run", check=check, sender=login, action=action)
    return handle_rerequest(app.forge, read_check_event(app.file(event), "acme/moe"), app.settings)


def replies(app: Scene) -> list[str]:
    return [comment.body for comment in app.said(APP)]


def test_a_requested_check_run_is_measured_once(app: Scene) -> None:
    check = completed(app)
    assert rerequest(app, check).effect == "started"
    (dispatch,) = app.started
    assert (dispatch.workflow, dispatch.inputs["pr"], dispatch.inputs["sha"]) == (MEASURE, "1", app.sha)
    newest = app.repo.shown_check(app.sha, "regbot")
    assert newest is not None
    assert newest.status == "in_progress"
    assert rerequest(app, check).effect == "nothing"
    assert len(app.started) == 1


def test_a_new_check_run_can_be_requested_again(app: Scene) -> None:
    rerequest(app, completed(app))
    end_runs(app)
    newest = app.repo.shown_check(app.sha, "regbot")
    assert newest is not None
    app.forge.update_check(newest.id, new_check(app.sha, newest.external_id))
    assert rerequest(app, newest.id).effect == "started"
    assert len(app.started) == 2


def test_a_check_run_is_measured_again_only_for_those_who_may_run_it(app: Scene) -> None:
    for login, role in PEOPLE.items():
        app.repo.dispatched.clear()
        count = len(replies(app))
        is_allowed = role in ("write", "maintain", "admin")
        assert rerequest(app, completed(app), login).effect == ("started" if is_allowed else "refused")
        assert len(app.started) == is_allowed
        assert len(replies(app)) - count == (role == "triage")
        end_runs(app)


@pytest.mark.parametrize(
    ("change", "told"),
    [("push", "is not the head of this pull request"), ("draft", "is a draft"), ("runners", "protected files")],
)
def test_a_request_that_cannot_be_obeyed_is_answered_once(app: Scene, change: str, told: str) -> None:
    if change == "runners":
        app.sha = app.push({"runners/setup.sh": "true\n"})
    check = completed(app)
    if change == "push":
        app.push({"moe.py": "3\n"})
    app.repo.pulls[app.number].draft = change == "draft"
    assert rerequest(app, check).effect == rerequest(app, check).effect == "refused"
    (reply,) = replies(app)
    assert told in reply
    assert not app.started


def test_other_check_runs_are_not_measured(app: Scene) -> None:
    own = new_check(app.sha, f"{app.number}:{app.sha}:static")
    others = [
        replace(own, name="lint"),
        replace(own, external_id="job"),
        replace(own, external_id=f"{app.number}:{'0' * 40}:static"),
        replace(own, external_id=f"0:{app.sha}:static"),
        replace(own, status="in_progress", conclusion=None),
    ]
    assert [rerequest(app, completed(app, other)).effect for other in others] == ["nothing"] * len(others)
    assert rerequest(app, completed(app), action="completed").effect == "nothing"
    assert not app.started


def test_a_check_run_of_another_app_is_not_measured(app: Scene) -> None:
    app.settings = GitHub(bot="other[bot]")
    assert rerequest(app, completed(app)).effect == "nothing"
    assert not app.started


def test_a_check_run_that_is_gone_is_an_error(app: Scene) -> None:
    check = completed(app)
    event = app.file(app.repo.event_of("check_run", check=check, sender="walt"))
    app.repo.all_checks.clear()
    with pytest.raises(RefusedError):
        handle_rerequest(app.forge, read_check_event(event, "acme/moe"), app.settings)
