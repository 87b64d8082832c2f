"""The base of a pull request: the role it needs, the files changed since, and a changed base."""

import json
from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub
from regbot.github.client import Forge
from regbot.github.events import PullEvent, read_event
from regbot.github.gate import handle_pull
from regbot.records.config import GitHub
from support.forge_cases import BOT, FALLBACK, NONCE, Bench, only
from support.gate_scene import LABEL, POST, Scene, before_last_look, posted, retargeted, workflow
from support.timed_builder import noisy

# It becomes another one


@pytest.mark.parametrize("verdict", [True, False])
def test_after_a_base_change_the_head_is_judged_again(scene: Scene, verdict: bool) -> None:
    if verdict:
        posted(scene)
    scene.repo.commit({"moe.py": "0\n"}, "release|x")
    assert scene.pulled(retargeted(scene.repo, scene.number, "release|x")).effect == "stale"
    assert [(dispatch.workflow, dispatch.ref, dispatch.inputs) for dispatch in scene.started] == [
        (POST, "main", {"change": str(scene.number)})
    ]


@pytest.mark.parametrize("changes", [None, {}, {"title": {"from": "Slow"}}, {"body": {"from": None}}])
def test_a_changed_title_or_text_causes_no_request(scene: Scene, changes: dict[str, Any] | None) -> None:
    posted(scene)
    event = scene.happened("edited") | ({} if changes is None else {"changes": changes})
    scene.hub.requests.clear()
    assert scene.pulled(event).effect == "nothing"
    assert not scene.hub.requests


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["static", "measured"])
def test_a_pass_against_a_soft_base_ends_with_that_base(hub: FakeGitHub, tmp_path: Path, tier: str) -> None:
    bench = Bench.make(hub, tmp_path)
    main = bench.repo.commit({POST: workflow("post")})
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
    bench.post(run)
    assert "PASS" in bench.comment(number)
    assert bench.check(number).conclusion != "failure"

    event = tmp_path / "event.json"
    event.write_text(json.dumps(retargeted(bench.repo, number, "main")))
    token = hub.token(BOT, actions="write", checks="write", contents="read", pull_requests="write")
    gate = Forge(token, "acme/moe", hub.url, sleep=lambda _: None)
    assert handle_pull(gate, read_event(event, "acme/moe", PullEvent), GitHub()).effect == "stale"
    (dispatch,) = bench.repo.dispatched
    bench.update_head(dispatch.inputs["change"])
    assert "INVALID" in bench.comment(number)
    assert "Stale" not in bench.comment(number)
    assert bench.check(number).conclusion == "failure"


@pytest.fixture
def softened(bench: Bench) -> tuple[Bench, int]:
    """A pull request into a branch that is not main, and a bench with its base commit."""
    main = bench.repo.git.branch("main")
    bench.repo.commit({"soft.py": "1\n"}, "soft", parent=main)
    bench.repo.commit({"moe.py": "x = 2\n"}, "topic", parent=bench.repo.git.branch("soft"))
    bench.update()
    return bench, bench.repo.open_pull(head="topic", base="soft", author="ann")


def test_a_measured_pass_against_a_soft_base_does_not_outrank_a_verdict_against_another_base(
    softened: tuple[Bench, int],
) -> None:
    bench, number = softened
    bench.approve(number)
    timed = bench.session(bench.head(number), base=bench.merge_base(number), timed=noisy(1.0, 0.002))
    bench.post(bench.measured(number, timed))
    assert "PASS" in bench.comment(number)
    retargeted(bench.repo, number, "main")
    bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK)))
    assert "FAIL" in bench.comment(number).partition("\n\n")[0]
    assert bench.check(number).conclusion == "failure"


def test_a_measurement_against_another_base_than_its_title_names_is_invalid(softened: tuple[Bench, int]) -> None:
    bench, number = softened
    bench.approve(number)
    session = bench.session(bench.head(number), base=bench.merge_base(number), timed=noisy(1.0, 0.002))
    title = f"regbot {number} {bench.head(number)} {bench.repo.git.branch('main')} {NONCE}"
    posted_result = only(bench.post(bench.measured(number, session, title=title)))
    assert posted_result.status == "INVALID"
    assert "the commit was measured against" in posted_result.text


# Its commit is none of the default branch


SOFT = 'version = 1\n[sandbox]\nwrite = ["/"]\n'
ANSWER = "The merge base of this pull request and its base branch `soft` is not in `main`"


@pytest.fixture
def soft(scene: Scene) -> Scene:
    """A pull request into Walt's branch, which has a configuration of its own."""
    base = scene.repo.commit({"regbot.toml": SOFT}, "soft")
    scene.sha = scene.push({"moe.py": "3\n"}, parent=base)
    scene.repo.pulls[scene.number].base = "soft"
    return scene


@pytest.mark.parametrize("verb", ["run", "more"])
def test_an_unreviewed_base_needs_a_maintainer(soft: Scene, verb: str) -> None:
    line = f"/regbot {verb} {soft.sha}{' 8' if verb == 'more' else ''}"
    assert soft.comment(line, "walt").effect == "refused"
    assert not soft.started
    assert not soft.repo.check_runs(soft.sha)
    assert ANSWER in soft.replies[0]
    assert f"role `maintain` can type this line:\n\n```text\n{line}\n" in soft.replies[0]
    assert soft.comment(line, "mia").effect == "started"
    assert soft.started[0].inputs["base"] == soft.repo.git.branch("soft")


def test_a_label_does_not_approve_an_unreviewed_base(soft: Scene) -> None:
    assert soft.pulled(soft.labelled("walt")).effect == "refused"
    assert not soft.started
    assert soft.repo.labels(soft.number) == []
    assert ANSWER in soft.replies[0]
    assert soft.pulled(soft.labelled("mia")).effect == "started"
    assert soft.repo.labels(soft.number) == [LABEL]


def test_a_branch_point_in_the_default_branch_is_a_reviewed_base(scene: Scene) -> None:
    scene.repo.commit({"regbot.toml": SOFT}, "soft")  # after the pull request's commit has left it
    scene.repo.commit({"other.py": "1\n"})
    scene.repo.pulls[scene.number].base = "soft"
    assert scene.comment(f"/regbot run {scene.sha}", "walt").effect == "started"
    assert scene.started[0].inputs["base"] == scene.base


def test_a_base_that_changes_meanwhile_is_not_used(scene: Scene) -> None:
    soft = scene.repo.commit({"regbot.toml": SOFT}, "soft")
    scene.sha = scene.push({"moe.py": "3\n"}, parent=soft)
    scene.repo.git.set_ref("refs/heads/other", scene.base)
    scene.repo.pulls[scene.number].base = "other"
    before_last_look(scene, lambda: retargeted(scene.repo, scene.number, "soft"))
    scene.comment(f"/regbot run {scene.sha} with-protected-files", "mia")
    assert [dispatch.inputs["base"] for dispatch in scene.started] == [scene.base]


# What was changed since


@pytest.mark.parametrize("verb", ["run", "more", "bisect"])
def test_the_changed_files_are_those_of_the_approved_commit(scene: Scene, verb: str) -> None:
    harmless, evil = scene.sha, scene.push({".github/workflows/ci.yml": "on: push\n"})
    listing_under(scene, harmless, evil)
    line = f"/regbot bisect {scene.base}..{evil}" if verb == "bisect" else f"/regbot {verb} {evil}"
    assert scene.comment(line, "walt").effect == "refused"
    assert "protected files: `.github/workflows/ci.yml`" in scene.replies[0]
    assert not scene.started


def listing_under(scene: Scene, between: str, after: str) -> None:
    """Make the head ``between`` while files are listed, and then ``after`` again."""
    api = scene.forge._api
    get, pages = api.get, api.pages

    def under(real: Any) -> Any:
        def request(path: str, *rest: Any, **more: Any) -> Any:
            if not ("/compare/" in path or path.endswith("/files")):
                return real(path, *rest, **more)
            scene.fork.git.set_ref("refs/heads/topic", between)
            answer = real(path, *rest, **more)
            answer = list(answer) if path.endswith("/files") else answer
            scene.fork.git.set_ref("refs/heads/topic", after)
            return answer

        return request

    api.get, api.pages = under(get), under(pages)  # type: ignore[method-assign]
