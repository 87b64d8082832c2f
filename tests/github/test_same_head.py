"""Two pull requests with one head: GitHub reads check runs by commit, and no verdict hides another."""

import pytest

from github_fake import CheckRun
from github_fake.fixtures import hub as hub
from regbot.github.stamped_text import StampedText
from support.forge_cases import FALLBACK, Bench, headline, only
from support.forge_cases import bench as bench

EXPECTED = "all-to-all replaced by gather and sum@ep@*: meant"


def twins(bench: Bench) -> tuple[int, int]:
    """Open pull requests from two branches with one head into one base."""
    first = bench.pull()
    bench.repo.git.set_ref("refs/heads/twin", bench.head(first))
    second = bench.repo.open_pull(head="twin", title="The same", author="bob")
    assert bench.head(first) == bench.head(second)
    return first, second


def checks(bench: Bench, *numbers: int) -> list[CheckRun]:
    """Return the check run of each pull request."""
    runs = {str(run.external_id).partition(":")[0]: run for run in bench.repo.check_runs(bench.head(numbers[0]))}
    return [runs[str(number)] for number in numbers]


def say(bench: Bench, number: int, passes: bool) -> None:
    """Post the verdict on one of them."""
    head = bench.head(number)
    only(bench.post(bench.static(number, bench.session(head) if passes else bench.session(head, theirs=FALLBACK))))


@pytest.mark.slow
@pytest.mark.parametrize("fails_first", [True, False])
def test_both_check_runs_have_the_stricter_conclusion_and_name_their_pull_request(
    bench: Bench, fails_first: bool
) -> None:
    passing, failing = twins(bench)
    for number in (failing, passing) if fails_first else (passing, failing):
        say(bench, number, number == passing)
    ours, theirs = checks(bench, passing, failing)
    assert (ours.conclusion, theirs.conclusion) == ("failure", "failure")
    assert str(ours.title).startswith(f"conclusion of #{failing} (FAIL): self-reported PASS: the sharding is unchanged")
    assert str(theirs.title).startswith("self-reported FAIL")
    assert f"**This is the verdict on #{passing}.**" in str(ours.summary)
    assert f"#{failing} (FAIL)" in str(ours.summary)
    assert f"**This is the verdict on #{failing}.**" in str(theirs.summary)
    assert f"#{passing} (PASS)" in str(theirs.summary)
    assert headline(str(ours.summary)).startswith("### ✅ PASS")
    assert headline(str(theirs.summary)).startswith("### ❌ FAIL")
    for number, check in ((passing, ours), (failing, theirs)):
        assert StampedText.read(bench.comment(number)) == StampedText.read(str(check.summary))
        assert "same head" not in bench.comment(number)


def test_a_changed_verdict_updates_the_other_check_run(bench: Bench) -> None:
    passing, failing = twins(bench)
    run = bench.static(failing, bench.session(bench.head(failing), theirs=FALLBACK))
    only(bench.post(run))
    say(bench, passing, True)
    bench.repo.comment(failing, "bob", f"/regbot expect {EXPECTED}")
    only(bench.post(run))
    ours, theirs = checks(bench, passing, failing)
    assert (ours.conclusion, theirs.conclusion) == ("neutral", "neutral")
    assert str(ours.title).startswith("self-reported PASS")
    assert f"#{failing} (PASS)" in str(ours.summary)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "pushed"])
def test_a_pull_request_with_another_head_has_no_effect(bench: Bench, how: str) -> None:
    passing, failing = twins(bench)
    say(bench, failing, False)
    if how == "closed":
        bench.repo.close(failing)
    else:
        bench.push(failing, "x = 9\n")
    say(bench, passing, True)
    (ours,) = checks(bench, passing)
    assert ours.conclusion == "neutral"
    assert "same head" not in str(ours.summary)


def test_a_waiting_check_run_is_left_to_its_measurement(bench: Bench) -> None:
    passing, measured = twins(bench)
    bench.approve(measured)
    say(bench, passing, True)
    ours, theirs = checks(bench, passing, measured)
    assert (ours.conclusion, theirs.status) == ("neutral", "in_progress")


@pytest.mark.slow
def test_a_second_post_of_either_changes_nothing(bench: Bench) -> None:
    passing, failing = twins(bench)
    runs = [bench.static(passing, bench.session(bench.head(passing)))]
    runs.append(bench.static(failing, bench.session(bench.head(failing), theirs=FALLBACK)))
    for run in runs:
        bench.post(run)
    before = [(run.title, run.summary, run.conclusion) for run in checks(bench, passing, failing)]
    bench.hub.requests.clear()
    for run in runs:
        bench.post(run)
    assert [(run.title, run.summary, run.conclusion) for run in checks(bench, passing, failing)] == before
    assert not [request for request in bench.hub.requests if request[0] in ("POST", "PATCH")]
