"""Nodes: the probe by real ranks, the history under several writers, who is accused and who is not, and quarantine."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from node_probes import NOW, past, probe_of, took
from regbot.engines import Ended, Launch, LocalEngine, Needs, Seat
from regbot.nodes import (
    NodeError,
    ProbeError,
    append,
    events,
    examine,
    explains,
    histories,
    history,
    judge,
    listing,
    on_trial,
    probe,
    quarantine,
    quarantined,
    release,
    settle_trial,
)
from regbot.records.files import RecordError
from regbot.records.node import Evidence, NodeJudgement, NodeProbe, NodeVerdict, Sizes, Straggled
from regbot.records.run import Allocation, Node

SMALL = Sizes(gemm=256, dtype="float32", all_to_all_bytes=65536, copy_bytes=2**20)
BRIEF = {"gemm": 0.4, "all_to_all": 0.1, "copy": 0.05}


class Hosts:
    """The local seat, called several hosts; what its ranks wrote may be changed before it is read."""

    def __init__(self, seat: Seat, hosts: list[str], change: Callable[[Path], None] = lambda _: None) -> None:
        self._seat, self._hosts, self._change = seat, hosts, change

    @property
    def node(self) -> Node:
        return self._seat.node.model_copy(update={"gpus": []})

    @property
    def allocation(self) -> Allocation:
        return Allocation(engine="local", hosts=self._hosts)

    def run(self, launch: Launch) -> Ended:
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
    (found,) = probed(tmp_path, ["n1"])
    assert (found.host, found.ranks, found.hosts, found.device) == ("n1", 2, ["n1"], "cpu")
    assert found.all_to_all is None
    assert found.local_all_to_all is not None
    assert found.local_all_to_all.n >= 5
    assert 0.0001 < found.gemm_tflops < 2
    assert found.gemm_tflops == pytest.approx(2 * 256**3 / found.gemm.median_s / 1e12)
    assert found.software.startswith("torch 2.")
    assert found.others_share is not None
    assert not (tmp_path / "scratch" / "record" / "torchrun").exists()


@pytest.mark.slow
def test_a_planted_slow_rank_is_laid_to_its_host_and_not_to_the_other(tmp_path: Path) -> None:
    found = probed(tmp_path, ["n1", "n2"], slowed={1: 900.0})
    assert [each.host for each in found] == ["n1", "n2"]
    assert all(each.local_all_to_all is None and each.all_to_all is not None for each in found)
    first, second = ([each for each in node.findings if each.measure == "gemm"] for node in judge(found, {}).nodes)
    assert first == []
    assert (second[0].against, second[0].accuses, second[0].hosts) == ("peers", "node", ["n2"])
    assert second[0].pct > 100
    reasons = explains(judge(found, {}), ["n1", "n2"], paired=True)
    assert "n2 is slow whatever runs on it: n2: matrix product" in "\n".join(reasons)


def edited(rank: int, edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / f"node.{rank}.json"
        document = json.loads(path.read_text())
        edit(document)
        path.write_text(json.dumps(document))

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (edited(1, lambda d: d["gemm"].update(median_s=float("nan"))), "rank 1 on n2: .*NaN is not a number"),
        (edited(1, lambda d: d["gemm"].update(median_s=-1.0)), "rank 1 on n2: .*gemm.median_s"),
        (edited(0, lambda d: d.update(request="another")), "rank 0 on n1: its record answers another request"),
        (edited(0, lambda d: d["gemm"].update(n=10**6)), "rank 0 on n1: its times make no sense together"),
        (edited(0, lambda d: d["gemm"].update(fast_s=9.0)), "rank 0 on n1: its times make no sense together"),
        (edited(0, lambda d: d.update(all_to_all=None)), "n1: its ranks measured something else"),
        (edited(0, lambda d: d.pop("gemm")), "rank 0 on n1: its record is not whole"),
    ],
)
def test_what_a_broken_node_writes_is_not_judged(change: Callable[[Path], None], told: str, recorded: Path) -> None:
    with pytest.raises(ProbeError, match=told):
        replayed(recorded, change)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of one real probe of two hosts."""
    kept = tmp_path_factory.mktemp("recorded")

    def keep(folder: Path) -> None:
        for path in folder.glob("node.*.json"):
            (kept / path.name).write_bytes(path.read_bytes())

    probed(tmp_path_factory.mktemp("probe"), ["n1", "n2"], keep)
    return kept


def replayed(recorded: Path, change: Callable[[Path], None], **ended: Any) -> list[NodeProbe]:
    """The probe, with ranks that write what was recorded, and then ``change`` that."""

    class Replay(Hosts):
        def run(self, launch: Launch) -> Ended:
            launch.record_dir.mkdir(parents=True)
            request = json.loads(Path(launch.command[-1]).read_text())["request"]
            for path in recorded.glob("node.*.json"):
                document = {**json.loads(path.read_text()), "request": request}
                (launch.record_dir / path.name).write_text(json.dumps(document))
            change(launch.record_dir)
            usual = Ended(
                exit_code=0, timed_out=False, output_truncated=False, dir_overflow=False, left_behind=0, unkilled=0,
                wall_s=20.0, log_tail="rank 1 fell over",
            )  # fmt: skip
            return replace(usual, **ended)

    with LocalEngine().seat(Needs(ranks=2)) as seat:
        return probe(Replay(seat, ["n1", "n2"]), 2, recorded / "scratch", NOW, sizes=SMALL)


def test_recorded_ranks_are_believed_as_they_are(recorded: Path) -> None:
    assert [each.host for each in replayed(recorded, lambda _: None)] == ["n1", "n2"]


def test_a_rank_that_never_writes_is_named_with_its_host(recorded: Path) -> None:
    with pytest.raises(ProbeError, match=r"(?s)was killed by signal 9 without a record of rank 1 on n2;.*fell over"):
        replayed(recorded, lambda folder: (folder / "node.1.json").unlink(), exit_code=-9)
    with pytest.raises(ProbeError, match="did not end within 180 s without a record of rank 1 on n2"):
        replayed(recorded, lambda folder: (folder / "node.1.json").unlink(), exit_code=None, timed_out=True)


def test_records_that_a_shared_file_system_shows_late_are_waited_for(recorded: Path) -> None:
    def late(folder: Path) -> None:
        path = folder / "node.1.json"
        path.rename(folder / "hidden")
        move = f"import os, time; time.sleep(0.5); os.rename({str(folder / 'hidden')!r}, {str(path)!r})"
        subprocess.Popen([sys.executable, "-c", move])

    assert len(replayed(recorded, late)) == 2


def test_ranks_that_do_not_spread_evenly_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="2 ranks cannot be spread evenly over the hosts n1, n2, n3"):
        probed(tmp_path, ["n1", "n2", "n3"])


def test_an_interpreter_without_torch_is_told_so(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "sys.argv = ['x', '--reference', sys.argv[1]]\n"
        "from regbot_guest import reference; sys.exit(reference.main(sys.argv[2]))"
    )
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"request": "r", "record": str(tmp_path / "node.{rank}.json")}))
    guest = Path(__file__).parents[1] / "regbot" / "guest"
    done = subprocess.run([sys.executable, "-c", script, str(request)], env={"PYTHONPATH": str(guest)}, check=False)
    assert done.returncode == 10
    assert "cannot import torch" in json.loads((tmp_path / "node.0.json").read_text())["refusal"]


def statuses(found: NodeJudgement) -> dict[str, str]:
    return {node.host: node.status for node in found.nodes}


def test_a_node_with_neither_history_nor_peers_is_unknown() -> None:
    found = judge([probe_of("n1")], {})
    assert statuses(found) == {"n1": "unknown"}
    assert found.nodes[0].notes == ["nothing to compare with yet: 0 of 3 earlier probes, and no peer of its class"]
    assert statuses(judge([probe_of("n1", gemm=9)], {"n1": past("n1", 2)})) == {"n1": "unknown"}


def test_a_node_that_became_slower_is_slow_by_how_much_and_against_what() -> None:
    found = judge([probe_of("n1", gemm=2.08)], {"n1": past("n1", 10)})
    (finding,) = found.nodes[0].findings
    assert finding.text == (
        "n1: matrix product 30% slower than before (median of 10 probes, sd 0.2%) (2.08 ms, there 1.6 ms)"
    )
    assert (finding.against, finding.accuses, finding.compared) == ("history", "node", 10)
    assert statuses(judge([probe_of("n1", gemm=1.74)], {"n1": past("n1", 10)})) == {"n1": "ok"}, "9% is not 10%"


def test_a_noisy_history_asks_for_more_than_the_threshold() -> None:
    noisy = past("n1", 10, scatter_pct=6)
    assert statuses(judge([probe_of("n1", gemm=1.92)], {"n1": noisy})) == {"n1": "ok"}, "20% within 5 sd"
    assert statuses(judge([probe_of("n1", gemm=1.92)], {"n1": noisy[:5]})) == {"n1": "slow"}, "no sd of 5 probes"
    assert statuses(judge([probe_of("n1", gemm=4.8)], {"n1": noisy})) == {"n1": "slow"}


def test_a_node_that_is_only_disturbed_is_not_slow() -> None:
    """Somebody else's work slows the median and hardly the fastest repetitions."""
    assert statuses(judge([probe_of("n1", gemm=2.4, fast=1.6)], {"n1": past("n1", 10)})) == {"n1": "ok"}
    assert statuses(judge([probe_of("n1", gemm=2.4, fast=2.3)], {"n1": past("n1", 10)})) == {"n1": "slow"}


def test_slow_and_sick_probes_are_no_reference() -> None:
    good, bad = past("n1", 4), [probe_of("n1", 10 - hour, gemm=2.4, slow=True) for hour in range(9)]
    assert statuses(judge([probe_of("n1", gemm=2.4)], {"n1": [*good, *bad]})) == {"n1": "slow"}
    sick = [probe_of("n1", 10 - hour, gemm=2.4, causes=["a GPU was lost"]) for hour in range(9)]
    assert statuses(judge([probe_of("n1", gemm=2.4)], {"n1": [*good, *sick]})) == {"n1": "slow"}


def test_one_slow_node_among_peers_is_accused_without_any_history() -> None:
    found = judge([probe_of("n1"), probe_of("n2", gemm=2.08), probe_of("n3")], {})
    assert statuses(found) == {"n1": "ok", "n2": "slow", "n3": "ok"}
    assert (
        found.nodes[1].findings[0].text.startswith("n2: matrix product 30% slower than its peers (median of 2 nodes)")
    )
    stored = {"n2": [probe_of("n2", 5)], "n3": [probe_of("n3", 5)]}
    assert statuses(judge([probe_of("n1", gemm=2.08)], stored)) == {"n1": "slow"}, "peers probed before"
    old = {"n2": [probe_of("n2", 24 * 31)], "n3": [probe_of("n3", 24 * 31)]}
    assert statuses(judge([probe_of("n1", gemm=2.08)], old)) == {"n1": "unknown"}, "peers of last month"


def test_peers_of_another_class_driver_or_torch_are_none() -> None:
    for changes in ({"node_class": "8 x NVIDIA H100"}, {"driver": "575.1"}, {"software": "torch 2.9"}, {"ranks": 4}):
        stored = {"n2": [probe_of("n2", 5, **changes)]}
        assert statuses(judge([probe_of("n1", gemm=2.08)], stored)) == {"n1": "unknown"}, changes


def test_an_exchange_within_a_node_accuses_it_and_one_over_hosts_accuses_the_set() -> None:
    earlier = {host: past(host, 5, over=1.0, hosts=["n1", "n2"]) for host in ("n1", "n2")}
    slow_net = [probe_of(host, over=1.5, hosts=["n1", "n2"]) for host in ("n1", "n2")]
    found = judge(slow_net, earlier)
    assert statuses(found) == {"n1": "ok", "n2": "ok"}
    (finding,) = found.sets
    assert (finding.accuses, finding.hosts, finding.measure) == ("set", ["n1", "n2"], "all_to_all")
    assert "n1, n2 together: all-to-all over all hosts 50% slower" in finding.text
    assert "cannot tell which of them it is" in finding.text
    assert explains(found, ["n1", "n2"], paired=True) == [finding.text]
    assert explains(found, ["n3"], paired=True) == []
    inside = judge([probe_of("n1", local=0.6)], {"n1": past("n1", 5)})
    assert statuses(inside) == {"n1": "slow"}
    assert inside.nodes[0].findings[0].measure == "local_all_to_all"


def test_a_fleet_that_became_slower_at_once_is_not_one_slow_node() -> None:
    names = ("n1", "n2", "n3", "n4")
    earlier = {host: past(host, 10) for host in names}
    found = judge([probe_of(host, gemm=1.9) for host in names], earlier)
    assert set(statuses(found).values()) == {"ok"}
    (text,) = found.fleet
    assert text.startswith("n1, n2, n3, n4: matrix product 19% slower than before, and no slower than their peers")
    assert explains(found, names, paired=False) == [text], "stored times are no reference for them"
    assert explains(found, names, paired=True) == [], "it met both arms"


def test_in_a_fleet_that_became_slower_the_slowest_of_all_is_still_named() -> None:
    earlier = {host: past(host, 10) for host in ("n1", "n2", "n3", "n4")}
    probes = [probe_of(host, gemm=2.5 if host == "n3" else 1.9) for host in earlier]
    found = judge(probes, earlier)
    assert statuses(found) == {"n1": "ok", "n2": "ok", "n3": "slow", "n4": "ok"}
    assert len(found.fleet) == 1
    assert "n3" not in found.fleet[0]


def test_two_nodes_alike_of_which_one_became_slower_are_told_apart() -> None:
    earlier = {host: past(host, 10) for host in ("n1", "n2")}
    assert statuses(judge([probe_of("n1"), probe_of("n2", gemm=1.9)], earlier)) == {"n1": "ok", "n2": "slow"}


def test_a_driver_update_is_said_and_accuses_nobody() -> None:
    earlier = {host: past(host, 10) for host in ("n1", "n2", "n3")}
    found = judge([probe_of(host, gemm=1.9, driver="575.2") for host in earlier], earlier)
    assert "slow" not in statuses(found).values()
    (text,) = found.fleet
    assert text == ("n1, n2, n3: matrix product 19% slower since driver 570.1 -> 575.2: that changed, not one node")
    alone = judge([probe_of("n1", gemm=1.9, driver="575.2")], earlier)
    assert (statuses(alone), alone.fleet) == ({"n1": "unknown"}, [])
    assert "its matrix product takes +19%" in alone.nodes[0].notes[0]


def test_who_else_was_there_and_a_clock_that_is_off_are_noted() -> None:
    found = judge([probe_of("n1", others_share=0.38, skew_s=-125.0)], {})
    assert found.nodes[0].notes == [
        "other work took 38% of its cores' time meanwhile, so that it is not judged; probe it again",
        "its clock is 125 s behind the others",
    ]


def test_a_probe_beside_other_work_is_neither_judged_nor_a_reference() -> None:
    assert statuses(judge([probe_of("n1", gemm=3, others_share=0.5)], {"n1": past("n1", 10)})) == {"n1": "unknown"}
    beside = past("n1", 10, gemm=3, others_share=0.5)
    assert statuses(judge([probe_of("n1", gemm=3)], {"n1": [*past("n1", 4), *beside]})) == {"n1": "slow"}


def test_a_probe_whose_repetitions_scatter_widely_accuses_nobody() -> None:
    wide = took(2.1).model_copy(update={"mad_s": 0.2e-3})
    assert statuses(judge([probe_of("n1", gemm=2.1).model_copy(update={"gemm": wide})], {"n1": past("n1", 4)})) == {
        "n1": "ok"
    }


def test_healthy_nodes_explain_nothing() -> None:
    found = judge([probe_of("n1"), probe_of("n2")], {host: past(host, 10) for host in ("n1", "n2")})
    assert explains(found, ["n1", "n2"], paired=False) == []


WRITER = """
import sys
from pathlib import Path
from node_probes import probe_of
from regbot.nodes import append
for number in range(int(sys.argv[3])):
    append(Path(sys.argv[1]), probe_of("n1", job=f"{sys.argv[2]}-{number}"))
"""


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    path = {"PYTHONPATH": str(Path(__file__).parent)}
    writers = [subprocess.Popen([*command, str(each), "10"], env=path) for each in range(4)]
    assert [each.wait(60) for each in writers] == [0, 0, 0, 0]
    found = [each.job for each in history(tmp_path, "n1")]
    assert sorted(found) == sorted(f"{each}-{number}" for each in range(4) for number in range(10))


def test_a_torn_last_line_is_not_read_and_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    append(tmp_path, probe_of("n1", 2))
    path = tmp_path / "probes" / "n1.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert len(history(tmp_path, "n1")) == 1
    append(tmp_path, probe_of("n1", 1))
    assert len(history(tmp_path, "n1")) == 2
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(RecordError, match=r"n1\.jsonl, line 1: "):
        histories(tmp_path)


@pytest.mark.parametrize("host", ["", "../up", "a/b", "-n1", "n1\n", "x" * 300])
def test_a_name_that_is_no_file_name_names_no_node(host: str, tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is no name of a node"):
        history(tmp_path, host)
    with pytest.raises(NodeError, match="is no name of a node"):
        release(tmp_path, host, "ann", "why", NOW)


def evidence(host: str, days: float = 0.0, automatic: bool = True) -> Evidence:
    when = (NOW - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Evidence(
        host=host, when=when, who="regbot" if automatic else "ann", automatic=automatic, reason="30% slower"
    )


def ok(host: str) -> NodeVerdict:
    return NodeVerdict(host=host, status="ok")


def test_quarantine_and_release_are_kept_and_a_trial_ends_with_a_fresh_probe(tmp_path: Path) -> None:
    assert quarantined(tmp_path) == {}
    assert quarantine(tmp_path, "n2", evidence("n2", 3)) == []
    assert quarantined(tmp_path) == {"n2": evidence("n2", 3)}
    assert (tmp_path / "quarantined" / "n2").read_text() == "2026-10-30T12:00:00Z regbot: 30% slower\n"
    release(tmp_path, "n2", "ann", "fan replaced", NOW - timedelta(days=2))
    assert quarantined(tmp_path) == {}
    assert not (tmp_path / "quarantined" / "n2").exists()
    assert list(on_trial(tmp_path)) == ["n2"]
    assert settle_trial(tmp_path, NodeVerdict(host="n2", status="slow"), NOW) is None
    assert settle_trial(tmp_path, NodeVerdict(host="n2", status="unknown"), NOW) is None
    assert settle_trial(tmp_path, ok("n1"), NOW) is None
    passed = settle_trial(tmp_path, ok("n2"), NOW)
    assert passed is not None
    assert on_trial(tmp_path) == {}
    assert [(each.event, each.who, each.reason) for each in events(tmp_path)] == [
        ("quarantined", "regbot", "30% slower"),
        ("released", "ann", "fan replaced"),
        ("passed", "regbot", "a fresh probe was not slow"),
    ]


def test_a_second_quarantine_within_a_week_is_said_loudly(tmp_path: Path) -> None:
    quarantine(tmp_path, "n2", evidence("n2", 5))
    assert quarantine(tmp_path, "n2", evidence("n2", 5)) == [], "more evidence is not a second time"
    release(tmp_path, "n2", "ann", "fan replaced", NOW - timedelta(days=4))
    (text,) = quarantine(tmp_path, "n2", evidence("n2"))
    assert text.startswith("n2 IS BACK IN QUARANTINE, 3 times within 7 days: it was released on 2026-10-29")
    assert "by ann (fan replaced)" in text
    quarantine(tmp_path, "n3", evidence("n3", 9))
    release(tmp_path, "n3", "ann", "fan replaced", NOW - timedelta(days=8))
    assert quarantine(tmp_path, "n3", evidence("n3")) == [], "nine days ago"
    release(tmp_path, "n3", "ann", "again", NOW)
    assert quarantine(tmp_path, "n3", evidence("n3", automatic=False)) == [], "an operator knows"


def test_a_release_needs_a_reason_and_a_node_that_is_in_quarantine(tmp_path: Path) -> None:
    quarantine(tmp_path, "n2", evidence("n2"))
    with pytest.raises(NodeError, match="a release says why"):
        release(tmp_path, "n2", "ann", "  ", NOW)
    with pytest.raises(NodeError, match="n1 is not in quarantine; these are: n2"):
        release(tmp_path, "n1", "ann", "why", NOW)
    assert list(quarantined(tmp_path)) == ["n2"]


def test_a_slow_node_is_taken_out_with_its_numbers_and_the_sessions_that_named_it(tmp_path: Path) -> None:
    for each in (*past("n1", 10), *past("n2", 10)):
        append(tmp_path, each)
    late = Straggled(session="a1b2", rank=9, pct=28.0)
    found = examine(tmp_path, [probe_of("n1"), probe_of("n2", gemm=2.1)], NOW, take_out=True, stragglers={"n2": [late]})
    assert [(each.host, each.slow) for each in found.probes] == [("n1", False), ("n2", True)]
    assert [(each.event, each.host) for each in found.events] == [("quarantined", "n2")]
    taken = quarantined(tmp_path)["n2"]
    assert taken.probes[0].gemm == took(2.1)
    assert {each.against for each in taken.findings} == {"history", "peers"}
    assert taken.stragglers == [late]
    assert taken.thresholds is not None
    assert "31% slower than before" in taken.reason
    assert "rank 9 was 28% late in session a1b2" in taken.reason
    assert history(tmp_path, "n2")[-1].slow


def test_without_being_asked_a_slow_node_is_only_told_of_unless_it_was_on_trial(tmp_path: Path) -> None:
    for each in past("n1", 10):
        append(tmp_path, each)
    assert examine(tmp_path, [probe_of("n1", gemm=2.1)], NOW, take_out=False).events == []
    quarantine(tmp_path, "n1", evidence("n1", 2))
    release(tmp_path, "n1", "ann", "fan replaced", NOW - timedelta(days=1))
    found = examine(tmp_path, [probe_of("n1", gemm=2.1)], NOW, take_out=False)
    assert [each.event for each in found.events] == ["quarantined"]
    assert "BACK IN QUARANTINE, 2 times" in found.warnings[0]
    release(tmp_path, "n1", "ann", "GPU replaced", NOW)
    passed = examine(tmp_path, [probe_of("n1")], NOW, take_out=False)
    assert [each.event for each in passed.events] == ["passed"]
    assert listing(tmp_path).nodes[0].state == "in service"


def test_the_listing_has_each_node_with_its_state_and_its_last_probe_judged(tmp_path: Path) -> None:
    slow: Mapping[str, float] = {"n1": 1.6, "n2": 2.1}
    for host, gemm in slow.items():
        for each in (*past(host, 5), probe_of(host, gemm=gemm)):
            append(tmp_path, each)
    quarantine(tmp_path, "n9", evidence("n9", automatic=False))
    found = {row.host: row for row in listing(tmp_path).nodes}
    assert {host: row.state for host, row in found.items()} == {
        "n1": "in service",
        "n2": "in service",
        "n9": "quarantined",
    }
    verdicts = {host: row.verdict.status for host, row in found.items() if row.verdict}
    assert verdicts == {"n1": "ok", "n2": "slow"}
    assert found["n9"].last is None
