"""Declared changes: what an ``--expect`` rule covers, and that nothing is covered by accident."""

import pytest

from regbot.judge.expectations import Expectation, ExpectationError, accept, parse_expectation
from regbot.ledgers.catalogue import EXPLANATIONS
from regbot.records.verdict import Finding, Status

WORKLOAD = "qwen3-30b-a3b@1/ep"


def finding(pattern: str = "recompute re-dispatches", axis: str = "ep", status: Status = "FAIL") -> Finding:
    return Finding(pattern=pattern, status=status, axis=axis, base={}, head={}, text="text")


def accepted(rule: str, declared: Finding, workload: str = WORKLOAD) -> bool:
    (judged,) = accept([declared], [parse_expectation(rule)], workload)
    assert (judged.accepted is not None) == (judged != declared)
    return judged.accepted is not None


@pytest.mark.parametrize(
    "text",
    [
        "recompute re-dispatches@ep@qwen3-30b-a3b@1/ep: saves memory",
        "recompute-re-dispatches@ep@qwen3-30b-a3b@1/ep:saves memory",
        "  Recompute re dispatches @ ep @ qwen3-30b-a3b@1/ep :  saves memory ",
    ],
)
def test_patterns_may_be_written_with_spaces_or_hyphens(text: str) -> None:
    assert parse_expectation(text) == Expectation("recompute re-dispatches", "ep", WORKLOAD, "saves memory")


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_every_pattern_can_be_declared_in_both_spellings(name: str) -> None:
    for spelling in (name, name.replace(" ", "-")):
        assert parse_expectation(f"{spelling}@*@*: why").pattern == name


def test_a_reason_may_hold_colons_and_at_signs() -> None:
    assert parse_expectation("payload bytes up@dp@*: see #12: agreed with @someone").reason == (
        "see #12: agreed with @someone"
    )


def test_an_axis_that_is_a_rank_list_keeps_its_colon() -> None:
    rule = parse_expectation("payload bytes up@[0-8:4]@*: new group")
    assert (rule.axis, rule.reason) == ("[0-8:4]", "new group")
    assert accepted(str(rule) + ": new group", finding("payload bytes up", "[0-8:4]"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("recompute re-dispatches@ep@*", "the reason is missing"),
        ("recompute re-dispatches@ep@*:   ", "the reason is missing"),
        ("recompute re-dispatches@ep: why", "write 'pattern@axis@workload: reason'"),
        ("recompute re-dispatches: why", "write 'pattern@axis@workload: reason'"),
        ("@ep@*: why", "write 'pattern@axis@workload: reason'"),
        ("", "the reason is missing"),
        (
            "everything@*@*: why",
            "unknown pattern 'everything'; the patterns are: all-to-all replaced",
        ),
        ("*@*@*: why", "unknown pattern '*'"),
    ],
)
def test_a_rule_that_cannot_be_used_says_how_to_write_it(text: str, complaint: str) -> None:
    with pytest.raises(ExpectationError) as error:
        parse_expectation(text)
    assert complaint in str(error.value)


def test_an_accepted_finding_passes_and_shows_the_reason() -> None:
    (judged,) = accept([finding()], [parse_expectation("recompute re-dispatches@ep@*: saves memory")], WORKLOAD)
    assert (judged.status, judged.accepted) == ("PASS", "saves memory")


@pytest.mark.parametrize(
    "rule",
    [
        "recompute re-dispatches@*@*: why",
        "recompute re-dispatches@e*@qwen3-*: why",
        f"recompute re-dispatches@ep@{WORKLOAD}: why",
        "recompute re-dispatches@ep@*/ep: why",
    ],
)
def test_axis_and_workload_may_be_globs(rule: str) -> None:
    assert accepted(rule, finding())


@pytest.mark.parametrize(
    "rule",
    [
        "recompute no longer re-dispatches@*@*: the inverse",
        "recompute re-dispatches@dp@*: another axis",
        "recompute re-dispatches@ep@*/ep-dp: another workload",
        "recompute re-dispatches@e@*: a part of the name",
    ],
)
def test_a_rule_covers_nothing_else(rule: str) -> None:
    assert not accepted(rule, finding())


def test_a_finding_on_two_axes_is_covered_only_where_both_are() -> None:
    both = finding("FSDP reshards after forward", "dp, edp")
    assert not accepted("FSDP reshards after forward@dp@*: why", both)
    assert accepted("FSDP reshards after forward@*dp@*: why", both)


def test_a_moved_collective_is_declared_by_both_axes_in_their_order() -> None:
    moved = finding("collective moved to another axis or group", "dp -> fsdp")
    assert accepted("collective moved to another axis or group@dp -> fsdp@*: renamed", moved)
    assert not accepted("collective moved to another axis or group@fsdp -> dp@*: renamed", moved)
    assert not accepted("collective moved to another axis or group@dp@*: renamed", moved)
