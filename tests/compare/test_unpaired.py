"""Unpaired files: which of them decide, and what the others say."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from regbot.compare.launches import MAX_PAUSE_S
from regbot.records.run import Allocation, Node
from support.step_files import (
    STEP_S,
    assert_golden,
    megatron,
    regbot,
    run_record,
    says,
    section,
    step_times,
    titan,
    verdict_of,
    write_nights,
    write_records,
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


def reasons_of(*arguments: Any) -> str:
    return "\n".join(section(verdict_of(*arguments)).reasons)


class TestOneSession:
    def test_runs_of_one_session_decide_and_the_evidence_is_told(self) -> None:
        result = section(verdict_of(*write_session(5, 4, head_noise=SLOWER)))
        assert (result.status, result.decision, result.by, result.pairs) == ("FAIL", "regressed", "runs", 0)
        assert any(
            "all runs on n1 from 2026-09-21 14:13 to 2026-09-21 14:21 UTC, and base and head alternated 8 times"
            in reason
            for reason in result.reasons
        )

    def test_unchanged_runs_of_one_session_pass_with_a_bound_against_base(self) -> None:
        result = section(verdict_of(*write_session(8, 8)))
        assert (result.status, result.decision) == ("PASS", "no_change")
        assert re.search(r"head is at most [\d.]+% slower than base", result.reasons[0])

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

    def test_one_arm_after_the_other_is_no_evidence(self) -> None:
        """Times of the arms must overlap: head's runs may have begun when a neighbour did."""
        base, head = write_session(4, 4, head_noise=SLOWER)
        for number, name in enumerate([*base, *head]):
            noise = SLOWER if name in head else {}
            Path(name).write_text(run_record(name, noise=noise, started_unix_s=START + 60 * number).to_json())
        assert verdict_of(base, head).verdict == "INCONCLUSIVE"

    def test_launches_that_overlap_are_no_evidence(self) -> None:
        """Two containers with one host name at one time: each arm may have a machine of its own."""
        base, head = write_session(8, 8, head_noise=SLOWER, wall_s=65.0)
        assert verdict_of(base, head).verdict == "INCONCLUSIVE"

    def test_a_launch_takes_at_least_as_long_as_its_steps(self) -> None:
        base, head = write_session(8, 8, base_noise={"seconds": 2.0}, head_noise={"seconds": 2.1}, wall_s=0.0)
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

    def test_open_runs_say_how_many_would_do(self) -> None:
        noise = {"run_sd": 0.02}
        result = section(verdict_of(*write_session(4, 4, base_noise=noise, head_noise=noise)))
        assert result.status == "INCONCLUSIVE"
        assert any("runs of each arm" in reason for reason in result.reasons)

    @pytest.mark.parametrize(("base", "head"), [(2, 3), (3, 8), (8, 3)])
    def test_fewer_than_four_of_an_arm_decide_nothing(self, base: int, head: int) -> None:
        result = section(verdict_of(*write_session(base, head, head_noise={"seconds": STEP_S * 1.5})))
        assert (result.status, result.decision) == ("INCONCLUSIVE", "undecided")
        assert result.estimate_pct == pytest.approx(50, abs=3)
        assert "4 runs of each arm are needed" in result.reasons[0]

    def test_what_people_read(self) -> None:
        assert_golden("unpaired_one_session", regbot_on(*write_session(8, 8, head_noise=SLOWER)))


class TestKnownNoise:
    def test_in_one_session_every_run_has_its_share_of_it(self) -> None:
        """s / sqrt(2) a run, and narrower with every run."""
        widths = {}
        for runs in (2, 8):
            noise = {"run_sd": 0.0, "step_sd": 0.003}
            base, head = write_session(runs, runs, base_noise=noise, head_noise={**noise, **SLOWER})
            result = section(verdict_of(base, head, "--noise", "1"))
            assert (result.decision, result.by, result.pairs) == ("regressed", "runs", 0)
            assert [test.sd_pct for test in result.tests] == [1.0, 1.0]
            widths[runs] = result.high_pct - result.low_pct
        assert widths[2] == pytest.approx(2 * widths[8], rel=0.02)

    def test_a_noise_that_the_runs_contradict_is_not_used(self) -> None:
        noise = {"run_sd": 0.04}
        base, head = write_session(6, 6, base_noise=noise, head_noise=noise)
        verdict = verdict_of(base, head, "--noise", "0.5")
        assert section(verdict) == section(verdict_of(base, head))
        assert says(verdict, "--noise says 0.5%; the observed scatter is used")

    def test_steps_that_scatter_more_than_the_noise_are_believed(self) -> None:
        """The two base runs have the same steps in another order, so that the scatter of runs shows nothing."""
        noise = {"step_sd": 0.3}
        base, head = write_session(2, 1, base_noise=noise, head_noise={**noise, "seconds": STEP_S * 1.02})
        first = run_record(base[0], noise=noise, started_unix_s=START + 120)
        assert first.timing is not None
        times = [*first.timing.step_s[:10], *reversed(first.timing.step_s[10:])]
        ranks = {"0": first.timing.ranks["0"].model_copy(update={"step_s": times})}
        timing = first.timing.model_copy(update={"step_s": times, "ranks": ranks})
        Path(base[1]).write_text(first.model_copy(update={"timing": timing}).to_json())
        verdict = verdict_of(base, head, "--noise", "4", "--skip", "10")
        assert section(verdict).decision == "undecided"
        assert says(verdict, "the steps inside the files imply a scatter", "--noise says 4%")

    @pytest.mark.parametrize("runs", [1, 4])
    def test_without_evidence_of_one_session_it_decides_nothing(self, files: Folder, runs: int) -> None:
        """The noise of pairs does not contain what two sessions differ by: 14% of 2% losses passed, or worse."""
        verdict = verdict_of(files("b", runs), files("h", runs, seconds=STEP_S * 1.6), "--noise", "0.3")
        assert verdict.verdict == "INCONCLUSIVE"
        assert says(verdict, "--noise 0.3% is not used: it is the noise of pairs in one session")


class TestSeparateSessions:
    """Base files of separate sessions: their scatter contains the effects of nodes and days."""

    @pytest.mark.parametrize("sessions", [8, 20])
    def test_one_head_file_is_judged_by_the_prediction_interval(self, sessions: int) -> None:
        base = write_nights("b", sessions)
        head = write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.08)
        result = section(verdict_of(base, head))
        assert (result.status, result.decision, result.by, result.sessions) == ("FAIL", "regressed", "runs", sessions)
        assert f"slower than the base files of {sessions} sessions" in result.reasons[0]
        assert result.alpha == 0.025

    def test_a_quiet_baseline_can_pass_with_a_bound_against_its_sessions(self) -> None:
        base = write_nights("b", 20, sd=0.002, noise={"run_sd": 0.001})
        result = section(verdict_of(base, write_nights("h", 1, sd=0.0)))
        assert (result.status, result.decision) == ("PASS", "no_change")
        assert re.search(r"head is at most [\d.]+% slower than the base files of 20 sessions", result.reasons[0])

    def test_seven_sessions_decide_nothing_and_one_more_does(self) -> None:
        base = write_nights("b", 8)
        head = write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.3)
        assert verdict_of(base, head).verdict == "FAIL"
        assert verdict_of(base[:7], head).verdict == "INCONCLUSIVE"

    def test_files_of_one_session_count_once(self) -> None:
        """Eight launches of one evening are not eight evenings, though nobody says that head ran then too."""
        evening, _ = write_session(8, 0)
        head = write_nights("n", 1, sd=0.0, seconds=STEP_S * 1.08, started_unix_s=START + 9e5)
        result = section(verdict_of(evening, head))
        assert result.status == "INCONCLUSIVE"
        assert "1 base file is known to be" in result.reasons[-2]
        nights = write_nights("a", 8)
        reasons = reasons_of([*nights, *evening[1:]], head)
        assert "one file of each session counts; 7 base files are left out" in reasons

    def test_runs_at_one_time_are_one_session_on_whatever_hosts(self) -> None:
        """Eight containers on one machine have eight host names."""
        base = []
        for number in range(8):
            node = Node(name=f"n{number}", node_class="2 cores", cores=2)
            base += write_nights(f"b{number}-", 1, node=node, started_unix_s=START + 300 * number)
        reasons = reasons_of(base, write_nights("h", 1, seconds=STEP_S * 1.1))
        assert "1 base file is known to be" in reasons

    def test_a_head_on_a_host_that_is_not_named_is_not_judged_by_one_host(self, files: Folder) -> None:
        base, head = write_nights("b", 20, sd=0.002), files("h", 1, seconds=STEP_S * 1.05)
        verdict = verdict_of(base, head)
        assert verdict.verdict == "INCONCLUSIVE"
        assert "nothing in the files shows that head ran on a host of base" in section(verdict).reasons[0]

    def test_a_head_record_without_a_time_still_names_its_host(self) -> None:
        base = write_nights("b", 20, sd=0.002)
        head = write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.05, started_unix_s=None)
        assert verdict_of(base, head).verdict == "FAIL"

    def test_hosts_of_files_that_do_not_count_show_nothing_of_how_hosts_differ(self) -> None:
        base = write_nights("b", 20, sd=0.002)
        for name in ("n2", "n3"):
            node = Node(name=name, node_class="2 cores", cores=2)
            base += write_nights(f"also-{name}-", 1, node=node, started_unix_s=START + 600)
        node = Node(name="n9", node_class="2 cores", cores=2)
        head = write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.05, node=node)
        assert verdict_of(base, head).verdict == "INCONCLUSIVE"

    def test_the_scatter_contains_what_the_hosts_of_the_files_show(self, files: Folder) -> None:
        head = write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.08)
        one_host = write_nights("b", 8)
        assert "from session to session (standard deviation), all on one host" in reasons_of(one_host, head)
        other = Node(name="n2", node_class="2 cores", cores=2)
        hosts = [*one_host[:7], *write_nights("c", 1, node=other, started_unix_s=START + 86_400 * 30)]
        assert "which includes differences between nodes. " in reasons_of(hosts, head)
        unnamed = files("u", 8, run_sd=0.01)
        reasons = reasons_of(unnamed, files("v", 1, seconds=STEP_S * 1.08), "--separate-sessions")
        assert "which includes differences between nodes only if the files are of several nodes" in reasons

    @pytest.mark.parametrize("change", [{}, {"started_unix_s": None}], ids=["dated", "undated"])
    def test_a_node_that_base_does_not_know_is_not_judged_by_one_or_two_others(self, change: dict[str, Any]) -> None:
        """All of base's scatter is of one node; how much nodes differ is not in it."""
        base = write_nights("b", 20, sd=0.002)
        other = Node(name="n9", node_class="2 cores", cores=2)
        verdict = verdict_of(base, write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.05, node=other, **change))
        assert verdict.verdict == "INCONCLUSIVE"
        assert "nothing in the files shows that head ran on a host of base" in section(verdict).reasons[0]

    @pytest.mark.parametrize(("write", "options"), [(megatron, []), (titan, ["--tokens-per-step", "400000"])])
    def test_times_in_logs_show_separate_sessions(self, write: Callable[..., str], options: list[str]) -> None:
        for number in range(9):
            name = f"{number}.log"
            text = write(step_times(name, STEP_S * (1.1 if number == 8 else 1)))
            Path(name).write_text(re.sub(r"2026-0\d-\d\d", f"2026-05-{10 + number}", text))
        base, head = [f"{number}.log" for number in range(8)], ["8.log"]
        assert verdict_of(base, head, *options).verdict == "FAIL"
        for name in base:
            Path(name).write_text(re.sub(r"2026-05-\d\d", "2026-05-10", Path(name).read_text()))
        assert verdict_of(base, head, *options).verdict == "INCONCLUSIVE"

    def test_files_without_times_count_only_if_the_user_says_so(self, files: Folder) -> None:
        base, head = files("b", 20, run_sd=0.01), files("h", 1, run_sd=0.0, seconds=STEP_S * 1.08)
        assert verdict_of(base, head).verdict == "INCONCLUSIVE"
        assert "--separate-sessions declares that their sessions are separate" in reasons_of(base, head)
        assert verdict_of(base, head, "--separate-sessions").verdict == "FAIL"
        assert "says it of files" not in reasons_of(base[:5], head, "--separate-sessions")
        assert "5 base files are known to be of separate sessions" in reasons_of(base[:5], head, "--separate-sessions")

    def test_what_the_user_says_does_not_outweigh_the_times_of_the_files(self) -> None:
        base, _ = write_session(8, 0)
        head = write_nights("n", 1, sd=0.0, seconds=STEP_S * 1.3, started_unix_s=START + 9e5)
        assert verdict_of(base, head, "--separate-sessions").verdict == "INCONCLUSIVE"

    def test_pairs_are_not_of_separate_sessions(self, files: Folder) -> None:
        result = regbot("--base", *files("b", 4), "--head", *files("h", 4), "--paired", "--separate-sessions")
        assert result.exit_code == 2
        assert "give one of them" in result.stderr

    def test_head_slower_than_base_by_less_than_a_slow_base_file_is_not_called_slower(self) -> None:
        """One base launch in twenty is slow by 5%: head may be such a launch."""
        base = write_nights("b", 19, sd=0.002) + write_nights("slow", 1, sd=0.0, seconds=STEP_S * 1.05)
        Path(base[-1]).write_text(
            run_record(base[-1], noise={"seconds": STEP_S * 1.05}, started_unix_s=START + 86_400 * 30).to_json()
        )
        assert verdict_of(base, write_nights("h", 1, sd=0.0, seconds=STEP_S * 1.055)).verdict == "INCONCLUSIVE"

    @pytest.mark.parametrize(("name", "seconds"), [("regressed", STEP_S * 1.08), ("undecided", STEP_S * 1.02)])
    def test_what_people_read(self, name: str, seconds: float) -> None:
        found = regbot_on(write_nights("base", 20), write_nights("head", 1, sd=0.0, seconds=seconds))
        assert_golden(f"separate_sessions_{name}", found)


class TestNoEvidence:
    @pytest.mark.parametrize("seconds", [STEP_S, STEP_S * 1.05, STEP_S * 2, STEP_S * 0.8])
    @pytest.mark.parametrize(("base", "head"), [(1, 1), (4, 4), (16, 16), (20, 1), (1, 8)])
    def test_nothing_is_decided(self, files: Folder, base: int, head: int, seconds: float) -> None:
        result = section(verdict_of(files("b", base), files("h", head, seconds=seconds)))
        assert (result.status, result.decision) == ("INCONCLUSIVE", "undecided")
        assert result.low_pct < result.estimate_pct < result.high_pct
        assert {test.decision for test in result.tests} == {"undecided"}
        assert "nothing in the files shows that base and head ran in turn in one session" in result.reasons[0]
        assert any("differences between nodes and sessions are not controlled" in reason for reason in result.reasons)

    def test_records_of_other_days_decide_nothing(self) -> None:
        other = Node(name="n2", node_class="2 cores", cores=2)
        verdict = verdict_of(write_records("b", 8), write_records("h", 8, arm="head", node=other))
        assert verdict.verdict == "INCONCLUSIVE"

    def test_two_launches_say_at_which_noise_they_would_prove_something(self, files: Folder) -> None:
        """(5% - 1%) / 2.57 = 1.5%."""
        base, head = files("b", 1, run_sd=0.0, step_sd=1e-4), files("h", 1, run_sd=0.0, step_sd=1e-4, **SLOWER)
        reasons = reasons_of(base, head)
        assert (
            "the estimate proves a change of more than 1% only if two runs of one commit in different sessions differ "
            "by less than 1.51%" in reasons
        )
        assert "0.7% on a quiet node, 1.4% on a typical one, 3.4% on a noisy one" in reasons
        assert (
            "if the noise of the node is known (--paired --noise), one pair of one session proves a slowdown of at "
            "least 2.0%" in reasons
        )
        assert (
            "4 pairs on a quiet node (0.3% from pair to pair), 4 on a typical one (0.8%), 10 on a noisy one (2.5%)"
            in reasons
        )
        assert re.search(r"to prove a difference of 5% it takes \d+ further files on a quiet node", reasons)

    def test_two_equal_launches_say_at_which_noise_they_would_prove_no_change(self, files: Folder) -> None:
        reasons = reasons_of(files("b", 1, run_sd=0.0, step_sd=1e-4), files("h", 1, run_sd=0.0, step_sd=1e-4))
        assert (
            "the estimate proves a change of less than 2% only if two runs of one commit in different sessions differ "
            "by less than 0.77%" in reasons
        )

    def test_sets_of_runs_ask_how_much_two_sessions_differ(self, files: Folder) -> None:
        reasons = reasons_of(files("b", 8), files("h", 8, **SLOWER))
        assert "only if two sessions of one commit differ by less than" in reasons

    def test_sets_that_scatter_too_much_prove_nothing_even_if_sessions_did_not_differ(self, files: Folder) -> None:
        reasons = reasons_of(files("b", 4, run_sd=0.04), files("h", 4, run_sd=0.04))
        assert "the runs of an arm scatter so much that they could not prove that head changed by" in reasons

    def test_a_difference_far_beyond_noise_gets_a_plain_word(self, files: Folder) -> None:
        assert "far more than usual noise" in reasons_of(files("b", 1), files("h", 1, seconds=STEP_S * 1.5))
        assert "far more than usual noise" not in reasons_of(files("b", 1), files("h", 1, **SLOWER))
