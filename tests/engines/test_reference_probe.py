"""The reference probe with real ranks, and with the records of broken nodes."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import Launch, LaunchResult, LocalEngine, Needs, Seat, node_check
from regbot.engines.node_check import ProbeError, probe_nodes
from regbot.records.node import NodeProbe, Sizes
from regbot.records.run import Allocation, Node
from support.node_probes import NOW

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


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe take less than a second."""
    monkeypatch.setattr(node_check, "CPU_SIZES", SMALL)
    monkeypatch.setattr(node_check, "SECONDS", BRIEF)


def probed(folder: Path, hosts: list[str], change: Callable[[Path], None] = lambda _: None) -> list[NodeProbe]:
    with LocalEngine().seat(Needs(ranks=2)) as seat:
        hosts_seat = Hosts(seat, hosts, change)
        return probe_nodes(hosts_seat, 2, folder / "scratch", NOW, python=sys.executable, gpus=False)


@pytest.mark.slow
def test_ranks_of_one_host_measure_what_they_share_and_nothing_over_hosts(tmp_path: Path) -> None:
    (result,) = probed(tmp_path, ["n1"])
    assert (result.host, result.ranks, result.hosts) == ("n1", 2, ["n1"])
    assert result.all_to_all is None
    assert result.local_all_to_all is not None
    assert result.local_all_to_all.n >= 5
    assert 0.0001 < 2 * 256**3 / result.gemm.median_s / 1e12 < 2, "TFLOP/s"
    assert result.software.startswith("torch 2.")
    assert not (tmp_path / "scratch" / "record" / "torchrun").exists()


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
        (edited(0, lambda d: d.update(request="another")), "rank 0 on n1: its record answers another request"),
        (edited(1, lambda d: d.update(refusal="no torch")), "rank 1 on n2: no torch"),
        (edited(1, lambda d: d.update(gemm=None)), "n2: .*gemm"),
    ],
)
def test_an_invalid_record_of_a_broken_node_is_not_judged(
    change: Callable[[Path], None], message: str, recorded: Path
) -> None:
    with pytest.raises(ProbeError, match=message):
        replayed(recorded, change)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of one real probe of two hosts, with its usual sizes."""
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
        replay = Replay(seat, ["n1", "n2"])
        scratch = recorded / "scratch"
        return probe_nodes(replay, 2, scratch, NOW, python=sys.executable, gpus=False)


def test_a_rank_that_never_writes_is_named_with_its_host(recorded: Path) -> None:
    with pytest.raises(ProbeError, match=r"(?s)was killed by signal 9 without a record of rank 1 on n2;.*fell over"):
        replayed(recorded, lambda folder: (folder / "node.1.json").unlink(), exit_code=-9)
    with pytest.raises(ProbeError, match="did not end within 180 s without a record of rank 1 on n2"):
        replayed(recorded, lambda folder: (folder / "node.1.json").unlink(), exit_code=None, timed_out=True)


@pytest.mark.slow
def test_a_slow_rank_is_blamed_on_its_own_host_only(recorded: Path) -> None:
    probes = replayed(recorded, edited(1, lambda document: document["gemm"].update(median_s=9.0)))
    assert [node.host for node in probes] == ["n1", "n2"]
    assert all(node.local_all_to_all is None and node.all_to_all is not None for node in probes)
    assert [node.gemm.median_s == 9.0 for node in probes] == [False, True]
