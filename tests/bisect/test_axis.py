"""``regbot bisect --axis``: versions of a dependency from a local index, really installed and run."""

from pathlib import Path
from typing import Any

import pytest

from support.bisect_repository import run_bisect
from support.git_repos import Repository
from support.version_packages import wheel

WORK = """\
def work(rounds):
    total = 0
    for number in range(rounds * {factor}):
        total += number * number
    return total
"""

TIMED = """\
import time
from gathertool import work
work(1000)
start = time.process_time()
work(150_000)
print(time.process_time() - start)
"""

COUNTED = """\
import gathertool
print(gathertool.work(10) + EXTRA)
"""


class Case:
    """A repository whose program uses ``gathertool``, of which a folder has several versions."""

    def __init__(self, home: Path, factors: dict[str, int]) -> None:
        self.home, self.repository = home, Repository.create(home / "repository")
        self.index = home / "index"
        for version, factor in factors.items():
            wheel(self.index, "gathertool", version, WORK.format(factor=factor))

    def bisect(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        return run_bisect(self.home, self.repository.path, *arguments, **index)


@pytest.mark.long
def test_the_slower_version_is_named_by_its_real_times(tmp_path: Path) -> None:
    case = Case(tmp_path, {"1.0": 1, "1.1": 1, "1.2": 2, "2.0": 2})
    commit = case.repository.commit("use gathertool", {"cost.py": TIMED})
    code, result = case.bisect(commit, commit, "--axis", "gathertool=1.0..2.0", "--command", "python cost.py")
    assert (code, result["version"], result["culprit"]) == (0, "1.2", commit), result["reasons"]
    assert result["axis"] == "gathertool"
    assert result["changes"][0]["confirmed"] == "yes"
    assert result["changes"][0]["estimate"]["pct"] > 40


def test_versions_are_searched_with_the_code_of_bad(tmp_path: Path) -> None:
    case = Case(tmp_path, {"1.0": 1, "1.1": 1, "1.2": 2})
    good = case.repository.commit("good", {"cost.py": COUNTED.replace("EXTRA", "5")})
    bad = case.repository.commit("bad", {"cost.py": COUNTED.replace("EXTRA", "0")})
    code, found = case.bisect(good, bad, "--axis", "gathertool=1.0..1.2", "--command", "python cost.py", "--exact")
    assert (code, found["version"], found["culprit"]) == (0, "1.2", bad), found["reasons"]
    assert (found["changes"][0]["before"], found["changes"][0]["after"]) == ("285", "2470")
