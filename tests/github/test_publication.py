"""The comment and the check run: created once, and equal to the strongest result whatever the order of posts."""

import random
import threading
import time
from datetime import datetime

import pytest

from github_fake.fixtures import hub as hub
from regbot.github import checks
from regbot.github import sticky_comment as sticky
from regbot.github.client import Forge
from regbot.github.publication import Result, publish
from regbot.github.stamped_text import Stamp, StampedText
from regbot.github.types import NewCheck
from regbot.records.config import GitHub
from regbot.records.verdict import Status
from support.forge_cases import BOT, NONCE, OTHER, Bench, build_text, result, runs
from support.forge_cases import bench as bench

# One comment, one check run


def test_the_first_result_creates_comment_and_check_run_and_the_next_edits_both(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    publish(bench.forge, result(build_text(number, sha, 1)), GitHub())
    first = bench.repo.comments(number)[0].id, bench.check(number).id
    settled = publish(bench.forge, result(build_text(number, sha, 2, status="FAIL", text="### ❌ FAIL: x\n")), GitHub())
    assert (bench.repo.comments(number)[0].id, bench.check(number).id) == first
    assert "❌ FAIL" in bench.comment(number)
    assert bench.check(number).conclusion == "failure"
    assert settled.is_concluded
    assert settled.comment is not None
    assert settled.comment.stamp.run == 2


def test_posting_the_same_result_again_writes_nothing(bench: Bench) -> None:
    number = bench.pull()
    posted = result(build_text(number, bench.head(number)))
    publish(bench.forge, posted, GitHub())
    writes = [request for request in bench.hub.requests if request[0] != "GET"]
    publish(bench.forge, posted, GitHub())
    assert [request for request in bench.hub.requests if request[0] != "GET"] == writes


@pytest.mark.parametrize("weaker", [{"run": 1}, {"run": 9, "tier": "static"}, {"run": 9, "head": OTHER}])
def test_a_weaker_result_replaces_nothing(bench: Bench, weaker: dict[str, object]) -> None:
    number = bench.pull()
    sha = bench.head(number)
    publish(bench.forge, result(build_text(number, sha, 5, "measured", "FAIL")), GitHub())
    if weaker.get("head"):
        weaker["head"] = str(bench.repo.git.branch("main"))
    late = build_text(number, **{"head": sha, "tier": "measured", **weaker})  # type: ignore[arg-type]
    settled = publish(bench.forge, result(late), GitHub())
    assert settled.comment is not None
    assert settled.comment.stamp.run == 5
    assert '"run":5' in bench.comment(number)
    assert bench.check(number).conclusion == "failure"


def test_a_deleted_comment_is_made_again(bench: Bench) -> None:
    number = bench.pull()
    posted = result(build_text(number, bench.head(number)))
    publish(bench.forge, posted, GitHub())
    bench.repo.all_comments.clear()
    publish(bench.forge, posted, GitHub())
    assert len(bench.repo.comments(number)) == 1


def test_a_comment_deleted_during_an_edit_is_created_again(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    publish(bench.forge, result(build_text(number, sha, 1)), GitHub())

    class Deleting(Forge):
        def edit_comment(self, id: int, body: str) -> None:
            bench.repo.all_comments.clear()
            super().edit_comment(id, body)

    forge = bench.forge
    forge.__class__ = Deleting
    publish(forge, result(build_text(number, sha, 2)), GitHub())
    assert '"run":2' in bench.comment(number)


@pytest.mark.slow
def test_the_comment_is_recognized_among_250_others_and_only_by_its_author(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    forged = build_text(number, sha, 99, "measured", text="### ✅ PASS: trust me\n").body()
    bench.repo.comment(number, "mallory", forged)
    for n in range(250):
        bench.repo.comment(number, "bob", f"comment {n}")
    publish(bench.forge, result(build_text(number, sha, 1)), GitHub())
    for n in range(250):
        bench.repo.comment(number, "bob", f"more {n}")
    publish(bench.forge, result(build_text(number, sha, 2, status="FAIL")), GitHub())
    ours = [comment for comment in bench.repo.comments(number) if comment.author == BOT]
    assert len(ours) == 1
    assert '"run":2' in ours[0].body
    assert bench.repo.comments(number)[0].body == forged


def test_the_newer_of_two_comments_is_deleted_and_the_stronger_text_kept(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    older = bench.repo.comment(number, BOT, build_text(number, sha, 1).body())
    strong = result(build_text(number, sha, 3, "measured", "FAIL", "### ❌ FAIL: slow\n"))
    bench.repo.comment(number, BOT, strong.stamped_text.body())
    bench.repo.comment(number, BOT, "an answer to somebody")
    bench.repo.comment(number, BOT, build_text(number + 1, sha, 9, "measured").body())
    publish(bench.forge, result(build_text(number, sha, 2)), GitHub(), runs(strong))
    first, answer, foreign = bench.repo.comments(number)
    assert first.id == older
    assert "❌ FAIL: slow" in first.body
    assert answer.body == "an answer to somebody"
    assert f'"pr":{number + 1}' in foreign.body
    assert bench.check(number).conclusion == "failure"


def test_a_jobs_check_run_of_the_same_name_is_ignored(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    forge = bench.forge
    summary = build_text(number, sha).body()
    forge.create_check(NewCheck("regbot", sha, "57f0d1c2-a-job", "completed", "success", "regbot", summary))
    publish(forge, result(build_text(number, sha, status="FAIL")), GitHub())
    theirs, ours = bench.repo.check_runs(sha)
    assert (theirs.external_id, theirs.conclusion) == ("57f0d1c2-a-job", "success")
    assert (ours.external_id, ours.conclusion) == (f"{number}:{sha}:static", "failure")


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
    own_runs = [run for run in bench.repo.check_runs(sha) if run.external_id == check.external_id]
    assert [(run.status, run.conclusion) for run in own_runs] == [("completed", "failure")] * 2


def test_a_check_run_called_regbot_of_another_app_changes_nothing(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    other = Forge(bench.hub.token("other[bot]", checks="write"), bench.repo.full_name, bench.hub.url, lambda _: None)
    other.create_check(NewCheck("regbot", sha, "x", "completed", "success", "regbot", "s"))
    publish(bench.forge, result(build_text(number, sha)), GitHub())
    assert bench.check(number).conclusion == "neutral"


def test_a_pending_measurement_concludes_the_check_and_a_static_result_does_not(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    bench.approve(number)
    settled = publish(bench.forge, result(build_text(number, sha, 1)), GitHub())
    assert not settled.is_concluded
    assert bench.check(number).status == "in_progress"
    assert '"tier":"static"' in bench.comment(number)
    publish(bench.forge, result(build_text(number, sha, 2, "measured", "FAIL"), "0123456789abcdef"), GitHub())
    assert (bench.check(number).status, bench.check(number).conclusion) == ("completed", "failure")


# A comment that somebody has edited


def edit(bench: Bench, number: int, claim: StampedText) -> None:
    (comment,) = [comment for comment in bench.repo.comments(number) if comment.author == BOT]
    bench.repo.edit_comment(comment.id, claim.body())


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [{"run": 9}, {"run": 5, "tier": "measured"}, {"run": 1, "post": 99}, {"run": 10**4000, "tier": "measured"}]
)
@pytest.mark.parametrize("measured", [False, True])
def test_an_edited_comment_changes_no_check_and_is_corrected(
    bench: Bench, claim: dict[str, int | str], measured: bool
) -> None:
    number = bench.pull()
    sha = bench.head(number)
    tier = "measured" if measured else "static"
    mine = result(build_text(number, sha, 1, tier, "FAIL", "### ❌ FAIL: slow\n"))
    publish(bench.forge, mine, GitHub())
    edit(bench, number, build_text(number, sha, text="### ✅ PASS: trust me\n", **{"tier": tier, **claim}))  # type: ignore[arg-type]
    settled = publish(bench.forge, mine, GitHub())
    assert settled.comment == mine.stamped_text
    assert bench.check(number).conclusion == "failure"
    assert "trust me" not in str(bench.check(number).summary) + bench.comment(number)
    assert "FAIL: slow" in bench.comment(number)


def test_a_comment_whose_text_was_edited_is_rebuilt_from_the_check_run(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    strong = build_text(number, sha, 5, "measured", "FAIL", "### ❌ FAIL: slow\n")
    publish(bench.forge, result(strong), GitHub())
    edit(bench, number, build_text(number, sha, 5, "measured", "FAIL", "### ✅ PASS: trust me\n"))
    publish(bench.forge, result(build_text(number, sha, 2)), GitHub())
    assert StampedText.read(bench.comment(number)) == strong


def test_an_edited_comment_of_an_older_head_is_no_result(bench: Bench) -> None:
    """Late results of old heads: a result that the claimed head's check run lacks does not appear as stale."""
    number = bench.pull()
    oldest = bench.head(number)
    publish(bench.forge, result(build_text(number, oldest, 1, "measured", "FAIL", "### ❌ FAIL: slow\n")), GitHub())
    old = bench.push(number, "x = 3\n")
    bench.push(number, "x = 4\n")
    publish(bench.forge, result(build_text(number, old, 2)), GitHub())
    assert "FAIL: slow" in bench.comment(number), "measured, and its check run says so"
    edit(bench, number, build_text(number, oldest, 7, "measured", text="### ✅ PASS: trust me\n"))
    publish(bench.forge, result(build_text(number, old, 2)), GitHub())
    assert "trust me" not in bench.comment(number)


def test_a_comment_only_names_the_run_that_is_judged_again(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    bench.approve(number)
    static = result(build_text(number, sha, 3, text="### ✅ PASS: static\n"))
    publish(bench.forge, static, GitHub())
    claims = []

    def again(claim: Stamp) -> Result | None:
        claims.append(claim)
        return runs(static)(claim)

    edit(bench, number, build_text(number, sha, 3, "measured", text="### ✅ PASS: trust me\n"))
    publish(bench.forge, result(build_text(number, sha, 2)), GitHub(), again)
    assert len(claims) == 1
    assert "PASS: static" in bench.comment(number)
    assert bench.check(number).status == "in_progress"


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


@pytest.mark.parametrize(
    ("status", "conclusion"),
    [
        ("PASS", "success"),
        ("FAIL", "failure"),
        ("INVALID", "failure"),
        ("REVIEW", "action_required"),
        ("INCONCLUSIVE", "neutral"),
    ],
)
def test_every_verdict_has_its_conclusion_and_shadow_mode_has_one_for_all(status: Status, conclusion: str) -> None:
    assert checks.conclude(status, GitHub()) == conclusion
    assert checks.conclude(status, GitHub(shadow=True)) == "neutral"
    assert checks.conclude(status, GitHub(conclusions={status: "success"})) == "success"


# Heads that move


def test_a_push_marks_the_comment_stale_and_the_next_verdict_removes_the_mark(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    publish(bench.forge, result(build_text(number, old, 1)), GitHub())
    new = bench.push(number, "x = 3\n")
    assert sticky.mark_stale(bench.forge, number, BOT, new)
    lines = bench.comment(number).splitlines()
    assert old[:12] in lines[2]
    assert new[:12] in lines[2]
    assert lines[4].startswith("### ✅ PASS")
    publish(bench.forge, result(build_text(number, new, 2)), GitHub())
    assert "Stale" not in bench.comment(number)
    assert sticky.find_posted_run(bench.forge, number, BOT, new) == 2
    assert sticky.find_posted_run(bench.forge, number, BOT, old) == 1
    assert sticky.find_posted_run(bench.forge, number, BOT, str(bench.repo.git.branch("main"))) is None


def test_marking_stale_twice_says_it_once(bench: Bench) -> None:
    number = bench.pull()
    publish(bench.forge, result(build_text(number, bench.head(number), 1)), GitHub())
    assert not sticky.mark_stale(bench.forge, number, BOT, bench.head(number))
    new = bench.push(number, "x = 3\n")
    assert sticky.mark_stale(bench.forge, number, BOT, new)
    assert not sticky.mark_stale(bench.forge, number, BOT, new)
    assert bench.comment(number).count("**Stale:**") == 1


def test_a_late_result_of_an_old_head_ends_its_own_check_and_leaves_the_newer_comment(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    new = bench.push(number, "x = 3\n")
    publish(bench.forge, result(build_text(number, new, 1)), GitHub())
    publish(bench.forge, result(build_text(number, old, 9, "measured", "FAIL")), GitHub())
    assert f'"head":"{new}"' in bench.comment(number)
    assert "Stale" not in bench.comment(number)
    assert bench.check(number, old).conclusion == "failure"
    assert bench.check(number, new).conclusion == "neutral"


def test_a_result_of_an_old_head_is_stale_where_nothing_newer_exists(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    bench.push(number, "x = 3\n")
    publish(bench.forge, result(build_text(number, old, 1)), GitHub())
    assert "**Stale:**" in bench.comment(number)


# Several posters at a time


def storm(bench: Bench, results: list[Result], seed: int) -> None:
    """Post all results concurrently, each with random pauses between its requests."""

    class Slow(Forge):
        draw: random.Random

        def recent_comments(self, number: int, max_pages: int):  # type: ignore[no-untyped-def]
            listed = super().recent_comments(number, max_pages)
            time.sleep(self.draw.random() / 50)
            return listed

        def changed_comments(self, number: int, since: datetime):  # type: ignore[no-untyped-def]
            listed = super().changed_comments(number, since)
            time.sleep(self.draw.random() / 50)
            return listed

        def checks(self, sha: str, name: str):  # type: ignore[no-untyped-def]
            listed = super().checks(sha, name)
            time.sleep(self.draw.random() / 50)
            return listed

    failed: list[BaseException] = []

    def post_one(n: int) -> None:
        forge = bench.forge
        forge.__class__ = Slow
        forge.draw = random.Random(seed * 100 + n)  # type: ignore[attr-defined]
        try:
            publish(forge, results[n], GitHub(), runs(*results))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=post_one, args=(n,)) for n in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_concurrent_posters_end_with_one_comment_and_the_strongest_result(bench: Bench, seed: int) -> None:
    number = bench.pull()
    old = bench.head(number)
    sha = bench.push(number, "x = 3\n")
    results = [
        result(build_text(number, old, 9, "measured", "FAIL", "### ❌ FAIL: old\n")),
        result(build_text(number, sha, 1, text="### ✅ PASS: one\n")),
        result(build_text(number, sha, 2, text="### ✅ PASS: two\n")),
        result(build_text(number, sha, 3, "measured", "FAIL", "### ❌ FAIL: the strongest\n")),
    ]
    random.Random(seed).shuffle(results)
    storm(bench, results, seed)
    assert "FAIL: the strongest" in bench.comment(number)
    ends = {(check_run.status, check_run.conclusion) for check_run in bench.repo.check_runs(sha)}
    assert ends == {("completed", "failure")}
    assert all("FAIL: the strongest" in str(check_run.summary) for check_run in bench.repo.check_runs(sha))
    assert bench.check(number, old).conclusion == "failure"


@pytest.mark.parametrize("written", ["edit_comment", "update_check"])
def test_a_late_write_is_detected_and_reverted(bench: Bench, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weaker poster reads, the stronger one does all of its work, then the weaker one writes the comment, or the
    check run."""
    number = bench.pull()
    sha = bench.head(number)
    publish(bench.forge, result(build_text(number, sha, 1)), GitHub())
    strong = result(build_text(number, sha, 3, "measured", "FAIL", "### ❌ FAIL: the strongest\n"))
    forge = bench.forge
    write = getattr(forge, written)

    def late(*arguments: object) -> None:
        monkeypatch.setattr(forge, written, write)
        publish(bench.forge, strong, GitHub())
        write(*arguments)

    monkeypatch.setattr(forge, written, late)
    again = runs(strong) if written == "update_check" else runs()
    publish(forge, result(build_text(number, sha, 2, text="### ✅ PASS: late\n")), GitHub(), again)
    assert "FAIL: the strongest" in bench.comment(number)
    assert bench.check(number).conclusion == "failure"
    assert "FAIL: the strongest" in str(bench.check(number).summary)


@pytest.mark.parametrize("rebased", [False, True])
def test_a_late_stale_mark_is_removed_from_a_newer_verdict(
    bench: Bench, rebased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = bench.pull()
    publish(bench.forge, result(build_text(number, bench.head(number), 1)), GitHub())
    live = bench.head(number) if rebased else bench.push(number, "x = 3\n")
    newer = result(build_text(number, live, 2, status="FAIL", text="### ❌ FAIL: newer\n", post=9))
    forge = bench.forge
    write = forge.edit_comment

    def late(id: int, body: str) -> None:
        monkeypatch.setattr(forge, "edit_comment", write)
        publish(bench.forge, newer, GitHub())
        write(id, body)

    monkeypatch.setattr(forge, "edit_comment", late)
    assert sticky.mark_stale(forge, number, BOT, live, "soft" if rebased else "")
    assert "FAIL: newer" in bench.comment(number)
    assert "Stale" not in bench.comment(number)


@pytest.mark.parametrize("seen", [False, True])
def test_a_base_change_mark_stays_until_the_next_verdict(bench: Bench, seen: bool) -> None:
    number = bench.pull()
    sha = bench.head(number)
    publish(bench.forge, result(build_text(number, sha, 1)), GitHub())
    if not seen:
        bench.repo.all_checks.clear()
    assert sticky.mark_stale(bench.forge, number, BOT, sha, "soft")
    assert f"belongs to `{sha[:12]}` against `main`. The base branch is now `soft`" in bench.comment(number)
