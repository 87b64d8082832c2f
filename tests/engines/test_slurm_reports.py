"""Parsing of the nodes' reports from srun's output, which may also contain lines of the guest and of Slurm itself."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from regbot.engines.conversation import SupervisorOutput
from regbot.engines.slurm.limits import parse_gpus, parse_minutes
from regbot.engines.slurm.node import BEGUN, LINE_CHARACTERS, print_marked
from regbot.engines.slurm.reports import combine_reports, find_missing_file, parse_messages, srun_messages
from regbot.engines.slurm.seat import OUT_OF_MEMORY

NONCE, OTHER = "aa11", "bb22"


def printed(*messages: tuple[str, int, str]) -> str:
    """Return what the nodes print for messages of nonce, number and text."""
    out = io.StringIO()
    with redirect_stdout(out):
        for nonce, number, text in messages:
            print_marked(nonce, number, text)
    return out.getvalue()


def read(text: str, nodes: int = 2) -> dict[int, list[Any]]:
    return parse_messages(SupervisorOutput(text.encode(), 0), NONCE, nodes)


def report(**changes: Any) -> dict[str, Any]:
    return {
        "exit_code": 0,
        "timed_out": False,
        "output_truncated": False,
        "excess": "",
        "left_behind": 0,
        "unkilled": 0,
        "wall_s": 1.0,
        "health": None,
        "warnings": [],
        "files": {},
    } | changes


def test_a_long_report_is_joined_even_if_two_nodes_print_at_the_same_time() -> None:
    long = {"log_tail": "x" * 5 * LINE_CHARACTERS}
    first = printed((NONCE, 0, json.dumps(long))).splitlines()
    second = printed((NONCE, 1, json.dumps({"wall_s": 2}))).splitlines()
    mixed = "\n".join([first[0], "srun: a word", second[0], *first[1:], *second[1:]])
    assert read(mixed) == {0: [long], 1: [{"wall_s": 2}]}


@pytest.mark.parametrize(
    "forged",
    [
        printed((OTHER, 1, '{"exit_code": 0}')),
        printed((NONCE, 7, '{"exit_code": 0}')),
        f"{NONCE} 1 {{\n{NONCE} 1 =end\n",
        '1: ={"exit_code": 0}\n1: =end\n',
        printed((NONCE, 1, '{"exit_code": 0}')).removesuffix("=end\n"),
    ],
)
def test_a_message_that_is_incomplete_or_of_another_launch_is_left_out(forged: str) -> None:
    assert read(printed((NONCE, 0, BEGUN)) + forged) == {0: [BEGUN], 1: []}


def test_messages_of_srun_are_returned_without_the_protocol_lines() -> None:
    text = (
        printed((NONCE, 0, BEGUN)) + "srun: cluster configuration lacks support for cpu binding\nsrun: error: n2 died\n"
    )
    assert srun_messages(SupervisorOutput(text.encode(), 1)) == "srun: error: n2 died"


def test_a_combined_result_takes_exit_code_and_log_from_the_worst_node(tmp_path: Path) -> None:
    logs = [tmp_path / "output.log", tmp_path / "output.n2.log"]
    for number, path in enumerate(logs):
        path.write_text(f"the words of node {number}\n")
    both = {0: report(wall_s=3.0, warnings=["a"]), 1: report(exit_code=9, left_behind=2, warnings=["b"])}
    result = combine_reports(both, ("n1", "n2"), logs)
    assert (result.exit_code, result.wall_s, result.left_behind) == (9, 3.0, 2)
    assert result.log_tail == "the words of node 1"
    assert result.warnings == ("n1: a", "n2: b")
    late = combine_reports({0: report(exit_code=None, timed_out=True), 1: report(exit_code=1)}, ("n1", "n2"), logs)
    assert (late.timed_out, late.exit_code) == (True, None)


def test_an_incomplete_file_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "raw.0.json").write_text("12345")
    assert find_missing_file(tmp_path, {0: report(files={"raw.0.json": 5})}) is None
    assert find_missing_file(tmp_path, {0: report(files={"raw.0.json": 6})}) == (0, "raw.0.json")
    assert find_missing_file(tmp_path, {1: report(files={"raw.1.json": 0})}) == (1, "raw.1.json")


def test_limits_and_gpus_are_parsed_as_slurm_writes_them() -> None:
    minutes = {"60": 60.0, "1:30": 1.5, "2:00:00": 120.0, "1-00": 1440.0, "1-02:30": 1590.0, "1-02:30:00": 1590.0}
    assert {text: parse_minutes(text) for text in minutes} == minutes
    assert parse_minutes("UNLIMITED") is None
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


@pytest.mark.parametrize(
    ("message", "memory"),
    [
        ("slurmstepd-n1: error: StepId=1.0 exceeded memory limit (893476864 > 629145600), being killed", True),
        ("srun: error: n1: task 0: Out Of Memory", True),
        ("slurmstepd: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-11-22T06:31:59 DUE TO TIME LIMIT ***", False),
    ],
)
def test_lack_of_memory_is_recognized_in_messages_of_slurm(message: str, memory: bool) -> None:
    assert bool(OUT_OF_MEMORY.search(message)) == memory
