"""The comment and the check run: created once, and equal to the strongest result whatever the order of posts."""

import pytest

from regbot.github import checks
from regbot.github.client import Forge
from regbot.github.publication import publish
from regbot.github.types import NewCheck
from regbot.records.config import GitHub
from regbot.records.verdict import Status
from support.forge_cases import NONCE, Bench, build_text, result

# One comment, one check run


def test_a_deleted_comment_is_made_again(bench: Bench) -> None:
    number = bench.pull()
    posted = result(build_text(number, bench.head(number)))
    publish(bench.forge, posted, GitHub())
    bench.repo.all_comments.clear()
    publish(bench.forge, posted, GitHub())
    assert len(bench.repo.comments(number)) == 1


def test_the_comment_is_recognized_only_by_its_author(bench: Bench) -> None:
    number = bench.pull()
    forged = build_text(number, bench.head(number), 99, "measured", text="### ✅ PASS: trust me\n").body()
    bench.repo.comment(number, "mallory", forged)
    for run in (1, 2):
        publish(bench.forge, result(build_text(number, bench.head(number), run, status="FAIL")), GitHub())
        assert f'"run":{run}' in bench.comment(number)
    assert bench.repo.comments(number)[0].body == forged


def test_a_newer_check_run_of_a_job_called_regbot_is_answered_by_a_new_invalid_one(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    own_result = result(build_text(number, sha))
    publish(bench.forge, own_result, GitHub())
    assert bench.check(number).conclusion == "neutral"
    bench.forge.create_check(NewCheck("regbot", sha, "57f0d1c2-a-job", "completed", "success", "regbot", "s"))
    for _ in range(2):
        publish(bench.forge, own_result, GitHub())
        check = bench.check(number)
        assert (check.external_id, check.conclusion) == (f"{number}:{sha}:static", "failure")
        assert check.title == "INVALID, a job is also called regbot: PASS: told"
        assert "Rename that job" in str(check.summary)
    assert len(bench.repo.check_runs(sha)) == 3
    assert "INVALID" not in bench.comment(number)


def test_a_waiting_check_run_is_created_again_when_that_of_a_job_called_regbot_hides_it(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    bench.approve(number)
    bench.forge.create_check(NewCheck("regbot", sha, "57f0d1c2-a-job", "completed", "success", "regbot", "s"))
    for _ in range(2):
        publish(bench.forge, result(build_text(number, sha)), GitHub())
        check = bench.check(number)
        assert (check.external_id, check.status) == (f"{number}:{sha}:{NONCE}", "in_progress")
        assert (check.title, check.summary) == ("Measuring", "…")
    assert len(bench.repo.check_runs(sha)) == 3
    publish(bench.forge, result(build_text(number, sha, 2, "measured"), NONCE), GitHub())
    for _ in range(2):
        check = bench.check(number)
        assert (check.status, check.conclusion) == ("completed", "failure")
        publish(bench.forge, result(build_text(number, sha, 3)), GitHub())


def test_a_check_run_called_regbot_of_another_app_changes_nothing(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    other = Forge(bench.hub.token("other[bot]", checks="write"), bench.repo.full_name, bench.hub.url, lambda _: None)
    other.create_check(NewCheck("regbot", sha, "x", "completed", "success", "regbot", "s"))
    publish(bench.forge, result(build_text(number, sha)), GitHub())
    assert bench.check(number).conclusion == "neutral"


# Conclusions


def test_a_self_reported_verdict_gets_the_stricter_of_two_conclusions() -> None:
    def conclusion(status: Status, **table: object) -> str:
        github = GitHub.model_validate(table)
        return checks.conclude(status, github, checks.get_mildest_conclusion(github, "static", 1))

    for level in ("success", "neutral", "action_required"):
        assert conclusion("PASS", self_reported=level) == level
        assert conclusion("FAIL", self_reported=level) == conclusion("INVALID", self_reported=level) == "failure"
        assert conclusion("REVIEW", self_reported=level) == "action_required"
        assert conclusion("FAIL", self_reported=level, shadow=True) == "neutral"
    assert conclusion("PASS") == conclusion("INCONCLUSIVE") == "neutral"
    assert conclusion("INCONCLUSIVE", self_reported="success") == "neutral"
    assert conclusion("INCONCLUSIVE", self_reported="action_required") == "action_required"
    assert conclusion("INCONCLUSIVE", conclusions={"INCONCLUSIVE": "failure"}) == "failure"
    assert conclusion("FAIL", conclusions={"FAIL": "success"}, self_reported="action_required") == "action_required"


def test_static_results_of_pull_requests_are_self_reported(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    strict = GitHub(self_reported="action_required")
    publish(bench.forge, result(build_text(number, sha, 1)), strict)
    assert bench.check(number).conclusion == "action_required"
    publish(bench.forge, result(build_text(number, sha, 2, "measured")), strict)
    assert bench.check(number).conclusion == "success"


# Edited comments and heads that move


def test_a_push_marks_the_comment_stale_and_the_next_verdict_removes_the_mark(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    publish(bench.forge, result(build_text(number, old, 1)), GitHub())
    new = bench.push(number, "x = 3\n")
    for _ in range(2):
        assert bench.update_head(number) == []
        lines = bench.comment(number).splitlines()
        assert old[:12] in lines[2]
        assert new[:12] in lines[2]
        assert lines[4].startswith("### ✅ PASS")
    publish(bench.forge, result(build_text(number, new, 2)), GitHub())
    assert "Stale" not in bench.comment(number)


# Two pull requests with one head: GitHub reads check runs by commit


def say(bench: Bench, number: int, run: int, status: Status) -> None:
    publish(bench.forge, result(build_text(number, bench.head(number), run, status=status)), GitHub())


@pytest.fixture
def twins(bench: Bench) -> tuple[int, int]:
    """Pull requests from two branches with one head into one base."""
    first = bench.pull()
    bench.repo.git.set_ref("refs/heads/twin", bench.head(first))
    return first, bench.repo.open_pull(head="twin", title="The same", author="bob")


@pytest.mark.parametrize("fails_first", [True, False])
def test_the_shown_check_run_of_a_head_has_the_strictest_conclusion(
    bench: Bench, twins: tuple[int, int], fails_first: bool
) -> None:
    passing, failing = twins
    order: list[tuple[int, Status]] = [(failing, "FAIL"), (passing, "PASS")]
    for run, (number, status) in enumerate(order if fails_first else order[::-1], start=1):
        say(bench, number, run, status)
    check = bench.check(passing)
    assert check.conclusion == "failure"
    if fails_first:
        assert str(check.title).startswith(f"conclusion of #{failing} (FAIL): PASS")
        assert f"#{failing} has the same head, and its verdict is FAIL" in str(check.summary)
    say(bench, passing, 3, "PASS")
    assert bench.check(passing).conclusion == "failure"
    say(bench, failing, 4, "PASS")
    say(bench, passing, 5, "PASS")
    assert bench.check(passing).conclusion == "neutral"


@pytest.mark.parametrize("how", ["closed", "pushed"])
def test_a_pull_request_that_has_left_the_head_has_no_effect(bench: Bench, twins: tuple[int, int], how: str) -> None:
    passing, failing = twins
    say(bench, passing, 1, "PASS")
    say(bench, failing, 2, "FAIL")  # GitHub shows this newer check run
    if how == "closed":
        bench.repo.close(failing)
    else:
        bench.push(failing, "x = 9\n")
    say(bench, passing, 3, "PASS")
    assert bench.check(passing).conclusion == "neutral"
