"""``regbot compare``: which steps of a file count, whether a file can be believed, and real files that show it.

The real files are those of published jobs; where they are not beside this repository, their tests are skipped, and
what they show is shown by values made here too.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from regbot.check.compare.run_files import read_steps
from regbot.check.compare.steady_cut import align_steps
from regbot.records.run import Node
from support.step_files import (
    STEP_S,
    csv,
    megatron,
    real,
    says,
    section,
    step_times,
    verdict_of,
    write_logs,
    write_records,
    write_runs,
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rising(count: int, name: str, seconds: float = STEP_S) -> list[str]:
    """Runs that get slower from the first step to the last."""
    names = [f"{name}{number}.csv" for number in range(count)]
    for each in names:
        times = step_times(each, seconds)
        Path(each).write_text(csv([value * (1 + 0.2 * step / 50) for step, value in enumerate(times)]))
    return names


class TestSteadyState:
    def test_half_of_an_arm_without_a_steady_state_decides_nothing(self) -> None:
        base = write_runs("b", 4)
        for paired in ([], ["--paired"]):
            for head in ([*rising(2, "h", STEP_S * 2), *write_runs("k", 2, seconds=STEP_S * 2)], rising(4, "r")):
                verdict = verdict_of(base, head, *paired)
                result = section(verdict)
                assert (verdict.verdict, result.decision, result.tests) == ("INCONCLUSIVE", "undecided", [])
                assert result.estimate_pct is not None
                assert any("head runs have no steady state" in reason for reason in result.reasons)
                assert any("--skip N" in reason for reason in result.reasons)
                assert says(verdict, head[0], "no steady state: the step time ")

    def test_on_a_cpu_it_is_a_warning(self) -> None:
        """Other work on it makes steps wander, and says nothing of the code."""
        cpu = Node(name="n1", node_class="2 cores", cores=2)
        gpu = Node(name="n1", node_class="h100", cores=2, gpus=["H100"])
        result = {}
        for node in (cpu, gpu):
            base, head = (
                write_records(arm, 4, node=node, noise={"seconds": by, "steps": 7}, cut=1)
                for arm, by in (("b", STEP_S), ("h", STEP_S * 1.1))
            )
            verdict = verdict_of(base, head, "--paired")
            result[node.node_class] = section(verdict).decision
            assert says(verdict, "no steady state")
        assert result == {"2 cores": "regressed", "h100": "undecided"}

    def test_runs_that_are_no_pairs_lose_the_longest_warm_up_of_all(self) -> None:
        late = [value * (1.3 if step < 30 else 1) for step, value in enumerate(step_times("late", steps=80))]
        Path("late.csv").write_text(csv(late))
        names = [*write_runs("b", 4, steps=80), *write_runs("h", 3, steps=80)]
        files = [read_steps(Path(name)) for name in (*names, "late.csv")]
        assert files[-1].cut == 30 > max(file.cut for file in files[:-1])
        base, head = align_steps(files[:4], files[4:], paired=False)
        assert {file.cut for file in (*base, *head)} == {30}
        base, head = align_steps(files[:4], files[4:], paired=True)
        assert [file.cut for file in base] == [file.cut for file in head]
        assert (head[0].cut, head[3].cut) == (max(files[0].cut, files[4].cut), 30)


class TestUnits:
    @pytest.mark.parametrize(("base", "head"), [(1.0, 1000.0), (1000.0, 1.0)])
    @pytest.mark.parametrize("files", [1, 4])
    def test_milliseconds_beside_seconds_are_asked_about(self, base: float, head: float, files: int) -> None:
        names = [write_runs(arm, files, seconds=STEP_S * unit) for arm, unit in (("b", base), ("h", head))]
        verdict = verdict_of(*names)
        assert verdict.verdict == "INVALID"
        assert "are these milliseconds?" in verdict.workloads[0].validity.reasons[0]


def cut_line(name: str, numbers: Sequence[int]) -> None:
    """Take the lines of these steps out of a log of Megatron."""
    lines = Path(name).read_text().splitlines(keepends=True)
    Path(name).write_text("".join(line for step, line in enumerate(lines, start=1) if step not in numbers))


class TestWholeRuns:
    """No PASS rests on files that do not tell everything; what is there can still show a slowdown."""

    def sets(self, by: float = 1.0) -> tuple[list[str], list[str]]:
        base, head = write_logs("b", 12, megatron), write_logs("h", 12, megatron, STEP_S * by)
        return base, head

    def changed(self, name: str, how: str) -> None:
        path = Path(name)
        if how == "missing":
            cut_line(name, (30, 31))
        elif how == "restart":
            path.write_text(megatron(step_times("crashed")) + path.read_text())
        elif how == "nan loss":
            path.write_text(path.read_text().replace("lm loss: 1.8E+00", "lm loss: nan"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("how", "told"),
        [
            ("missing", "h00.log lacks steps between 29 and 32"),
            ("restart", "h00.log contains 2 jobs, of which only the last is compared"),
            ("nan loss", "h00.log contains 40 steps with a loss that is not finite"),
        ],
    )
    def test_there_is_no_pass_without_the_whole_run(self, how: str, told: str) -> None:
        base, head = self.sets()
        assert verdict_of(base, head, "--paired").verdict == "PASS"
        self.changed(head[0], how)
        verdict = verdict_of(base, head, "--paired")
        assert (verdict.verdict, section(verdict).bound_pct) == ("INCONCLUSIVE", None)
        assert section(verdict).reasons[0].startswith("no PASS: h00.log ")
        assert told[:40] in section(verdict).reasons[0]
        base, head = self.sets(by=1.1)
        self.changed(head[0], how)
        assert verdict_of(base, head, "--paired").verdict == "FAIL"

    def test_a_second_warm_up_inside_a_csv_file_is_a_restart(self) -> None:
        base, head = write_runs("b", 12), write_runs("h", 12)
        assert verdict_of(base, head, "--paired").verdict == "PASS"
        Path(head[0]).write_text(csv([*step_times("one")[:30], 2.0, 1.0, *step_times("two", steps=60)]))
        verdict = verdict_of(base, head, "--paired")
        assert verdict.verdict == "INCONCLUSIVE"
        assert "seems to contain a restarted process" in section(verdict).reasons[0]


class TestRealFiles:
    def test_golden_values_on_both_sides_of_a_new_container(self) -> None:
        before, after = (real(f"golden/moe_tp4ep2pp2_h100_{when}_26.04.json") for when in ("before", "after"))
        alone = verdict_of([before], [after])
        result = section(alone)
        assert (alone.verdict, result.decision) == ("INCONCLUSIVE", "undecided")
        assert result.estimate_pct == pytest.approx(60.3, abs=0.1)
        assert any("far more than usual noise" in reason for reason in result.reasons)
        for paired, expected in (([], ("INCONCLUSIVE", "undecided")), (["--paired"], ("FAIL", "regressed"))):
            verdict = verdict_of([before], [after], *paired, "--noise", "3")
            assert (verdict.verdict, section(verdict).decision) == expected

    def test_logs_of_maxtext(self) -> None:
        docs, started = real("logs/maxtext_mixtral_docs.log"), real("logs/maxtext_getting_started.log")
        assert read_steps(Path(docs)).cut == 2
        assert section(verdict_of([docs], [started], "--skip", "3")).base_step_s == 5.668
        invalid = verdict_of([docs], [started])
        assert invalid.verdict == "INVALID"
        assert "step 2 (0.002 s) was not waited for" in invalid.workloads[0].validity.reasons[0]
