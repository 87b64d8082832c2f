"""``regbot github`` as the workflows call it: events, the environment, exit codes, and its reference page."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regbot.cli import github as commands
from regbot.cli.app import app
from regbot.errors import UserError
from regbot.github.client import AwayError
from regbot.github.events import CommentEvent, read_event
from regbot.github.post import PostedResult
from regbot.github.refresh import RefreshPost
from support.gate_scene import STATIC, Scene

# Events


COMMENT = '"comment": {"user": {"login": "ann", "type": "User"}, "id": 2, "body": ""}'
NUMBER = f'{{"repository": {{"full_name": "acme/moe"}}, "action": "created", "issue": {{"number": 1}}, {COMMENT}}}'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not valid JSON"),
        ("[]", "no such event of GitHub"),
        ("null", "no such event of GitHub"),
        ('{"repository": {"full_name": 1}}', "no such event of GitHub"),
        (NUMBER.replace("acme", "eve"), "the event is of 'eve/moe'"),
        ('{"a": 1, "a": 2}', "appears twice"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "nested too deeply"),
        (NUMBER.replace("1", "true"), "issue.number"),
        (NUMBER.replace("1", "0"), "issue.number"),
        (NUMBER.replace("1", '"1"'), "issue.number"),
        (NUMBER.replace('"action": "created", ', ""), "action"),
        (NUMBER.replace(', "type": "User"', ""), "comment.user.type"),
    ],
)
def test_an_invalid_event_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "event.json"
    file.write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_event(file, "acme/moe", CommentEvent)


# The command


@pytest.fixture
def actions(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Set the environment of a job in a checkout of the default branch."""
    configure(scene, "version = 1\n")
    for name, value in {
        "GITHUB_TOKEN": scene.token,
        "GITHUB_REPOSITORY": "acme/moe",
        "GITHUB_API_URL": scene.hub.url,
        "GITHUB_EVENT_NAME": "issue_comment",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }.items():
        monkeypatch.setenv(name, value)
    return scene


def configure(scene: Scene, text: str) -> None:
    """Commit this regbot.toml to the default branch."""
    sha = scene.repo.commit({"regbot.toml": text})
    folder = scene.folder / "checkout"
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", str(scene.repo.git.path), str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "fetch", "-q", "origin"], check=True)
    subprocess.run(["git", "-C", str(folder), "reset", "-q", "--hard", sha], check=True)


def invoke(scene: Scene, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["github", *words, "--repo", str(scene.folder / "checkout")])
    return result.exit_code, result.output


def test_the_command_obeys_a_comment(actions: Scene, tmp_path: Path) -> None:
    event = actions.file(actions.commented(f"/regbot run {actions.sha}"))
    code, output = invoke(actions, "command", "--event", str(event))
    assert code == 0, output
    assert output.startswith("started: regbot-measure.yml was started on ")
    assert len(actions.started) == 1
    assert actions.sha in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "path"), [("perf/refs", "perf/refs/a/b.json"), ("./perf/", "PERF/a"), (".", "moe.py")]
)
def test_the_folder_of_stored_references_is_protected_wherever_it_is(actions: Scene, folder: str, path: str) -> None:
    configure(actions, f'version = 1\n[baselines]\nfolder = "{folder}"\n[github]\nprotected = []\n')
    actions.sha = actions.push({path: "{}\n"})
    event = actions.file(actions.commented(f"/regbot run {actions.sha}"))
    assert invoke(actions, "command", "--event", str(event))[1].startswith("refused: ")
    assert f"protected files: `{path}`" in actions.replies[0]


@pytest.mark.slow
def test_the_gate_obeys_a_label(actions: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", "pull_request_target")
    event = actions.file(actions.labelled())
    assert invoke(actions, "gate", "--event", str(event))[0] == 0
    assert len(actions.started) == 1


def test_the_gate_leaves_a_merge_group_alone_where_groups_are_not_timed(
    actions: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", "workflow_run")
    group = actions.repo.event_of("merge_group", number=actions.number)["merge_group"]
    branch = group["head_ref"].removeprefix("refs/heads/")
    run = actions.repo.workflow_run(STATIC, "merge_group", branch, group["head_sha"], status="queued", conclusion=None)
    event = actions.file(actions.repo.event_of("workflow_run", run=run, action="requested"))
    code, output = invoke(actions, "gate", "--event", str(event))
    assert (code, actions.started) == (0, [])
    assert "merge groups are not timed here" in output


def test_an_event_of_another_kind_is_refused(actions: Scene) -> None:
    event = actions.file(actions.labelled())
    code, output = invoke(actions, "gate", "--event", str(event))
    assert code == 2
    assert "is for the event pull_request_target, not for 'issue_comment'" in output


@pytest.mark.parametrize("name", ["GITHUB_TOKEN", "GITHUB_REPOSITORY"])
def test_a_variable_that_is_missing_is_named(actions: Scene, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event = actions.file(actions.commented(f"/regbot run {actions.sha}"))
    monkeypatch.delenv(name)
    code, output = invoke(actions, "command", "--event", str(event))
    assert code == 2
    assert f"{name} is not set" in output


def test_an_unreachable_github_has_its_own_exit_code(actions: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    event = actions.file(actions.commented(f"/regbot run {actions.sha}"))
    actions.hub.faults.down = True
    monkeypatch.setattr(commands, "_forge", lambda: actions.forge)
    code, output = invoke(actions, "command", "--event", str(event))
    assert code == AwayError.exit_code
    assert "Run this job again when GitHub answers" in output


def test_a_fault_of_the_judge_is_posted_and_has_its_own_exit_code(
    actions: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_RUN_ID", "5")
    posts = [PostedResult("INVALID", "INVALID: \x1b[2Jodd", "the text", (), "Traceback\nOops", 1, actions.sha, True)]
    monkeypatch.setattr("regbot.github.post.post", lambda *_: posts)
    event = actions.file(actions.repo.event_of("workflow_dispatch", workflow="regbot-post.yml", inputs={"change": "7"}))
    code, output = invoke(actions, "post", "--event", str(event))
    assert code == commands.INTERNAL_ERROR
    assert f"posted: #1 {actions.sha[:12]}: INVALID: odd\n" in output
    assert "| Traceback\n| Oops\n" in output
    assert (tmp_path / "summary.md").read_text() == "the text\n"


@pytest.mark.parametrize("event", [{"schedule": "0 3 * * *"}, {"repository": {"full_name": "acme/moe"}}])
def test_a_refresh_without_a_proposal_says_so(
    actions: Scene, event: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = actions.repo.git.branch("main")
    assert head is not None
    run = actions.repo.workflow_run(".github/workflows/regbot-refresh.yml", "schedule", "main", head)
    monkeypatch.setenv("GITHUB_RUN_ID", str(run.id))
    monkeypatch.setenv("GITHUB_SERVER_URL", actions.hub.server_url)
    code, output = invoke(actions, "refresh", "--event", str(actions.file(event)))
    assert code == 2
    assert "no node uploaded a proposal" in output


@pytest.mark.parametrize("unmeasured", [(), ("moe (cpu): main does not run",)])
def test_a_night_that_stores_nothing_fails_and_names_the_workloads(
    actions: Scene, monkeypatch: pytest.MonkeyPatch, unmeasured: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GITHUB_RUN_ID", "7")
    monkeypatch.setenv("GITHUB_SERVER_URL", actions.hub.server_url)
    monkeypatch.setattr("regbot.github.refresh.fetch_proposals", lambda *_: [])
    posted = RefreshPost(None, "told", "# a night", unmeasured)
    monkeypatch.setattr("regbot.github.refresh.post_refresh", lambda *_: posted)
    code, output = invoke(actions, "refresh", "--event", str(actions.file({"schedule": "17 2 * * *"})))
    assert code == (commands.UNMEASURED if unmeasured else 0)
    assert ("regbot: nothing is stored for moe (cpu): main does not run" in output) == bool(unmeasured)
