"""When a run is posted: once after its end, and not where it had nothing to trace."""

from github_fake import Run as FakeRun
from github_fake.fixtures import hub as hub
from regbot.github.client import END_POLL_INTERVAL_S, MAX_END_POLLS, Forge
from regbot.github.metadata import IgnoredRun
from regbot.github.post import PostedResult, post_run
from support.forge_cases import BOT, Bench
from support.forge_cases import bench as bench
from support.timed_builder import noisy


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


def test_a_merge_group_without_a_trace_is_invalid(bench: Bench) -> None:
    number = bench.pull()
    run = bench.group(number, theirs=None)
    run.conclusion = "skipped"
    bench.post(run)
    assert bench.check(number, run.head_sha).conclusion == "failure"
