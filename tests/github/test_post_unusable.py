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


def test_an_artifact_that_claims_or_has_too_many_bytes_is_not_read(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, None)
    run.artifact("regbot-session", b"x", size=10**9)
    assert "was not read" in only(bench.post(run)).text
    assert not any(path.startswith("/artifacts/") for _, path, _ in bench.hub.requests)
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
    header = json.loads(lines[0])
    return {
        "no zip": b"PK nothing",
        "another member": zipped(lines, "../../etc/passwd"),
        "a named member": zipped(lines, HOSTILE[:30]),
        "nothing": zipped([]),
        "cut off": zipped([*lines[:-1], lines[-1][:-5]]),
        "no json": zipped([b"{" + HOSTILE.encode() + b"}\n"]),
        "nan": zipped([lines[0], lines[1].replace(b'"wall_s":1.0', b'"wall_s":NaN')]),
        "a key twice": zipped([lines[0].replace(b"{", b'{"regbot":"1","regbot":"2",', 1)]),
        "a key too many": zipped([json.dumps({**header, HOSTILE: 1}).encode() + b"\n"]),
        "another schema": zipped([lines[0].replace(b"regbot/session@1", b"regbot/session@9")]),
        "deep": zipped([b"[" * 100_000 + b"\n"]),
        "a number too long": zipped([b'{"seed":' + b"9" * 5000 + b"}\n"]),
    }


REFUSED = [
    "no zip",
    "another member",
    "a named member",
    "nothing",
    "cut off",
    "no json",
    "nan",
    "a key twice",
    "a key too many",
    "another schema",
    "deep",
    "a number too long",
]


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
