"""The base of a pull request: who may have code run against it, what is changed since, and when it is another one."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from forge_cases import BOT, NONCE, Bench
from gate_scene import LABEL, POST, Scene, before_last_look, posted, retargeted, scene, workflow
from github_fake import FakeGitHub
from github_fake.fixtures import hub
from regbot.config import GitHub
from regbot.forge.approval import protected
from regbot.forge.client import Forge
from regbot.forge.events import read_pull_event
from regbot.forge.gate import on_pull
from regbot.forge.shown import Shown, Stamp
from regbot.forge.types import MAX_COMPARED, Comparison
from timed_builder import noisy

__all__ = ["hub", "scene"]
STALE = "**Stale:** what stands below was judged against another base than"


# It becomes another one


def test_a_verdict_against_another_base_is_marked_and_judged_again(scene: Scene) -> None:
    posted(scene, run=4711)
    scene.repo.commit({"moe.py": "0\n"}, "release|x")
    assert scene.pulled(scene.retargeted("release|x")).did == "stale"
    (reply,) = scene.replies
    assert f"{STALE} <code>release&#124;x</code>." in reply
    assert Shown.read(reply) == Shown(Stamp(scene.number, scene.sha, "static", 4711, 1, "REVIEW"), "the verdict")
    assert [(one.workflow, one.ref, one.inputs) for one in scene.started] == [(POST, "main", {"run": "4711"})]


@pytest.mark.parametrize("changes", [None, {}, {"title": {"from": "Slow"}}, {"body": {"from": None}}])
def test_another_title_or_text_asks_nothing_of_github(scene: Scene, changes: dict[str, Any] | None) -> None:
    posted(scene)
    event = scene.happened("edited") | ({} if changes is None else {"changes": changes})
    scene.hub.requests.clear()
    assert scene.pulled(event).did == "nothing"
    assert not scene.hub.requests


def test_the_gate_is_started_by_every_event_that_it_acts_on() -> None:
    types = YAML(typ="safe").load(workflow("gate"))["on"]["pull_request_target"]["types"]
    assert set(types) == {"opened", "synchronize", "reopened", "labeled", "edited"}


def test_another_base_before_the_first_verdict_is_left_alone(scene: Scene) -> None:
    scene.repo.commit({"moe.py": "0\n"}, "release")
    assert scene.pulled(scene.retargeted("release")).did == "nothing"
    assert not scene.started
    assert not scene.replies


def test_a_verdict_of_an_older_head_is_not_judged_again(scene: Scene) -> None:
    posted(scene)
    scene.push({"moe.py": "3\n"})
    scene.repo.commit({"moe.py": "0\n"}, "release")
    assert scene.pulled(scene.retargeted("release")).did == "stale"
    assert "**Stale:** what stands below is of" in scene.replies[0]
    assert not scene.started


def test_another_base_that_comes_again_after_it_was_judged_does_nothing(scene: Scene) -> None:
    scene.repo.commit({"moe.py": "0\n"}, "release")
    event = scene.retargeted("release")
    posted(scene, by=post_run(scene))
    assert scene.pulled(event).did == "nothing"
    assert not scene.started
    assert "Stale" not in scene.replies[0]


@pytest.mark.parametrize("gone", [False, True])
def test_a_verdict_that_was_posted_before_or_nobody_knows_when_is_judged_again(scene: Scene, gone: bool) -> None:
    posted(scene, by=post_run(scene))
    if gone:
        scene.repo.runs.clear()
    scene.repo.commit({"moe.py": "0\n"}, "release")
    assert scene.pulled(scene.retargeted("release")).did == "stale"
    assert len(scene.started) == 1


def test_a_stamp_that_somebody_wrote_into_the_comment_does_not_keep_a_verdict(scene: Scene) -> None:
    posted(scene, run=4711)
    scene.repo.commit({"moe.py": "0\n"}, "release")
    event = scene.retargeted("release")
    forged = Stamp(scene.number, scene.sha, "measured", 5, 1, "PASS", post_run(scene))
    (comment,) = scene.said(BOT)
    scene.repo.edit_comment(comment.id, Shown(forged, "fine").body())
    assert scene.pulled(event).did == "stale"
    assert [one.inputs for one in scene.started] == [{"run": "4711"}]


def test_a_head_that_is_being_measured_is_left_to_that(scene: Scene) -> None:
    posted(scene)
    scene.comment(f"/regbot run {scene.sha}")
    scene.repo.commit({"moe.py": "0\n"}, "release")
    scene.repo.dispatched.clear()
    assert scene.pulled(scene.retargeted("release")).did == "stale"
    assert f"{STALE} `release`." in scene.replies[0]
    assert not scene.started


def post_run(scene: Scene) -> int:
    """A run of regbot-post that begins now."""
    return scene.repo.workflow_run(POST, "workflow_run", "main", scene.base).id


@pytest.mark.parametrize("tier", ["static", "measured"])
def test_a_pass_against_a_soft_base_does_not_outlive_it(hub: FakeGitHub, tmp_path: Path, tier: str) -> None:
    bench = Bench.make(hub, tmp_path)
    main = bench.repo.commit({".github/workflows/regbot-post.yml": workflow("post")})
    bench.repo.commit({"soft.py": "1\n"}, "soft", parent=main)
    bench.repo.commit({"moe.py": "x = 2\n"}, "topic", parent=bench.repo.git.branch("soft"))
    bench.update()
    number = bench.repo.open_pull(head="topic", base="soft", author="ann")
    timed = noisy(1.0, 0.002) if tier == "measured" else None
    session = bench.session(bench.head(number), base=str(bench.repo.git.branch("soft")), timed=timed)
    bench.approve(number)
    run = bench.static(number, session) if tier == "static" else bench.measured(number, session, NONCE)
    if tier == "static":
        bench.repo.all_checks.clear()
    bench.post(run, by=bench.repo.workflow_run(POST, "workflow_run", "main", main).id)
    assert "PASS" in bench.comment(number)
    assert bench.check(number).conclusion != "failure"

    event = tmp_path / "event.json"
    event.write_text(json.dumps(retargeted(bench.repo, number, "main")))
    token = hub.token(BOT, actions="write", checks="write", contents="read", pull_requests="write")
    gate = Forge(token, "acme/moe", hub.url, sleep=lambda _: None)
    assert on_pull(gate, read_pull_event(event, "acme/moe"), GitHub()).did == "stale"
    assert f"{STALE} `main`." in bench.comment(number)
    (dispatch,) = bench.repo.dispatched
    assert dispatch.inputs == {"run": str(run.id)}
    bench.post(run, by=bench.repo.workflow_run(POST, "workflow_dispatch", "main", main).id)
    assert "INVALID" in bench.comment(number)
    assert "Stale" not in bench.comment(number)
    assert bench.check(number).conclusion == "failure"


# Its commit is none of the default branch


SOFT = 'version = 1\n[sandbox]\nwrite = ["/"]\n'
ANSWER = "The commit at which it left its base `soft` is none of `main`"


@pytest.fixture
def soft(scene: Scene) -> Scene:
    """Walt's branch has a configuration of its own, and a pull request is aimed at it."""
    base = scene.repo.commit({"regbot.toml": SOFT}, "soft")
    scene.sha = scene.push({"moe.py": "3\n"}, parent=base)
    scene.repo.pulls[scene.number].base = "soft"
    return scene


@pytest.mark.parametrize("verb", ["run", "more"])
def test_a_base_of_somebodys_own_needs_a_maintainer(soft: Scene, verb: str) -> None:
    line = f"/regbot {verb} {soft.sha}{' 8' if verb == 'more' else ''}"
    assert soft.comment(line, "walt").did == "refused"
    assert not soft.started
    assert not soft.repo.check_runs(soft.sha)
    assert ANSWER in soft.replies[0]
    assert f"role maintain can type this line:\n\n```text\n{line}\n" in soft.replies[0]
    assert soft.comment(line, "mia").did == "started"
    assert soft.started[0].inputs["base"] == soft.repo.git.branch("soft")


def test_a_label_does_not_approve_a_base_of_somebodys_own(soft: Scene) -> None:
    assert soft.pulled(soft.labelled("walt")).did == "refused"
    assert not soft.started
    assert soft.repo.labels(soft.number) == []
    assert ANSWER in soft.replies[0]
    assert soft.pulled(soft.labelled("mia")).did == "started"
    assert soft.repo.labels(soft.number) == [LABEL]


def test_a_branch_that_left_the_default_branch_earlier_is_no_base_of_somebodys_own(scene: Scene) -> None:
    scene.repo.commit({"regbot.toml": SOFT}, "soft")  # after the pull request's commit has left it
    scene.repo.commit({"other.py": "1\n"})
    scene.repo.pulls[scene.number].base = "soft"
    assert scene.comment(f"/regbot run {scene.sha}", "walt").did == "started"
    assert scene.started[0].inputs["base"] == scene.base


def test_what_was_merged_is_no_base_of_somebodys_own_any_more(soft: Scene) -> None:
    soft.repo.git.set_ref("refs/heads/main", soft.repo.git.branch("soft"))
    assert soft.comment(f"/regbot run {soft.sha}", "walt").did == "started"


def test_a_base_that_is_changed_meanwhile_is_not_what_is_run_against(scene: Scene) -> None:
    soft = scene.repo.commit({"regbot.toml": SOFT}, "soft")
    scene.sha = scene.push({"moe.py": "3\n"}, parent=soft)
    scene.repo.git.set_ref("refs/heads/other", scene.base)
    scene.repo.pulls[scene.number].base = "other"
    before_last_look(scene, lambda: scene.retargeted("soft"))
    scene.comment(f"/regbot run {scene.sha} with-protected-files", "mia")
    assert [one.inputs["base"] for one in scene.started] == [scene.base]


# What was changed since


@pytest.mark.parametrize("verb", ["run", "more", "bisect"])
def test_the_files_are_those_of_the_commit_and_not_of_a_head_in_between(scene: Scene, verb: str) -> None:
    harmless, evil = scene.sha, scene.push({".github/workflows/ci.yml": "on: push\n"})
    listing_under(scene, harmless, evil)
    line = f"/regbot bisect {scene.base}..{evil}" if verb == "bisect" else f"/regbot {verb} {evil}"
    assert scene.comment(line, "walt").did == "refused"
    assert "protected files: `.github/workflows/ci.yml`" in scene.replies[0]
    assert not scene.started


@pytest.mark.parametrize(("listed", "known"), [(0, True), (MAX_COMPARED - 1, True), (MAX_COMPARED, False)])
def test_as_many_files_as_github_lists_may_not_be_all(listed: int, known: bool) -> None:
    files = [{"filename": f"{n}.py"} for n in range(listed)]
    found = Comparison.of({"merge_base_commit": {"sha": "a" * 40}, "files": files}).files
    assert (found is not None) == known
    assert bool(protected(found, ["runners/**"])) != known


def test_files_that_github_does_not_list_are_unknown() -> None:
    assert Comparison.of({"merge_base_commit": {"sha": "a" * 40}}).files is None


def listing_under(scene: Scene, between: str, after: str) -> None:
    """Whenever files are listed the head is ``between`` for that moment, and then ``after`` again."""
    api = scene.forge._api
    get, pages = api.get, api.pages

    def under(real: Any) -> Any:
        def asked(path: str, *rest: Any, **more: Any) -> Any:
            if not ("/compare/" in path or path.endswith("/files")):
                return real(path, *rest, **more)
            scene.fork.git.set_ref("refs/heads/topic", between)
            found = real(path, *rest, **more)
            found = list(found) if path.endswith("/files") else found
            scene.fork.git.set_ref("refs/heads/topic", after)
            return found

        return asked

    api.get, api.pages = under(get), under(pages)  # type: ignore[method-assign]
