"""A node that is slow whatever runs on it: it is named, taken out of service, and decides nothing.

Both nodes of a private cluster share the cores of one machine: nothing else may run there meanwhile.
"""

import os
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from regbot.check.flow import CheckOptions, CheckResult, check
from regbot.nodes import nodes_folder
from regbot.nodes.quarantine import quarantined_nodes, release
from regbot.records.run import Run
from support.git_repos import Repository
from support.slurm_cluster import Cluster, MakeCluster

SLOWED = """
    import atexit, os, signal, time

    MARK = os.path.join(os.path.dirname(__file__), "slow_now")
    last = time.process_time()

    def burn(*_):
        global last
        until = time.process_time() + PART * (time.process_time() - last)
        while time.process_time() < until:
            pass
        last = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 0.005)

    if os.path.exists(MARK):
        signal.signal(signal.SIGPROF, burn)
        signal.setitimer(signal.ITIMER_PROF, 0.005)
        atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)  # at its end Python drops handlers, and not timers
"""
"""Every process of the node takes longer by a part of the processor time that it uses: 60% more."""
CONFIG = """
version = 1

[workloads.smoke]
adapter = "smoke"
shapes = ["mixtral-8x7b"]
variant = "cpu"
meshes = ["ep"]

[session]
steps = 20
warmup = 3

[slurm]
nodes = 2
environment = { PYTHONPATH = "PLACE" }
"""


class Site:
    """A cluster whose second node can be made slow, and a repository to check."""

    def __init__(self, make_cluster: MakeCluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.far, place = home, home / "far", home / "place"
        for folder in (self.far, place):
            folder.mkdir()
        (self.far / "sitecustomize.py").write_text(textwrap.dedent(SLOWED).replace("PART", "0.6"))
        prefix = ("bwrap", "--dev-bind", "/", "/", "--bind", str(self.far), str(place), "--")
        self.cluster: Cluster = make_cluster(prefix={"n2": prefix})
        self.repository = Repository.create(home / "repository")
        self.commits = [
            self.repository.commit(text, {"note.py": f"x = {number}\n"}) for number, text in enumerate(("One", "Two"))
        ]
        (home / "regbot.toml").write_text(CONFIG.replace("PLACE", str(place)))
        monkeypatch.setenv("SLURM_CONF", self.cluster.environment()["SLURM_CONF"])
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def make_slow(self) -> None:
        (self.far / "slow_now").touch()

    def is_slow(self) -> bool:
        return (self.far / "slow_now").exists()

    def check(self, out: str, on_run: int = 0) -> CheckResult:
        """A check; after ``on_run`` timed runs have been said to begin, the node turns slow."""
        seen = 0

        def watch(progress: object) -> None:
            nonlocal seen
            seen += "block 1" in str(progress)
            if on_run and seen == on_run:
                self.make_slow()

        return check(
            CheckOptions(
                repo=self.repository.path,
                cache=self.home / "cache",
                out=self.home / out,
                base=self.commits[0],
                head=self.commits[1],
                exact=True,
                config=self.home / "regbot.toml",
                engine="slurm",
                even_if_identical=True,
                max_pairs=4,
                join=False,
            ),
            watch,
        )


@pytest.fixture
def site(make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(make_cluster, tmp_path, monkeypatch)


def timed(found: CheckResult) -> list[Run]:
    return [run for run in found.session.runs if run.tier == "timed"]


@pytest.mark.long
def test_a_node_that_the_probe_finds_slow_is_never_timed_on(site: Site) -> None:
    site.make_slow()
    found = site.check("out")
    assert found.verdict.verdict == "INVALID"
    assert [run.outcome for run in timed(found)] == ["lost"]
    assert "n2 is slow, whatever runs on it, and is in quarantine now" in timed(found)[0].reason
    assert "n2 in quarantine ('regbot node list' says why)" in timed(found)[0].reason
    ((host, evidence),) = quarantined_nodes(nodes_folder(site.home / "cache")).items()
    assert host == "n2"
    assert evidence.automatic
    assert evidence.findings[0].pct > 15
    assert site.cluster.jobs() == []
    again = site.check("again")
    assert "only 1 of partition bench are usable: n2 in quarantine" in timed(again)[0].reason
    assert again.verdict.verdict == "INVALID"


@pytest.mark.long
def test_a_node_that_turns_slow_in_a_session_is_named_as_a_straggler_and_ends_it(site: Site) -> None:
    for attempt in range(3):
        found = site.check(f"out{attempt}", on_run=1)
        if site.is_slow():
            break
        # Other work on this machine slowed both probes of a node before the first timed run.
        for host in quarantined_nodes(nodes_folder(site.home / "cache")):
            release(nodes_folder(site.home / "cache"), host, "test", "disturbed", datetime.now(UTC))
    assert found.verdict.verdict == "INVALID"
    *before, last = timed(found)
    assert {run.outcome for run in before} == {"ok"}, [run.reason for run in timed(found)]
    assert last.outcome == "refused"
    assert "the others wait for rank 1 (n2)" in last.reason
    assert "in base and head alike" in last.reason
    assert "n2 is slow, whatever runs on it, and is in quarantine now" in last.reason
    (evidence,) = quarantined_nodes(nodes_folder(site.home / "cache")).values()
    assert [straggled.rank for straggled in evidence.stragglers] == [1]
    (entry,) = found.verdict.workloads
    assert entry.throughput is not None
    assert entry.throughput.decision is None
    assert site.cluster.jobs() == []
