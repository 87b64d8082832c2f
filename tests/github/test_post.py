"""From a workflow run that ended to the comment and the check run, on the fake GitHub."""

import json
from pathlib import Path

import pytest

from github_fake import Run as FakeRun
from regbot.errors import UserError
from regbot.github.artifact import MAX_ARCHIVE_BYTES
from regbot.github.client import END_POLL_INTERVAL_S, MAX_END_POLLS, AwayError, Forge
from regbot.github.metadata import IgnoredRun, PostRequest, read_request
from regbot.github.post import PostedResult, post_run
from support.forge_cases import (
    BOT,
    FALLBACK,
    NONCE,
    SAME,
    SHA,
    SLOWER,
    TOML,
    Bench,
    headline,
    only,
    zipped,
)
from support.timed_builder import noisy

# What is shown


def test_a_static_result_of_a_fork_is_marked_as_self_reported(bench: Bench) -> None:
    number = bench.pull(fork="mallory")
    run = bench.static(number, bench.session(bench.head(number)))
    posted = only(bench.post(run))
    assert posted.is_published
    text = bench.comment(number)
    assert text.startswith(f'<!-- regbot:verdict {{"pr":{number},"head":"{bench.head(number)}","tier":"static"')
    assert headline(text).startswith("### ✅ PASS: the sharding is unchanged")
    assert "**Self-reported:**" in text
    assert f"/regbot run {bench.head(number)}" in text
    check = bench.check(number)
    assert (check.status, check.conclusion) == ("completed", "neutral")
    assert str(check.title).startswith("self-reported PASS: the sharding is unchanged")
    assert check.external_id == f"{number}:{bench.head(number)}:static"


def test_the_default_branchs_github_table_applies_even_if_the_base_is_older(bench: Bench) -> None:
    number = bench.pull()
    table = '[github]\nconclusions = {FAIL = "action_required"}\n'
    bench.repo.commit({"regbot.toml": TOML + table})
    bench.update()
    only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))))
    assert bench.check(number).conclusion == "action_required"


@pytest.mark.parametrize("title", ["regbot-static 77", "regbot-static 2", "A change"])
def test_a_run_whose_title_names_a_pull_request_of_another_branch_is_not_posted(bench: Bench, title: str) -> None:
    number, other = bench.pull(), bench.pull("other", "x = 5\n")
    assert (number, other) == (1, 2)
    assert isinstance(bench.post(bench.static(number, bench.session(bench.head(number)), title=title)), IgnoredRun)
    assert bench.repo.comments(number) == bench.repo.comments(other) == []


# Whose run it is


def test_a_run_of_another_workflow_event_or_branch_is_not_posted(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    session = bench.session(bench.head(number))
    runs = [
        bench.static(number, session, path=".github/workflows/evil.yml"),
        bench.static(number, session, path=".github/workflows/regbot-static.yml@evil.yml"),
        bench.static(number, session, event="push"),
        bench.static(number, session, event="workflow_dispatch"),
        bench.static(number, session, status="in_progress", conclusion=None),
        bench.static(number, session, conclusion="action_required"),
        bench.measured(number, session, event="pull_request"),
        bench.measured(number, session, head_branch="topic"),
        bench.measured(number, session, title=f"regbot {number} {bench.head(number)}"),
        bench.measured(
            number, session, title=f"regbot {number} {bench.head(number)} {bench.merge_base(number)} {NONCE} more"
        ),
        bench.measured(number, session, head_repository=bench.repo.fork("eve")),
        bench.static(number, session, event="merge_group", head_branch="gh-readonly-queue"),
    ]
    for run in runs:
        assert isinstance(bench.post(run), IgnoredRun), run
    assert bench.repo.comments(number) == []
    assert bench.check(number).status == "in_progress"


def test_a_measurement_that_nobody_approved_is_not_posted(bench: Bench) -> None:
    number = bench.pull()
    run = bench.measured(number, bench.session(bench.head(number), timed=SAME))
    assert isinstance(bench.post(run), IgnoredRun)
    assert bench.repo.comments(number) == []


def test_a_measurement_of_a_tag_named_like_the_default_branch_is_not_posted(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    evil = bench.repo.commit({".github/workflows/regbot-measure.yml": "jobs: {}\n"}, branch="evil")
    run = bench.measured(number, bench.session(bench.head(number), timed=SAME), head_sha=evil)
    assert isinstance(bench.post(run), IgnoredRun)
    assert bench.check(number).status == "in_progress"


def test_a_measurement_is_superseded_by_a_later_request(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    first = bench.measured(number, bench.session(bench.head(number), timed=SLOWER))
    bench.approve(number, "f" * 16)
    assert isinstance(bench.post(first), IgnoredRun)
    assert bench.check(number).status == "in_progress"


def test_the_artifact_names_no_pull_request_and_no_commit(bench: Bench) -> None:
    """Mallory's job uploads a valid session of ann's commit: it is not posted there, and is INVALID where it ran."""
    ann, mallory = bench.pull(), bench.pull(fork="mallory", text="evil = 1\n")
    run = bench.static(mallory, bench.session(bench.head(ann)))
    posted = only(bench.post(run))
    assert (posted.number, posted.status) == (mallory, "INVALID")
    assert "its head is" in bench.comment(mallory)
    assert bench.repo.comments(ann) == []
    assert bench.repo.check_runs(bench.head(ann)) == []


# Events


def test_the_request_is_read_from_each_event_and_nowhere_else(bench: Bench, tmp_path: Path) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    file = tmp_path / "event.json"

    def dispatched(inputs: dict[str, str]) -> dict[str, object]:
        return bench.repo.event_of("workflow_dispatch", workflow="regbot-post.yml", inputs=inputs)

    for event, request in (
        (bench.repo.event_of("workflow_run", run=run), PostRequest(str(number), run.id)),
        (dispatched({"change": SHA, "run": "7"}), PostRequest(SHA, 7)),
        (dispatched({"change": "3", "run": ""}), PostRequest("3", None)),
    ):
        file.write_text(json.dumps(event))
        assert read_request(file, 5) == request
    inputs = {"pr": "1", "good": "a", "bad": "b", "nonce": NONCE}
    file.write_text(json.dumps(bench.repo.event_of("workflow_dispatch", workflow="regbot-bisect.yml", inputs=inputs)))
    assert read_request(file, 5) == PostRequest("", 5)
    bad_inputs = ({"change": "7; rm"}, {"change": "7", "run": "7; rm"}, None, {})
    for bad in ({}, [], {"workflow_run": {"id": True}}, *({"inputs": given} for given in bad_inputs)):
        file.write_text(json.dumps(bad))
        with pytest.raises(UserError, match=r"names no|no such event"):
            read_request(file)


def test_a_job_also_does_the_work_of_cancelled_jobs(bench: Bench) -> None:
    number = bench.pull()
    bench.static(number, None, conclusion="skipped")
    bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))
    bench.static(number, bench.session(bench.head(number)), title="regbot-static 77")
    bench.static(number, bench.session(bench.head(number)), head_repository=bench.repo.fork("eve"))
    (posted,) = (only(result) for result in bench.update_head(number))
    assert (posted.status, bench.check(number).conclusion) == ("FAIL", "failure")
    bench.approve(number)
    bench.measured(number, bench.session(bench.head(number), timed=SLOWER), nonce="f" * 16)
    bench.measured(number, bench.session(bench.head(number), timed=SAME))
    bench.update_head(number)
    assert '"tier":"measured"' in bench.comment(number)
    assert bench.check(number).conclusion == "success"
    before = [request for request in bench.hub.requests if request[0] != "GET"]
    bench.update_head(number)
    bench.repo.runs.clear()
    bench.update_head(number)
    assert [request for request in bench.hub.requests if request[0] != "GET"] == before


def test_repeated_or_reordered_events_end_in_the_same_state(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    first = bench.static(number, bench.session(old, theirs=FALLBACK))
    new = bench.push(number, "x = 3\n")
    second = bench.static(number, bench.session(new))
    rerun = bench.static(number, bench.session(new), attempt=2)
    rerun.id = second.id + 10**6
    bench.repo.runs[rerun.id] = rerun
    for run in (rerun, second, first, rerun, first, second, second):
        bench.post(run)
    text = bench.comment(number)
    assert f'"head":"{new}"' in text
    assert '"attempt":2' in text
    assert "Stale" not in text
    assert bench.check(number, new).conclusion == "neutral"


def test_a_trace_cancelled_for_a_newer_head_keeps_the_present_verdict(bench: Bench) -> None:
    number = bench.pull()
    only(bench.post(bench.static(number, bench.session(bench.head(number)))))
    stands = bench.comment(number)
    bench.push(number, "x = 3\n")
    given_up = bench.static(number, None, conclusion="cancelled")
    bench.push(number, "x = 4\n")
    assert isinstance(bench.post(given_up), IgnoredRun)
    assert bench.comment(number) == stands


def test_a_pull_request_that_was_closed_gets_no_static_result(bench: Bench) -> None:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number)))
    bench.repo.close(number)
    assert isinstance(bench.post(run), IgnoredRun)


def test_a_measurement_that_ends_after_the_merge_ends_its_check(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    run = bench.measured(number, bench.session(bench.head(number), timed=SAME))
    bench.repo.close(number)
    assert only(bench.post(run)).status == "PASS"
    assert bench.check(number).status == "completed"


# A comment of ours that somebody has edited


@pytest.mark.slow
def test_a_comment_that_claims_a_measurement_turns_no_check_green(bench: Bench) -> None:
    """The claims are of an older measurement, of one of another commit, and of none."""
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))
    only(bench.post(run))
    text = bench.comment(number)
    fine = bench.measured(number, bench.session(bench.head(number), timed=SAME))
    other = bench.pull("other", "x = 9\n")
    bench.approve(other)
    theirs = bench.measured(other, bench.session(bench.head(other), timed=SAME))
    only(bench.post(theirs))
    for claimed in (fine.id, theirs.id, run.id, 10**9, 2**63, 0):
        ((comment, _),) = [(comment, comment.id) for comment in bench.repo.comments(number)]
        stamp = text.splitlines()[0].replace("static", "measured").replace(str(run.id), str(claimed))
        bench.repo.edit_comment(comment.id, stamp.replace("FAIL", "PASS") + "\n### ✅ PASS: trust me\n")
        assert only(bench.post(run)).is_published
        assert bench.comment(number) == text
        assert bench.check(number).conclusion == "failure"
        assert "trust me" not in str(bench.check(number).summary)


# A bad day


def test_github_that_is_down_for_an_hour_leaves_nothing_half_done_and_a_rerun_completes(bench: Bench) -> None:
    number = bench.pull()
    bench.approve(number)
    run = bench.measured(number, bench.session(bench.head(number), timed=SLOWER))
    for end in ("*/check-runs/*", "*/comments"):  # goes down while the check run, or the comment, is written
        bench.hub.faults.next("503-after", "*", end, times=1000)
        with pytest.raises(AwayError, match="posts nothing twice"):
            bench.post(run)
        bench.hub.faults.stop()
    assert only(bench.post(run)).status == "FAIL"
    assert bench.check(number).conclusion == "failure"
    assert "slower" in bench.comment(number)


# When a run is posted


def unended(bench: Bench) -> tuple[int, FakeRun]:
    """Start a measurement whose last job starts its post."""
    number = bench.pull()
    bench.approve(number)
    session = bench.session(bench.head(number), timed=noisy(1.0, 0.002))
    return number, bench.measured(number, session, status="in_progress", conclusion=None)


def posting(bench: Bench, run: FakeRun, ends_after: int) -> object:
    """Post ``run``, which ends during the nap ``ends_after``."""

    def nap(seconds: float) -> None:
        bench.naps.append(seconds)
        if len(bench.naps) == ends_after:
            run.status, run.conclusion = "completed", "success"

    token = bench.hub.token(BOT, actions="read", checks="write", pull_requests="write", contents="read")
    return post_run(Forge(token, bench.repo.full_name, bench.hub.url, nap), run.id, bench.checkout)


def test_the_post_waits_for_a_measurement_that_is_about_to_end(bench: Bench) -> None:
    number, run = unended(bench)
    posted = posting(bench, run, 2)
    assert isinstance(posted, PostedResult)
    assert (posted.number, posted.status) == (number, "PASS")
    assert bench.naps[:2] == [
        END_POLL_INTERVAL_S,
        END_POLL_INTERVAL_S,
    ]  # what follows keeps a distance between what is written
    assert bench.check(number).conclusion == "success"


def test_a_measurement_that_does_not_end_is_not_posted_after_a_limited_wait(bench: Bench) -> None:
    number, run = unended(bench)
    ignored = bench.post(run)
    assert isinstance(ignored, IgnoredRun)
    assert "has not ended" in ignored.reason
    assert bench.naps == [END_POLL_INTERVAL_S] * MAX_END_POLLS
    assert bench.check(number).status == "in_progress"


def test_a_run_for_a_title_change_has_no_result(bench: Bench) -> None:
    number = bench.pull()
    bench.post(bench.static(number, bench.session(bench.head(number))))
    stands = bench.comment(number), bench.check(number).conclusion
    ignored = bench.post(bench.static(number, None, conclusion="skipped"))
    assert isinstance(ignored, IgnoredRun)
    assert (bench.comment(number), bench.check(number).conclusion) == stands


def test_a_merge_group_without_a_trace_is_invalid(bench: Bench) -> None:
    number = bench.pull()
    run = bench.group(number, theirs=None)
    run.conclusion = "skipped"
    bench.post(run)
    assert bench.check(number, run.head_sha).conclusion == "failure"


# Unusable artifacts


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
    run.artifact("regbot-session", b"x" * (MAX_ARCHIVE_BYTES + 1))
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
