"""Approved, started, and then another head by force before the measurement has ended: what was measured stays what it
is of, in the comment and in the check runs, whatever comes next."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forge_cases import TOML, Bench, zipped
from gate_scene import BOT, LABEL, Starting, client, token, workflow
from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from github_fake.fixtures import hub as hub
from regbot.config import GitHub
from regbot.forge.events import read_comment_event, read_pull_event
from regbot.forge.gate import Outcome, on_comment, on_pull
from regbot.forge.metadata import Ignored
from regbot.forge.shown import Shown
from timed_builder import noisy

SAME, SLOWER = noisy(1.0, 0.002), noisy(1.10, 0.002)


@dataclass
class Pushed:
    """A fork's pull request whose first head was approved by a command, and is being measured."""

    bench: Bench
    number: int
    old: str
    run: FakeRun

    def handle(self, event: dict[str, Any]) -> Outcome:
        file = self.bench.folder / "event.json"
        file.write_text(json.dumps(event))
        hub = self.bench.hub
        if "comment" in event:
            forge = client(hub, token(hub, "command"))
            return on_comment(forge, read_comment_event(file, "acme/moe"), GitHub())
        return on_pull(client(hub, token(hub, "gate")), read_pull_event(file, "acme/moe"), GitHub())

    def force(self, text: str) -> str:
        """The author puts another commit in the place of the head; GitHub tells the gate. Its id."""
        pull, before = self.bench.repo.pulls[self.number], self.bench.head(self.number)
        base = str(self.bench.repo.git.branch("main"))
        pull.head_repository.commit({"moe.py": text}, branch=pull.head, message="instead", parent=base)
        repo = self.bench.repo
        self.handle(repo.event_of("pull_request_target", action="synchronize", number=self.number, before=before))
        return pull.head_sha

    def ends(self, timed: Any = SAME) -> None:
        """The measurement of the old head ends, and is posted."""
        session = self.bench.session(self.old, timed=timed)
        self.run.artifact("regbot-session", zipped(session))
        self.run.status, self.run.conclusion, self.run.seconds = "completed", "success", 1e6
        self.bench.post(self.run)

    def conclusion(self, sha: str) -> list[str | None]:
        return [check.conclusion for check in self.bench.repo.check_runs(sha) if check.name == "regbot"]


@pytest.fixture
def pushed(hub: FakeGitHub, tmp_path: Path) -> Pushed:
    bench = Bench.make(hub, tmp_path)
    shipped = {f".github/workflows/regbot-{name}.yml": workflow(name) for name in ("measure", "bisect", "post")}
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


def test_a_verdict_on_what_was_pushed_away_is_stale_and_none_of_the_new_head(pushed: Pushed) -> None:
    bench, number = pushed.bench, pushed.number
    new = pushed.force("import os\n")
    assert new != pushed.old
    pushed.ends(SLOWER)
    body = bench.comment(number)
    shown = Shown.read(body)
    assert shown is not None
    assert (shown.stamp.head, shown.stamp.tier, shown.stamp.status) == (pushed.old, "measured", "FAIL")
    stale = body.partition("### ")[0]
    assert "**Stale:**" in stale
    assert f"`{pushed.old[:12]}`" in stale
    assert f"The head is `{new[:12]}` now" in stale
    assert pushed.conclusion(pushed.old) == ["failure"]
    assert pushed.conclusion(new) == []
    assert [comment.author for comment in bench.repo.comments(number)].count(BOT) == 1


def test_an_approval_of_what_was_pushed_away_lets_no_later_head_be_measured(pushed: Pushed) -> None:
    bench, number = pushed.bench, pushed.number
    new = pushed.force("import os\n")
    asked = bench.repo.comment(number, "bob", f"/regbot run {pushed.old}")
    assert pushed.handle(bench.repo.event_of("issue_comment", comment=asked)).did != "started"
    assert [dispatch.inputs["sha"] for dispatch in bench.repo.dispatched] == [pushed.old]
    claimed = bench.measured(number, bench.session(new, timed=SAME), nonce=pushed.run.title.split()[-1], sha=new)
    assert isinstance(bench.post(claimed), Ignored)
    assert pushed.conclusion(new) == []


def test_the_new_heads_own_trace_outlives_the_measurement_that_ends_late(pushed: Pushed) -> None:
    bench, number = pushed.bench, pushed.number
    new = pushed.force("import os\n")
    bench.post(bench.static(number, bench.session(new)))
    before = bench.comment(number)
    pushed.ends(SLOWER)
    shown = Shown.read(bench.comment(number))
    assert shown is not None
    assert (shown.stamp.head, shown.stamp.tier) == (new, "static")
    assert bench.comment(number) == before
    assert "**Stale:**" not in before
    assert pushed.conclusion(pushed.old) == ["failure"]
    assert pushed.conclusion(new) == ["neutral"]


def test_a_label_that_approved_what_was_pushed_away_is_taken_off(pushed: Pushed) -> None:
    pushed.bench.repo.label(pushed.number, "bob", LABEL)
    pushed.force("import os\n")
    assert pushed.bench.repo.labels(pushed.number) == []
    pushed.ends()
    assert pushed.conclusion(pushed.old) == ["success"]
