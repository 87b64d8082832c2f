"""Nodes: the probe with real ranks, the history with several writers, the judgement of nodes, and quarantine."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import Launch, LaunchResult, LocalEngine, Needs, Seat
from regbot.errors import UserError
from regbot.nodes import examine, list_nodes, probe, quarantine, read_history, release
from regbot.nodes.history import append_probe, read_histories
from regbot.nodes.judgement import explains, judge
from regbot.nodes.quarantine import finish_trial, nodes_on_trial, quarantined_nodes, read_events
from regbot.nodes.reference import ProbeError
from regbot.records.files import RecordError
from regbot.records.node import Evidence, NodeJudgement, NodeProbe, NodeVerdict, Sizes, StragglerSession
from regbot.records.run import Allocation, Node
from support.node_probes import NOW, past, probe_of, took

SMALL = Sizes(gemm=256, dtype="float32", all_to_all_bytes=65536, copy_bytes=2**20)
BRIEF = {"gemm": 0.4, "all_to_all": 0.1, "copy": 0.05}


class Hosts:
    """The local seat, presented as several hosts. ``change`` may edit the ranks' records before they are read."""

    def __init__(self, seat: Seat, hosts: list[str], change: Callable[[Path], None] = lambda _: None) -> None:
        self._seat, self._hosts, self._change = seat, hosts, change

    @property
    def node(self) -> Node:
        return self._seat.node.model_copy(update={"gpus": []})

    @property
    def allocation(self) -> Allocation:
        return Allocation(engine="local", hosts=self._hosts)

    def run(self, launch: Launch) -> LaunchResult:
        ended = self._seat.run(launch)
        self._change(launch.record_dir)
        return ended


def probed(
    folder: Path, hosts: list[str], change: Callable[[Path], None] = lambda _: None, **options: Any
) -> list[NodeProbe]:
    with LocalEngine().seat(Needs(ranks=2)) as seat:
        chosen = {"sizes": SMALL, "seconds": BRIEF, **options}
        return probe(Hosts(seat, hosts, change), 2, folder / "scratch", NOW, **chosen)


@pytest.mark.slow
def test_ranks_of_one_host_measure_what_they_share_and_nothing_over_hosts(tmp_path: Path) -> None:
    (result,) = probed(tmp_path, ["n1"])
    assert (result.host, result.ranks, result.hosts, result.device) == ("n1", 2, ["n1"], "cpu")
    assert result.all_to_all is None
    assert result.local_all_to_all is not None
    assert result.local_all_to_all.n >= 5
    assert 0.0001 < result.gemm_tflops < 2
    assert result.gemm_tflops == pytest.approx(2 * 256**3 / result.gemm.median_s / 1e12)
    assert result.software.startswith("torch 2.")
    assert result.others_share is not None
    assert not (tmp_path / "scratch" / "record" / "torchrun").exists()


@pytest.mark.slow
def test_a_slow_rank_is_blamed_on_its_own_host_only(tmp_path: Path) -> None:
    probes = probed(tmp_path, ["n1", "n2"], slowed={1: 900.0})
    assert [node.host for node in probes] == ["n1", "n2"]
    assert all(node.local_all_to_all is None and node.all_to_all is not None for node in probes)
    first, second = ([entry for entry in node.findings if entry.measure == "gemm"] for node in judge(probes, {}).nodes)
    assert first == []
    assert (second[0].against, second[0].accuses, second[0].hosts) == ("peers", "node", ["n2"])
    assert second[0].pct > 100
    reasons = explains(judge(probes, {}), ["n1", "n2"], paired=True)
    assert "n2 is slow, whatever runs on it: n2: matrix product" in "\n".join(reasons)


def edited(rank: int, edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / f"node.{rank}.json"
        document = json.loads(path.read_text())
        edit(document)
        path.write_text(json.dumps(document))

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(1, lambda d: d["gemm"].update(median_s=float("nan"))), "rank 1 on n2: .*NaN is not a number"),
        (edited(1, lambda d: d["gemm"].update(median_s=-1.0)), "rank 1 on n2: .*gemm.median_s"),
        (edited(0, lambda d: d.update(request="another")), "rank 0 on n1: its record answers another request"),
        (edited(0, lambda d: d["gemm"].update(n=10**6)), "rank 0 on n1: its times are inconsistent"),
        (edited(0, lambda d: d["gemm"].update(fast_s=9.0)), "rank 0 on n1: its times are inconsistent"),
        (edited(0, lambda d: d.update(all_to_all=None)), "n1: its ranks did not measure what was requested"),
        (edited(0, lambda d: d.pop("gemm")), "rank 0 on n1: its record is incomplete"),
    ],
)
def test_an_invalid_record_of_a_broken_node_is_not_judged(
    change: Callable[[Path], None], message: str, recorded: Path
) -> None:
    with pytest.raises(ProbeError, match=message):
        replayed(recorded, change)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of one real probe of two hosts."""
    copies = tmp_path_factory.mktemp("recorded")

    def keep(folder: Path) -> None:
        for path in folder.glob("node.*.json"):
            (copies / path.name).write_bytes(path.read_bytes())

    probed(tmp_path_factory.mktemp("probe"), ["n1", "n2"], keep)
    return copies


def replayed(recorded: Path, change: Callable[[Path], None], **ended: Any) -> list[NodeProbe]:
    """Run the probe with ranks that write the recorded files, which ``change`` then edits."""

    class Replay(Hosts):
        def run(self, launch: Launch) -> LaunchResult:
            launch.record_dir.mkdir(parents=True)
            request = json.loads(Path(launch.command[-1]).read_text())["request"]
            for path in recorded.glob("node.*.json"):
                document = {**json.loads(path.read_text()), "request": request}
                (launch.record_dir / path.name).write_text(json.dumps(document))
            change(launch.record_dir)
            usual = LaunchResult(
                exit_code=0, timed_out=False, output_truncated=False, excess="", left_behind=0, unkilled=0,
                wall_s=20.0, log_tail="rank 1 fell over",
            )  # fmt: skip
            return replace(usual, **ended)

    with LocalEngine().seat(Needs(ranks=2)) as seat:
        return probe(Replay(seat, ["n1", "n2"]), 2, recorded / "scratch", NOW, sizes=SMALL)


@pytest.mark.slow
def test_valid_recorded_ranks_are_accepted(recorded: Path) -> None:
    assert [node.host for node in replayed(recorded, lambda _: None)] == ["n1", "n2"]


def test_a_rank_that_never_writes_is_named_with_its_host(recorded: Path) -> None:
    with pytest.raises(ProbeError, match=r"(?s)was killed by signal 9 without a record of rank 1 on n2;.*fell over"):
        replayed(recorded, lambda folder: (folder / "node.1.json").unlink(), exit_code=-9)
    with pytest.raises(ProbeError, match="did not end within 180 s without a record of rank 1 on n2"):
        replayed(recorded, lambda folder: (folder / "node.1.json").unlink(), exit_code=None, timed_out=True)


def test_the_probe_waits_for_records_that_a_shared_file_system_shows_late(recorded: Path) -> None:
    def late(folder: Path) -> None:
        path = folder / "node.1.json"
        path.rename(folder / "hidden")
        move = f"import os, time; time.sleep(0.5); os.rename({str(folder / 'hidden')!r}, {str(path)!r})"
        subprocess.Popen([sys.executable, "-c", move])

    assert len(replayed(recorded, late)) == 2


def test_ranks_that_do_not_spread_evenly_are_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="2 ranks cannot be spread evenly over the hosts n1, n2, n3"):
        probed(tmp_path, ["n1", "n2", "n3"])


def test_an_interpreter_without_torch_is_reported(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "sys.argv = ['x', '--reference', sys.argv[1]]\n"
        "from regbot_guest import reference; sys.exit(reference.main(sys.argv[2]))"
    )
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"request": "r", "record": str(tmp_path / "node.{rank}.json")}))
    guest = Path(__file__).parents[2] / "regbot" / "guest"
    done = subprocess.run([sys.executable, "-c", script, str(request)], env={"PYTHONPATH": str(guest)}, check=False)
    assert done.returncode == 10
    assert "cannot import torch" in json.loads((tmp_path / "node.0.json").read_text())["refusal"]


def statuses(judgement: NodeJudgement) -> dict[str, str]:
    return {node.host: node.status for node in judgement.nodes}


def test_a_node_with_neither_history_nor_peers_is_unknown() -> None:
    judgement = judge([probe_of("n1")], {})
    assert statuses(judgement) == {"n1": "unknown"}
    assert judgement.nodes[0].notes == ["nothing to compare with yet: 0 of 3 earlier probes, and no peer of its class"]
    assert statuses(judge([probe_of("n1", gemm=9)], {"n1": past("n1", 2)})) == {"n1": "unknown"}


def test_a_node_that_became_slower_is_slow_by_how_much_and_against_what() -> None:
    judgement = judge([probe_of("n1", gemm=2.08)], {"n1": past("n1", 10)})
    (finding,) = judgement.nodes[0].findings
    assert finding.text == (
        "n1: matrix product 30% slower than before (median of 10 probes, sd 0.2%) (2.08 ms, reference 1.6 ms)"
    )
    assert (finding.against, finding.accuses, finding.compared) == ("history", "node", 10)
    assert statuses(judge([probe_of("n1", gemm=1.74)], {"n1": past("n1", 10)})) == {"n1": "ok"}, "9% is not 10%"


def test_a_noisy_history_asks_for_more_than_the_threshold() -> None:
    noisy = past("n1", 10, scatter_pct=6)
    assert statuses(judge([probe_of("n1", gemm=1.92)], {"n1": noisy})) == {"n1": "ok"}, "20% within 5 sd"
    assert statuses(judge([probe_of("n1", gemm=1.92)], {"n1": noisy[:5]})) == {"n1": "slow"}, "no sd of 5 probes"
    assert statuses(judge([probe_of("n1", gemm=4.8)], {"n1": noisy})) == {"n1": "slow"}


def test_a_node_that_is_only_disturbed_is_not_slow() -> None:
    """Other work slows the median but hardly the fastest repetitions."""
    assert statuses(judge([probe_of("n1", gemm=2.4, fast=1.6)], {"n1": past("n1", 10)})) == {"n1": "ok"}
    assert statuses(judge([probe_of("n1", gemm=2.4, fast=2.3)], {"n1": past("n1", 10)})) == {"n1": "slow"}


def test_slow_and_sick_probes_are_no_reference() -> None:
    good, bad = past("n1", 4), [probe_of("n1", 10 - hour, gemm=2.4, slow=True) for hour in range(9)]
    assert statuses(judge([probe_of("n1", gemm=2.4)], {"n1": [*good, *bad]})) == {"n1": "slow"}
    sick = [probe_of("n1", 10 - hour, gemm=2.4, causes=["a GPU was lost"]) for hour in range(9)]
    assert statuses(judge([probe_of("n1", gemm=2.4)], {"n1": [*good, *sick]})) == {"n1": "slow"}


def test_one_slow_node_among_peers_is_detected_without_a_history() -> None:
    judgement = judge([probe_of("n1"), probe_of("n2", gemm=2.08), probe_of("n3")], {})
    assert statuses(judgement) == {"n1": "ok", "n2": "slow", "n3": "ok"}
    text = judgement.nodes[1].findings[0].text
    assert text.startswith("n2: matrix product 30% slower than its peers (median of 2 nodes)")
    stored = {"n2": [probe_of("n2", 5)], "n3": [probe_of("n3", 5)]}
    assert statuses(judge([probe_of("n1", gemm=2.08)], stored)) == {"n1": "slow"}, "peers probed before"
    old = {"n2": [probe_of("n2", 24 * 31)], "n3": [probe_of("n3", 24 * 31)]}
    assert statuses(judge([probe_of("n1", gemm=2.08)], old)) == {"n1": "unknown"}, "peers of last month"


def test_nodes_of_another_class_driver_or_torch_are_not_peers() -> None:
    for changes in ({"node_class": "8 x NVIDIA H100"}, {"driver": "575.1"}, {"software": "torch 2.9"}, {"ranks": 4}):
        stored = {"n2": [probe_of("n2", 5, **changes)]}
        assert statuses(judge([probe_of("n1", gemm=2.08)], stored)) == {"n1": "unknown"}, changes


def test_a_slow_exchange_accuses_the_node_if_it_is_local_and_the_set_if_it_spans_hosts() -> None:
    earlier = {host: past(host, 5, over=1.0, hosts=["n1", "n2"]) for host in ("n1", "n2")}
    slow_net = [probe_of(host, over=1.5, hosts=["n1", "n2"]) for host in ("n1", "n2")]
    judgement = judge(slow_net, earlier)
    assert statuses(judgement) == {"n1": "ok", "n2": "ok"}
    (finding,) = judgement.sets
    assert (finding.accuses, finding.hosts, finding.measure) == ("set", ["n1", "n2"], "all_to_all")
    assert "n1, n2 together: all-to-all over all hosts 50% slower" in finding.text
    assert "does not show which host is slow" in finding.text
    assert explains(judgement, ["n1", "n2"], paired=True) == [finding.text]
    assert explains(judgement, ["n3"], paired=True) == []
    inside = judge([probe_of("n1", local=0.6)], {"n1": past("n1", 5)})
    assert statuses(inside) == {"n1": "slow"}
    assert inside.nodes[0].findings[0].measure == "local_all_to_all"


def test_a_fleet_that_became_slower_at_once_accuses_no_node() -> None:
    names = ("n1", "n2", "n3", "n4")
    earlier = {host: past(host, 10) for host in names}
    judgement = judge([probe_of(host, gemm=1.9) for host in names], earlier)
    assert set(statuses(judgement).values()) == {"ok"}
    (text,) = judgement.fleet
    assert text.startswith("n1, n2, n3, n4: matrix product 19% slower than before, and no slower than their peers")
    assert explains(judgement, names, paired=False) == [text], "stored times are no reference for them"
    assert explains(judgement, names, paired=True) == [], "it met both arms"


def test_the_slowest_node_of_a_slower_fleet_is_still_accused() -> None:
    earlier = {host: past(host, 10) for host in ("n1", "n2", "n3", "n4")}
    probes = [probe_of(host, gemm=2.5 if host == "n3" else 1.9) for host in earlier]
    judgement = judge(probes, earlier)
    assert statuses(judgement) == {"n1": "ok", "n2": "ok", "n3": "slow", "n4": "ok"}
    assert len(judgement.fleet) == 1
    assert "n3" not in judgement.fleet[0]


def test_of_two_similar_nodes_the_one_that_became_slower_is_accused() -> None:
    earlier = {host: past(host, 10) for host in ("n1", "n2")}
    assert statuses(judge([probe_of("n1"), probe_of("n2", gemm=1.9)], earlier)) == {"n1": "ok", "n2": "slow"}


def test_a_driver_update_is_reported_and_accuses_no_node() -> None:
    earlier = {host: past(host, 10) for host in ("n1", "n2", "n3")}
    judgement = judge([probe_of(host, gemm=1.9, driver="575.2") for host in earlier], earlier)
    assert "slow" not in statuses(judgement).values()
    (text,) = judgement.fleet
    assert text == (
        "n1, n2, n3: matrix product 19% slower since driver 570.1 -> 575.2: that change is the cause, not one node"
    )
    alone = judge([probe_of("n1", gemm=1.9, driver="575.2")], earlier)
    assert (statuses(alone), alone.fleet) == ({"n1": "unknown"}, [])
    assert "its matrix product takes +19%" in alone.nodes[0].notes[0]


def test_other_work_and_a_wrong_clock_are_noted() -> None:
    judgement = judge([probe_of("n1", others_share=0.38, skew_s=-125.0)], {})
    assert judgement.nodes[0].notes == [
        "other work took 38% of its cores' time, so it is not judged; probe it again",
        "its clock is 125 s behind the other hosts",
    ]


def test_a_probe_during_other_work_is_neither_judged_nor_a_reference() -> None:
    assert statuses(judge([probe_of("n1", gemm=3, others_share=0.5)], {"n1": past("n1", 10)})) == {"n1": "unknown"}
    beside = past("n1", 10, gemm=3, others_share=0.5)
    assert statuses(judge([probe_of("n1", gemm=3)], {"n1": [*past("n1", 4), *beside]})) == {"n1": "slow"}


def test_a_probe_whose_repetitions_scatter_widely_accuses_nobody() -> None:
    wide = took(2.1).model_copy(update={"mad_s": 0.2e-3})
    assert statuses(judge([probe_of("n1", gemm=2.1).model_copy(update={"gemm": wide})], {"n1": past("n1", 4)})) == {
        "n1": "ok"
    }


def test_healthy_nodes_explain_no_difference() -> None:
    judgement = judge([probe_of("n1"), probe_of("n2")], {host: past(host, 10) for host in ("n1", "n2")})
    assert explains(judgement, ["n1", "n2"], paired=False) == []


WRITER = """
import sys
from pathlib import Path
from support.node_probes import probe_of
from regbot.nodes.history import append_probe
for number in range(int(sys.argv[3])):
    append_probe(Path(sys.argv[1]), probe_of("n1", job=f"{sys.argv[2]}-{number}"))
"""


@pytest.mark.slow
def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    writers = [subprocess.Popen([*command, str(writer), "10"], env=path) for writer in range(4)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    jobs = [past_probe.job for past_probe in read_history(tmp_path, "n1")]
    assert sorted(jobs) == sorted(f"{writer}-{number}" for writer in range(4) for number in range(10))


def test_a_torn_last_line_is_skipped_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    append_probe(tmp_path, probe_of("n1", 2))
    path = tmp_path / "probes" / "n1.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert len(read_history(tmp_path, "n1")) == 1
    append_probe(tmp_path, probe_of("n1", 1))
    assert len(read_history(tmp_path, "n1")) == 2
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(RecordError, match=r"n1\.jsonl, line 1: "):
        read_histories(tmp_path)


@pytest.mark.parametrize("host", ["", "../up", "a/b", "-n1", "n1\n", "x" * 300])
def test_an_invalid_node_name_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a node name"):
        read_history(tmp_path, host)
    with pytest.raises(UserError, match="is not a node name"):
        release(tmp_path, host, "ann", "why", NOW)


def evidence(host: str, days: float = 0.0, automatic: bool = True) -> Evidence:
    when = (NOW - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Evidence(
        host=host, when=when, who="regbot" if automatic else "ann", automatic=automatic, reason="30% slower"
    )


def ok(host: str) -> NodeVerdict:
    return NodeVerdict(host=host, status="ok")


def test_quarantine_and_release_are_stored_and_a_fresh_probe_ends_the_trial(tmp_path: Path) -> None:
    assert quarantined_nodes(tmp_path) == {}
    assert quarantine(tmp_path, "n2", evidence("n2", 3)) == []
    assert quarantined_nodes(tmp_path) == {"n2": evidence("n2", 3)}
    assert (tmp_path / "quarantined" / "n2").read_text() == "2026-10-30T12:00:00Z regbot: 30% slower\n"
    release(tmp_path, "n2", "ann", "fan replaced", NOW - timedelta(days=2))
    assert quarantined_nodes(tmp_path) == {}
    assert not (tmp_path / "quarantined" / "n2").exists()
    assert list(nodes_on_trial(tmp_path)) == ["n2"]
    assert finish_trial(tmp_path, NodeVerdict(host="n2", status="slow"), NOW) is None
    assert finish_trial(tmp_path, NodeVerdict(host="n2", status="unknown"), NOW) is None
    assert finish_trial(tmp_path, ok("n1"), NOW) is None
    passed = finish_trial(tmp_path, ok("n2"), NOW)
    assert passed is not None
    assert nodes_on_trial(tmp_path) == {}
    assert [(event.event, event.who, event.reason) for event in read_events(tmp_path)] == [
        ("quarantined", "regbot", "30% slower"),
        ("released", "ann", "fan replaced"),
        ("passed", "regbot", "a fresh probe was not slow"),
    ]


def test_a_second_quarantine_within_a_week_returns_a_warning(tmp_path: Path) -> None:
    quarantine(tmp_path, "n2", evidence("n2", 5))
    assert quarantine(tmp_path, "n2", evidence("n2", 5)) == [], "more evidence is not a second quarantine"
    release(tmp_path, "n2", "ann", "fan replaced", NOW - timedelta(days=4))
    (text,) = quarantine(tmp_path, "n2", evidence("n2"))
    assert text.startswith(
        "n2 IS BACK IN QUARANTINE: 3 quarantines within 7 days, with this one. It was released on 2026-10-29"
    )
    assert "by ann (fan replaced)" in text
    quarantine(tmp_path, "n3", evidence("n3", 9))
    release(tmp_path, "n3", "ann", "fan replaced", NOW - timedelta(days=8))
    assert quarantine(tmp_path, "n3", evidence("n3")) == [], "nine days ago"
    release(tmp_path, "n3", "ann", "again", NOW)
    assert quarantine(tmp_path, "n3", evidence("n3", automatic=False)) == [], "an operator knows"


def test_a_release_needs_a_reason_and_a_node_that_is_in_quarantine(tmp_path: Path) -> None:
    quarantine(tmp_path, "n2", evidence("n2"))
    with pytest.raises(UserError, match="a release needs a reason"):
        release(tmp_path, "n2", "ann", "  ", NOW)
    with pytest.raises(UserError, match="n1 is not in quarantine; nodes in quarantine: n2"):
        release(tmp_path, "n1", "ann", "why", NOW)
    assert list(quarantined_nodes(tmp_path)) == ["n2"]


def test_a_slow_node_is_quarantined_with_its_probes_and_straggler_sessions(tmp_path: Path) -> None:
    for past_probe in (*past("n1", 10), *past("n2", 10)):
        append_probe(tmp_path, past_probe)
    late = StragglerSession(session="a1b2", rank=9, pct=28.0)
    report = examine(
        tmp_path, [probe_of("n1"), probe_of("n2", gemm=2.1)], NOW, quarantine_slow=["n2"], stragglers={"n2": [late]}
    )
    assert [(stored.host, stored.slow) for stored in report.probes] == [("n1", False), ("n2", True)]
    assert [(event.event, event.host) for event in report.events] == [("quarantined", "n2")]
    stored_evidence = quarantined_nodes(tmp_path)["n2"]
    assert stored_evidence.probes[0].gemm == took(2.1)
    assert {finding.against for finding in stored_evidence.findings} == {"history", "peers"}
    assert stored_evidence.stragglers == [late]
    assert stored_evidence.thresholds is not None
    assert "31% slower than before" in stored_evidence.reason
    assert "rank 9 was 28% late in session a1b2" in stored_evidence.reason
    assert read_history(tmp_path, "n2")[-1].slow


def test_by_default_only_a_slow_node_on_trial_is_quarantined(tmp_path: Path) -> None:
    for past_probe in past("n1", 10):
        append_probe(tmp_path, past_probe)
    assert examine(tmp_path, [probe_of("n1", gemm=2.1)], NOW, quarantine_slow=()).events == []
    quarantine(tmp_path, "n1", evidence("n1", 2))
    release(tmp_path, "n1", "ann", "fan replaced", NOW - timedelta(days=1))
    report = examine(tmp_path, [probe_of("n1", gemm=2.1)], NOW, quarantine_slow=())
    assert [event.event for event in report.events] == ["quarantined"]
    assert "BACK IN QUARANTINE: 2 quarantines" in report.warnings[0]
    release(tmp_path, "n1", "ann", "GPU replaced", NOW)
    passed = examine(tmp_path, [probe_of("n1")], NOW, quarantine_slow=())
    assert [event.event for event in passed.events] == ["passed"]
    assert list_nodes(tmp_path).nodes[0].state == "in service"


def test_the_list_has_the_state_and_the_judged_last_probe_of_every_node(tmp_path: Path) -> None:
    slow: Mapping[str, float] = {"n1": 1.6, "n2": 2.1}
    for host, gemm in slow.items():
        for past_probe in (*past(host, 5), probe_of(host, gemm=gemm)):
            append_probe(tmp_path, past_probe)
    quarantine(tmp_path, "n9", evidence("n9", automatic=False))
    rows = {row.host: row for row in list_nodes(tmp_path).nodes}
    assert {host: row.state for host, row in rows.items()} == {
        "n1": "in service",
        "n2": "in service",
        "n9": "quarantined",
    }
    verdicts = {host: row.verdict.status for host, row in rows.items() if row.verdict}
    assert verdicts == {"n1": "ok", "n2": "slow"}
    assert rows["n9"].last is None
