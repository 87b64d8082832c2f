"""Shared by the tests of baselines and others."""

import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from regbot.baselines.store import Store
from regbot.baselines.verify import verify
from support.baseline_cases import NOW


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def kill_writers(root: Path) -> list[dict[str, Any]]:
    """Return the output lines of the processes."""
    command = [sys.executable, str(Path(__file__).with_name("baseline_cases.py")), str(root)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def holds(store: Store, output: list[dict[str, Any]]) -> int:
    """Check that the store is sound and has every session that was reported as stored. Return their number."""
    files = {file for item in output for file in item["files"]}
    for file in files:
        check = store.session(PurePosixPath(file))
        assert check.ledger is None or store.ledger(check.ledger)
    assert verify(store, NOW).problems == []
    return len(files)
