"""INVALID measurements and expired artifacts: neither removes a verdict."""

import json
from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from regbot.github.approval import GateOutcome
from regbot.github.client import Forge
from regbot.github.events import CommentEvent, PullEvent, read_event
from regbot.github.gate import handle_comment, handle_pull
from regbot.github.metadata import IgnoredRun
from regbot.records.config import GitHub
from support.forge_cases import BOT, FALLBACK, MORE, OTHER_PROGRAM, SAME, Bench, headline, only
from support.gate_scene import retargeted, workflow

VOID_BANNER = "**A measurement of this commit gave no result:**"
CANCELLED = "the job for this commit was cancelled. The log is in [the run]("


class Gated(Bench):
    """Return a bench with the workflows that regbot-gate starts."""

    @property
    def gate(self) -> Forge:
        rights = {"actions": "write", "checks": "write", "contents": "read", "issues": "write"}
        return Forge(
            self.hub.token(BOT, **rights, pull_requests="write"), self.repo.full_name, self.hub.url, lambda _: None
        )

    def says(self, number: int, text: str, login: str = "ann") -> GateOutcome:
        """Write a comment and let regbot-gate handle it."""
        comment = self.repo.comment(number, login, text)
        event = self.repo.event_of("issue_comment", comment=comment)
        return handle_comment(self.gate, read_event(self.file(event), self.repo.full_name, CommentEvent), GitHub())

    def retarget(self, number: int, base: str) -> GateOutcome:
        event = retargeted(self.repo, number, base)
        return handle_pull(self.gate, read_event(self.file(event), self.repo.full_name, PullEvent), GitHub())

    def asked(self, number: int, login: str = "bob") -> str:
        """Request a measurement of the head and return its nonce."""
        assert self.says(number, f"/regbot run {self.head(number)}", login).effect == "started"
        assert self.check(number).status == "in_progress"
        return self.repo.dispatched[-1].inputs["nonce"]

    def cancelled(self, number: int) -> FakeRun:
        """Request a measurement and cancel it."""
        return self.measured(number, None, self.asked(number), conclusion="cancelled")

    def timed(self, number: int, timed: object = SAME, theirs: object = OTHER_PROGRAM) -> FakeRun:
        """Request a measurement and end it."""
        session = self.session(self.head(number), timed=timed, theirs=theirs)  # type: ignore[arg-type]
        return self.measured(number, session, self.asked(number))

    def file(self, event: object) -> Path:
        path = self.folder / "event.json"
        path.write_text(json.dumps(event))
        return path


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Gated:
    made = Gated.make(hub, tmp_path)
    assert isinstance(made, Gated)
    made.repo.commit({f".github/workflows/regbot-{name}.yml": workflow(name) for name in ("static", "measure", "post")})
    made.update()
    return made


def both(bench: Bench, number: int) -> str:
    """Return the text that comment and check run have in common."""
    text = bench.comment(number)
    assert str(bench.check(number).summary).strip() == text.strip()
    return text


# A measurement that comes to nothing


def test_a_sharding_regression_is_not_hidden_by_a_measurement_that_was_cancelled(bench: Gated) -> None:
    number = bench.pull()
    only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))))
    before = headline(bench.comment(number))
    run = bench.cancelled(number)
    for _ in range(2):
        posted = only(bench.post(run))
        assert (posted.status, posted.is_published) == ("INVALID", False)
        bench.update_head(number)
        text = both(bench, number)
        assert headline(text) == before
        assert before.startswith("### ❌ FAIL")
        assert text.count(VOID_BANNER) == 1
        assert CANCELLED in text
        check = bench.check(number)
        assert (check.status, check.conclusion) == ("completed", "failure")
        assert "FAIL: all-to-all replaced" in str(check.title)


def test_a_declaration_during_a_measurement_counts_in_the_kept_verdict(bench: Gated) -> None:
    number = bench.pull()
    assert only(bench.post(bench.timed(number, theirs=MORE))).status == "REVIEW"
    run = bench.cancelled(number)
    assert bench.says(number, f"/regbot accept {bench.head(number)}: counts are needed").effect == "noted"
    only(bench.post(run))
    bench.update_head(number)
    text = both(bench, number)
    assert headline(text) == "### ✅ PASS: accepted by `ann`"
    assert CANCELLED in text
    assert bench.check(number).conclusion == "success"


def against_soft(bench: Gated) -> tuple[int, FakeRun]:
    """Return a pull request into an unreviewed branch, with a measurement that passes."""
    number, soft = bench.pull(), bench.repo.commit({"soft.py": "1\n"}, "soft")
    bench.repo.commit({"moe.py": "x = 3\n"}, "topic", parent=soft)
    bench.repo.pulls[number].base = "soft"
    bench.repo.commit({"late.py": "1\n"})
    bench.update()
    session = bench.session(bench.head(number), base=soft, timed=SAME)
    run = bench.measured(number, session, bench.asked(number, "ann"))
    only(bench.post(run))
    assert bench.check(number).conclusion == "success"
    return number, run


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_verdict_against_another_base_is_not_restored(bench: Gated, when: str) -> None:
    number, _ = against_soft(bench)
    if when == "before":
        bench.retarget(number, "main")
    nonce = bench.asked(number, "ann")
    if when == "meanwhile":
        bench.retarget(number, "main")
    only(bench.post(bench.measured(number, None, nonce, conclusion="cancelled")))
    if when == "after":
        assert bench.check(number).conclusion == "success"
        bench.retarget(number, "main")
        bench.update_head(bench.repo.dispatched[-1].inputs["change"])
    assert headline(both(bench, number)).startswith("### ⛔ INVALID")
    assert bench.check(number).conclusion == "failure"


# An artifact that has expired


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["static", "measured"])
def test_a_verdict_with_an_expired_artifact_stays_unchanged(bench: Gated, tier: str) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number))) if tier == "static" else bench.timed(number)
    only(bench.post(run))
    check, text = bench.check(number), bench.comment(number)
    stands = (check.conclusion, check.title, check.summary)
    run.artifacts[0].expired = True
    assert isinstance(bench.post(run), IgnoredRun)
    check = bench.check(number)
    assert (check.conclusion, check.title, check.summary) == stands
    assert bench.comment(number) == text


def test_an_expired_verdict_against_another_base_does_not_stay(bench: Gated) -> None:
    number = bench.pull()
    run = bench.timed(number)
    only(bench.post(run))
    run.artifacts[0].expired = True
    bench.repo.git.set_ref("refs/heads/release", bench.head(number))
    bench.repo.pulls[number].base = "release"
    posted = only(bench.post(run))
    assert posted.status == "INVALID"
    assert "its artifact regbot-session has expired" in bench.comment(number)
    assert bench.check(number).conclusion == "failure"
