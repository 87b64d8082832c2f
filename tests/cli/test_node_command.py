"""``regbot node`` on the command line. The commands in docs/nodes.md are executed and must print what it shows."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.main import get_group
from typer.testing import CliRunner, Result

from regbot.cli.app import app
from regbot.nodes import nodes_folder
from regbot.nodes.history import NODES, append_probe
from regbot.nodes.page import probe_page
from regbot.nodes.quarantine import quarantined_nodes
from regbot.records.node import NodeJudgement, NodeVerdict, ProbeReport
from regbot.records.schema_files import schema_text
from support.docs_cases import missing
from support.node_probes import past, probe_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
RATE = re.compile(r"\S+(?= (TFLOP|GB)/s)")


def steady(text: str) -> str:
    """Return ``text`` with host name, times and rates replaced by placeholders."""
    return RATE.sub("#", WHEN.sub("WHEN", text.replace(socket.gethostname(), "node-1")))


@pytest.mark.long
def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```sh\n") == 7
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "REGBOT_CACHE": str(tmp_path / "cache"), NODES: str(tmp_path / "nodes")}
    for _, command, expected in blocks:
        words = ["bash", "-e", "-c", command]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=200)
        printed = f"{done.stdout}exit code {done.returncode}\n"
        missing_lines = missing(steady(expected), steady(printed))
        assert not missing_lines, f"{command}\n{missing_lines}\n{printed}{done.stderr}"
    assert "and this node must have 64" in printed


def test_the_options_of_the_page_are_those_of_the_commands() -> None:
    group = get_group(app).commands["node"]
    known = {
        option
        for command in group.commands.values()  # type: ignore[attr-defined]
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    named = set(re.findall(r"(?<!\S)--[a-z]+", " ".join(re.findall(r"regbot node [^\n`]*|`(?:--[^`]*)`", PAGE))))
    named |= set(re.findall(r"`(--[a-z]+)", PAGE))
    assert named == known


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "nodes"
    monkeypatch.setenv(NODES, str(folder))
    monkeypatch.setenv("REGBOT_CACHE", str(tmp_path / "cache"))
    for node_probe in (
        *past("gpu01", 12),
        probe_of("gpu01"),
        *past("gpu02", 12),
        probe_of("gpu02", gemm=2.08, slow=True),
    ):
        append_probe(folder, node_probe)
    return folder


def node(*words: str) -> Result:
    return CliRunner().invoke(app, ["node", *words])


def test_the_list_has_every_node_with_its_problems(nodes: Path) -> None:
    node("quarantine", "gpu03", "--reason", "fans rattle", "--who", "ann")
    assert steady(node("list").stdout) == (
        "gpu01  in service, ok\n"
        "  WHEN  gemm # TFLOP/s  all-to-all # GB/s  copy # GB/s\n"
        "gpu02  in service, slow\n"
        "  WHEN  gemm # TFLOP/s  all-to-all # GB/s  copy # GB/s\n"
        "  gpu02: matrix product 30% slower than before (median of 12 probes, sd 0.2%) (2.08 ms, reference 1.6 ms)\n"
        "  gpu02: matrix product 30% slower than its peers (median of 1 node) (2.08 ms, reference 1.6 ms)\n"
        "gpu03  quarantined\n"
        "  since WHEN: fans rattle\n"
        "  never probed\n"
    )


def test_node_show_prints_the_last_probes_and_events(nodes: Path) -> None:
    node("quarantine", "gpu02", "--reason", "slow", "--who", "ann")
    lines = node("show", "gpu02").stdout.splitlines()
    assert "  8 x NVIDIA H200, driver 570.1, torch 2.13.0+cu130, 8 ranks a node" in lines
    assert "probes (the last 10 of 13)" in lines
    assert lines[-4].endswith("GB/s  slow")
    assert steady(lines[-1]) == "  WHEN  quarantined by ann: slow"


def test_without_known_nodes_the_output_says_what_to_do(tmp_path: Path) -> None:
    empty = node("list", "--nodes", str(tmp_path / "none"))
    assert empty.stdout == "no node is known; run 'regbot node probe' on one\n"
    result = node("show", "gpu9", "--nodes", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "no node 'gpu9' is known; known nodes: none" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["release", "gpu01", "--reason", "why"], "gpu01 is not in quarantine; nodes in quarantine: none"),
        (["quarantine", "gpu01", "--reason", " "], "--reason is empty"),
        (["quarantine", "../etc", "--reason", "why"], "is not a node name"),
        (["quarantine", "gpu01"], "Missing option '--reason'"),
        (["release", "gpu01"], "Missing option '--reason'"),
    ],
)
def test_missing_or_invalid_operator_input_is_reported(words: list[str], message: str, nodes: Path) -> None:
    result = node(*words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_one_json_document_of_the_shipped_schema_is_printed_and_nothing_else(nodes: Path) -> None:
    commands = {
        "node-list@1": ["list"],
        "node-show@1": ["show", "gpu02"],
        "node-changed@1": ["quarantine", "gpu02", "--reason", "slow"],
    }
    for schema, words in commands.items():
        result = node(*words, "--json")
        assert result.exit_code == 0
        jsonschema.Draft202012Validator(json.loads(schema_text(schema))).validate(json.loads(result.stdout))
    changed = json.loads(node("release", "gpu02", "--reason", "mended", "--json").stdout)
    assert (changed["state"], changed["event"]["event"]) == ("on trial", "released")
    assert quarantined_nodes(nodes) == {}


def test_operator_text_cannot_control_a_terminal(nodes: Path) -> None:
    node("quarantine", "gpu02", "--reason", "\x1b[2Jgone\nINJECTED", "--who", "a\x1b[31mnn")
    for words in (["list"], ["show", "gpu02"]):
        assert "\x1b" not in node(*words).stdout
        assert "gone INJECTED" in node(*words).stdout


def test_a_slow_probe_is_printed_with_its_numbers() -> None:
    probe = probe_of("gpu02", gemm=2.08)
    verdict = NodeVerdict(host="gpu02", status="unknown", notes=["nothing to compare with yet"])
    page = probe_page(ProbeReport(probes=[probe], judgement=NodeJudgement(nodes=[verdict]), warnings=["LOUD " * 30]))
    assert page.startswith(
        "gpu02  unknown\n  2026-11-02T12:00:00Z  gemm 529 TFLOP/s  all-to-all 147 GB/s  copy 4295 GB/s\n"
    )
    assert "\n\nWARNING: LOUD LOUD" in page
    assert max(map(len, page.splitlines())) <= 110


@pytest.mark.slow
def test_a_machine_that_cannot_be_probed_is_not_slow(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbot.nodes.reference.guest_folder", lambda: ROOT / "docs")
    result = node("probe", "--ranks", "1", "--json")
    assert result.exit_code == 4
    assert result.stdout == ""
    assert "the reference probe exited with code 1 without a record of rank 0" in result.stderr


def test_regbot_nodes_names_the_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NODES, raising=False)
    assert nodes_folder(tmp_path) == tmp_path / "nodes"
    monkeypatch.setenv(NODES, "/shared/nodes")
    assert nodes_folder(tmp_path) == Path("/shared/nodes")
