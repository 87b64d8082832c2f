"""Nobody can use up the request quota of a post's job: pull requests of one head, comments, artifacts, check runs.

GitHub's limits and rules are in ``tests/github_fake/rules.md``.
"""

import pytest

from github_fake.records import CheckRun
from regbot.github import checks
from regbot.github.comment_thread import MAX_AUTHORS, MAX_PAGES
from regbot.github.types import NewCheck
from regbot.records.verdict import Status
from support.forge_cases import BOT, FALLBACK, Bench, build_text, only

RULE = "/regbot expect all-to-all replaced by gather and sum@ep@*: meant"
MAX_REQUESTS = 40


def add_twin(bench: Bench, number: int, status: Status = "PASS") -> int:
    """Open another pull request from the branch of ``number``, with a verdict in its check run."""
    base = f"base-{len(bench.repo.pulls)}"
    bench.repo.git.set_ref(f"refs/heads/{base}", str(bench.repo.git.branch("main")))
    twin = bench.repo.open_pull(head=bench.repo.pulls[number].head, base=base, author="ann")
    text = build_text(twin, bench.head(number), run=twin, status=status)
    conclusion = checks.CONCLUSIONS[status]
    external_id = checks.format_external_id(twin, text.stamp.head)
    check = NewCheck("regbot", text.stamp.head, external_id, "completed", conclusion, f"{status}: fine", text.body())
    bench.forge.create_check(check)
    return twin


def post(bench: Bench, number: int, passes: bool = True) -> int:
    """Post a new verdict on a pull request, and return the number of requests."""
    head = bench.head(number)
    run = bench.static(number, bench.session(head) if passes else bench.session(head, theirs=FALLBACK))
    bench.hub.requests.clear()
    only(bench.post(run))
    return sum(path.startswith("/repos/") for _, path, _ in bench.hub.requests)


def test_the_number_of_pull_requests_with_one_head_costs_no_requests(bench: Bench) -> None:
    number = bench.pull()
    counts = []
    for count in (6, 12):
        while len(bench.repo.pulls) < count:
            add_twin(bench, number, "FAIL")
        counts.append(post(bench, number, passes=len(counts) % 2 == 0))
    assert counts[1] <= counts[0] <= MAX_REQUESTS


def test_a_strict_verdict_cannot_be_hidden_behind_many_pull_requests(bench: Bench) -> None:
    number = bench.pull()
    for _ in range(8):
        add_twin(bench, number)
    failing = add_twin(bench, number, "FAIL")
    post(bench, number)
    assert bench.check(number).conclusion == "failure"
    assert str(bench.check(number).title).startswith(f"conclusion of #{failing} (FAIL): ")


def test_pull_requests_that_were_not_looked_up_count_as_open(bench: Bench) -> None:
    number = bench.pull()
    twins = [add_twin(bench, number, "FAIL") for _ in range(8)]
    for twin in twins:
        bench.repo.close(twin)
    post(bench, number)
    assert bench.check(number).conclusion == "failure"


@pytest.mark.parametrize("passes", [True, False])
def test_a_closed_pull_request_does_not_hide_the_check_run_of_an_open_one(bench: Bench, passes: bool) -> None:
    number = bench.pull()
    post(bench, number, passes=not passes)
    twin = add_twin(bench, number, "FAIL" if passes else "PASS")  # GitHub shows this newer check run
    bench.repo.close(twin)
    post(bench, number, passes=passes)
    assert bench.check(number).conclusion == ("neutral" if passes else "failure")
    shown = bench.check(number).id
    post(bench, number, passes=passes)
    assert bench.check(number).id == shown


def test_other_artifacts_cost_no_requests(bench: Bench) -> None:
    number = bench.pull()
    requests = post(bench, number)
    run = bench.static(number, bench.session(bench.head(number)))
    for index in range(250):
        run.artifact(f"log-{index}", b"")
    bench.hub.requests.clear()
    only(bench.post(run))
    assert sum(path.startswith("/repos/") for _, path, _ in bench.hub.requests) <= requests


def test_a_limited_number_of_comments_is_read_and_the_verdict_says_so(bench: Bench) -> None:
    number = bench.pull()
    requests = post(bench, number, passes=False)
    bench.repo.comment(number, "bob", RULE)  # on the first page
    for index in range(1_000):
        bench.repo.comment(number, f"stranger-{index}", "a comment")
    assert post(bench, number, passes=False) <= requests + MAX_PAGES + 1
    warning = "only the 100 oldest comments and the last 4 pages of 100 comments were read"
    assert warning in bench.comment(number)
    assert "PASS" in bench.comment(number)
    assert bench.check(number).conclusion == "neutral"


def test_there_is_no_second_comment_where_the_first_one_is_on_a_page_that_is_not_read(bench: Bench) -> None:
    number = bench.pull()
    for index in range(1_000):
        bench.repo.comment(number, f"stranger-{index}", "a comment")
        if index == 300:
            post(bench, number)
    post(bench, number, passes=False)
    assert "FAIL" in bench.comment(number)  # fails if there are two


def test_commands_of_strangers_cost_few_requests_and_displace_no_member(bench: Bench) -> None:
    number = bench.pull()
    requests = post(bench, number, passes=False)
    bench.repo.comment(number, "bob", RULE)
    for index in range(30):
        bench.repo.comment(number, f"stranger-{index}", RULE)
    assert post(bench, number, passes=False) <= requests + MAX_AUTHORS
    assert bench.check(number).conclusion == "neutral"
    assert f"more than {MAX_AUTHORS} accounts declare changes" in bench.comment(number)


def test_a_flood_of_jobs_called_regbot_blocks_and_is_read_by_the_page(bench: Bench) -> None:
    number = bench.pull()
    requests = post(bench, number)
    head = bench.head(number)
    for _ in range(150):
        job = CheckRun(bench.hub.new_id(), BOT, "regbot", head, "completed", "success", started=bench.hub.tick())
        bench.repo.all_checks[job.id] = job
    assert post(bench, number) <= requests + 2
    assert (bench.check(number).conclusion, bench.check(number).external_id[:2]) == ("failure", f"{number}:")


def test_a_head_with_more_check_runs_than_are_read_cannot_pass(bench: Bench) -> None:
    """An older one, which nobody reads, may be anybody's."""
    number = bench.pull()
    head = bench.head(number)
    text = build_text(number, head).body()
    for index in range(101):
        external_id = checks.format_external_id(number, head, f"{index:016x}")
        check = CheckRun(bench.hub.new_id(), BOT, "regbot", head, "completed", "success", started=bench.hub.tick())
        check.external_id, check.title, check.summary = external_id, "PASS: fine", text
        bench.repo.all_checks[check.id] = check
    post(bench, number)
    assert bench.check(number).conclusion == "failure"
    assert str(bench.check(number).title).startswith("INVALID, ")
    assert "more of them than the 100 that regbot reads" in str(bench.check(number).summary)
