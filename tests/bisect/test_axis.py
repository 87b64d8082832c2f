"""``regbot bisect --axis``: versions of a dependency from a local index, really installed and run."""

from pathlib import Path

from support.bisect_repository import run_bisect
from support.git_repos import Repository
from support.version_packages import wheel


def test_versions_are_searched_with_the_code_of_bad(tmp_path: Path) -> None:
    for version, cost in (("1.0", 1), ("1.1", 1), ("1.2", 2)):
        wheel(tmp_path / "index", "gathertool", version, f"COST = {cost}\n")
    repository = Repository.create(tmp_path / "repository")
    good, bad = (
        repository.commit(name, {"cost.py": f"import gathertool\nprint(gathertool.COST + {more})\n"})
        for name, more in (("good", 5), ("bad", 0))
    )
    arguments = (good, bad, "--axis", "gathertool=1.0..1.2", "--command", "python cost.py", "--exact")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
    code, found = run_bisect(tmp_path, repository.path, *arguments, **index)
    assert (code, found["version"], found["culprit"]) == (0, "1.2", bad), found["reasons"]
    assert (found["changes"][0]["before"], found["changes"][0]["after"]) == ("1", "2")
