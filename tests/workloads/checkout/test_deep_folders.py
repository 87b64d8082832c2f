"""Builds that nest folders deeper than any path may be long. The cache gets rid of them, and a check goes on."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regbot.engines import removal
from regbot.engines.availability import unavailable_reason
from regbot.records.config import SandboxSettings
from regbot.workloads.checkout.building import Build, BuildError
from regbot.workloads.checkout.cache import repository_cache
from regbot.workloads.checkout.worktrees import check_out, prune
from support.check_cases import Case
from support.git_repos import Repository
from support.layers import CONFIG, GOOD_LAYER
from support.required import needed

NEST = """\
import os, sys
folder, name, depth = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
for _ in range(depth):
    os.mkdir(name)
    os.chdir(name)
open("file", "w").close()
os.symlink("/etc", "link")
"""
DEPTH = 1200
"""More than Python's limit on recursion. The system needs seconds to create 5000 nested folders."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed by a program which removes deep folders too; pytest does not."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def nest(folder: Path, length: int = 1, depth: int = DEPTH) -> None:
    subprocess.run([sys.executable, "-c", NEST, str(folder), "x" * length, str(depth)], check=True)


def test_a_link_is_removed_and_not_followed(home: Path) -> None:
    (home / "kept").mkdir()
    (home / "kept" / "file").write_text("")
    (home / "folder").mkdir()
    for link in (home / "link", home / "folder" / "link"):
        link.symlink_to(home / "kept")
        removal.remove_folder(link.parent if link.parent != home else link)
    assert [path.name for path in home.rglob("*")] == ["kept", "file"]


@needed("SANDBOX", unavailable_reason())
def test_a_build_that_nests_folders_does_not_poison_the_cache(home: Path) -> None:
    repo = Repository.create(home / "repo")
    commit = repo.commit("nests", {"nest.py": NEST})
    command = f'for folder in . "$XDG_CACHE_HOME"; do python3 nest.py "$folder/deep" {"x" * 255} {DEPTH}; done'
    cache = home / "cache"
    build = Build([command], "python3", 60.0, sandbox=SandboxSettings())
    with contextlib.suppress(BuildError):  # the sandbox may have ended the build
        check_out(repo.path, commit, cache, build, hosts=())
    prune(cache, keep=0, idle_s=0)
    assert list(cache.glob("set-aside/*")) == []
    assert [path for name in ("worktrees", "private") for path in (cache / name).glob("*/")] == []


@pytest.fixture
def case(home: Path) -> Case:
    """A pull request that concerns no workload, so that nothing is run."""
    case = Case(home)
    case.pull_request(GOOD_LAYER, config=f"{CONFIG}paths = ['userpkg/']\n")
    case.repository.commit("docs", {"README.md": "text\n"})
    return case


def test_a_check_with_deep_folders_in_its_cache_ends_with_its_verdict(case: Case) -> None:
    nest(repository_cache(case.home / "cache", case.repository.path) / "worktrees" / "deep")
    code, verdict = case.check("--no-timing")
    assert (code, verdict["verdict"]) == (3, "INCONCLUSIVE")
