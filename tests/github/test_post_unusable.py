"""Unusable artifacts: the result is INVALID with a reason, and text of others is inert."""

import pytest

from github_fake.fixtures import hub as hub
from regbot.github.artifact import MAX_ARCHIVE_BYTES
from regbot.github.post import PostedResult
from support.forge_cases import Bench, headline, only, zipped
from support.forge_cases import bench as bench


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conclusion", "reason"),
    [("failure", "failed"), ("cancelled", "was cancelled"), ("timed_out", "ran into its time limit")],
)
def test_a_failed_job_is_invalid(bench: Bench, conclusion: str, reason: str) -> None:
    number = bench.pull()
    posted = bench.judged(number, None, conclusion=conclusion)
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
