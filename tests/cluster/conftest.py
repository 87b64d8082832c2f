"""A private Slurm for tests. All tests of this folder are marked ``cluster`` and skipped where they cannot run."""

import os
import pwd
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.slurm_cluster import Cluster, MakeCluster, leftovers, missing

HERE = Path(__file__).parent
SHARED = ("cluster", "gpu_cluster")


def why_not() -> str:
    """Why no cluster can be started here; empty where one can."""
    if not os.environ.get("REGBOT_CLUSTER"):
        return "needs a private Slurm; set REGBOT_CLUSTER=1 to run it, as .ci/run cluster does"
    if lacking := missing():
        return f"there is no {', '.join(lacking)} here: apt-get install slurm-wlm munge"
    if os.geteuid() == 0:
        return "a private Slurm is not run as root: run it through .ci/unprivileged"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"Slurm starts nothing for uid {os.getuid()}, which has no name: run it as a user of /etc/passwd"
    return ""


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of 8 CPUs, n1 and n2, for all tests that leave them as they found them."""
    with Cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="session")
def gpu_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same with 8 GPUs per node, which are not there."""
    with Cluster(tmp_path_factory.mktemp("slurm"), gpus=8) as started:
        yield started


@pytest.fixture
def make_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """``make_cluster(**options)``: a started cluster of the test's own, gone when the test ends."""
    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            return stack.enter_context(Cluster(tmp_path_factory.mktemp("slurm"), **options))

        yield make


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a job in the queue of a shared cluster, or a node unfit, fails, and the next one finds a fresh
    cluster."""
    used = [request.getfixturevalue(name) for name in SHARED if name in request.fixturenames]
    yield
    for shared in used:
        if trouble := leftovers(shared):
            shared.stop()
            shared.start()
            pytest.fail(trouble)
