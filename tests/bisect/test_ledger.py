"""``regbot bisect --on ledger`` on real repositories and real traces."""

import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regbot.records.files import read_record
from regbot.records.run import Run
from support.bisect_repository import build, run_bisect
from support.git_repos import Repository
from support.layers import CONFIG, GOOD_LAYER

SMALL = """\
[workloads.moe]
adapter = "module"
entry = "moetrain.moe:build_layer"
source_roots = ["src"]
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
"""

SUMS = """\
    def forward(self, x):
        for _ in range(0):
            dist.all_reduce(torch.ones(4, device=x.device), group=self.group)
"""
SUMMING_LAYER = GOOD_LAYER.replace("    def forward(self, x):\n", SUMS)


class Case:
    """A repository, and ``regbot bisect`` on it. The repository is the same, byte for byte, at the end."""

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "repository"

    def bisect(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        return run_bisect(self.home, self.path, *arguments)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.slow
def test_one_change_among_200_commits_is_found_exactly_in_at_most_ten_traces(case: Case) -> None:
    history = build(case.path)
    (case.home / "small.toml").write_text(SMALL)
    code, found = case.bisect(history.good, history.bad, "--config", str(case.home / "small.toml"))
    assert (code, found["found"], found["culprit"]) == (0, "culprit", history.sharding)
    (change,) = found["changes"]
    assert change["findings"][0]["pattern"] == "all-to-all replaced by gather and sum"
    assert (found["search_runs"] <= 10, found["confirm_runs"]) == (True, 0)
    ledgers = [read_record(path, Run).ledger for path in (case.home / "out" / "ledgers").iterdir()]
    assert {ledger.device for ledger in ledgers if ledger is not None} == {"cuda"}, "a check traces a paper GPU too"


def summing_layer(sums: str, number: int = 0) -> str:
    """The layer of change ``number``, with ``sums`` all-reduces, an expression."""
    return f"BUILD = {number}\n" + SUMMING_LAYER.replace("range(0)", f"range({sums})")


def summing(
    case: Case, sums: Sequence[int | str], broken: frozenset[int] = frozenset(), config: str = CONFIG
) -> list[str]:
    """A commit for each number of all-reduces in the layer."""
    repository = Repository.create(case.path)
    commits = []
    for number, each in enumerate(sums):
        layer = summing_layer(str(each), number)
        layer = "import nothing\n" + layer if number in broken else layer
        commits.append(
            repository.commit(
                f"change {number} (#{number + 1})",
                {"userpkg/__init__.py": "", "userpkg/moe.py": layer, "regbot.toml": config},
            )
        )
    return commits


@pytest.mark.slow
def test_a_change_that_only_the_second_mesh_shows_is_traced_to_its_commit(case: Case) -> None:
    config = CONFIG.replace('meshes = ["ep"]', 'meshes = ["ep", "ep-dp"]')
    beside_experts = "int(dist.get_world_size() > dist.get_world_size(self.group))"
    commits = summing(case, [0, 0, beside_experts, beside_experts, beside_experts], config=config)
    code, result = case.bisect(commits[0], commits[-1])
    assert (code, result["culprit"]) == (0, commits[2])
    (change,) = result["changes"]
    assert change["entries"] == ["mixtral-8x7b@1/ep-dp"]


@pytest.mark.slow
def test_commits_for_which_an_installed_copy_ran_are_not_accused(case: Case) -> None:
    """In the middle of the range the package lies in a folder that is no source root, so an installed copy is imported.
    The copy has the good layer, which the range makes worse meanwhile."""
    installed = case.home / "installed" / "userpkg"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / "moe.py").write_text(summing_layer("0"))
    environment = case.home / "environment"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/*/site-packages")
    (site / "beside.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n{installed.parent}\n")
    config = CONFIG.replace("[workloads.moe]\n", f'[workloads.moe]\npython = "{environment}/bin/python"\n')
    repository = Repository.create(case.path)
    commits = []
    for number, (folder, sums) in enumerate([("", 0), ("", 0), ("lib/", 0), ("lib/", 1), ("", 1), ("", 1)]):
        repository.git("rm", "-r", "-q", "--ignore-unmatch", "userpkg", "lib")
        files = {f"{folder}userpkg/__init__.py": "", f"{folder}userpkg/moe.py": summing_layer(str(sums), number)}
        commits.append(repository.commit(f"change {number}", {**files, "regbot.toml": config}))
    code, result = case.bisect(commits[0], commits[-1])
    assert (code, result["culprit"]) == (0, None)
    accused = {candidate["point"]["commit"]: candidate for candidate in result["candidates"]}
    assert set(accused) == {commits[2], commits[3], commits[4]}
    assert {commit for commit, candidate in accused.items() if candidate["measurable"]} == {commits[4]}
    assert all("imported userpkg from" in accused[commit]["reason"] for commit in commits[2:4])
