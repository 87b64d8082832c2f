"""Commands as a user types them: what they print, where, and with which exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from layers import GOOD_LAYER, write_repository
from regbot.records.ledger import Ledger

BLOCK_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)
sys.meta_path.insert(0, Block())
"""


def regbot(*arguments: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as installed beside this interpreter."""
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
    for command in ("demo", "check", "run", "compare", "judge", "doctor", "shapes", "ledger"):
        assert regbot(command, "--help", at=tmp_path, **no_torch).returncode == 0
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
    found = regbot("ledger", "trace", "moe", at=tmp_path)
    assert found.returncode == 4
    assert "cannot import torch" in found.stderr
    assert "'.[smoke]' in regbot's folder" in found.stderr


def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    found = regbot("ledger", "trace", "mixtral-8x7b", "--variant", "cpu", "--device", "cpu", "--json", at=tmp_path)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["schema"] == "regbot/ledger@1"
    assert (document["scope"], document["steps"], document["source"]) == ("step", 1, "dispatch-mode")
    kinds = {entry["kind"] for entry in document["entries"]}
    assert kinds == {"all_to_all", "all_gather", "reduce_scatter"}
    assert found.stderr == ""


@pytest.mark.slow
def test_a_ledger_table_has_counts_per_layer_and_in_all(tmp_path: Path) -> None:
    found = regbot("ledger", "trace", "qwen3-30b-a3b", "--variant", "cpu", "--world", "4", "--ep", "2", at=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "10 all_to_all (2 control), 9 all_gather, 5 reduce_scatter" in found.stdout
    assert "layers.*.moe" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shapes", "qwen4"), "there is no shape 'qwen4'; there are qwen3-30b-a3b"),
        (("ledger", "trace", "qwen4"), "is no shape"),
        (("ledger", "trace", "mixtral-8x7b", "--variant", "tiny"), "no variant 'tiny'; there are full"),
        (("ledger", "trace", "mixtral-8x7b", "--world", "12"), "does not divide"),
        (("ledger", "trace", "mixtral-8x7b/tp"), "there are ep and ep-dp"),
        (("ledger", "trace", "mixtral-8x22b", "--variant", "cpu"), "no variant 'cpu'"),
        (("ledger", "diff", "missing.json", "missing.json"), "missing.json: cannot be read"),
        (("judge", "missing.jsonl"), "missing.jsonl: cannot be read"),
        (("check", "--repo", "."), "not a git repository"),
        (("check", "--engine", "cloud"), "there is no such engine"),
        (("check", "--head-set", "layers=2"), "fixed by the shape"),
        (("check", "--expect", "no such pattern: because"), "--expect|pattern"),
    ],
)
def test_a_usage_error_is_a_sentence_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    found = regbot(*arguments, at=tmp_path)
    assert found.returncode == 2, found.stderr
    assert any(part in found.stderr for part in message.split("|")), found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "something/else"}')
    found = regbot("ledger", "diff", "x.json", "x.json", at=tmp_path)
    assert found.returncode == 2
    assert "x.json: is of no format that regbot reads" in found.stderr


def test_shapes_prints_every_number_of_a_shape(tmp_path: Path) -> None:
    found = regbot("shapes", "qwen3-30b-a3b", at=tmp_path)
    for number in ("151936", "2048", "128", "768", "30.53 B"):
        assert number in found.stdout
    assert json.loads(regbot("shapes", "--json", at=tmp_path).stdout)[0]["name"] == "qwen3-30b-a3b"


@pytest.mark.slow
def test_doctor_tells_what_was_tried(tmp_path: Path) -> None:
    found = regbot("doctor", "--json", at=tmp_path)
    checks = {check["name"]: check for check in json.loads(found.stdout)["checks"]}
    assert checks["static ledger"]["ok"] is True
    assert checks["dispatcher alltoall"]["ok"] is True
    assert checks["dispatcher deepep"]["ok"] is False
    assert "deep_ep" in checks["dispatcher deepep"]["detail"]
    assert "yes  git" in regbot("doctor", at=tmp_path).stdout


def test_version_is_the_package_version(tmp_path: Path) -> None:
    assert regbot("--version", at=tmp_path).stdout.startswith("regbot 0.")
