"""``ledger read`` of the files of one run, one of each rank, whatever format they have."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regbot.check.static_trace import read_ledgers
from regbot.cli.app import app
from regbot.ledgers.readers import ReadError
from regbot.records.ledger import Ledger
from support.ledger_builder import edited, smoke_ledger, where


def saved(folder: Path, ledger: Ledger, rank: int = 0) -> Path:
    path = folder / f"rank-{rank}-{ledger.fingerprint or 'x'}.json"
    path.write_text(ledger.model_copy(update={"rank": rank}).to_json())
    return path


def test_the_lowest_rank_speaks_and_the_others_leave_a_digest(tmp_path: Path) -> None:
    files = [saved(tmp_path, smoke_ledger(), rank) for rank in (2, 0, 1)]
    ledger = read_ledgers(files)
    assert (ledger.rank, sorted(ledger.rank_digests)) == (0, ["1", "2"])
    assert ledger.warnings == []


def test_ranks_that_issued_other_collectives_are_named(tmp_path: Path) -> None:
    other = edited(smoke_ledger(), where("all_to_all", count=9))
    files = [saved(tmp_path, smoke_ledger()), saved(tmp_path, smoke_ledger(), 1), saved(tmp_path, other, 2)]
    assert read_ledgers(files).warnings == ["rank 2 issued other collectives than rank 0"]


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    files = [saved(tmp_path, smoke_ledger()), saved(tmp_path, edited(smoke_ledger(), lambda e: e))]
    with pytest.raises(ReadError, match="same rank as another of these files; give one file per rank"):
        read_ledgers(files)


def test_files_that_were_counted_in_different_ways_are_refused(tmp_path: Path) -> None:
    traced = smoke_ledger().model_copy(update={"source": "kineto:metadata"})
    with pytest.raises(ReadError, match="was counted in another way"):
        read_ledgers([saved(tmp_path, smoke_ledger()), saved(tmp_path, traced, 1)])


def test_the_command_prints_a_table_or_one_document(tmp_path: Path) -> None:
    file = saved(tmp_path, smoke_ledger())
    page = CliRunner().invoke(app, ["ledger", "read", str(file)])
    assert page.exit_code == 0
    assert "all-to-all" in page.output.replace("all_to_all", "all-to-all")
    document = CliRunner().invoke(app, ["ledger", "read", str(file), "--json"])
    assert Ledger.model_validate_json(document.output) == smoke_ledger()


def test_an_unknown_format_and_an_unreadable_file_are_usage_errors(tmp_path: Path) -> None:
    file = saved(tmp_path, smoke_ledger())
    unknown = CliRunner().invoke(app, ["ledger", "read", str(file), "--format", "xplane"])
    assert unknown.exit_code == 2
    assert "unknown format; the formats are flight-recorder, hlo" in unknown.output
    assert CliRunner().invoke(app, ["ledger", "read", str(tmp_path / "none")]).exit_code == 2
