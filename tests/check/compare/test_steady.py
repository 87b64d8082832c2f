"""``regbot compare``: which steps of a file count, whether a file can be believed, and real files that show it.

The real files are those of published jobs; where they are not beside this repository, their tests are skipped, and
what they show is shown by values made here too.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbot.check.compare.run_files import read_steps
from regbot.check.compare.steady_cut import align_steps
from regbot.records.run import Node
from support.step_files import (
    STEP_S,
    csv,
    maxtext,
    megatron,
    real,
    regbot,
    says,
    section,
    step_times,
    verdict_of,
    write_logs,
    write_records,
    write_runs,
)

MAXTEXT = [44.923, 0.319, 5.658, 5.402, 5.669, 5.668, 5.668, 5.669, 5.668, 5.667]
"""Ten steps of Mixtral in MaxText's documentation (Apache-2.0); the second is how long it took to enqueue."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rising(count: int, name: str, seconds: float = STEP_S, rise: float = 0.2) -> list[str]:
    """Runs that get slower from the first step to the last."""
    names = [f"{name}{number}.csv" for number in range(count)]
    for each in names:
        times = step_times(each, seconds)
        Path(each).write_text(csv([value * (1 + rise * step / 50) for step, value in enumerate(times)]))
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

    def test_fewer_than_half_are_a_warning_and_stay_in(self) -> None:
        head = [*rising(1, "h", STEP_S * 1.1, rise=0.05), *write_runs("k", 4, seconds=STEP_S * 1.1)]
        verdict = verdict_of(write_runs("b", 5), head, "--paired")
        assert section(verdict).decision == "regressed"
        assert says(verdict, "h0.csv: no steady state")

    def test_arms_that_differ_in_it_decide_nothing(self) -> None:
        """9 of 20 head runs and no base run: less than half, and Fisher's test says that it is no chance."""
        head = [*rising(9, "h", STEP_S * 1.1), *write_runs("k", 11, seconds=STEP_S * 1.1, step_sd=0.003)]
        result = section(verdict_of(write_runs("b", 20, step_sd=0.003), head))
        assert result.decision == "undecided"
        assert any("the arms differ in how many" in reason for reason in result.reasons)

    def test_a_cut_that_is_given_asks_for_no_steady_state(self) -> None:
        verdict = verdict_of(rising(4, "b"), rising(4, "h", STEP_S * 1.1), "--paired", "--skip", "10")
        assert section(verdict).decision == "regressed"
        assert not says(verdict, "steady state")
        assert section(verdict).reasons[-1] == "the first 10 steps of each file do not count (as given by --skip)"

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

    def test_a_short_file_keeps_its_own_cut_beside_long_ones(self) -> None:
        Path("short.csv").write_text(csv(step_times("short", steps=20)))
        result = section(verdict_of(["short.csv"], write_runs("h", 1)))
        assert result.reasons[-1].startswith("the first 4 to 12 steps of each file do not count")

    def test_a_longer_warm_up_is_told_and_is_no_slower_step(self) -> None:
        for number in range(4):
            times = step_times(f"h{number}", run_sd=0.001, step_sd=0.003, steps=80)
            times = [value * (1.3 if step < 30 else 1) for step, value in enumerate(times)]
            Path(f"h{number}.csv").write_text(csv(times))
        base = write_runs("b", 4, run_sd=0.001, step_sd=0.003, steps=80)
        result = regbot("--base", *base, "--head", *(f"h{number}.csv" for number in range(4)), "--paired")
        assert result.stdout.startswith("PASS  no change")
        assert "in base, 30 in head; the step times exclude them" in result.stdout


class TestMaxText:
    def test_its_steady_step_is_that_of_the_device(self) -> None:
        Path("base.log").write_text(maxtext(MAXTEXT))
        Path("head.log").write_text(maxtext([44.1, 0.322, *(value * 1.01 for value in MAXTEXT[2:])]))
        result = section(verdict_of(["base.log"], ["head.log"]))
        assert result.decision == "undecided"
        assert result.base_step_s == pytest.approx(5.67, abs=0.005)
        assert result.estimate_pct == pytest.approx(1, abs=0.1)

    def test_no_order_of_dispatches_makes_one_of_them_the_step(self) -> None:
        """Sets of four: a dispatch beyond the warm-up makes the files invalid, within it, it decides nothing."""
        chance = random.Random(1)
        for at, status in ((1, "PASS"), (3, "PASS"), (30, "INVALID")):
            for arm in "bh":
                for number in range(4):
                    times = [5.668 * (1 + chance.gauss(0, 0.0005)) for _ in range(50)]
                    times[0] = 44.9
                    if arm == "h":
                        times[at] = 0.319
                    Path(f"{arm}{number}.log").write_text(maxtext(times))
            result = verdict_of([f"b{i}.log" for i in range(4)], [f"h{i}.log" for i in range(4)], "--paired")
            assert result.verdict == status
            if status == "PASS":
                assert section(result).head_step_s == pytest.approx(5.668, rel=0.01)

    def test_dispatches_in_a_csv_file_are_no_steps_either(self) -> None:
        for arm in "bh":
            for number in range(4):
                chance = random.Random(f"{arm}{number}")
                times = [5.668 * (1 + chance.gauss(0, 0.001)) for _ in range(60)]
                if arm == "h":
                    times[12::3] = [0.319] * len(times[12::3])
                Path(f"{arm}{number}.csv").write_text(csv(times))
        verdict = verdict_of([f"b{i}.csv" for i in range(4)], [f"h{i}.csv" for i in range(4)])
        assert verdict.verdict == "INCONCLUSIVE"
        assert says(verdict, "the clock measured the dispatch, not the device")


class TestUnits:
    @pytest.mark.parametrize(("base", "head"), [(1.0, 1000.0), (1000.0, 1.0)])
    @pytest.mark.parametrize("files", [1, 4])
    def test_milliseconds_beside_seconds_are_asked_about(self, base: float, head: float, files: int) -> None:
        names = [write_runs(arm, files, seconds=STEP_S * unit) for arm, unit in (("b", base), ("h", head))]
        verdict = verdict_of(*names)
        assert verdict.verdict == "INVALID"
        assert "are these milliseconds?" in verdict.workloads[0].validity.reasons[0]

    def test_one_file_of_many_in_another_unit_is_named(self) -> None:
        base, head = write_runs("b", 4), write_runs("h", 4)
        Path(head[2]).write_text(csv([1000 * value for value in step_times("h")]))
        reason = verdict_of(base, head, "--paired").workloads[0].validity.reasons[0]
        assert reason.startswith("h02.csv: step ")

    @pytest.mark.parametrize("part", [slice(30, 31), slice(25, None), slice(0, None, 2)])
    def test_two_units_in_one_file_are_asked_about(self, part: slice) -> None:
        times = step_times("h")
        times[part] = [1000 * value for value in times[part]]
        Path("h.csv").write_text(csv(times))
        for options in ([], ["--skip", "10"]):
            verdict = verdict_of(write_runs("b", 1), ["h.csv"], *options)
            assert verdict.verdict == "INVALID"
            reason = verdict.workloads[0].validity.reasons[0]
            assert "are these milliseconds?" in reason
            assert reason.startswith("h.csv: step ")

    def test_minutes_of_compilation_and_stragglers_are_no_other_unit(self) -> None:
        times = step_times("h")
        times[0], times[1], times[30] = 300.0, 90.0, 15 * STEP_S
        Path("h.csv").write_text(csv(times))
        assert verdict_of(write_runs("b", 1), ["h.csv"]).verdict == "INCONCLUSIVE"


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
        elif how == "skipped":
            path.write_text(megatron(step_times(name), skipped=1))
        elif how == "nan time":
            lines = path.read_text().splitlines(keepends=True)
            lines[30] = lines[30].replace("(ms): ", "(ms): nan |")
            path.write_text("".join(lines))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("how", "told"),
        [
            ("missing", "h00.log lacks steps between 29 and 32"),
            ("restart", "h00.log contains 2 jobs, of which only the last is compared"),
            ("nan loss", "h00.log contains 40 steps with a loss that is not finite"),
            ("skipped", "h00.log contains 1 steps that the optimizer skipped"),
            ("nan time", "h00.log has no time for 1 step, first for step 31"),
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

    def test_steps_missing_from_the_warm_up_are_of_no_concern(self) -> None:
        base, head = self.sets()
        cut_line(head[0], (3, 4))
        verdict = verdict_of(base, head, "--paired")
        assert verdict.verdict == "PASS"
        assert says(verdict, "h00.log: steps are missing: 1 gap, the first from 2 to 5")

    def test_files_behind_the_look_that_decided_are_not_asked(self) -> None:
        base, head = (write_runs(arm, 12, run_sd=0.001, step_sd=0.003) for arm in ("b", "h"))
        lines = Path(head[11]).read_text().splitlines(keepends=True)
        Path(head[11]).write_text("".join(lines[:30] + lines[35:]))
        assert verdict_of(base, head, "--paired").verdict == "PASS"
        Path(head[0]).write_text("".join(lines[:30] + lines[35:]).replace("0.2", "0.20", 1))
        Path(head[11]).unlink()
        verdict = verdict_of(base[:11], head[:11], "--paired")
        assert verdict.verdict == "INCONCLUSIVE"
        assert "h00.csv lacks steps between 28 and 34" in section(verdict).reasons[0]

    def test_a_second_warm_up_inside_a_csv_file_is_a_restart(self) -> None:
        base, head = write_runs("b", 12), write_runs("h", 12)
        assert verdict_of(base, head, "--paired").verdict == "PASS"
        Path(head[0]).write_text(csv([*step_times("one")[:30], 2.0, 1.0, *step_times("two", steps=60)]))
        verdict = verdict_of(base, head, "--paired")
        assert verdict.verdict == "INCONCLUSIVE"
        assert "seems to contain a restarted process" in section(verdict).reasons[0]


class TestOneAgainstOne:
    def test_the_estimate_a_plain_word_and_what_would_be_enough(self) -> None:
        (base,) = write_runs("b", 1)
        for by, plain, enough in (
            (1.5, True, "to prove a difference like this, run base and head in turn on one node"),
            (1.05, False, "to prove a difference of 5%, run base and head in turn"),
            (
                1.0,
                False,
                "it takes 6 pairs on a quiet node (0.3% from pair to pair), 12 on a typical one (0.8%), more than 12",
            ),
        ):
            result = section(verdict_of([base], write_runs("h", 1, seconds=STEP_S * by)))
            assert (result.status, result.decision) == ("INCONCLUSIVE", "undecided")
            assert result.estimate_pct == pytest.approx(100 * (by - 1), abs=2)
            assert any("far more than usual noise" in reason for reason in result.reasons) == plain
            assert any(enough in reason for reason in result.reasons)


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

    @pytest.mark.parametrize("first", [0, 1, 2])
    def test_the_halves_of_a_bimodal_node_show_a_doubling_and_nothing_less(self, first: int) -> None:
        values = json.loads(Path(real("golden/moe_ep8_gb200_1node_bimodal.json")).read_text())["iteration-time"]
        times = [float(value) for value in values["values"].values() if value != "nan"][first:]
        half = len(times) // 2
        for by, status in ((1.0, "INCONCLUSIVE"), (2.0, "FAIL")):
            arms = {"b": times[:half], "h": [by * value for value in times[half : 2 * half]]}
            for arm, part in arms.items():
                for number in range(4):
                    run = part[number * len(part) // 4 : (number + 1) * len(part) // 4]
                    Path(f"{arm}{number}.csv").write_text(csv(run))
            names = [[f"{arm}{number}.csv" for number in range(4)] for arm in arms]
            assert verdict_of(*names, "--paired").verdict == status

    def test_natural_routing_that_settles_has_no_steady_state_and_shuffled_it_has(self) -> None:
        values = json.loads(Path(real("golden/mixtral_8x7b_tp2pp4ep4_h100_long.json")).read_text())["iteration-time"]
        times = [float(value) for value in values["values"].values() if value != "nan"][:20]
        shuffled = np.random.default_rng(20260801).permutation(times).tolist()
        for name, series in (("logged", times), ("shuffled", shuffled)):
            Path(f"{name}.csv").write_text(csv(series))
        verdict = verdict_of(["logged.csv"], ["shuffled.csv"])
        assert says(verdict, "logged.csv: no steady state: ")
        assert not says(verdict, "shuffled.csv: no steady state")

    def test_logs_of_maxtext(self) -> None:
        docs, started = real("logs/maxtext_mixtral_docs.log"), real("logs/maxtext_getting_started.log")
        assert read_steps(Path(docs)).cut == 2
        assert section(verdict_of([docs], [started], "--skip", "3")).base_step_s == 5.668
        invalid = verdict_of([docs], [started])
        assert invalid.verdict == "INVALID"
        assert "step 2 (0.002 s) was not waited for" in invalid.workloads[0].validity.reasons[0]

    def test_logs_of_the_other_frameworks(self) -> None:
        titan: tuple[Any, ...] = (["--tokens-per-step", "16384"], "torchtitan_2475.log", "torchtitan_1373.log")
        for options, base, head in (([], "megatron_756_mixtral_16xh100.log", "maxtext_mixtral_docs.log"), titan):
            verdict = verdict_of([real(f"logs/{base}")], [real(f"logs/{head}")], *options)
            assert (verdict.verdict, section(verdict).decision) == ("INCONCLUSIVE", "undecided")
            assert says(verdict, base, "no steady state", "too few")
