"""``regbot compare``: step times from files, as a user gives them.

After a change of wording that is meant, write the golden files anew and read the difference:

    REGBOT_WRITE_GOLDEN=1 pytest tests/check/compare
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot.check.compare import ComparisonOptions, compare, compare_page
from regbot.check.compare.faults import find_other_work
from regbot.check.compare.launches import find_order
from regbot.check.compare.run_files import read_steps
from regbot.records.config import ConfigError
from regbot.records.files import RecordError
from regbot.records.run import Backend, Node
from support.step_files import (
    STEP_S,
    assert_golden,
    golden,
    maxtext,
    megatron,
    regbot,
    says,
    section,
    titan,
    verdict_of,
    write_logs,
    write_records,
    write_runs,
)

Folder = Callable[..., list[str]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """``files(name, count, **noise)`` writes that many runs into the working folder and gives their names."""
    monkeypatch.chdir(tmp_path)
    return write_runs


class TestPairs:
    def test_pairs_are_made_in_the_order_that_was_given(self, files: Folder) -> None:
        """A node that slows down by 30% over the session: pairs hide it, other partners show it."""
        base = [files(f"b{i}-", 1, seconds=STEP_S * (1 + 0.1 * i))[0] for i in range(4)]
        head = [files(f"h{i}-", 1, seconds=STEP_S * (1 + 0.1 * i))[0] for i in range(4)]
        assert section(verdict_of(base, head, "--paired")).tests[0].sd_pct < 2
        assert section(verdict_of(base, head[::-1], "--paired")).tests[0].sd_pct > 10


class TestOrder:
    @pytest.mark.parametrize(
        ("order", "slower_pct", "decision"),
        [("abba", 2.5, "regressed"), ("alternating", 2.5, "undecided"), ("unknown", 2.5, "undecided"),
         ("unknown", 4.0, "regressed"), ("alternating", 0.0, "within_bound")],
    )  # fmt: skip
    def test_a_position_effect_is_no_difference(
        self, files: Folder, order: str, slower_pct: float, decision: str
    ) -> None:
        base, head = files("b", 12), files("h", 12, seconds=STEP_S * (1 + slower_pct / 100))
        verdict = verdict_of(base, head, "--paired", "--order", order)
        assert section(verdict).decision == decision
        assert any("the intervals are wider by 1% on both sides" in text for text in verdict.warnings) == (
            order != "abba"
        )

    @pytest.mark.usefixtures("files")
    @pytest.mark.parametrize(("first", "order"), [("bhhb", "abba"), ("bbbb", "alternating"), ("bhhh", "alternating")])
    def test_start_times_show_it(self, first: str, order: str) -> None:
        arms = {}
        for arm, own in (("base", "b"), ("head", "h")):
            starts = [100.0 * pair + (0 if own == arm_first else 50) for pair, arm_first in enumerate(first)]
            paths = [Path(path) for path in write_records(own, 4, arm=arm)]
            runs = [read_steps(path) for path in paths]
            arms[arm] = [
                replace(file, run=file.run.model_copy(update={"started_unix_s": start}))
                for file, start in zip(runs, starts, strict=True)
                if file.run is not None
            ]
        assert find_order(arms["base"], arms["head"], "unknown") == order
        assert find_order(arms["base"], [replace(file, run=None) for file in arms["head"]], "abba") == "abba"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("stalls", "withheld"), [({"h"}, True), ({"b"}, False), ({"b", "h"}, False)])
def test_head_does_not_pass_if_it_evaluates_more_than_base(stalls: set[str], withheld: bool) -> None:
    names = {}
    for arm in ("b", "h"):
        names[arm] = write_logs(arm, 4, maxtext)
        for name in names[arm] if arm in stalls else []:
            lines = Path(name).read_text().splitlines()
            for step in (20, 40):
                index = next(i for i, line in enumerate(lines) if f"completed step: {step}," in line)
                lines[index] = re.sub(r"seconds: [0-9.]+", "seconds: 9.000", lines[index])
                lines.insert(index + 1, "eval metrics after step: 1")
            Path(name).write_text("\n".join(lines) + "\n")
    base, head = ([read_steps(Path(name)) for name in names[arm]] for arm in ("b", "h"))
    assert any("head spends" in sign for sign in find_other_work(base, head)) == withheld


@pytest.mark.usefixtures("files")
class TestRunRecords:
    def test_they_are_runs_with_a_cut_of_their_own(self) -> None:
        base = write_records("b", 4)
        head = write_records("h", 4, arm="head", noise={"seconds": STEP_S * 1.05})
        verdict = verdict_of(base, head, "--paired", "--order", "abba")
        assert (section(verdict).decision, verdict.warnings) == ("regressed", [])
        other = section(verdict_of(write_records("c", 4, cut=20), head, "--paired"))
        assert other.reasons[-1] == "the first 20 steps of each file do not count (warm-up)"

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"clock": "cuda_events"}, "the clock differs (cuda_events, not perf_counter)"),
            ({"node": None}, "the class of the node differs (unknown, not 2 cores)"),
            ({"node": Node(name="n2", node_class="2 cores", cores=2)}, "ran on different nodes"),
            (
                {
                    "backends": {
                        "dispatcher": Backend(requested="deepep", resolved="x", executed="alltoall", evidence="e")
                    }
                },
                "executed 'alltoall'",
            ),
        ],
    )
    def test_records_that_cannot_be_compared_are_invalid(self, change: dict[str, Any], told: str) -> None:
        verdict = verdict_of(write_records("b", 4), write_records("h", 4, arm="head", **change), "--paired")
        assert verdict.verdict == "INVALID"
        assert section(verdict).decision is None
        assert any(told in reason for reason in verdict.workloads[0].validity.reasons)


GOOD = "step,step_s\n" + "".join(f"{step},0.{25 + step % 3}\n" for step in range(30))


@pytest.mark.usefixtures("files")
class TestBadFiles:
    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (GOOD + "30,0,25\n", "with a decimal point"),
            (GOOD + "29,0.25\n", "bad.csv:32: step 29 comes after step 29; step numbers must rise"),
            ('{"schema": "regbot/session@1"}\n{}\n', "judge it with 'regbot judge bad.csv'"),
        ],
    )
    def test_a_file_that_is_no_run_is_a_usage_error_with_the_place(
        self, content: str | bytes | None, told: str
    ) -> None:
        Path("good.csv").write_text(GOOD)
        if content is not None:
            Path("bad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        result = regbot("--base", "good.csv", "--head", "bad.csv")
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr
        assert "\x1b" not in result.stderr

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (["--paired"], "there are 1 base and 2 head files"),
            (["--noise", "0"], "'--noise'"),
            (["--skip", "-1"], "'--skip'"),
            (["--tokens-per-step", "0"], "'--tokens-per-step'"),
            (["--skip", "50"], "has 50 steps, and the first 50 are left out, so no step remains"),
        ],
    )
    def test_wrong_options_are_a_usage_error(self, files: Folder, options: list[str], told: str) -> None:
        base, head = files("b", 1), files("h", 2)
        result = regbot("--base", *base, "--head", *head, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr

    @pytest.mark.parametrize("seconds", ["nan", "-0.25", "0", "inf"])
    def test_a_step_time_that_cannot_be_is_invalid_and_named(self, files: Folder, seconds: str) -> None:
        base, head = files("b", 4), files("h", 4)
        Path(head[0]).write_text(GOOD + f"30,{seconds}\n")
        verdict = verdict_of(base, head, "--paired")
        assert verdict.verdict == "INVALID"
        assert f"h00.csv:32: step 30 took {seconds} s" in verdict.workloads[0].validity.reasons[0]
        assert section(verdict).decision is None

    def test_windows_line_ends_a_byte_order_mark_and_blank_lines_are_read(self, files: Folder) -> None:
        base, head = files("b", 4), files("h", 4)
        expected = section(verdict_of(base, head, "--paired"))
        for name in base:
            text = Path(name).read_text()
            Path(name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").replace(",", " , ").encode() + b"\r\n")
        assert section(verdict_of(base, head, "--paired")) == expected

    def test_a_run_counts_once(self, files: Folder) -> None:
        base, head = files("b", 1), files("h", 1)
        Path("latest.csv").symlink_to(base[0])
        for arguments in ((*base, "latest.csv", "--head", *head), (*base, "--head", *base)):
            result = regbot("--base", *arguments)
            assert result.exit_code == 2
            assert "one file is one run" in result.stderr

    def test_copies_of_a_run_are_no_runs(self, files: Folder) -> None:
        base, head = files("b", 4), files("h", 4)
        Path(head[2]).write_text(Path(head[1]).read_text())
        verdict = verdict_of(base, head, "--paired")
        assert verdict.verdict == "INVALID"
        assert "h01.csv and h02.csv have the same times" in verdict.workloads[0].validity.reasons[0]


class TestCommandLine:
    @pytest.mark.parametrize(
        "content", ["step,step_s\n0,nan\n", "step,step_s\n0,1\n", "step,step_s\n0,one\n", "", None]
    )
    def test_a_file_name_cannot_write_to_the_terminal(self, files: Folder, content: str | None) -> None:
        """Not through the command: it prints to no terminal here, and then leaves out colours by itself."""
        (other,) = files("h", 1)
        hostile = Path("\x1b[31mred\u202e.csv")
        if content is not None:
            hostile.write_text(content)
        try:
            said = compare_page(compare(ComparisonOptions([hostile], [Path(other)])))
        except RecordError as error:
            said = str(error)
        assert "red.csv" in said
        assert not {"\x1b", "\u202e"} & set(said)
        with pytest.raises(ConfigError) as twice:
            compare(ComparisonOptions([hostile], [hostile]))
        assert not {"\x1b", "\u202e"} & set(str(twice.value))

    @pytest.mark.parametrize(
        ("name", "base", "head", "options"),
        [
            ("regressed", {}, {"seconds": STEP_S * 1.05}, ["--paired"]),
            ("regressed_by_mean", {"step_sd": 0.005}, {"stall": 0.2, "step_sd": 0.005}, ["--paired"]),
            ("no_change", {}, {}, ["--paired"]),
            ("improved", {}, {"seconds": STEP_S * 0.9}, ["--paired"]),
            ("undecided", {"run_sd": 0.04}, {"run_sd": 0.04}, ["--paired"]),
            ("undecided_between_looks", {"run_sd": 0.02, "count": 6}, {"run_sd": 0.02, "count": 6}, ["--paired"]),
            ("too_few_pairs", {"count": 2}, {"count": 2, "seconds": STEP_S * 1.4}, ["--paired"]),
            ("too_few_pairs_known_noise", {"count": 1}, {"count": 1}, ["--paired", "--noise", "0.8"]),
            ("noise_contradicted", {"run_sd": 0.04}, {"run_sd": 0.04}, ["--paired", "--noise", "0.5"]),
            ("unpaired", {"count": 8}, {"count": 8}, []),
            ("unpaired_undecided", {"count": 4, "run_sd": 0.02}, {"count": 4, "run_sd": 0.02}, []),
            ("one_run_each", {"count": 1}, {"count": 1, "seconds": STEP_S * 1.05}, []),
        ],
    )
    def test_what_people_read(
        self, files: Folder, name: str, base: dict[str, Any], head: dict[str, Any], options: list[str]
    ) -> None:
        names = [files(arm, **{"count": 12, **noise}) for arm, noise in (("base", base), ("head", head))]
        result = regbot("--base", *names[0], "--head", *names[1], *options)
        assert_golden(name, result)

    def test_what_people_read_of_files_that_cannot_be_compared(self, files: Folder) -> None:
        base, head = files("base", 4), files("head", 4)
        Path(head[1]).write_text(GOOD + "30,nan\n31,-1\n")
        result = regbot("--base", *base, "--head", *head, "--paired")
        assert_golden("invalid", result)


@pytest.mark.usefixtures("files")
class TestLogs:
    def test_means_and_single_steps_are_not_compared(self) -> None:
        verdict = verdict_of(write_logs("b", 4, megatron), write_logs("h", 4, megatron, interval=5))
        assert verdict.verdict == "INVALID"
        assert "h00.log: its values are means of 5 steps" in verdict.workloads[0].validity.reasons[0]

    def test_step_times_of_few_digits_decide_nothing(self, tmp_path: Path) -> None:
        """30.6 ms and 31.4 ms are both printed as 0.031."""
        line = "completed step: {}, seconds: 0.031, TFLOP/s/device: 1.000, loss: 7.425"
        for name in ("base", "head"):
            for run in range(4):
                text = "\n".join(line.format(step) for step in range(60)) + "\n"
                (tmp_path / f"{name}-{run}.log").write_text(text)
        files = [[tmp_path / f"{name}-{run}.log" for run in range(4)] for name in ("base", "head")]
        verdict = compare(ComparisonOptions(files[0], files[1]))
        assert verdict.verdict == "INVALID"
        assert "printed to 0.001 s, 3.2% of a step" in verdict.workloads[0].validity.reasons[0]

    def test_logs_of_torchtitan_need_the_tokens_of_a_step_and_no_others_do(self) -> None:
        base, head = write_logs("b", 4, titan), write_logs("h", 4, titan, STEP_S * 1.08)
        without = regbot("--base", *base, "--head", *head)
        assert without.exit_code == 2
        assert "--tokens-per-step" in without.stderr
        verdict = verdict_of(base, head, "--paired", "--tokens-per-step", "400000")
        assert section(verdict).decision == "regressed"
        assert section(verdict).base_step_s == pytest.approx(STEP_S, rel=0.02)
        assert says(verdict, "step times are derived")

    def test_what_people_read_of_logs(self) -> None:
        result = regbot(
            "--base", *write_logs("base", 2, megatron), "--head", *write_logs("head", 2, golden, STEP_S * 1.05)
        )
        assert_golden("logs", result)
