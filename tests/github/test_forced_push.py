"""A forced push after the approval and before the end of the measurement: the result keeps naming its own commit, in
the comment and in the check runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from github_fake.fixtures import hub as hub
from regbot.github.events import CommentEvent, PullEvent, read_event
from regbot.github.gate import GateOutcome, handle_comment, handle_pull
from regbot.github.metadata import IgnoredRun
from regbot.github.stamped_text import StampedText
from regbot.records.config import GitHub
from support.forge_cases import TOML, Bench, zipped
from support.gate_scene import BOT, Starting, client, token, workflow
from support.timed_builder import noisy

SAME, SLOWER = noisy(1.0, 0.002), noisy(1.10, 0.002)


@dataclass
class Pushed:
    """A fork's pull request with a running measurement of its first head, which a command approved."""

    bench: Bench
    number: int
    old: str
    run: FakeRun

    def handle(self, event: dict[str, Any]) -> GateOutcome:
        file = self.bench.folder / "event.json"
        file.write_text(json.dumps(event))
        hub = self.bench.hub
        if "comment" in event:
            forge = client(hub, token(hub, "command"))
            return handle_comment(forge, read_event(file, "acme/moe", CommentEvent), GitHub())
        return handle_pull(client(hub, token(hub, "gate")), read_event(file, "acme/moe", PullEvent), GitHub())

    def force(self, text: str) -> str:
        """Force-push another head, let the gate handle the event, and return the new commit."""
        pull, before = self.bench.repo.pulls[self.number], self.bench.head(self.number)
        base = str(self.bench.repo.git.branch("main"))
        pull.head_repository.commit({"moe.py": text}, branch=pull.head, message="instead", parent=base)
        repo = self.bench.repo
        self.handle(repo.event_of("pull_request_target", action="synchronize", number=self.number, before=before))
        assert repo.dispatched.pop().inputs == {"change": str(self.number)}
        self.bench.update_head(self.number)
        return pull.head_sha

    def ends(self, timed: Any = SAME) -> None:
        """End the measurement of the old head and post it."""
        session = self.bench.session(self.old, timed=timed)
        self.run.artifact("regbot-session", zipped(session))
        self.run.status, self.run.conclusion, self.run.seconds = "completed", "success", 1e6
        self.bench.post(self.run)

    def conclusion(self, sha: str) -> list[str | None]:
        check = self.bench.repo.shown_check(sha, "regbot")
        return [check.conclusion] if check else []


@pytest.fixture
def pushed(hub: FakeGitHub, tmp_path: Path) -> Pushed:
    bench = Bench.make(hub, tmp_path)
    shipped = {
        f".github/workflows/regbot-{name}.yml": workflow(name) for name in ("static", "measure", "bisect", "post")
    }
    bench.repo.commit({**shipped, "regbot.toml": TOML}, message="workflows")
    bench.update()
    bench.repo.dispatched = Starting(bench.repo)
    number = bench.pull(fork="mallory")
    made = Pushed(bench, number, bench.head(number), None)  # type: ignore[arg-type]
    bench.post(bench.static(number, bench.session(made.old)))
    comment = bench.repo.comment(number, "bob", f"/regbot run {made.old}")
    made.handle(bench.repo.event_of("issue_comment", comment=comment))
    (dispatch,) = bench.repo.dispatched
    assert dispatch.inputs["sha"] == made.old
    (made.run,) = [run for run in bench.repo.runs.values() if run.path.endswith("regbot-measure.yml")]
    assert made.conclusion(made.old) == [None]
    return made


def test_after_a_forced_push_the_old_verdict_is_stale(pushed: Pushed) -> None:
    bench, number = pushed.bench, pushed.number
    new = pushed.force("import os\n")
    assert new != pushed.old
    pushed.ends(SLOWER)
    body = bench.comment(number)
    stamped_text = StampedText.read(body)
    assert stamped_text is not None
    assert (stamped_text.stamp.head, stamped_text.stamp.tier, stamped_text.stamp.status) == (
        pushed.old,
        "measured",
        "FAIL",
    )
    stale = body.partition("### ")[0]
    assert "**Stale:**" in stale
    assert f"`{pushed.old[:12]}`" in stale
    assert f"The head is now `{new[:12]}`" in stale
    assert pushed.conclusion(pushed.old) == ["failure"]
    assert pushed.conclusion(new) == []
    assert [comment.author for comment in bench.repo.comments(number)].count(BOT) == 1


def test_after_a_forced_push_the_old_approval_is_void(pushed: Pushed) -> None:
    bench, number = pushed.bench, pushed.number
    new = pushed.force("import os\n")
    comment_id = bench.repo.comment(number, "bob", f"/regbot run {pushed.old}")
    assert pushed.handle(bench.repo.event_of("issue_comment", comment=comment_id)).effect != "started"
    assert [dispatch.inputs["sha"] for dispatch in bench.repo.dispatched] == [pushed.old]
    claimed = bench.measured(number, bench.session(new, timed=SAME), nonce=pushed.run.title.split()[-1], sha=new)
    assert isinstance(bench.post(claimed), IgnoredRun)
    assert pushed.conclusion(new) == []
