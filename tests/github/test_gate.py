"""The gate: which role may run what, and for exactly which commit."""

import re
from datetime import UTC, datetime

import pytest

from regbot.github.approval import find_protected
from regbot.github.types import ROLES, CommitComparison
from regbot.github.workflow_start import CommandRequest, compute_nonce, request_measurement
from regbot.records.config import GitHub
from support.gate_scene import (
    BISECT,
    BOT,
    COMMANDS,
    LABEL,
    MEASURE,
    PEOPLE,
    POST,
    RULE,
    Scene,
    before_last_look,
    completed_check,
    end_runs,
    new_check,
    posted,
    workflow,
)
from support.hostile import inert

# Who may


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_obeyed_exactly_for_those_who_have_its_role(scene: Scene, command: str) -> None:
    need, text = COMMANDS[command]
    for login, role in PEOPLE.items():
        before, checks = len(scene.replies), len(scene.repo.check_runs(scene.sha))
        scene.repo.dispatched.clear()
        outcome = scene.comment(text(scene), login)
        if ROLES.index(role) >= ROLES.index(need):
            assert outcome.effect == ("noted" if command in ("expect", "accept") else "started")
            assert len(scene.replies) == before
            assert scene.reactions()[-1] == ("+1" if outcome.effect == "noted" else "eyes")
        else:
            assert outcome.effect == "refused"
            assert scene.reactions()[-1] == "confused"
            assert len(scene.repo.check_runs(scene.sha)) == checks == 0
            if role in ("none", "read"):
                assert len(scene.replies) == before  # a stranger does not make the bot write
                continue
            assert f"the role {need} in this repository, and yours is {role}" in scene.replies[before]
            assert text(scene) in scene.replies[before]
        assert len(scene.started) == (outcome.effect == "started")
        end_runs(scene)


def test_a_label_is_obeyed_exactly_for_those_who_have_its_role(scene: Scene) -> None:
    for login, role in PEOPLE.items():
        scene.repo.dispatched.clear()
        outcome = scene.pulled(scene.labelled(login))
        if role in ("write", "maintain", "admin"):
            assert outcome.effect == "started"
            assert scene.repo.labels(scene.number) == [LABEL]
            assert [dispatch.workflow for dispatch in scene.started] == [MEASURE]
            scene.forge.remove_label(scene.number, LABEL)
        else:
            assert outcome.effect == "refused"
            assert scene.repo.labels(scene.number) == []
            assert not scene.started
            assert role != "triage" or f"yours is {role}" in scene.replies[-1]
        end_runs(scene)


# What is started


def test_what_is_started_is_given_everything_that_it_needs(scene: Scene) -> None:
    scene.comment(f"/regbot bisect {scene.base}..{scene.sha} qwen3-30b-a3b@1/ep")
    given = {"pr": str(scene.number), "good": scene.base, "bad": scene.sha, "workload": "qwen3-30b-a3b@1/ep"}
    assert (scene.started[0].workflow, scene.started[0].inputs | given) == (BISECT, scene.started[0].inputs)
    scene.comment(f"/regbot run {scene.sha}")
    dispatch = scene.started[1]
    assert (dispatch.workflow, dispatch.ref, dispatch.by) == (MEASURE, "main", BOT)
    nonce = dispatch.inputs.pop("nonce")
    assert re.fullmatch("[0-9a-f]{16}", nonce)
    assert dispatch.inputs == {"pr": str(scene.number), "sha": scene.sha, "base": scene.base, "more": "0"}
    (check,) = scene.repo.check_runs(scene.sha)
    assert (check.name, check.status, check.conclusion) == ("regbot", "in_progress", None)
    assert check.external_id == f"{scene.number}:{scene.sha}:{nonce}"
    assert check.summary is not None
    assert "`walt`" in check.summary


def test_the_nonce_of_a_measurement_is_of_its_base(scene: Scene) -> None:
    request = CommandRequest(scene.number, "walt", "write", "0" * 16, datetime.now(UTC))
    for branch in ("main", "topic"):
        base = scene.repo.commit({"base.py": branch}, branch, parent=scene.base)
        request_measurement(scene.forge, request, scene.sha, base, BOT, lambda: None)
        end_runs(scene)
        inputs = scene.started[-1].inputs
        assert (inputs["base"], inputs["nonce"]) == (base, compute_nonce(request.nonce, base))
    assert len({dispatch.inputs["nonce"] for dispatch in scene.started}) == 2


def test_a_requested_measurement_blocks_a_required_check_that_had_passed(scene: Scene) -> None:
    passed = completed_check(scene)
    scene.comment(f"/regbot run {scene.sha}")
    check = scene.repo.shown_check(scene.sha, "regbot")
    assert check.id != passed
    assert (check.status, check.conclusion) == ("in_progress", None)
    assert check.external_id.endswith(scene.started[0].inputs["nonce"])


def test_a_job_called_regbot_does_not_hide_that_a_measurement_is_in_progress(scene: Scene) -> None:
    scene.comment(f"/regbot run {scene.sha}")
    end_runs(scene)
    scene.forge.create_check(new_check(scene.sha, "6f1e2d3c-0000-4000-8000-1234567890ab"))
    scene.comment(f"/regbot run {scene.sha}")
    check = scene.repo.shown_check(scene.sha, "regbot")
    assert (check.status, check.conclusion) == ("in_progress", None)


def test_a_commit_is_not_measured_twice_at_the_same_time(scene: Scene) -> None:
    scene.comment(f"/regbot run {scene.sha}", "walt")
    assert scene.comment(f"/regbot run {scene.sha}", "mia").effect == "refused"
    assert len(scene.started) == 1
    assert "A measurement of this commit is in progress" in scene.replies[0]


@pytest.mark.parametrize("which", ["good", "bad"])
def test_a_bisection_never_reaches_another_pull_requests_commits(scene: Scene, which: str) -> None:
    foreign = scene.repo.fork("eve").commit({"moe.py": "evil\n"}, "topic")
    scene.repo.open_pull(head="eve:topic", author="eve")
    pair = f"{foreign}..{scene.sha}" if which == "good" else f"{scene.base}..{foreign}"
    assert scene.comment(f"/regbot bisect {pair}").effect == "refused"
    assert "neither a commit of this pull request nor a commit of" in scene.replies[0]
    assert not scene.started


@pytest.mark.parametrize("text", [f"/regbot expect {RULE}", "/regbot accept SHA: meant"])
def test_a_declaration_has_the_present_verdict_posted_again(scene: Scene, text: str) -> None:
    posted(scene, run=4711)
    assert scene.comment(text.replace("SHA", scene.sha), "mia").effect == "noted"
    assert [(dispatch.workflow, dispatch.inputs) for dispatch in scene.started] == [
        (POST, {"change": str(scene.number)})
    ]


def test_an_acceptance_must_name_the_head(scene: Scene) -> None:
    posted(scene)
    old, scene.sha = scene.sha, scene.push({"moe.py": "3\n"})
    assert scene.comment(f"/regbot accept {old}: meant", "mia").effect == "refused"
    assert f"/regbot accept {scene.sha}: meant" in scene.replies[-1]
    assert not scene.started


# Which commit


def test_a_commit_other_than_the_head_is_refused_and_the_head_named(scene: Scene) -> None:
    old, new = scene.sha, scene.push({"moe.py": "3\n"})
    assert scene.comment(f"/regbot run {old}").effect == "refused"
    assert f"\n/regbot run {new}\n" in scene.replies[0]
    assert not scene.started
    assert not scene.repo.check_runs(old)


def test_a_closed_pull_request_runs_nothing(scene: Scene) -> None:
    scene.repo.close(scene.number)
    for text in (f"/regbot run {scene.sha}", f"/regbot bisect {scene.base}..{scene.sha}", f"/regbot expect {RULE}"):
        assert scene.comment(text).effect == "refused"
    assert scene.pulled(scene.labelled()).effect == "refused"
    assert not scene.started
    assert all("The pull request is closed" in reply for reply in scene.replies)


@pytest.mark.parametrize("command", ["run", "bisect"])
def test_a_head_that_moves_before_the_dispatch_is_not_measured(scene: Scene, command: str) -> None:
    before_last_look(scene, lambda: scene.push({"moe.py": "evil\n"}))
    assert scene.comment(COMMANDS[command][1](scene)).effect == "refused"
    assert not scene.started
    ended = [(check.status, check.conclusion, check.title) for check in scene.repo.check_runs(scene.sha)]
    assert ended == [("completed", "cancelled", "Not measured")] * (command == "run")


def test_the_check_run_is_restored_where_nothing_was_started(scene: Scene) -> None:
    completed_check(scene)
    before_last_look(scene, lambda: scene.push({"moe.py": "evil\n"}))
    scene.comment(f"/regbot run {scene.sha}")
    check = scene.repo.shown_check(scene.sha, "regbot")
    assert (check.status, check.conclusion) == ("completed", "success")
    assert (check.external_id, check.title, check.summary) == (f"{scene.number}:{scene.sha}:static", "t", "s")


# Whose comments count


@pytest.mark.parametrize(
    ("text", "login"),
    [("Looks good", "walt"), ("/regbot run SHA", BOT), ("/regbot run SHA", "other[bot]")],
)
def test_a_comment_without_a_command_or_of_a_bot_causes_no_request(scene: Scene, text: str, login: str) -> None:
    scene.repo.member(login, "admin")
    event = scene.commented(text.replace("SHA", scene.sha), login)
    scene.hub.requests.clear()
    assert scene.replay(event).effect == "nothing"
    assert not scene.hub.requests


def test_an_issue_is_no_pull_request(scene: Scene) -> None:
    scene.number = scene.repo.open_issue("Slow", "rita")
    assert scene.comment(f"/regbot run {scene.sha}").effect == "nothing"


@pytest.mark.parametrize("action", ["edited", "deleted"])
def test_only_new_comments_are_commands(scene: Scene, action: str) -> None:
    event = {**scene.commented(f"/regbot run {scene.sha}"), "action": action}
    assert scene.replay(event).effect == "nothing"
    assert not scene.started


def test_an_edited_comment_is_never_obeyed(scene: Scene) -> None:
    event = scene.commented("/regbot accept " + scene.sha + ": meant", "mia")
    scene.repo.edit_comment(event["comment"]["id"], f"/regbot run {scene.sha}")
    assert scene.replay(event).effect == "refused"
    assert "regbot ignores edited comments" in scene.replies[0]
    assert not scene.started


def test_an_event_that_differs_from_the_comment_is_not_obeyed(scene: Scene) -> None:
    event = scene.commented(f"/regbot expect {RULE}")
    event["comment"]["body"] = f"/regbot run {scene.sha}"
    assert scene.replay(event).effect == "refused"
    event = scene.commented(f"/regbot run {scene.sha}", "walt")
    event["comment"]["user"]["login"] = "ada"
    assert scene.replay(event).effect == "nothing"
    assert not scene.started


# Answers


def test_a_bare_run_is_answered_with_the_line_to_type(scene: Scene) -> None:
    assert scene.comment("/regbot run").effect == "refused"
    (reply,) = scene.replies
    assert "does not have the form" in reply
    match = re.search(r"^/regbot run .*$", reply, re.MULTILINE)
    assert scene.comment(match.group()).effect == "started"


@pytest.mark.parametrize("text", ["/regbot run", "/regbot rerun", "/regbot expect x", "/regbot run @everyone"])
def test_a_stranger_does_not_make_the_bot_write(scene: Scene, text: str) -> None:
    for login in ("rita", "nemo", "mallory"):
        event = scene.commented(text, login)
        assert [scene.replay(event).effect for _ in range(2)] == ["refused", "nothing"]
    assert scene.reactions() == ["confused"] * 3
    assert not scene.replies


@pytest.mark.parametrize(
    "text",
    [
        "/regbot @everyone ![x](https://evil.example/x.png) <img src=x> [l](https://evil.example)",
        "/regbot expect ![x](https://evil.example)@<b>@*: why",
        "/regbot accept ```` ```<script>: @org/team",
        "/regbot run " + "`" * 300,
        "/regbot \u05d0\u05d1 #1 https://evil.example",
    ],
)
@pytest.mark.parametrize("login", ["walt", "tom"])
def test_text_of_a_command_is_inert_in_the_reply(scene: Scene, text: str, login: str) -> None:
    assert scene.comment(text, login).effect == "refused"
    assert inert(scene.replies[0].partition("\n")[2]) == []


# Labels and pushes


def test_a_push_ends_the_label_and_has_the_comment_marked(scene: Scene) -> None:
    posted(scene)
    scene.repo.label(scene.number, "walt", LABEL)
    scene.repo.label(scene.number, "walt", "other")
    before = scene.sha
    scene.push({"moe.py": "3\n"})
    assert scene.pulled(scene.happened("synchronize", before=before)).effect == "stale"
    assert scene.repo.labels(scene.number) == ["other"]
    assert [dispatch.inputs for dispatch in scene.started] == [{"change": str(scene.number)}]


def test_a_label_that_was_set_after_the_push_survives_the_event_of_the_push(scene: Scene) -> None:
    before, scene.sha = scene.sha, scene.push({"moe.py": "3\n"})
    push, label = scene.happened("synchronize", before=before), scene.labelled()
    scene.pulled(push)
    assert scene.pulled(label).effect == "started"
    assert scene.started[-1].inputs["sha"] == scene.sha


def test_a_label_of_an_older_head_starts_nothing_and_is_taken_off(scene: Scene) -> None:
    event, old = scene.labelled(), scene.sha
    new = scene.push({"moe.py": "evil\n"})
    assert scene.pulled(event).effect == "refused"
    assert not scene.started
    assert not scene.repo.check_runs(old)
    assert scene.repo.labels(scene.number) == []
    assert f"\n/regbot run {new}\n" in scene.replies[0]


def test_a_removed_label_approves_nothing(scene: Scene) -> None:
    event = scene.labelled()
    scene.forge.remove_label(scene.number, LABEL)
    assert scene.pulled(event).effect == "nothing"
    assert not scene.started


def test_a_label_that_is_set_again_is_a_new_request(scene: Scene) -> None:
    scene.pulled(scene.labelled())
    end_runs(scene)
    scene.forge.remove_label(scene.number, LABEL)
    assert scene.pulled(scene.labelled()).effect == "started"
    assert len(scene.started) == 2


@pytest.mark.parametrize("action", ["opened", "labeled", "closed", "edited", "unlabeled"])
def test_an_unrelated_event_causes_no_request(scene: Scene, action: str) -> None:
    about = {"label": "other", "sender": "rita"} if action.endswith("labeled") else {}
    event = scene.happened(action, **about)
    scene.hub.requests.clear()
    assert scene.pulled(event).effect == "nothing"
    assert not scene.hub.requests


# Protected files: a commit that changes some needs the confirmation of a maintainer


PROTECTED_CHANGES: dict[str, dict[str, str | None]] = {
    "a workflow": {".github/workflows/ci.yml": "on: push\n"},
    "an action": {".github/actions/x/action.yml": "x\n"},
    "the configuration": {"regbot.toml": "version = 1 # softer\n"},
    "a removed configuration": {"regbot.toml": None},
    "a runner's file": {"runners/setup.sh": "x\n"},
    "a reference": {"baselines/a/b.json": "{}\n"},
    "a workflow in another case": {".GitHub/workflows/ci.yml": "x\n"},
    "the folder made a file": {"runners": "x\n"},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", PROTECTED_CHANGES)
def test_protected_files_need_a_maintainer_who_says_so(scene: Scene, change: str) -> None:
    scene.sha = scene.push(PROTECTED_CHANGES[change])
    for login in ("walt", "mia"):
        assert scene.comment(f"/regbot run {scene.sha}", login).effect == "refused"
    assert scene.comment(f"/regbot run {scene.sha} with-protected-files", "walt").effect == "refused"
    assert not scene.started
    assert next(iter(PROTECTED_CHANGES[change])) in scene.replies[0]
    assert f"\n/regbot run {scene.sha} with-protected-files\n" in scene.replies[0]
    assert scene.comment(f"/regbot run {scene.sha} with-protected-files", "mia").effect == "started"


@pytest.mark.parametrize("command", ["more", "bisect"])
def test_more_and_bisect_of_protected_files_need_a_maintainer(scene: Scene, command: str) -> None:
    scene.sha = scene.push(PROTECTED_CHANGES["a workflow"])
    text = COMMANDS[command][1](scene)
    assert scene.comment(text, "walt").effect == "refused"
    assert scene.comment(text, "mia").effect == "started"


def test_a_label_never_approves_protected_files(scene: Scene) -> None:
    scene.sha = scene.push(PROTECTED_CHANGES["a workflow"])
    assert scene.pulled(scene.labelled("ada")).effect == "refused"
    assert scene.repo.labels(scene.number) == []
    assert f"\n/regbot run {scene.sha} with-protected-files\n" in scene.replies[0]


@pytest.mark.parametrize("command", ["run", "bisect"])
def test_a_protected_file_that_github_does_not_list_is_found(
    scene: Scene, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbot.github.types.MAX_COMPARED", 1)
    scene.sha = scene.push({"zz/runner.sh": "1", "runners/setup.sh": "x\n"})
    assert scene.comment(COMMANDS[command][1](scene), "walt").effect == "refused"
    assert "protected files: `runners/setup.sh`" in scene.replies[0]


def test_both_names_of_a_renamed_file_count_where_github_does_not_list_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbot.github.types.MAX_COMPARED", 1)
    scene.sha = scene.push({".github/workflows/regbot-post.yml": None, "kept.yml": workflow("post")})
    assert scene.comment(f"/regbot run {scene.sha}").effect == "refused"


def test_protected_files_are_configurable(scene: Scene) -> None:
    scene.settings = GitHub(protected=["moe.py"])
    assert scene.comment(f"/regbot run {scene.sha}").effect == "refused"
    scene.settings = GitHub(protected=[])
    assert scene.comment(f"/regbot run {scene.sha}").effect == "started"


@pytest.mark.parametrize(("path", "covered"), [("REGBOT.toml", True), ("sub/regbot.toml", False)])
def test_the_case_of_a_path_does_not_matter(path: str, covered: bool) -> None:
    change = CommitComparison(merge_base="", files=[{"filename": path}])  # type: ignore[arg-type]
    assert bool(find_protected(None, change, "", ["regbot.toml"])) is covered  # type: ignore[arg-type]
