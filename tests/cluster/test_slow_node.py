"""A node that is slow whatever runs on it: it is named, and nothing is timed on it.

Both nodes of a private cluster share the cores of one machine: nothing else may run there meanwhile.
"""

import os
import sys
import textwrap
from pathlib import Path

import pytest

from regbot.check.flow import CheckOptions, CheckResult, check
from regbot.engines.node_check import HISTORY_FILE
from regbot.records.files import read_record, write_record
from regbot.records.node import NodeHistory
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

    def check(self, out: str) -> CheckResult:
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
            )
        )


@pytest.fixture
def site(make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(make_cluster, tmp_path, monkeypatch)


def timed(found: CheckResult) -> list[Run]:
    return [run for run in found.session.runs if run.tier == "timed"]


@pytest.mark.long
def test_nothing_is_timed_on_a_node_that_is_slower_than_in_its_stored_probes(site: Site) -> None:
    first = site.check("first")
    assert {probe.host for run in timed(first) for probe in run.probes} == {"n1", "n2"}
    file = site.home / "cache" / HISTORY_FILE
    stored = read_record(file, NodeHistory).probes
    earlier = [
        probe.model_copy(update={"unix_s": probe.unix_s - 86400 * day}) for day in range(8, 0, -1) for probe in stored
    ]
    write_record(file, NodeHistory(probes=earlier))
    site.make_slow()
    found = site.check("slow")
    assert found.verdict.verdict == "INVALID"
    (run,) = timed(found)
    assert run.outcome == "lost"
    assert "only 1 of partition bench are usable without n2; the reference probe found slow nodes. n2: " in run.reason
    assert {probe.host for probe in run.probes} == {"n1", "n2"}
    assert site.cluster.jobs() == []
