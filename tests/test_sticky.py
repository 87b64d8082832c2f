"""The comment and the check run: found, made once, agreed on the strongest result, whoever posts when."""

import random
import threading
import time

import pytest

from forge_cases import BOT, OTHER, Bench, result, runs, shown
from forge_cases import bench as bench
from github_fake.fixtures import hub as hub
from regbot.config import GitHub
from regbot.forge import checks, sticky
from regbot.forge.client import Forge
from regbot.forge.settle import Result, settle
from regbot.forge.shown import Shown, Stamp
from regbot.forge.types import NewCheck
from regbot.records.verdict import Status

# One comment, one check run


def test_the_first_result_makes_both_and_the_next_edits_both(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    settle(bench.forge, result(shown(number, sha, 1)), GitHub())
    first = bench.repo.comments(number)[0].id, bench.check(number).id
    settled = settle(bench.forge, result(shown(number, sha, 2, status="FAIL", text="### ❌ FAIL: x\n")), GitHub())
    assert (bench.repo.comments(number)[0].id, bench.check(number).id) == first
    assert "❌ FAIL" in bench.comment(number)
    assert bench.check(number).conclusion == "failure"
    assert settled.concluded
    assert settled.comment is not None
    assert settled.comment.stamp.run == 2


def test_posting_the_same_again_writes_nothing(bench: Bench) -> None:
    number = bench.pull()
    one = result(shown(number, bench.head(number)))
    settle(bench.forge, one, GitHub())
    writes = [request for request in bench.hub.requests if request[0] != "GET"]
    settle(bench.forge, one, GitHub())
    assert [request for request in bench.hub.requests if request[0] != "GET"] == writes


@pytest.mark.parametrize("weaker", [{"run": 1}, {"run": 9, "tier": "static"}, {"run": 9, "head": OTHER}])
def test_a_weaker_result_replaces_nothing(bench: Bench, weaker: dict[str, object]) -> None:
    number = bench.pull()
    sha = bench.head(number)
    settle(bench.forge, result(shown(number, sha, 5, "measured", "FAIL")), GitHub())
    if weaker.get("head"):
        weaker["head"] = str(bench.repo.git.branch("main"))
    late = shown(number, **{"head": sha, "tier": "measured", **weaker})  # type: ignore[arg-type]
    settled = settle(bench.forge, result(late), GitHub())
    assert settled.comment is not None
    assert settled.comment.stamp.run == 5
    assert '"run":5' in bench.comment(number)
    assert bench.check(number).conclusion == "failure"


def test_a_deleted_comment_is_made_again(bench: Bench) -> None:
    number = bench.pull()
    one = result(shown(number, bench.head(number)))
    settle(bench.forge, one, GitHub())
    bench.repo.all_comments.clear()
    settle(bench.forge, one, GitHub())
    assert len(bench.repo.comments(number)) == 1


def test_a_comment_that_goes_while_it_is_edited_is_made_again(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    settle(bench.forge, result(shown(number, sha, 1)), GitHub())

    class Deleting(Forge):
        def edit_comment(self, id: int, body: str) -> None:
            bench.repo.all_comments.clear()
            super().edit_comment(id, body)

    forge = bench.forge
    forge.__class__ = Deleting
    settle(forge, result(shown(number, sha, 2)), GitHub())
    assert '"run":2' in bench.comment(number)


def test_the_comment_is_found_behind_250_others_and_only_by_its_author(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    forged = shown(number, sha, 99, "measured", text="### ✅ PASS: trust me\n").body()
    bench.repo.comment(number, "mallory", forged)
    for n in range(250):
        bench.repo.comment(number, "bob", f"comment {n}")
    settle(bench.forge, result(shown(number, sha, 1)), GitHub())
    for n in range(250):
        bench.repo.comment(number, "bob", f"more {n}")
    settle(bench.forge, result(shown(number, sha, 2, status="FAIL")), GitHub())
    ours = [each for each in bench.repo.comments(number) if each.author == BOT]
    assert len(ours) == 1
    assert '"run":2' in ours[0].body
    assert bench.repo.comments(number)[0].body == forged


def test_of_two_comments_the_younger_goes_and_the_stronger_text_stays(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    older = bench.repo.comment(number, BOT, shown(number, sha, 1).body())
    strong = result(shown(number, sha, 3, "measured", "FAIL", "### ❌ FAIL: slow\n"))
    bench.repo.comment(number, BOT, strong.shown.body())
    bench.repo.comment(number, BOT, "an answer to somebody")
    bench.repo.comment(number, BOT, shown(number + 1, sha, 9, "measured").body())
    settle(bench.forge, result(shown(number, sha, 2)), GitHub(), runs(strong))
    first, answer, foreign = bench.repo.comments(number)
    assert first.id == older
    assert "❌ FAIL: slow" in first.body
    assert answer.body == "an answer to somebody"
    assert f'"pr":{number + 1}' in foreign.body
    assert bench.check(number).conclusion == "failure"


def test_a_check_run_that_a_job_made_under_our_name_is_not_ours(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    forge = bench.forge
    summary = shown(number, sha).body()
    forge.create_check(NewCheck("regbot", sha, "57f0d1c2-a-job", "completed", "success", "regbot", summary))
    settle(forge, result(shown(number, sha, status="FAIL")), GitHub())
    theirs, ours = bench.repo.check_runs(sha)
    assert (theirs.external_id, theirs.conclusion) == ("57f0d1c2-a-job", "success")
    assert (ours.external_id, ours.conclusion) == (f"{number}:{sha}:static", "failure")


def test_a_measurement_that_is_awaited_concludes_the_check_and_a_static_result_does_not(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    bench.approve(number)
    settled = settle(bench.forge, result(shown(number, sha, 1)), GitHub())
    assert not settled.concluded
    assert bench.check(number).status == "in_progress"
    assert '"tier":"static"' in bench.comment(number)
    settle(bench.forge, result(shown(number, sha, 2, "measured", "FAIL"), "0123456789abcdef"), GitHub())
    assert (bench.check(number).status, bench.check(number).conclusion) == ("completed", "failure")


# A comment that somebody has edited


def edit(bench: Bench, number: int, claim: Shown) -> None:
    (comment,) = [each for each in bench.repo.comments(number) if each.author == BOT]
    bench.repo.edit_comment(comment.id, claim.body())


@pytest.mark.parametrize(
    "claim", [{"run": 9}, {"run": 5, "tier": "measured"}, {"run": 1, "post": 99}, {"run": 10**4000, "tier": "measured"}]
)
@pytest.mark.parametrize("measured", [False, True])
def test_an_edited_comment_turns_no_check_green_and_is_put_right(
    bench: Bench, claim: dict[str, int | str], measured: bool
) -> None:
    number = bench.pull()
    sha = bench.head(number)
    tier = "measured" if measured else "static"
    mine = result(shown(number, sha, 1, tier, "FAIL", "### ❌ FAIL: slow\n"))
    settle(bench.forge, mine, GitHub())
    edit(bench, number, shown(number, sha, text="### ✅ PASS: trust me\n", **{"tier": tier, **claim}))  # type: ignore[arg-type]
    settled = settle(bench.forge, mine, GitHub())
    assert settled.comment == mine.shown
    assert bench.check(number).conclusion == "failure"
    assert "trust me" not in str(bench.check(number).summary) + bench.comment(number)
    assert "FAIL: slow" in bench.comment(number)


def test_a_comment_whose_text_was_edited_is_rebuilt_from_the_check_run(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    strong = shown(number, sha, 5, "measured", "FAIL", "### ❌ FAIL: slow\n")
    settle(bench.forge, result(strong), GitHub())
    edit(bench, number, shown(number, sha, 5, "measured", "FAIL", "### ✅ PASS: trust me\n"))
    settle(bench.forge, result(shown(number, sha, 2)), GitHub())
    assert Shown.read(bench.comment(number)) == strong


def test_an_edited_comment_of_an_older_head_is_no_result_of_it(bench: Bench) -> None:
    """Late results of old heads: what the check run of the claimed head does not show is not shown as stale either."""
    number = bench.pull()
    oldest = bench.head(number)
    settle(bench.forge, result(shown(number, oldest, 1, "measured", "FAIL", "### ❌ FAIL: slow\n")), GitHub())
    old = bench.push(number, "x = 3\n")
    bench.push(number, "x = 4\n")
    settle(bench.forge, result(shown(number, old, 2)), GitHub())
    assert "FAIL: slow" in bench.comment(number), "measured, and its check run says so"
    edit(bench, number, shown(number, oldest, 7, "measured", text="### ✅ PASS: trust me\n"))
    settle(bench.forge, result(shown(number, old, 2)), GitHub())
    assert "trust me" not in bench.comment(number)


def test_a_comment_says_which_run_is_judged_again_and_no_more(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    bench.approve(number)
    static = result(shown(number, sha, 3, text="### ✅ PASS: static\n"))
    settle(bench.forge, static, GitHub())
    asked = []

    def again(claim: Stamp) -> Result | None:
        asked.append(claim)
        return runs(static)(claim)

    edit(bench, number, shown(number, sha, 3, "measured", text="### ✅ PASS: trust me\n"))
    settle(bench.forge, result(shown(number, sha, 2)), GitHub(), again)
    assert len(asked) == 1
    assert "PASS: static" in bench.comment(number)
    assert bench.check(number).status == "in_progress"


# Conclusions


def test_a_self_reported_verdict_is_held_to_the_stricter_of_two_conclusions() -> None:
    def conclusion(status: Status, **table: object) -> str:
        return checks.conclude(status, GitHub.model_validate(table), self_reported=True)

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


def test_self_reported_is_what_a_pull_request_says_of_itself(bench: Bench) -> None:
    number = bench.pull()
    sha = bench.head(number)
    strict = GitHub(self_reported="action_required")
    settle(bench.forge, result(shown(number, sha, 1)), strict)
    assert bench.check(number).conclusion == "action_required"
    settle(bench.forge, result(shown(number, sha, 2, "measured")), strict)
    assert bench.check(number).conclusion == "success"
    group = str(bench.repo.git.branch("main"))
    settle(bench.forge, result(shown(0, group, 3)), strict)
    assert bench.check(number, group).conclusion == "success"


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


def test_a_push_marks_the_comment_stale_and_its_verdict_takes_the_mark_away(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    settle(bench.forge, result(shown(number, old, 1)), GitHub())
    new = bench.push(number, "x = 3\n")
    assert sticky.mark_stale(bench.forge, number, BOT, new)
    lines = bench.comment(number).splitlines()
    assert old[:12] in lines[2]
    assert new[:12] in lines[2]
    assert lines[4].startswith("### ✅ PASS")
    settle(bench.forge, result(shown(number, new, 2)), GitHub())
    assert "Stale" not in bench.comment(number)
    assert sticky.posted_run(bench.forge, number, BOT, new) == 2
    assert sticky.posted_run(bench.forge, number, BOT, old) == 1
    assert sticky.posted_run(bench.forge, number, BOT, str(bench.repo.git.branch("main"))) is None


def test_marking_stale_twice_says_it_once(bench: Bench) -> None:
    number = bench.pull()
    settle(bench.forge, result(shown(number, bench.head(number), 1)), GitHub())
    assert not sticky.mark_stale(bench.forge, number, BOT, bench.head(number))
    new = bench.push(number, "x = 3\n")
    assert sticky.mark_stale(bench.forge, number, BOT, new)
    assert not sticky.mark_stale(bench.forge, number, BOT, new)
    assert bench.comment(number).count("**Stale:**") == 1


def test_a_late_result_of_an_old_head_ends_its_own_check_and_leaves_the_newer_comment(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    new = bench.push(number, "x = 3\n")
    settle(bench.forge, result(shown(number, new, 1)), GitHub())
    settle(bench.forge, result(shown(number, old, 9, "measured", "FAIL")), GitHub())
    assert f'"head":"{new}"' in bench.comment(number)
    assert "Stale" not in bench.comment(number)
    assert bench.check(number, old).conclusion == "failure"
    assert bench.check(number, new).conclusion == "neutral"


def test_a_result_of_an_old_head_is_shown_as_stale_where_nothing_newer_is(bench: Bench) -> None:
    number = bench.pull()
    old = bench.head(number)
    bench.push(number, "x = 3\n")
    settle(bench.forge, result(shown(number, old, 1)), GitHub())
    assert "**Stale:**" in bench.comment(number)


# Several posters at a time


def storm(bench: Bench, results: list[Result], seed: int) -> None:
    """Post all of them at the same moment, each with pauses of its own between its requests."""

    class Slow(Forge):
        draw: random.Random

        def comments(self, number: int):  # type: ignore[no-untyped-def]
            found = super().comments(number)
            time.sleep(self.draw.random() / 50)
            return found

        def checks(self, sha: str, name: str):  # type: ignore[no-untyped-def]
            found = super().checks(sha, name)
            time.sleep(self.draw.random() / 50)
            return found

    failed: list[BaseException] = []

    def one(n: int) -> None:
        forge = bench.forge
        forge.__class__ = Slow
        forge.draw = random.Random(seed * 100 + n)  # type: ignore[attr-defined]
        try:
            settle(forge, results[n], GitHub(), runs(*results))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("seed", range(6))
def test_posters_at_the_same_time_end_with_one_comment_and_the_strongest_result(bench: Bench, seed: int) -> None:
    number = bench.pull()
    old = bench.head(number)
    sha = bench.push(number, "x = 3\n")
    results = [
        result(shown(number, old, 9, "measured", "FAIL", "### ❌ FAIL: old\n")),
        result(shown(number, sha, 1, text="### ✅ PASS: one\n")),
        result(shown(number, sha, 2, text="### ✅ PASS: two\n")),
        result(shown(number, sha, 3, "measured", "FAIL", "### ❌ FAIL: the strongest\n")),
    ]
    random.Random(seed).shuffle(results)
    storm(bench, results, seed)
    assert "FAIL: the strongest" in bench.comment(number)
    ends = {(each.status, each.conclusion) for each in bench.repo.check_runs(sha)}
    assert ends == {("completed", "failure")}
    assert all("FAIL: the strongest" in str(each.summary) for each in bench.repo.check_runs(sha))
    assert bench.check(number, old).conclusion == "failure"


@pytest.mark.parametrize("written", ["edit_comment", "update_check"])
def test_a_write_that_comes_late_is_seen_and_taken_back(
    bench: Bench, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weaker poster reads, the stronger one does all of its work, then the weaker one writes the comment, or the
    check run."""
    number = bench.pull()
    sha = bench.head(number)
    settle(bench.forge, result(shown(number, sha, 1)), GitHub())
    strong = result(shown(number, sha, 3, "measured", "FAIL", "### ❌ FAIL: the strongest\n"))
    forge = bench.forge
    write = getattr(forge, written)

    def late(*arguments: object) -> None:
        monkeypatch.setattr(forge, written, write)
        settle(bench.forge, strong, GitHub())
        write(*arguments)

    monkeypatch.setattr(forge, written, late)
    again = runs(strong) if written == "update_check" else runs()
    settle(forge, result(shown(number, sha, 2, text="### ✅ PASS: late\n")), GitHub(), again)
    assert "FAIL: the strongest" in bench.comment(number)
    assert bench.check(number).conclusion == "failure"
    assert "FAIL: the strongest" in str(bench.check(number).summary)


@pytest.mark.parametrize("rebased", [False, True])
def test_a_mark_that_comes_late_does_not_stay_over_a_newer_verdict(
    bench: Bench, rebased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = bench.pull()
    settle(bench.forge, result(shown(number, bench.head(number), 1)), GitHub())
    live = bench.head(number) if rebased else bench.push(number, "x = 3\n")
    newer = result(shown(number, live, 2, status="FAIL", text="### ❌ FAIL: newer\n", post=9))
    forge = bench.forge
    write = forge.edit_comment

    def late(id: int, body: str) -> None:
        monkeypatch.setattr(forge, "edit_comment", write)
        settle(bench.forge, newer, GitHub())
        write(id, body)

    monkeypatch.setattr(forge, "edit_comment", late)
    assert sticky.mark_stale(forge, number, BOT, live, "soft" if rebased else "")
    assert "FAIL: newer" in bench.comment(number)
    assert "Stale" not in bench.comment(number)


@pytest.mark.parametrize("seen", [False, True])
def test_a_mark_of_another_base_stays_where_nothing_was_judged_since(bench: Bench, seen: bool) -> None:
    number = bench.pull()
    sha = bench.head(number)
    settle(bench.forge, result(shown(number, sha, 1)), GitHub())
    if not seen:
        bench.repo.all_checks.clear()
    assert sticky.mark_stale(bench.forge, number, BOT, sha, "soft")
    assert "judged against another base than `soft`" in bench.comment(number)
