"""A check that traces a mesh which the workload defines. Only this mesh shows the change."""

from pathlib import Path

import pytest

from support.check_cases import Case
from support.layers import CONFIG, GOOD_LAYER

EXCHANGE = "        dist.all_to_all_single(out, x.contiguous(), group=group)\n"
GATHER_ON_FOUR_RANKS = """\
        if group.size() != 4:
            dist.all_to_all_single(out, x.contiguous(), group=group)
            return out
        everyone = x.new_empty(x.shape[0] * group.size(), x.shape[1])
        dist.all_gather_into_tensor(everyone, x.contiguous(), group=group)
        dist.reduce_scatter_tensor(out, everyone, group=group)
"""
OWN_MESH = CONFIG.replace('meshes = ["ep"]', 'meshes = ["ep", {world = 4, ep = 4}]')


def statuses(verdict: dict[str, object]) -> dict[str, str]:
    return {entry["name"]: entry["sharding"]["status"] for entry in verdict["workloads"]}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_fallback_that_only_one_mesh_shows_is_seen_on_the_mesh_of_the_workload(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.pull_request(GOOD_LAYER.replace(EXCHANGE, GATHER_ON_FOUR_RANKS), config=OWN_MESH)
    code, verdict = case.check()
    assert code in (1, 5)
    found = statuses(verdict)
    assert found.pop("mixtral-8x7b@1/ep") == "PASS"
    assert found.keys() == {"mixtral-8x7b@1/world4-ep4"}
    assert found["mixtral-8x7b@1/world4-ep4"] in ("FAIL", "REVIEW")
