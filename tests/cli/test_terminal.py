"""Output in a pipe, and what the help costs."""

import os
import subprocess
import sys
from pathlib import Path

from regbot.records.ledger import Ledger


def test_a_status_has_no_colour_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(Ledger(source="s", scope="step", steps=1, entries=[]).to_json())
    command = [sys.executable, "-m", "regbot", "ledger", "diff", "a.json", "a.json"]
    env = {**os.environ, "FORCE_COLOR": "1"}
    piped = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "PASS" in piped.stdout
    assert "\x1b[" not in piped.stdout


def test_help_imports_no_rich() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from regbot.cli.app import app; "
        "CliRunner().invoke(app, ['--help']); print('rich.console' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
