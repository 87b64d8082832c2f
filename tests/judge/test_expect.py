"""Declared changes: what an ``--expect`` rule covers, and that nothing is covered by accident."""

import pytest

from regbot.judge.expectations import Expectation, ExpectationError, accept, parse_expectation
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
        ("@ep@*: why", "write 'pattern@axis@workload: reason'"),
        ("everything@*@*: why", "unknown pattern 'everything'; the patterns are: all-to-all replaced"),
        ("*@*@*: why", "unknown pattern '*'"),
    ],
)
def test_a_rule_that_cannot_be_used_says_how_to_write_it(text: str, complaint: str) -> None:
    with pytest.raises(ExpectationError) as error:
        parse_expectation(text)
    assert complaint in str(error.value)


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


def test_a_finding_on_two_axes_is_covered_only_where_both_are() -> None:
    both = finding("FSDP reshards after forward", "dp, edp")
    assert not accepted("FSDP reshards after forward@dp@*: why", both)
    assert accepted("FSDP reshards after forward@*dp@*: why", both)
