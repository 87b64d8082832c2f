"""``regbot explain``: pages, HTML and JSON of ledger files, and two commits side by side."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regbot.cli.app import app
from regbot.records.ledger import Program
from support.ledger_builder import smoke_ledger


def explain(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["explain", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "base.json", tmp_path / "head.json"]
    for path, dispatcher in zip(paths, ("alltoall", "allgather"), strict=True):
        path.write_text(smoke_ledger(dispatcher=dispatcher).to_json())  # type: ignore[arg-type]
    return paths


def test_one_ledger_as_page_json_and_html(files: list[Path], tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    page = explain(files[1], "--html", html)
    assert "- tokens gathered in layers.*.moe: 8 all-gathers on ep in forward" in page
    document = json.loads(explain(files[1], "--json"))
    assert document["schema"] == "regbot/explanation@1"
    assert [remark["pattern"] for remark in document["remarks"]] == ["tokens gathered"]
    assert "tokens gathered" in html.read_text()
    assert "<script" not in html.read_text()


def test_names_of_a_ledger_are_escaped(tmp_path: Path) -> None:
    ledger = smoke_ledger(prefix="<script>\x1b[31m")
    (tmp_path / "ledger.json").write_text(ledger.to_json())
    page = explain(tmp_path / "ledger.json", "--html", tmp_path / "page.html")
    assert "\x1b" not in page
    assert not {"<script", "\x1b"} & set((tmp_path / "page.html").read_text().split('"'))
    assert "&lt;script&gt;" in (tmp_path / "page.html").read_text()


def test_two_ledgers_side_by_side_have_no_verdict(files: list[Path]) -> None:
    page = explain(*files)
    assert "- all-to-all replaced by gather and sum: " in page
    assert "FAIL" not in page
    assert CliRunner().invoke(app, ["explain", *map(str, files), "--html", "page.html"]).exit_code == 2
    (pair,) = json.loads(explain(*files, "--json"))["pairs"]
    assert pair["base"]["collectives"] != pair["head"]["collectives"]
    assert "nothing that regbot judges changed" in explain(files[0], files[0])


def test_a_change_of_the_program_is_named_and_control_characters_are_not_printed(tmp_path: Path) -> None:
    total = {"flops": 10**12, "flops_by": {"matmul": 10**12}, "bytes_moved": 1, "launches": 8, "peak_bytes": 10**9}
    for name, factor in (("a.json", 1), ("b.json", 8)):
        program = Program.model_validate({**total, "flops": factor * 10**12, "peak_where": "\x1b[31m"})
        ledger = smoke_ledger(workload="w\x1b]0;").model_copy(update={"program": program, "device": "cuda"})
        (tmp_path / name).write_text(ledger.to_json())
    change = explain(tmp_path / "a.json", tmp_path / "b.json")
    assert "- FLOPs up: " in change
    assert "\x1b" not in change + explain(tmp_path / "a.json")


def test_an_unknown_workload_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["explain", "qwen4"])
    assert result.exit_code == 2
    assert "is not a shape (" in result.stderr
