"""Unusable artifacts: the result is INVALID with a reason, and text of others is inert."""

import json

import pytest

from github_fake.fixtures import hub as hub
from regbot.github.artifact import MAX_ARCHIVE_BYTES
from regbot.github.post import PostedResult
from support.forge_cases import Bench, headline, lines_of, only, zipped
from support.forge_cases import bench as bench
from support.hostile import inert


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conclusion", "reason"),
    [("failure", "failed"), ("cancelled", "was cancelled"), ("timed_out", "ran into its time limit")],
)
def test_a_failed_job_is_invalid(bench: Bench, conclusion: str, reason: str) -> None:
    number = bench.pull()
    bench.approve(number)
    posted = only(bench.post(bench.measured(number, None, conclusion=conclusion)))
    assert posted.status == "INVALID"
    assert headline(bench.comment(number)) == f"### ⛔ INVALID: the job for this commit {reason}"
    assert (bench.check(number).status, bench.check(number).conclusion) == ("completed", "failure")
    assert f"/regbot run {bench.head(number)}" in bench.comment(number)


def test_an_artifact_with_too_many_bytes_is_not_read(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, None)
    run.artifact("regbot-session", b"x" * (MAX_ARCHIVE_BYTES + 1), size=10)
    assert "was not read" in only(bench.post(run)).text


def test_other_artifacts_are_left_alone_and_the_newest_counts(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, b"no zip")
    run.artifact("logs", b"y")
    run.artifact("regbot-session", zipped(bench.session(bench.head(number))))
    assert only(bench.post(run)).status == "PASS"


HOSTILE = "</details><img src=x onerror=alert(1)> @ann [x](http://evil) `|` \u202eabc \x1b[31m"


def hostile_archives(bench: Bench, number: int) -> dict[str, bytes]:
    lines = lines_of(bench.session(bench.head(number)))
    return {
        "no zip": b"PK nothing",
        "a named member": zipped(lines, HOSTILE[:30]),
        "no json": zipped([b"{" + HOSTILE.encode() + b"}\n"]),
        "a key too many": zipped([json.dumps({**json.loads(lines[0]), HOSTILE: 1}).encode() + b"\n"]),
    }


REFUSED = ["no zip", "a named member", "no json", "a key too many"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_artifact_is_reported_in_regbots_own_text(bench: Bench, name: str) -> None:
    number = bench.pull(fork="mallory")
    run = bench.static(number, hostile_archives(bench, number)[name])
    posted = only(bench.post(run))
    assert posted.status == "INVALID"
    text = bench.comment(number)
    assert "cannot be read" in headline(text)
    assert inert(text) == []
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert bench.check(number).conclusion == "failure"


def test_records_that_break_the_judge_are_invalid_and_logged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a hostile number")

    monkeypatch.setattr("regbot.github.post.judge", broken)
    number = bench.pull()
    posted = bench.post(bench.static(number, bench.session(bench.head(number))))
    assert isinstance(posted, PostedResult)
    assert posted.status == "INVALID"
    assert "ZeroDivisionError" in posted.fault
    assert "hostile number" not in bench.comment(number)
    assert bench.check(number).conclusion == "failure"
