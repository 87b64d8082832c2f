"""Parsing of the nodes' reports from srun's output, which may also contain lines of the guest and of Slurm itself."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import LaunchResult
from regbot.engines.slurm import node
from regbot.engines.slurm.commands import parse_gpus, parse_minutes
from regbot.engines.slurm.node import LINE_CHARACTERS, RESULT, NodeProgram
from regbot.engines.slurm.reports import Inbox, combine_reports, find_missing_file

NONCE, OTHER = "aa11", "bb22"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what a node prints for a message."""

    def print_message(number: int, message: dict[str, Any], nonce: str = NONCE) -> str:
        monkeypatch.setenv("SLURM_PROCID", str(number))
        NodeProgram(nonce).print_message(message)
        return capsys.readouterr().out

    return print_message


def receive(text: str) -> Inbox:
    """Return an inbox that has got ``text`` in two pieces."""
    inbox = Inbox(NONCE)
    inbox.receive(text.encode()[:7])
    inbox.receive(text.encode()[7:])
    return inbox


def report(files: dict[str, int] | None = None, **changes: Any) -> dict[str, Any]:
    result = LaunchResult(
        exit_code=0, timed_out=False, output_truncated=False, excess="", left_behind=0, unkilled=0, wall_s=1.0,
        log_tail="",
    )  # fmt: skip
    return {"result": RESULT.dump_python(replace(result, **changes), mode="json"), "files": files or {}}


def test_a_long_report_is_joined_even_if_two_nodes_print_at_the_same_time(printed: Any) -> None:
    long = {"log_tail": "x" * 5 * LINE_CHARACTERS}
    first = printed(0, {"id": "run", **long}).splitlines()
    second = printed(1, {"id": "run", "wall_s": 2}).splitlines()
    inbox = receive("\n".join([first[0], "srun: a word", second[0], *first[1:], *second[1:], ""]))
    assert inbox.reports("run") == {0: long, 1: {"wall_s": 2}}
    assert inbox.reports("another") == {}


def test_a_message_that_is_incomplete_or_of_another_seat_is_left_out(printed: Any) -> None:
    for text in (
        printed(1, {"id": "run"}, nonce=OTHER),
        f"{NONCE} 1 {{\n{NONCE} 1 =end\n",
        printed(1, {"id": "run"}).removesuffix("=end\n"),
    ):
        assert receive(text).reports("run") == {}


def test_messages_of_srun_are_returned_without_those_of_the_nodes(printed: Any) -> None:
    text = printed(0, {"id": "run"}) + "srun: cluster configuration lacks support for cpu binding\nsrun: n2 died\n"
    assert receive(text).srun_messages == "srun: n2 died"


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "silent"])
def test_a_node_reads_lines_until_regbot_is_gone(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(node, "STDIN", reader)
    os.write(writer, b"first\n\nsecond\nincomplete")  # an empty line is a heartbeat
    if is_closed:
        os.close(writer)
    assert list(node.read_lines(silent_s=0.1)) == [b"first", b"second"]


def test_a_combined_result_takes_exit_code_and_logs_from_the_nodes_that_failed_first() -> None:
    hosts = ("n1", "n2", "n3")
    good = report(wall_s=3.0, warnings=("a",), log_tail="good")
    both = combine_reports({0: good, 1: report(exit_code=9, left_behind=2, warnings=("b",), log_tail="bad")}, hosts)
    assert (both.exit_code, both.wall_s, both.left_behind, both.log_tail) == (9, 3.0, 2, "bad")
    assert both.warnings == ("n1: a", "n2: b")
    late = combine_reports({0: report(exit_code=None, timed_out=True), 1: report(exit_code=1)}, hosts)
    assert (late.timed_out, late.exit_code) == (True, None)
    failed = {
        number: report(exit_code=number + 1, wall_s=9.0 - number, log_tail=f"{'x' * 5000} {number}")
        for number in range(3)
    }
    result = combine_reports(failed, hosts)
    assert (result.exit_code, len(result.log_tail) < 4000) == (3, True)
    ends = result.log_tail.split("\n")
    assert [ends[0], ends[1][-2:], ends[2], ends[3][-2:]] == ["n3:", " 2", "n2:", " 1"]


def test_an_incomplete_file_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "raw.0.json").write_text("12345")
    assert find_missing_file(tmp_path, {0: report({"raw.0.json": 5})}) is None
    assert find_missing_file(tmp_path, {0: report({"raw.0.json": 6})}) == (0, "raw.0.json")
    assert find_missing_file(tmp_path, {1: report({"raw.1.json": 0})}) == (1, "raw.1.json")


def test_limits_and_gpus_are_parsed_as_slurm_writes_them() -> None:
    minutes = {"60": 60.0, "1:30": 1.5, "2:00:00": 120.0, "1-00": 1440.0, "1-02:30": 1590.0, "1-02:30:00": 1590.0}
    assert {text: parse_minutes(text) for text in minutes} == minutes
    assert parse_minutes("infinite") is None
    gres = {
        "gpu:8": 8,
        "gpu:h200:8(S:0-1)": 8,
        "gpu:a:2,gpu:b:4": 6,
        "gpu:1g.10gb:7": 7,
        "gpu:3g.40gb:2(S:0)": 2,
        "(null)": 0,
        "": 0,
    }
    assert {text: parse_gpus(text) for text in gres} == gres
