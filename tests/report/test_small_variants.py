"""A verdict on a small variant of a shape says so in every output, because it is no verdict on the full model."""

import pytest

from regbot.cli.terminal import verdict_page
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.report.comment import comment
from regbot.report.page import html
from support.judge_cases import A2A, BASE, GATHERED, HEAD
from support.ledger_builder import smoke_run, smoke_session
from support.report_cases import CASES


def case(variant: str) -> tuple[Verdict, Session]:
    """A fall-back that was traced at ``variant``."""
    fields = {"variant": variant}
    ledgers = [ledger.model_copy(update=fields) for ledger in (A2A, GATHERED)]
    session = smoke_session(
        *(smoke_run(arm, ledger, **fields) for arm, ledger in zip((BASE, HEAD), ledgers, strict=True))
    )
    return judge(session, Config()), session


@pytest.mark.parametrize(("variant", "size"), [("cpu", "cpu"), ("smoke-skewed", "smoke")])
def test_it_stands_with_the_answer_and_in_the_terminal(variant: str, size: str) -> None:
    verdict, session = case(variant)
    (workload,) = verdict.workloads
    assert workload.sharding is not None
    assert workload.sharding.variant == variant
    answers = next(line for line in comment(verdict, session).splitlines() if line.startswith("**Sharding**"))
    assert f" ({size} variant, not the full model) · " in answers
    small = f"the {size} variant, a small copy of the shape: remove variant from regbot.toml"
    assert f"They come from {small}" in comment(verdict, session)
    assert f"({size} variant, not the full model)" in html(verdict, session)
    assert f"sharding of {small}" in verdict_page(verdict, None)


@pytest.mark.parametrize("variant", ["full", "full-dense", "<b>cpu</b>", "cpu\n# FAIL", "my own"])
def test_the_full_model_needs_no_word_and_no_other_name_is_repeated(variant: str) -> None:
    verdict, session = case(variant)
    for text in (comment(verdict, session).partition("<details>")[0], verdict_page(verdict, None)):
        assert "small copy" not in text
        assert "not the full model" not in text


def test_the_gravest_finding_of_a_pattern_comes_first_with_its_workload() -> None:
    verdict, _ = CASES["sharding_fail"]()
    first, *rest = verdict.workloads
    assert first.sharding is not None
    softer = [finding.model_copy(update={"status": "REVIEW"}) for finding in first.sharding.findings]
    sharding = first.sharding.model_copy(update={"status": "REVIEW", "findings": softer})
    workloads = [first.model_copy(update={"sharding": sharding}), *rest]
    text = verdict_page(verdict.model_copy(update={"workloads": workloads}), None)
    fail = text.index("FAIL  all-to-all replaced by gather and sum (axis ep) in ")
    assert fail < text.index("REVIEW  all-to-all replaced by gather and sum")
    assert rest[0].name in text[fail : text.index("\n", fail)]
    assert first.name not in text[fail : text.index("\n", fail)].split(", ")
