"""Limits on what a guest in a sandbox writes to disk, with guests that try to pass them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import LaunchResult, LocalEngine, NoSeatError
from regbot.engines.availability import unavailable_reason
from regbot.records.config import SandboxSettings
from regbot.workloads.checkout.building import Build, BuildError
from regbot.workloads.checkout.worktrees import check_out
from support import escapes
from support.git_repos import Repository
from support.required import needed

pytestmark = needed("SANDBOX", unavailable_reason())

SANDBOX = SandboxSettings(tmp_mb=8, disk_mb=16, disk_files=6000, build_network=False)
MANY_FILES = "for n in range(30_083):\n if n % 1000 == 0: os.mkdir('d'); os.chdir('d')\n open(str(n), 'w').close()\n"
DEEP_FOLDERS = "for n in range(5000): os.mkdir('d'); os.chdir('d')\n"
LARGE_FILE = "for n in range(64): file.write(bytes(2**20)); file.flush(); time.sleep(0.01)\n"
UNNAMED_FILES = (
    "import resource\nlimit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\nopen_files = []\n"
    "for n in range(8000): open_files.append(open('x', 'w')); os.unlink('x'); time.sleep(0.0001)\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """The writable folder of a guest. Python could not remove folders that are nested as deeply as some of its."""
    (tmp_path / "tree").mkdir()
    yield tmp_path / "tree"
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path / "tree"], check=True)
    subprocess.run(["rm", "-rf", tmp_path / "tree"], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with 64 MB and 4,000 files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = "size=64m,nr_inodes=4000"
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"no disk can be mounted: {mount.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def run(tree: Path, code: str, sandbox: SandboxSettings = SANDBOX, **changes: Any) -> LaunchResult:
    """Run ``code`` in ``tree``, the only folder on disk that it may write to."""
    command = (sys.executable, "-I", "-S", "-c", f"import os, time\n{code}")
    values: dict[str, Any] = {"command": command, "cwd": tree, "writable": (tree,), "readable": (), **changes}
    return LocalEngine(sandbox=sandbox).run(escapes.launch(tree.parent / f"{tree.name}-run", "memory", {}, **values))


def count_files(folder: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


@pytest.mark.parametrize(
    ("code", "excess"),
    [
        (MANY_FILES, "wrote more than 6,000 files (sandbox.disk_files)"),
        (LARGE_FILE, "wrote more than 16 MB to disk (sandbox.disk_mb)"),
        (
            f"{DEEP_FOLDERS}file = open('big', 'wb')\n{LARGE_FILE}",
            "made files that cannot be counted (File name too long)",
        ),
        ("os.mkdir('a'); os.rename('big', 'a/big'); os.chmod('a', 0)\n" + LARGE_FILE, "wrote more than 16 MB to disk"),
    ],
    ids=["many files", "a large file", "below deep folders", "in an unreadable folder"],
)
def test_a_guest_that_writes_too_much_is_ended(tree: Path, code: str, excess: str) -> None:
    result = run(tree, f"file = open('big', 'wb')\n{code}\ntime.sleep(60)")
    assert result.excess.startswith(excess)
    assert (result.exit_code, result.timed_out) == (None, False)


def test_what_a_guest_leaves_in_a_folder_that_persists_stops_no_later_guest(tree: Path) -> None:
    assert run(tree, DEEP_FOLDERS).excess == "made files that cannot be counted (File name too long)"
    later = run(tree, "open('result', 'w').close()")
    assert (later.excess, later.exit_code, (tree / "result").exists()) == ("", 0, True)
    assert run(tree, f"os.mkdir('more'); os.chdir('more')\n{DEEP_FOLDERS}").excess.startswith("made files that cannot")


def test_too_many_names_of_one_file_are_found_even_after_the_guest_has_ended(tree: Path) -> None:
    result = run(tree, "open('seed', 'w').close()\nfor n in range(6001): os.link('seed', str(n))")
    assert result.excess == "wrote more than 6,000 files (sandbox.disk_files)"


def test_files_without_a_name_leave_room_for_regbot(small_disk: Path) -> None:
    tree = small_disk / "tree"
    tree.mkdir()
    result = run(
        tree, UNNAMED_FILES + "time.sleep(60)", SANDBOX.model_copy(update={"disk_files": 1000}), log=small_disk / "log"
    )
    assert result.excess == "was on a disk with too little free space or too few free files"


def test_no_guest_starts_on_a_disk_without_room_for_what_it_may_write(small_disk: Path) -> None:
    tree = small_disk / "tree"
    tree.mkdir()
    for sandbox, reason in (
        (SANDBOX.model_copy(update={"disk_files": 3900}), "more files fit on its disk, and room for 4,300 is needed"),
        (
            SANDBOX.model_copy(update={"disk_mb": 60, "disk_files": 9}),
            "64 MB are free on its disk, and 66 MB are needed",
        ),
    ):
        with pytest.raises(NoSeatError, match=reason):
            run(tree, "", sandbox)


def test_a_build_that_makes_too_many_files_leaves_none_of_them(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "repo")
    commit = repo.commit("head", {"moe.py": "x = 1\n"})
    cache = tmp_path / "cache"
    build = Build(["for n in $(seq 30083); do : > $n; done"], "python3", 60.0, sandbox=SANDBOX)
    with pytest.raises(BuildError, match=r"wrote more than 6,000 files \(sandbox\.disk_files\), so it was stopped"):
        check_out(repo.path, commit, cache, build, hosts=())
    assert count_files(cache / "worktrees") <= 1  # the lock
