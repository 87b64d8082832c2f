"""Unpaired files: which of them decide, and what the others say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from regbot.check.compare.launches import MAX_PAUSE_S
from regbot.records.run import Allocation, Node
from support.step_files import (
    STEP_S,
    assert_golden,
    regbot,
    run_record,
    says,
    section,
    verdict_of,
    write_runs,
    write_session,
)

Folder = Callable[..., list[str]]
START = 1.79e9
SLOWER = {"seconds": STEP_S * 1.05}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """``files(name, count, **noise)`` writes that many runs into the working folder and gives their names."""
    monkeypatch.chdir(tmp_path)
    return write_runs


def regbot_on(base: list[str], head: list[str]) -> Result:
    return regbot("--base", *base, "--head", *head)


class TestOneSession:
    def test_runs_of_one_session_decide_and_the_evidence_is_told(self) -> None:
        result = section(verdict_of(*write_session(5, 4, head_noise=SLOWER)))
        assert (result.status, result.decision, result.by, result.pairs) == ("FAIL", "regressed", "runs", 0)
        assert any(
            "all runs on n1 from 2026-09-21 14:13 to 2026-09-21 14:21 UTC, and base and head alternated 8 times"
            in reason
            for reason in result.reasons
        )

    @pytest.mark.parametrize(
        "change",
        [
            {"started_unix_s": None},
            {"node": Node(name="n2", node_class="2 cores", cores=2)},
            {"allocation": Allocation(engine="slurm", hosts=["n1", "n7"])},
            {"started_unix_s": START + 3 * MAX_PAUSE_S},
        ],
        ids=["no time", "another node", "another set of hosts", "after a pause"],
    )
    def test_one_record_that_is_not_of_the_session_leaves_no_evidence(self, change: dict[str, Any]) -> None:
        base, head = write_session(8, 8, head_noise=SLOWER)
        assert verdict_of(base, head).verdict == "FAIL"
        Path(head[-1]).write_text(run_record(head[-1], noise=SLOWER, **{"started_unix_s": START, **change}).to_json())
        verdict = verdict_of(base, head)
        assert verdict.verdict == "INCONCLUSIVE"
        assert "nothing in the files shows" in section(verdict).reasons[0]

    def test_launches_that_overlap_are_no_evidence(self) -> None:
        """Two containers with one host name at one time: each arm may have a machine of its own."""
        base, head = write_session(8, 8, head_noise=SLOWER, wall_s=65.0)
        assert verdict_of(base, head).verdict == "INCONCLUSIVE"

    @pytest.mark.parametrize(
        ("order", "decided"),
        [
            ("b" * 8 + "h" * 8 + "b", False),
            ("bbhhbbhhbbhhbbhh", False),
            ("bhhbbhhbbhhbhbbh", True),
            ("bhhbbhhbbhhbbh" + "b" * 8, True),
        ],
    )
    def test_base_and_head_change_places_once_for_each_run_of_the_smaller_arm(self, order: str, decided: bool) -> None:
        """Two changes in fourteen hours leave the effects of hours in one arm."""
        names: dict[str, list[str]] = {"b": [], "h": []}
        for number, arm in enumerate(order):
            name = f"{arm}{number:02}.json"
            noise = SLOWER if arm == "h" else {}
            Path(name).write_text(run_record(name, noise=noise, started_unix_s=START + 3000 * number).to_json())
            names[arm].append(name)
        assert (verdict_of(names["b"], names["h"]).verdict == "FAIL") == decided

    @pytest.mark.parametrize(("base", "head"), [(2, 3), (3, 8), (8, 3)])
    def test_fewer_than_four_of_an_arm_decide_nothing(self, base: int, head: int) -> None:
        result = section(verdict_of(*write_session(base, head, head_noise={"seconds": STEP_S * 1.5})))
        assert (result.status, result.decision) == ("INCONCLUSIVE", "undecided")
        assert result.estimate_pct == pytest.approx(50, abs=3)
        assert "4 runs of each arm are needed" in result.reasons[0]

    def test_what_people_read(self) -> None:
        assert_golden("unpaired_one_session", regbot_on(*write_session(8, 8, head_noise=SLOWER)))


class TestNoEvidence:
    def test_the_noise_of_pairs_decides_nothing(self, files: Folder) -> None:
        """It does not contain what two sessions differ by: 14% of 2% losses passed, or worse."""
        verdict = verdict_of(files("b", 4), files("h", 4, seconds=STEP_S * 1.6), "--noise", "0.3")
        assert verdict.verdict == "INCONCLUSIVE"
        assert says(verdict, "--noise 0.3% is not used: it is the noise of pairs")
