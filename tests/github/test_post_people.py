"""Declarations and acceptances, in a pull request and for the merge group that ends with it."""

import re
from collections.abc import Callable

import pytest

from regbot.github.post import PostedResult
from support.forge_cases import (
    BOT,
    FALLBACK,
    MORE,
    Bench,
    headline,
    only,
)

# What people say


def expect(bench: Bench, number: int, login: str) -> int:
    rule = "all-to-all replaced by gather and sum@ep@qwen3-30b-a3b@1/ep: the new router"
    return bench.repo.comment(number, login, f"/regbot expect {rule}")


def failing(bench: Bench) -> tuple[int, Callable[[], PostedResult]]:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), theirs=FALLBACK))
    return number, lambda: only(bench.post(run))


def test_a_change_declared_with_the_required_role_passes(bench: Bench) -> None:
    number, again = failing(bench)
    assert again().status == "FAIL"
    expect(bench, number, "bob")
    posted = again()
    assert posted.status == "PASS"
    assert re.search(r"`bob, \d{4}-\d\d-\d\d \d\d:\d\d UTC, for later heads too: the new router`", posted.text)
    assert bench.check(number).conclusion == "neutral"


@pytest.mark.slow
@pytest.mark.parametrize("login", ["mallory", "carol", BOT])
def test_a_change_declared_without_the_required_role_fails(bench: Bench, login: str) -> None:
    bench.repo.member("carol", "triage")
    number, again = failing(bench)
    expect(bench, number, login)
    assert again().status == "FAIL"


def test_an_edited_or_deleted_declaration_does_not_count(bench: Bench) -> None:
    number, again = failing(bench)
    id = bench.repo.comment(number, "bob", "looks fine")
    bench.repo.edit_comment(id, "/regbot expect all-to-all replaced by gather and sum@ep@*: looks fine")
    assert again().status == "FAIL"
    id = expect(bench, number, "bob")
    assert again().status == "PASS"
    del bench.repo.all_comments[id]
    assert again().status == "FAIL"


def reviewed(bench: Bench) -> tuple[int, Callable[[], PostedResult]]:
    number = bench.pull()
    run = bench.static(number, bench.session(bench.head(number), theirs=MORE))
    return number, lambda: only(bench.post(run))


def test_a_review_is_accepted_for_one_commit_by_a_maintainer(bench: Bench) -> None:
    number, again = reviewed(bench)
    assert again().status == "REVIEW"
    assert bench.check(number).conclusion == "action_required"
    assert f"/regbot accept {bench.head(number)}: why" in bench.comment(number)
    bench.repo.comment(number, "bob", f"/regbot accept {bench.head(number)}: I think so")
    assert again().status == "REVIEW"
    bench.repo.comment(number, "ann", f"/regbot accept {bench.head(number)}: counts are *needed* @here")
    assert again().status == "PASS"
    text = bench.comment(number)
    assert headline(text) == "### ✅ PASS: accepted by `ann`"
    assert "&#42;needed&#42;" in text
    assert "⚠️ REVIEW" in text
    assert bench.check(number).conclusion == "neutral"
    assert "PASS, accepted" in str(bench.check(number).title)


def test_a_fail_cannot_be_accepted(bench: Bench) -> None:
    number, again = failing(bench)
    bench.repo.comment(number, "ann", f"/regbot accept {bench.head(number)}: fine")
    assert again().status == "FAIL"


# A merge group
