"""The summary of a job on GitHub Actions."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regbot.check import flow
from regbot.check.conclusion import CheckResult
from regbot.cli.app import app
from regbot.report import comment
from support.report_cases import CASES


def run_check(monkeypatch: pytest.MonkeyPatch, folder: Path, summary: Path | None) -> tuple[int, str, str]:
    """Run ``regbot check`` on a check that has failed; return exit code, comment and stderr."""
    verdict, session = CASES["sharding_fail"]()
    text = comment(verdict, session)
    (folder / "comment.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(flow, "check", lambda *_: CheckResult(verdict, session, folder))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    if summary is not None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = CliRunner().invoke(app, ["check", "--out", str(folder)])
    return result.exit_code, text, result.stderr


def test_a_check_on_actions_puts_its_comment_into_the_summary_of_its_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("of an earlier command\n")
    code, text, _ = run_check(monkeypatch, tmp_path, summary)
    assert (code, summary.read_text()) == (1, f"of an earlier command\n{text}\n")


def test_a_summary_that_cannot_be_written_changes_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _, stderr = run_check(monkeypatch, tmp_path, tmp_path)
    assert code == 1
    assert "regbot: warning: the job's summary was not written" in stderr
