"""When a run is posted: once it has ended, whoever asks before that, and not where it had nothing to trace."""

from pathlib import Path

import pytest

from forge_cases import BOT, Bench
from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from github_fake.fixtures import hub as hub
from regbot.forge.client import ENDING_LOOKS, ENDING_S, Forge
from regbot.forge.metadata import Ignored
from regbot.forge.post import post
from timed_builder import noisy


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    return Bench.make(hub, tmp_path)


def unended(bench: Bench) -> tuple[int, FakeRun]:
    """A measurement whose last job asks for its post."""
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
    return post(Forge(token, bench.repo.full_name, bench.hub.url, nap), run.id, bench.checkout)


def test_a_measurement_that_is_about_to_end_is_waited_for(bench: Bench) -> None:
    number, run = unended(bench)
    (posted,) = posting(bench, run, 2)  # type: ignore[misc]
    assert (posted.number, posted.status) == (number, "PASS")
    assert bench.naps[:2] == [ENDING_S, ENDING_S]  # what follows keeps a distance between what is written
    assert bench.check(number).conclusion == "success"


def test_a_measurement_that_does_not_end_is_not_posted_and_not_waited_for_forever(bench: Bench) -> None:
    number, run = unended(bench)
    found = bench.post(run)
    assert isinstance(found, Ignored)
    assert "has not ended" in found.why
    assert bench.naps == [ENDING_S] * ENDING_LOOKS
    assert bench.check(number).status == "in_progress"


def test_a_measurement_that_is_posted_for_both_who_ask_is_said_once(bench: Bench) -> None:
    number, run = unended(bench)
    posting(bench, run, 1)
    first = bench.comment(number), bench.check(number)
    bench.post(run)
    assert (bench.comment(number), bench.check(number)) == first


def test_a_run_of_another_title_says_nothing_of_the_code(bench: Bench) -> None:
    number = bench.pull()
    bench.post(bench.static(number, bench.session(bench.head(number))))
    stands = bench.comment(number), bench.check(number).conclusion
    found = bench.post(bench.static(number, None, conclusion="skipped"))
    assert isinstance(found, Ignored)
    assert (bench.comment(number), bench.check(number).conclusion) == stands


def test_a_merge_group_that_was_not_traced_is_invalid_all_the_same(bench: Bench) -> None:
    number = bench.pull()
    event = bench.repo.event_of("merge_group", number=number)["merge_group"]
    branch = event["head_ref"].removeprefix("refs/heads/")
    given = {"event": "merge_group", "head_branch": branch, "head_sha": event["head_sha"], "conclusion": "skipped"}
    bench.post(bench.static(number, None, head_repository=bench.repo, **given))
    assert bench.check(number, event["head_sha"]).conclusion == "failure"
