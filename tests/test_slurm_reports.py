"""What nodes say is read from srun's output, in which the code under test and Slurm itself may stand too."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from regbot.engines.conversation import Answer
from regbot.engines.slurm.limits import gpus_in, minutes_in
from regbot.engines.slurm.node import BEGUN, LINE, sealed
from regbot.engines.slurm.reports import complaints, ended_of, missing, spoken
from regbot.engines.slurm.seat import OUT_OF_MEMORY

NONCE, OTHER = "aa11", "bb22"


def told(*said: tuple[str, int, str]) -> str:
    """What the nodes print: nonce, number, text."""
    out = io.StringIO()
    with redirect_stdout(out):
        for nonce, number, text in said:
            sealed(nonce, number, text)
    return out.getvalue()


def read(text: str, nodes: int = 2) -> dict[int, list[Any]]:
    return spoken(Answer(text.encode(), 0), NONCE, nodes)


def report(**changes: Any) -> dict[str, Any]:
    return {
        "exit_code": 0,
        "timed_out": False,
        "output_truncated": False,
        "dir_overflow": False,
        "left_behind": 0,
        "unkilled": 0,
        "wall_s": 1.0,
        "health": None,
        "warnings": [],
        "files": {},
    } | changes


def test_a_report_longer_than_a_line_is_put_together_though_two_nodes_speak_at_a_time() -> None:
    long = {"log_tail": "x" * 5 * LINE}
    first = told((NONCE, 0, json.dumps(long))).splitlines()
    second = told((NONCE, 1, json.dumps({"wall_s": 2}))).splitlines()
    mixed = "\n".join([first[0], "srun: a word", second[0], *first[1:], *second[1:]])
    assert read(mixed) == {0: [long], 1: [{"wall_s": 2}]}


@pytest.mark.parametrize(
    "forged",
    [
        told((OTHER, 1, '{"exit_code": 0}')),
        told((NONCE, 7, '{"exit_code": 0}')),
        f"{NONCE} 1 {{\n{NONCE} 1 =end\n",
        '1: ={"exit_code": 0}\n1: =end\n',
        told((NONCE, 1, '{"exit_code": 0}')).removesuffix("=end\n"),
    ],
)
def test_what_is_no_whole_report_of_this_launch_is_left_out(forged: str) -> None:
    assert read(told((NONCE, 0, BEGUN)) + forged) == {0: [BEGUN], 1: []}


def test_what_srun_complains_of_is_told_without_the_protocol() -> None:
    text = told((NONCE, 0, BEGUN)) + "srun: cluster configuration lacks support for cpu binding\nsrun: error: n2 died\n"
    assert complaints(Answer(text.encode(), 1)) == "srun: error: n2 died"


def test_a_launch_ended_as_it_did_where_it_ended_worst(tmp_path: Path) -> None:
    logs = [tmp_path / "output.log", tmp_path / "output.n2.log"]
    for number, path in enumerate(logs):
        path.write_text(f"the words of node {number}\n")
    both = {0: report(wall_s=3.0, warnings=["a"]), 1: report(exit_code=9, left_behind=2, warnings=["b"])}
    ended = ended_of(both, ("n1", "n2"), logs)
    assert (ended.exit_code, ended.wall_s, ended.left_behind) == (9, 3.0, 2)
    assert ended.log_tail == "the words of node 1"
    assert ended.warnings == ("n1: a", "n2: b")
    late = ended_of({0: report(exit_code=None, timed_out=True), 1: report(exit_code=1)}, ("n1", "n2"), logs)
    assert (late.timed_out, late.exit_code) == (True, None)


def test_a_file_that_is_not_whole_yet_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "raw.0.json").write_text("12345")
    assert missing(tmp_path, {0: report(files={"raw.0.json": 5})}) is None
    assert missing(tmp_path, {0: report(files={"raw.0.json": 6})}) == (0, "raw.0.json")
    assert missing(tmp_path, {1: report(files={"raw.1.json": 0})}) == (1, "raw.1.json")


def test_limits_and_gpus_are_read_as_slurm_writes_them() -> None:
    said = {"60": 60.0, "1:30": 1.5, "2:00:00": 120.0, "1-00": 1440.0, "1-02:30": 1590.0, "1-02:30:00": 1590.0}
    assert {text: minutes_in(text) for text in said} == said
    assert minutes_in("UNLIMITED") is None
    gres = {
        "gpu:8": 8,
        "gpu:h200:8(S:0-1)": 8,
        "gpu:a:2,gpu:b:4": 6,
        "gpu:1g.10gb:7": 7,
        "gpu:3g.40gb:2(S:0)": 2,
        "(null)": 0,
        "": 0,
    }
    assert {text: gpus_in(text) for text in gres} == gres


@pytest.mark.parametrize(
    ("said", "memory"),
    [
        ("slurmstepd-n1: error: StepId=1.0 exceeded memory limit (893476864 > 629145600), being killed", True),
        ("srun: Exceeded job memory limit", True),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.3. Some of the step tasks have been OOM Killed",
            True,
        ),
        ("srun: error: n1: task 0: Out Of Memory", True),
        ("srun: error: n1: task 0: Killed", False),
        ("slurmstepd: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-11-22T06:31:59 DUE TO TIME LIMIT ***", False),
    ],
)
def test_want_of_memory_is_told_from_other_ends_by_what_slurm_says(said: str, memory: bool) -> None:
    assert bool(OUT_OF_MEMORY.search(said)) == memory
