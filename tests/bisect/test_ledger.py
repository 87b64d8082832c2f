"""``regbot bisect --on ledger`` on a real repository and real traces."""

from pathlib import Path

import pytest

from regbot.records.files import read_record
from regbot.records.run import Run
from support.bisect_repository import build, run_bisect

SMALL = """\
[workloads.moe]
adapter = "module"
entry = "moetrain.moe:build_layer"
source_roots = ["src"]
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
"""


@pytest.mark.slow
def test_one_change_among_200_commits_is_found_exactly_in_at_most_ten_traces(tmp_path: Path) -> None:
    history = build(tmp_path / "repository")
    (tmp_path / "small.toml").write_text(SMALL)
    arguments = (history.good, history.bad, "--config", str(tmp_path / "small.toml"))
    code, found = run_bisect(tmp_path, history.path, *arguments)
    assert (code, found["found"], found["culprit"]) == (0, "culprit", history.sharding)
    (change,) = found["changes"]
    assert change["findings"][0]["pattern"] == "all-to-all replaced by gather and sum"
    assert (found["search_runs"] <= 10, found["confirm_runs"]) == (True, 0)
    ledgers = [read_record(path, Run).ledger for path in (tmp_path / "out" / "ledgers").iterdir()]
    assert {ledger.device for ledger in ledgers if ledger is not None} == {"cuda"}, "a check traces a paper GPU too"
