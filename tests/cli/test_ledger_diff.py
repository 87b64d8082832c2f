"""``ledger diff`` of files: incomparable ledgers are refused, and unknown communication never passes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regbot.cli.app import app
from regbot.judge import judge_ledgers
from regbot.judge.sharding import NotComparable
from regbot.ledgers.catalogue import AXIS_LOST, BYTES_UP
from regbot.records.config import Config
from regbot.records.ledger import Ledger, UnclassifiedCommunication
from regbot.records.verdict import Sharding
from support.ledger_builder import edited, smoke_ledger, where, without

A2A = smoke_ledger()
DEEPEP = UnclassifiedCommunication(name="deepep_dispatch", count=48)


def judged(base: Ledger, head: Ledger) -> Sharding:
    return judge_ledgers(base, head, Config())


def having(ledger: Ledger, **changes: Any) -> Ledger:
    return ledger.model_copy(update=changes)


def test_another_version_of_the_compiler_is_named(tmp_path: Path) -> None:
    versions = [{"maxtext": "0.2.5", "jax": "0.12.0.1"}, {"maxtext": "0.2.5", "jax": "0.10.0", "flax": "0.12"}]
    files = []
    for index, software in enumerate(versions):
        files.append(str(tmp_path / f"{index}.json"))
        Path(files[-1]).write_text(having(A2A, software=software).to_json())
    page = CliRunner().invoke(app, ["ledger", "diff", *files]).output
    assert "jax is 0.12.0.1 in base, 0.10.0 in head; another version can compile the same code" in page
    document = json.loads(CliRunner().invoke(app, ["ledger", "diff", *files, "--json"]).output)
    assert document["software_changes"] == {"jax": ["0.12.0.1", "0.10.0"]}


def test_unknown_communication_in_one_arm_never_passes() -> None:
    section = judged(A2A, having(A2A, unclassified=[DEEPEP], fingerprint="b" * 64))
    assert (section.status, section.findings) == ("REVIEW", [])
    assert "deepep_dispatch (0 in base, 48 in head)" in section.reasons[0]


def test_a_lost_collective_with_unclassified_communication_is_invalid() -> None:
    section = judged(A2A, having(edited(A2A, without("all_to_all")), unclassified=[DEEPEP]))
    assert section.status == "INVALID"
    assert "the counts do not show what changed" in section.reasons[0]
    assert AXIS_LOST in {finding.pattern for finding in section.findings}


def test_the_same_unknown_communication_in_both_arms_decides_nothing() -> None:
    both = having(A2A, unclassified=[DEEPEP])
    assert judged(both, both).status == "PASS"
    more = edited(both, where("all_gather dp", bytes=lambda e: 3 * e.bytes))
    assert {finding.pattern for finding in judged(both, more).findings} == {BYTES_UP}


def test_counts_over_an_unknown_number_of_steps_are_review() -> None:
    base = having(A2A, scope="whole")
    more = edited(base, lambda e: e.model_copy(update={"count": 2 * e.count, "bytes": 2 * e.bytes}))
    for section in (judged(base, more), judged(more, base)):
        assert section.status == "REVIEW"
        assert {finding.status for finding in section.findings} == {"REVIEW"}
        assert all("In all, " in finding.text and "Per step" not in finding.text for finding in section.findings)


def test_equal_counts_with_lost_calls_are_review() -> None:
    lost = having(A2A, scope="whole", guesses=["the ring lost 23 calls"], fingerprint=None)
    assert judged(lost, lost).status == "REVIEW"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": "mixtral-8x7b@1/ep"}, "another workload: qwen3-30b-a3b@1/ep in base, mixtral-8x7b@1/ep in head"),
        ({"variant": "full-dense"}, "another variant"),
        ({"rank": 3}, "another rank: 0 in base, 3 in head"),
    ],
)
def test_ledgers_of_different_things_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NotComparable, match=words):
        judged(A2A, having(A2A, **changes))


def test_what_a_file_does_not_tell_is_no_difference() -> None:
    anonymous = having(A2A, workload=None, variant=None, world_size=None)
    assert judged(A2A, anonymous).status == "PASS"


def test_overlap_that_one_arm_lacks_is_reported_as_not_compared() -> None:
    timed = edited(A2A, where("", exposed_s=0.1, hidden_s=0.0))
    assert "overlap not compared: not known in base" in judged(A2A, timed).reasons


def test_the_page_shows_what_the_ledgers_warn_of(tmp_path: Path) -> None:
    for name, ledger in (
        ("a.json", having(A2A, warnings=["kernels disagree"])),
        ("b.json", having(A2A, warnings=["kernels disagree", "one step was cut"], unclassified=[DEEPEP])),
    ):
        (tmp_path / name).write_text(ledger.to_json())
    page = CliRunner().invoke(app, ["ledger", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert page.exit_code == 5
    assert "\nwarning: kernels disagree" in page.output
    assert "head: warning: one step was cut" in page.output
    assert "head: not classified: deepep_dispatch (48)" in page.output
