"""The sandbox on the nodes of a cluster: the same programs as on one machine, and none escapes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.test_slurm_engine import MEET, ONE, TWO, launch
from regbot.engines import NoSeatError, Seat
from regbot.engines.availability import unavailable_reason
from regbot.engines.sandbox import unbounded
from regbot.engines.slurm.commands import Slurm
from regbot.engines.slurm.engine import SlurmEngine
from regbot.records.config import SandboxSettings, SlurmSettings
from support import escapes
from support.escapes import PIDS, TMP_MB, escaped
from support.slurm_cluster import Cluster, MakeCluster

SANDBOX = SandboxSettings(tmp_mb=TMP_MB, pids=PIDS)
WHY_NOT = unavailable_reason(SANDBOX)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def confining(cluster: Cluster, folder: Path, sandbox: SandboxSettings = SANDBOX, nodes: int = 1) -> SlurmEngine:
    return SlurmEngine(SlurmSettings(nodes=nodes), folder / "shared", Slurm(cluster.environment()), sandbox=sandbox)


@pytest.fixture(scope="module")
def seat(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seat]:
    with confining(cluster, tmp_path_factory.mktemp("site")) as engine, engine.seat(ONE) as taken:
        yield taken


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """One seat serves all tests of this module: its job is in the queue between them."""


@pytest.mark.parametrize("name", sorted(set(escapes.ATTEMPTS) - {"memory"}))
def test_nothing_escapes_on_a_node(seat: Seat, name: str, tmp_path: Path) -> None:
    if name == "fork_bomb" and (why := unbounded(SANDBOX)):
        pytest.skip("; ".join(why.values()))
    assert seat.allocation.sandbox.startswith("bubblewrap ")
    escape = escaped(seat.run, name, tmp_path / "run")
    assert escape.done == []
    assert escape.ended.unkilled == 0
    if name != "survive":
        assert escape.stopped


def test_ranks_of_several_nodes_meet_in_their_sandboxes(make_cluster: MakeCluster, tmp_path: Path) -> None:
    roomy = SANDBOX.model_copy(update={"tmp_mb": 256, "pids": 4096})
    with confining(make_cluster(), tmp_path, roomy, nodes=2) as engine, engine.seat(TWO) as pair:
        guest = launch(tmp_path, MEET, ranks=2)
        ended = pair.run(replace(guest, readable=(Path(guest.command[1]),)))
        assert ended.exit_code == 0, ended.log_tail
    assert sorted(file.name for file in (tmp_path / "record").glob("rank.*")) == ["rank.0", "rank.1"]


def test_a_node_without_a_sandbox_gets_no_untrusted_code(make_cluster: MakeCluster, tmp_path: Path) -> None:
    hidden = ("bwrap", "--dev-bind", "/", "/", "--ro-bind", "/dev/null", "/usr/bin/bwrap", "--")
    bare = make_cluster(prefix={"n1": hidden, "n2": hidden})
    with confining(bare, tmp_path) as engine, pytest.raises(NoSeatError, match=r"n1: .*bubblewrap"), engine.seat(ONE):
        pass
    assert bare.jobs() == []
