"""Shadow mode: recorded checks, outcomes and the scoreboard, and that no record is ever lost.

The pages: REGBOT_WRITE_GOLDEN=1 pytest tests/shadow/test_shadow.py
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from regbot.cli.app import app
from regbot.records.files import RecordError
from regbot.records.schema_files import schema_text
from regbot.records.shadow import OutcomeKind, ShadowListing
from regbot.records.verdict import (
    EXIT_CODES,
    Cost,
    Decision,
    Finding,
    Sharding,
    Status,
    Throughput,
    Validity,
    WorkloadVerdict,
)
from regbot.shadow import BLOCKING, compute_scoreboard, load_checks, load_checks_of_commit, record_check, settle_commit
from regbot.shadow.page import write_checks, write_list, write_scoreboard, write_sentence
from regbot.stats.calibration import rate_bounds
from support import report_cases
from support.report_cases import CASES
from support.shadow_writer import NOW, commit, verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "shadow"
WRITER = Path(__file__).parents[1] / "support" / "shadow_writer.py"

A, B, C, D = ("a1" * 20, "b2" * 20, "c3" * 20, "d4" * 20)


def at(hours: float) -> datetime:
    return NOW + timedelta(hours=hours)


def write_checks_of(folder: Path, *checks: tuple[str, Status, OutcomeKind | None]) -> None:
    """Write checks in this order, an hour apart, with their outcomes."""
    for hour, (head, status, outcome) in enumerate(checks):
        record_check(verdict(head, status), folder, at(hour))
        if outcome is not None:
            settle_commit(folder, head, outcome, "ann", "looked", at(hour + 0.5))


def many(
    status: Status, outcome: OutcomeKind | None, count: int, start: int
) -> list[tuple[str, Status, OutcomeKind | None]]:
    return [(commit(start, number), status, outcome) for number in range(count)]


QWEN, MIXTRAL = "qwen3-30b-a3b@1/ep", "mixtral-8x7b@1/ep"


def sharding(status: Status, pattern: str = "", reason: str = "Nothing changed.") -> Sharding:
    findings = [Finding(pattern=pattern, status=status, axis="ep", base={}, head={}, text=reason)] if pattern else []
    return Sharding(status=status, reasons=[reason], findings=findings, source="fake")


def pace(status: Status, decision: Decision | None, *bounds: float) -> Throughput:
    estimate, low, high = bounds or (None, None, None)
    cost = Cost(runs=18, minutes=41.5)
    return Throughput(
        status=status,
        reasons=["Head is slower than base." if decision == "regressed" else f"The decision is {decision}."],
        decision=decision,
        estimate_pct=estimate,
        low_pct=low,
        high_pct=high,
        pairs=8,
        cost=cost,
    )


def build_workloads(
    section: Sharding | None, timed: Throughput | None = None, reason: str = ""
) -> list[WorkloadVerdict]:
    """Return two workloads with this sharding; the first was timed. ``reason``: why they could not be measured."""
    validity = Validity(status="INVALID" if reason else "PASS", reasons=[reason] if reason else [])
    return [
        WorkloadVerdict(name=QWEN, sharding=section, throughput=timed, validity=validity),
        WorkloadVerdict(name=MIXTRAL, sharding=section, throughput=None, validity=validity),
    ]


TWICE = sharding("FAIL", "all-to-all replaced by gather and sum", "In 48 of 48 MoE layers the all-to-all was replaced.")
ADDED = sharding("REVIEW", "exchange of token counts or indices added", "In 48 of 48 MoE layers counts are exchanged.")
SAME = sharding("PASS")
UNDECIDED = pace("INCONCLUSIVE", "undecided", 0.9, -0.4, 2.3)

DAYS: list[tuple[str, Status, str, list[WorkloadVerdict]]] = [
    ("5ac1", "PASS", "Bump the tokenizer (#803)", build_workloads(SAME, pace("PASS", "no_change", 0.2, -0.6, 1.0))),
    ("b82e", "FAIL", "Route experts through the logical axis rules (#812)", build_workloads(TWICE)),
    (
        "07d3",
        "INCONCLUSIVE",
        "Fuse the permute (#809)",
        build_workloads(SAME, pace("INCONCLUSIVE", "undecided", 0.9, -0.4, 2.3)),
    ),
    ("9e40", "FAIL", "Log the router entropy (#815)", build_workloads(SAME, pace("FAIL", "regressed", 3.4, 2.1, 4.8))),
    ("c3f6", "INVALID", "Move to the new container (#816)", build_workloads(None, None, "The node was not healthy.")),
    ("41ab", "PASS", "Rename a flag (#818)", build_workloads(SAME)),
    (
        "e07c",
        "FAIL",
        "Save activations in fp32 (#820)",
        build_workloads(SAME, pace("FAIL", "regressed", 6.2, 4.9, 7.6)),
    ),
    ("d915", "REVIEW", "Exchange token counts (#821)", build_workloads(ADDED)),
]
"""Two weeks of a team: the prefix of a commit, its status, its subject, its workloads."""


@pytest.fixture
def two_weeks(tmp_path: Path) -> Path:
    """Return a folder as a team may have it after two weeks."""
    folder = tmp_path / "shadow"
    for number, (start, status, subject, workloads) in enumerate(DAYS):
        judged = verdict(start * 10, status, subject).model_copy(update={"workloads": workloads})
        record_check(judged, folder, at(40 * number))
    settle_commit(folder, "b82eb82e", "confirmed", "ann", "bisect names this commit; fixed in #819", at(60))
    settle_commit(folder, "9e409e40", "refuted", "bob", "timed again on another node: no change", at(170))
    settle_commit(folder, "5ac15ac1", "missed", "ann", "the nightly runs are slower since this commit", at(300))
    return folder


# ---- what is written down


def test_an_entry_summarizes_the_verdict(tmp_path: Path) -> None:
    whole = CASES["both_fail"]()[0]
    record_check(whole, tmp_path, NOW)
    entry = load_checks(tmp_path)[0].entry
    assert (entry.verdict, entry.would_block, entry.base) == ("FAIL", True, whole.base.commit)
    assert (entry.head, entry.subject, entry.created) == (whole.head.commit, whole.head.subject, "2026-08-01T12:00:00Z")
    assert [workload.name for workload in entry.workloads] == [workload.name for workload in whole.workloads]
    short, long = entry.workloads[0], whole.workloads[0]
    assert long.sharding is not None
    assert long.throughput is not None
    assert short.throughput is not None
    assert short.findings == [f"{long.sharding.findings[0].pattern}@ep"]
    assert short.reason == long.sharding.reasons[0]
    throughput = long.throughput
    assert (short.throughput.estimate_pct, short.throughput.pairs) == (throughput.estimate_pct, throughput.pairs)
    costs = [workload.throughput.cost for workload in whole.workloads if workload.throughput]
    assert entry.minutes == pytest.approx(sum(cost.minutes for cost in costs if cost))
    assert entry.minutes > 0


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_verdict_can_be_recorded_and_printed(tmp_path: Path, name: str) -> None:
    record_check(CASES[name]()[0], tmp_path, NOW)
    rows = load_checks(tmp_path)
    assert compute_scoreboard(tmp_path).checks == 1
    assert rows[0].entry.verdict in write_checks(rows)


def test_blocking_statuses_are_those_that_block_a_merge(tmp_path: Path) -> None:
    write_checks_of(tmp_path, *((commit(1, number), status, None) for number, status in enumerate(EXIT_CODES)))
    blocked = {row.entry.verdict for row in load_checks(tmp_path) if row.entry.would_block}
    assert blocked == {"FAIL", "INVALID", "REVIEW"}
    path = record_check(verdict(A, "INVALID"), tmp_path, at(9), blocking=BLOCKING[:1])
    assert not json.loads(path.read_text())["would_block"]


def test_a_shadow_check_names_the_conclusion_it_replaces(tmp_path: Path) -> None:
    path = Path("shadow/x.json")
    assert write_sentence("FAIL", True, path) == (
        "shadow: regbot would have failed this change (FAIL, which stops a merge). Nothing is blocked. "
        "Recorded in shadow/x.json"
    )
    sentences = {write_sentence(status, False, path) for status in EXIT_CODES}
    assert len(sentences) == len(EXIT_CODES)
    assert not any("stops a merge" in words for words in sentences)


def test_equal_checks_of_one_second_are_one_file_and_different_ones_two(tmp_path: Path) -> None:
    first = record_check(verdict(A), tmp_path, NOW)
    assert record_check(verdict(A), tmp_path, NOW) == first
    assert record_check(verdict(A, "PASS"), tmp_path, NOW) != first
    assert len(load_checks(tmp_path)) == 2


# ---- settling


def test_the_last_outcome_counts_and_none_is_deleted(tmp_path: Path) -> None:
    record_check(verdict(A), tmp_path, NOW)
    paths = [
        settle_commit(tmp_path, A, "refuted", "ann", "the node was throttled", at(2)),
        settle_commit(tmp_path, A, "confirmed", "bob", "it is there on another node too", at(3)),
        settle_commit(tmp_path, A[:6].upper(), "unknown", "eve", "of an earlier clock", at(1)),
    ]
    assert all(path.exists() for path in paths)
    (row,) = load_checks(tmp_path)
    assert row.outcome is not None
    assert (row.outcome.outcome, row.outcome.who) == ("confirmed", "bob")


@pytest.mark.parametrize(
    ("status", "outcome", "message"),
    [
        ("FAIL", "missed", "missed no regression: give 'confirmed', or 'refuted'"),
        ("REVIEW", "missed", "missed no regression"),
        ("PASS", "confirmed", "cannot be confirmed"),
        ("INCONCLUSIVE", "refuted", "cannot be refuted"),
        ("INVALID", "confirmed", "give 'missed'"),
    ],
)
def test_an_outcome_that_the_check_cannot_have_is_refused(
    tmp_path: Path, status: Status, outcome: OutcomeKind, message: str
) -> None:
    record_check(verdict(A, status), tmp_path, NOW)
    with pytest.raises(RecordError, match=message):
        settle_commit(tmp_path, A, outcome, "ann", "looked", at(1))
    assert settle_commit(tmp_path, A, "unknown", "ann", "nobody will know", at(1)).exists()


def test_a_commit_is_named_by_a_unique_prefix(tmp_path: Path) -> None:
    write_checks_of(tmp_path, ("abcdef12" * 5, "FAIL", None), ("abcdef13" * 5, "FAIL", None))
    for name, message in (
        ("abcde", "too short"),
        ("abcdef", "2 commits with a shadow check begin with 'abcdef'"),
        ("012345", "no commit with a shadow check begins with '012345'; see 'regbot shadow list'"),
    ):
        with pytest.raises(RecordError, match=message):
            settle_commit(tmp_path, name, "confirmed", "ann", "looked", at(5))
    assert "abcdef13" in settle_commit(tmp_path, "abcdef13", "confirmed", "ann", "looked", at(5)).name
    assert len(load_checks_of_commit(tmp_path, "abcdef13abcdef13")) == 1


# ---- the score


def test_the_scoreboard_compares_results_with_outcomes(tmp_path: Path) -> None:
    write_checks_of(
        tmp_path,
        *many("FAIL", "confirmed", 5, 1),
        *many("FAIL", "refuted", 2, 2),
        *many("FAIL", "unknown", 1, 3),
        *many("FAIL", None, 2, 4),
        *many("REVIEW", "confirmed", 1, 5),
        *many("REVIEW", "refuted", 2, 6),
        *many("PASS", None, 20, 7),
        *many("PASS", "missed", 1, 8),
        *many("INCONCLUSIVE", "missed", 1, 9),
        *many("INCONCLUSIVE", None, 3, 10),
        *many("INVALID", None, 4, 11),
    )
    board = compute_scoreboard(tmp_path)
    assert (board.checks, board.commits, board.would_block) == (42, 42, 10 + 3 + 4)
    assert board.fail.model_dump() == {"commits": 10, "confirmed": 5, "refuted": 2, "unknown": 1, "open": 2}
    assert board.review.model_dump() == {"commits": 3, "confirmed": 1, "refuted": 2, "unknown": 0, "open": 0}
    assert (board.passed.commits, board.passed.missed) == (21, 1)
    assert (board.inconclusive.commits, board.inconclusive.missed) == (4, 1)
    assert (board.invalid.commits, board.invalid.missed) == (4, 0)
    assert board.precision is not None
    assert board.recall is not None
    assert (board.precision.count, board.precision.total) == (5, 7)
    assert (board.precision.low, board.precision.high) == rate_bounds(5, 7)
    assert (board.recall.count, board.recall.total) == (5, 8), "a REVIEW and two silences had one too"
    assert [row.entry.head for row in board.open] == [commit(4, 0), commit(4, 1)]
    assert len(board.settled) == 13


def test_a_commit_counts_once_by_its_last_check(tmp_path: Path) -> None:
    write_checks_of(tmp_path, (A, "INVALID", None), (B, "PASS", None), (A, "FAIL", "confirmed"), (A, "FAIL", None))
    board = compute_scoreboard(tmp_path)
    assert (board.checks, board.commits, board.would_block) == (4, 2, 1)
    assert (board.fail.commits, board.fail.confirmed, board.invalid.commits) == (1, 1, 0)
    assert board.open == []


def test_a_confirmed_regression_that_a_later_check_passes_is_a_miss(tmp_path: Path) -> None:
    write_checks_of(tmp_path, (A, "FAIL", "confirmed"), (A, "PASS", None))
    board = compute_scoreboard(tmp_path)
    assert (board.fail.commits, board.passed.commits, board.passed.missed) == (0, 1, 1)
    assert board.recall is not None
    assert (board.recall.count, board.recall.total) == (0, 1)


def test_a_start_day_excludes_older_checks(tmp_path: Path) -> None:
    write_checks_of(tmp_path, (A, "FAIL", "confirmed"))
    record_check(verdict(B, "PASS"), tmp_path, at(24))
    assert compute_scoreboard(tmp_path, date(2026, 8, 2)).commits == 1
    assert compute_scoreboard(tmp_path, date(2026, 8, 1)).commits == 2
    late = compute_scoreboard(tmp_path, date(2027, 1, 1))
    assert (late.commits, late.first, late.precision) == (0, None, None)
    assert write_scoreboard(late) == "no shadow check is recorded since 2027-01-01"


def test_a_missing_folder_has_no_checks(tmp_path: Path) -> None:
    board = compute_scoreboard(tmp_path / "none")
    assert (board.checks, board.minutes) == (0, 0)
    assert "regbot check --shadow" in write_scoreboard(board)
    assert write_list(ShadowListing(checks=[])) == write_scoreboard(board)


# ---- files


def test_an_edited_torn_or_misnamed_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = record_check(verdict(A), tmp_path, NOW)
    outcome = settle_commit(tmp_path, A, "confirmed", "ann", "looked", at(1))
    whole = path.read_text()
    for wrong in (whole.replace('"FAIL"', '"PASS"'), whole[: len(whole) // 2], ""):
        path.write_text(wrong)
        with pytest.raises(RecordError, match=f"{path.name}: was edited or torn"):
            load_checks(tmp_path)
    path.write_text(whole)
    for name in ("notes.json", outcome.name.replace("outcome", "verdict"), f"{'f' * 40}.json"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(RecordError, match="is not that of a shadow check"):
            load_checks(tmp_path)
        (tmp_path / name).unlink()
    moved = tmp_path / path.name.replace(A, B)
    path.rename(moved)
    with pytest.raises(RecordError, match="outcome of a check that is missing"):
        load_checks(tmp_path)
    outcome.unlink()
    with pytest.raises(RecordError, match="the check of another commit or time"):
        load_checks(tmp_path)
    moved.unlink()
    (tmp_path / "README.md").write_text("what this is")
    assert load_checks(tmp_path) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = record_check(verdict(A), tmp_path / "shadow", NOW)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="cannot be read"):
        load_checks(tmp_path / "shadow")


def test_two_branches_merge_without_a_conflict_for_every_line_end_setting(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=true", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    folder = tmp_path / "shadow"
    git("init", "-q", "-b", "main")
    record_check(verdict(A), folder, NOW)
    git("add", "-A")
    git("commit", "-qm", "one")
    sides: list[tuple[str, OutcomeKind]] = [("left", "confirmed"), ("right", "refuted")]
    for branch, outcome in sides:
        git("checkout", "-q", "-b", branch, "main")
        record_check(verdict(B, "PASS", subject=branch), folder, NOW)
        settle_commit(folder, A, outcome, branch, "looked", at(1 if branch == "left" else 2))
        git("add", "-A")
        git("commit", "-qm", branch)
    (folder / f".{A}.json.x7").write_text("left by a writer that was killed")
    assert git("status", "--porcelain") == ""
    git("merge", "-q", "left")
    rows = load_checks(folder)
    assert len(rows) == 3
    assert {row.outcome.outcome for row in rows if row.outcome} == {"refuted"}


def writers(folder: Path, count: int, checks_per_writer: int) -> list[subprocess.Popen[str]]:
    start = [sys.executable, str(WRITER), str(folder)]
    return [
        subprocess.Popen([*start, str(writer), str(checks_per_writer)], stdout=subprocess.PIPE, text=True)
        for writer in range(count)
    ]


def names(processes: Iterable[subprocess.Popen[str]]) -> list[str]:
    return [name for process in processes for name in process.communicate(timeout=60)[0].splitlines()]


@pytest.mark.slow
def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    running = writers(tmp_path / "shadow", 4, 8)
    reported = names(running)
    assert [process.returncode for process in running] == [0] * 4
    assert set(reported) <= {path.name for path in (tmp_path / "shadow").iterdir()}
    rows = load_checks(tmp_path / "shadow")
    assert len(rows) == 4 * 8 + 4, "those of their own, and one each of the commit that all have checked"
    assert compute_scoreboard(tmp_path / "shadow").fail.confirmed == 4 * 8


@pytest.mark.slow
def test_killed_writers_leave_every_reported_file_and_no_broken_one(tmp_path: Path) -> None:
    folder = tmp_path / "shadow"
    reported: set[str] = set()
    for turn in range(4):
        running = writers(folder, 2, 10**6)
        assert all(process.stdout is not None and process.stdout.readline() for process in running), "it writes"
        time.sleep(0.05 * turn)
        for process in running:
            process.kill()
        reported |= {name for name in names(running) if name.endswith(".json")}
        load_checks(folder)
    rows = load_checks(folder)
    assert len(reported) > 8
    assert reported <= {path.name for path in folder.iterdir()}
    assert {row.name for row in rows} >= {name.removesuffix(".json") for name in reported if "outcome" not in name}


# ---- what a reader sees


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


def test_the_pages_match_their_golden_texts(two_weeks: Path) -> None:
    golden("scoreboard", write_scoreboard(compute_scoreboard(two_weeks)))
    golden("list", write_list(ShadowListing(checks=load_checks(two_weeks))))
    golden("entry", write_checks(load_checks_of_commit(two_weeks, "9e409e40")))


def test_the_documentation_shows_the_page_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "shadow.md").read_text(encoding="utf-8")
    assert (GOLDEN / "scoreboard.txt").read_text(encoding="utf-8") in text


def test_no_text_of_the_author_reaches_the_terminal_as_an_escape(tmp_path: Path) -> None:
    record_check(report_cases.hostile()[0], tmp_path, NOW)
    record_check(verdict(A, subject="\x1b[2J\u202e evil"), tmp_path, at(1))
    settle_commit(tmp_path, A, "refuted", "\x1b[31mann", "be\x07cause\nof it", at(2))
    rows = load_checks(tmp_path)
    for page in (
        write_list(ShadowListing(checks=rows)),
        write_scoreboard(compute_scoreboard(tmp_path)),
        *(write_checks([row]) for row in rows),
    ):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", page)


# ---- the commands


def command(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["shadow", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_the_commands_list_show_and_settle(two_weeks: Path) -> None:
    at_folder = ("--scoreboard", str(two_weeks))
    assert command("list", *at_folder).count("\n") == 1 + len(DAYS), "a heading, and a line for each check"
    assert command("show", *at_folder).startswith("shadow scoreboard, 2026-08-01 to 2026-08-13")
    assert "throughput FAIL +6.2%" in command("show", "e07ce07c", *at_folder)
    assert "8 commits" not in command("show", "--since", "2026-08-09", *at_folder)
    settled = command("settle", "e07ce07c", "confirmed", "--why", "seen", "--who", "ann", *at_folder)
    assert settled.startswith("settled in ")
    assert "confirmed (settled by ann" in command("show", "e07ce07c", *at_folder)


def test_the_documents_satisfy_their_schemas(two_weeks: Path) -> None:
    listed, scored = "shadow-list@1", "scoreboard@1"
    for words, name in ((("list",), listed), (("show",), scored), (("show", "e07ce07c"), listed)):
        document = json.loads(command(*words, "--json", "--scoreboard", str(two_weeks)))
        assert document["schema"] == f"regbot/{name}"
        jsonschema.Draft202012Validator(json.loads(schema_text(name))).validate(document)
    for path in two_weeks.glob("*.json"):
        document = json.loads(path.read_text())
        name = document["schema"].removeprefix("regbot/")
        assert name == ("shadow-outcome@1" if "outcome" in path.name else "shadow@1")
        jsonschema.Draft202012Validator(json.loads(schema_text(name))).validate(document)


def test_user_errors_exit_2_with_a_message(two_weeks: Path) -> None:
    at_folder = ("--scoreboard", str(two_weeks))
    assert "no commit with a shadow check" in command("settle", "012345", "refuted", "--why", "x", *at_folder, code=2)
    assert "give 'missed'" in command("settle", "41ab41", "refuted", "--why", "x", *at_folder, code=2)
    assert "--why is empty" in command("settle", "e07ce0", "refuted", "--why", " ", *at_folder, code=2)
    assert "--since is for the scoreboard, not for one commit" in command(
        "show", "e07ce0", "--since", "2026-08-01", *at_folder, code=2
    )
    command("settle", "e07ce0", "perhaps", "--why", "x", *at_folder, code=2)
