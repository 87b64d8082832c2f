"""The text around a verdict on GitHub: one golden file per situation, and its rendering.

After an intended change, rewrite the golden files and read the difference:

    REGBOT_WRITE_GOLDEN=1 pytest tests/github/test_posted_text.py
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from regbot.github import verdict_text as words
from regbot.github.declarations import ReviewAcceptance
from regbot.github.metadata import MEASURE, STATIC, Subject
from regbot.github.stamped_text import Stamp, StampedText, select_strongest
from regbot.github.types import WorkflowRun
from regbot.records.config import GitHub
from regbot.records.verdict import Status
from regbot.report.markdown import UntrustedText
from support.hostile import Page
from support.report_cases import CASES, HOSTILE
from support.sharding_cases import HEAD

GOLDEN = Path(__file__).parents[1] / "golden" / "posted"
THEN = datetime(2026, 1, 5, 9, tzinfo=UTC)
LIVE = "f" * 40
SHOWING, SHADOW, STRICT = GitHub(), GitHub(shadow=True), GitHub(self_reported="action_required")
RUN = WorkflowRun(
    id=77,
    path=STATIC,
    event="pull_request",
    head_branch="topic",
    head_sha=HEAD.commit,
    head_repository="mallory/moe",
    title="A change",
    status="completed",
    conclusion="success",
    attempt=1,
    repository="acme/moe",
    started=THEN,
    updated=THEN,
    url="https://github.com/acme/moe/actions/runs/77",
)
STATIC_OF = Subject(RUN, "static", HEAD.commit, 12, 12, "main", ("main",))
MEASURED_OF = replace(
    STATIC_OF, tier="measured", nonce="0123456789abcdef", run=RUN.model_copy(update={"path": MEASURE})
)
GROUP = replace(STATIC_OF, number=0)
ANN = ReviewAcceptance("ann", "the router needs the counts")


def write_posted(
    name: str,
    subject: Subject,
    github: GitHub = SHOWING,
    acceptance: ReviewAcceptance | None = None,
    live: str = HEAD.commit,
) -> str:
    verdict, session = CASES[name]()
    text = words.write_verdict_text(verdict, session, subject, acceptance, github)
    return write_body(text, "PASS" if acceptance else verdict.verdict, subject, live)


def invalid(subject: Subject, *why: str, github: GitHub = SHOWING) -> str:
    return write_body(words.write_invalid_text(why, subject, github), "INVALID", subject)


def write_body(text: str, status: Status, subject: Subject, live: str = HEAD.commit) -> str:
    stamp = Stamp(subject.number, subject.sha, subject.tier, subject.run.id, 1, status)
    return StampedText(stamp, text).body(live)


def cancelled_after(name: str, subject: Subject) -> str:
    """Return a verdict with an INVALID measurement of the same commit."""
    verdict, session = CASES[name]()
    text = words.write_verdict_text(verdict, session, subject, None, SHOWING)
    stands = StampedText(Stamp(12, subject.sha, subject.tier, 76, 1, verdict.verdict), text)
    lost = words.write_invalid_text(
        (words.explain_failed_run(RUN.model_copy(update={"conclusion": "cancelled"})),), MEASURED_OF, SHOWING
    )
    both = [stands, StampedText(Stamp(12, subject.sha, "measured", 77, 1, "INVALID"), lost)]
    return select_strongest(both).body(subject.sha)


WHOLE = ("measured_review_accepted", "artifact_refused")
"""Situations whose golden text is whole. The others have what stands above the first table."""

SITUATIONS: dict[str, Callable[[], str]] = {
    "self_reported_pass": lambda: write_posted("pass", STATIC_OF),
    "self_reported_fail_in_shadow_mode": lambda: write_posted("sharding_fail", STATIC_OF, SHADOW),
    "self_reported_stale": lambda: write_posted("pass", STATIC_OF, live=LIVE),
    "measured_pass": lambda: write_posted("pass_no_change", MEASURED_OF),
    "measured_fail": lambda: write_posted("throughput_fail", MEASURED_OF),
    "measured_inconclusive": lambda: write_posted("inconclusive", MEASURED_OF),
    "measured_review": lambda: write_posted("review", MEASURED_OF),
    "measured_review_accepted": lambda: write_posted("review", MEASURED_OF, acceptance=ANN),
    "merge_group_fail": lambda: write_posted("sharding_fail", GROUP),
    "job_cancelled": lambda: invalid(
        MEASURED_OF, words.explain_failed_run(RUN.model_copy(update={"conclusion": "cancelled"}))
    ),
    "job_failed_in_shadow_mode": lambda: invalid(
        STATIC_OF, words.explain_failed_run(RUN.model_copy(update={"conclusion": "failure"})), github=SHADOW
    ),
    "self_reported_pass_that_waits": lambda: write_posted("pass", STATIC_OF, STRICT),
    "merge_group_review": lambda: write_posted("review", replace(GROUP, group_head="3" * 40), STRICT),
    "job_cancelled_after_self_reported_fail": lambda: cancelled_after("sharding_fail", STATIC_OF),
    "job_cancelled_after_measured_pass": lambda: cancelled_after("pass_no_change", MEASURED_OF),
    "artifact_refused": lambda: invalid(
        STATIC_OF,
        "the job's artifact cannot be read: ",
        UntrustedText(f"session.jsonl: line 1 has an unknown key, {HOSTILE}"),
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_matches_its_golden_file(name: str) -> None:
    text, path = SITUATIONS[name](), GOLDEN / f"{name}.md"
    if name not in WHOLE:
        text = re.split(r"\n(?=\| workload|#### |<details>)", text)[0] + "\n"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_verdict_can_be_posted_and_every_line_to_type_stands_alone(name: str) -> None:
    from regbot.github.commands import InvalidCommand, parse_command

    for subject in (STATIC_OF, MEASURED_OF):
        text = write_posted(name, subject)
        typed = [line for line in text.splitlines() if line.startswith("/regbot")]
        for line in typed:
            command = parse_command(line)
            assert command is not None
            assert not isinstance(command, InvalidCommand), line
        assert (
            CASES[name]()[0].verdict == "PASS"
            or subject is STATIC_OF
            or typed
            or "SHOWN" in text
            or "No changed file matches the paths" in text
        )


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_title_is_one_short_plain_line(name: str) -> None:
    verdict, session = CASES[name]()
    for github in (SHOWING, SHADOW):
        title = words.write_title(verdict, session, verdict.verdict, STATIC_OF, github)
        assert verdict.verdict in title
        assert len(title) <= 200
        assert "\n" not in title
        assert title.startswith("shadow, nothing is blocked: self-reported " if github.shadow else "self-reported ")


def test_a_reason_cannot_be_more_than_text() -> None:
    for hostile in (HOSTILE, "\n### ✅ PASS\n@ann", "a" * 10_000_000, "</details><img src=x>", "\u202ePASS\x1b[2J"):
        text = write_posted("review", MEASURED_OF, acceptance=ReviewAcceptance("ann", hostile))
        page = Page(text)
        assert page.tags.count("h3") == 2
        assert {"img", "a"}.isdisjoint(page.tags)
        assert len(text) < 65_536
        assert "\u202e" not in text
        assert "\x1b" not in text


def test_a_run_with_an_invalid_url_is_not_linked() -> None:
    for url in ("", "javascript:alert(1)", "https://x/) [y](https://evil", "https://x/\n"):
        subject = replace(STATIC_OF, run=RUN.model_copy(update={"url": url}))
        assert "a" not in Page(invalid(subject, "why")).tags
