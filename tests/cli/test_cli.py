"""Commands as a user types them: output, error output and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regbot.cli.app import app
from regbot.records.ledger import Ledger
from support.layers import GOOD_LAYER, write_repository

BLOCK_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)
sys.meta_path.insert(0, Block())
"""


def regbot(*arguments: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the ``regbot`` command that is installed with this interpreter."""
    command = [str(Path(sys.executable).with_name("regbot")), *arguments]
    env = {**os.environ, "REGBOT_CACHE": str(at / "cache"), **environment}
    return subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def no_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which torch cannot be imported, as if it were not installed."""
    folder = tmp_path / "no-torch"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCK_TORCH)
    return {"PYTHONPATH": str(folder)}


def test_help_and_the_trusted_half_work_without_torch(tmp_path: Path, no_torch: dict[str, str]) -> None:
    assert "Usage: regbot" in regbot("--help", at=tmp_path, **no_torch).stdout
    assert regbot("shapes", at=tmp_path, **no_torch).returncode == 0
    (tmp_path / "a.json").write_text(Ledger(source="s", scope="step", steps=1, entries=[]).to_json())
    assert regbot("ledger", "diff", "a.json", "a.json", at=tmp_path, **no_torch).returncode == 0


def test_a_trace_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    # Guests do not inherit PYTHONPATH, so the interpreter itself must be without it.
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -s "$@"\n')
    bare.chmod(0o755)
    write_repository(tmp_path, GOOD_LAYER)
    (tmp_path / "regbot.toml").write_text(
        (tmp_path / "regbot.toml").read_text().replace("timeout_min = 1", f"python = '{bare}'")
    )
    result = regbot("ledger", "trace", "moe", at=tmp_path)
    assert result.returncode == 4
    assert "cannot import torch" in result.stderr
    assert "'.[smoke]' in regbot's folder" in result.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_a_trace_of_code_from_outside_of_the_checkout_is_invalid(tmp_path: Path) -> None:
    write_repository(tmp_path, GOOD_LAYER)
    config = tmp_path / "regbot.toml"
    config.write_text(config.read_text().replace("timeout_min = 1", "timeout_min = 1\nwatch = ['userpkg', 'torch']"))
    result = regbot("ledger", "trace", "moe", "--device", "cpu", at=tmp_path)
    assert result.returncode == 4
    assert "INVALID: torch was imported from" in result.stderr


@pytest.mark.torch
def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    result = regbot("ledger", "trace", "mixtral-8x7b", "--variant", "cpu", "--device", "cpu", "--json", at=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "regbot/ledger@1"
    assert (document["scope"], document["steps"], document["source"]) == ("step", 1, "dispatch-mode")
    kinds = {entry["kind"] for entry in document["entries"]}
    assert kinds == {"all_to_all", "all_gather", "reduce_scatter"}
    assert result.stderr == ""


@pytest.mark.slow
def test_a_ledger_table_has_counts_per_layer_and_in_total(tmp_path: Path) -> None:
    result = regbot("ledger", "trace", "qwen3-30b-a3b", "--variant", "cpu", "--world", "4", "--ep", "2", at=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "10 all_to_all (2 control), 9 all_gather, 5 reduce_scatter" in result.stdout
    assert "layers.*.moe" in result.stdout
    assert re.search(r"^compute: 2.75 GFLOP \(matmul 2.75 GFLOP\); \d+ MB read and written; ", result.stdout, re.M)
    assert re.search(
        r"^peak memory: .*, in forward of layers.1.moe.experts: .*activations \d+.\d MB", result.stdout, re.M
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shapes", "qwen4"), "unknown shape 'qwen4'; the shapes are qwen3-30b-a3b"),
        (("ledger", "trace", "qwen4"), "is not a shape"),
        (("ledger", "trace", "mixtral-8x7b", "--variant", "tiny"), "no variant 'tiny'; its variants are full"),
        (("ledger", "trace", "mixtral-8x7b", "--world", "12"), "does not divide"),
        (("ledger", "trace", "mixtral-8x7b/tp"), "use one of ep, ep-dp"),
        (("ledger", "trace", "mixtral-8x22b", "--variant", "cpu"), "no variant 'cpu'"),
        (("ledger", "diff", "missing.json", "missing.json"), "missing.json: cannot be read"),
        (("judge", "missing.jsonl"), "missing.jsonl: cannot be read"),
        (("check", "--repo", "."), "not a git repository"),
        (("check", "--engine", "cloud"), "there is no such engine"),
        (("check", "--head-set", "layers=2"), "fixed by the shape"),
        (("check", "--expect", "no such pattern: because"), "--expect|pattern"),
    ],
)
def test_a_usage_error_is_a_message_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.stderr
    assert any(part in result.stderr for part in message.split("|")), result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_shapes_prints_every_number_of_a_shape(tmp_path: Path) -> None:
    result = regbot("shapes", "qwen3-30b-a3b", at=tmp_path)
    for number in ("151936", "2048", "128", "768", "30.53 B"):
        assert number in result.stdout
    assert json.loads(regbot("shapes", "--json", at=tmp_path).stdout)[0]["name"] == "qwen3-30b-a3b"


@pytest.mark.slow
def test_doctor_reports_the_capabilities(tmp_path: Path) -> None:
    result = regbot("doctor", "--json", at=tmp_path)
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["static ledger"]["ok"] is True
    assert checks["dispatcher alltoall"]["ok"] is True
    assert checks["dispatcher deepep"]["ok"] is False
    assert "deep_ep" in checks["dispatcher deepep"]["detail"]
    assert "yes  git" in regbot("doctor", at=tmp_path).stdout
