"""The Slurm part of docs/operator.md: its commands are executed in order on a private cluster."""

from pathlib import Path

from support.operator_docs_cases import REPOSITORY, SLURM, blocks, follow
from support.slurm_cluster import Cluster


def test_the_commands_of_a_cluster_print_what_the_page_shows(cluster: Cluster, tmp_path: Path) -> None:
    done = follow({REPOSITORY, SLURM}, tmp_path, cluster.environment())
    assert len(done) == 1 + [kind for kind, _, _ in blocks()].count(SLURM) >= 8
    assert [job for job in cluster.jobs() if job["state"] != "COMPLETING"] == []
