"""A bisection that is ended, in any way and at any moment, goes on from its log: no observation is lost, none counts
twice, and the culprit is the one that it would have found anyway."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from regbot.bisect.flow import PAGE, RESULT
from regbot.records.bisection import read_bisection
from support.costs import Bisecting, line, state_of
from support.git_repos import Repository

SEED = int(os.environ.get("REGBOT_TEST_SEED", "20260914"))
CULPRIT = 11


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, list[str]]:
    return line(tmp_path_factory.mktemp("history") / "repository", 16)


@pytest.fixture(autouse=True)
def untouched(history: tuple[Repository, list[str]]) -> Iterator[None]:
    before = state_of(history[0])
    yield
    assert state_of(history[0]) == before


@pytest.fixture
def commits(history: tuple[Repository, list[str]]) -> list[str]:
    return history[1]


@pytest.fixture
def case(tmp_path: Path, history: tuple[Repository, list[str]]) -> Bisecting:
    return Bisecting(tmp_path, history[0])


def slower(commits: list[str]) -> dict[str, float | str]:
    return dict.fromkeys(commits[CULPRIT:], 120.0)


def printed(commit: str, number: int, costs: dict[str, float | str], noise: float) -> float:
    """What the made-up command prints at its n-th run of a commit."""
    cost = costs.get(commit, 100.0)
    assert isinstance(cost, float)
    return cost * (1 + random.Random(f"0 {commit} {number}").gauss(0, noise))


def gone(case: Bisecting, wait_s: float = 3.0) -> list[str]:
    """What of the launches still runs after ``wait_s`` to end."""
    until = time.monotonic() + wait_s
    while (result := case.processes()) and time.monotonic() < until:
        time.sleep(0.05)
    return result


# ---- kill -9


@pytest.mark.slow
def test_a_bisection_that_is_killed_at_random_moments_loses_no_observation_and_counts_none_twice(
    case: Bisecting, commits: list[str]
) -> None:
    """SIGKILL of regbot alone: what it started must notice."""
    kills, noise, costs = 4, 0.02, slower(commits)
    asked = (commits[0], commits[-1], "--command", case.costing(costs, noise=noise, sleep_s=0.1))
    moments = random.Random(SEED)
    print(f"REGBOT_TEST_SEED={SEED}")  # pytest shows it where a test fails
    kept, in_the_middle = b"", 0
    for kill in range(kills):
        process = case.begin(*asked, "--resume")
        moment = moments.uniform(0.0, 1.2)
        if kill % 3:  # where a machine is slow to start, most kills would come before the first run
            before = len(case.runs())
            until = time.monotonic() + 20
            while process.poll() is None and len(case.runs()) == before and time.monotonic() < until:
                time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
        process.kill()
        _, message = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), message
        in_the_middle += process.returncode == -signal.SIGKILL
        written = case.complete_lines()
        assert written.startswith(kept), "what was written is never written again"
        kept = written
        assert gone(case) == []
    assert in_the_middle >= 2, "or the test has shown nothing"
    code, document = case.answer(*asked, "--resume")
    assert (code, document["culprit"]) == (0, commits[CULPRIT])
    assert case.log.read_bytes().startswith(kept)

    logged = case.recorded().observations
    assert [each.reason for each in logged if not each.usable] == []
    assert len(document["observations"]) == len(logged)
    spent = document["search_runs"] + document["confirm_runs"]
    assert spent == len(logged), "every line of the log is counted once"
    values = Counter((each.point, round(2.718281828459045 ** each.values["cost"], 6)) for each in logged)
    assert set(values.values()) == {1}, "every run of a commit prints another cost: none stands twice"
    ran = Counter(case.runs())
    genuine = {
        (commit, round(printed(commit, number, costs, noise), 6))
        for commit, times in ran.items()
        for number in range(1, times + kills + 1)
    }
    assert set(values) <= genuine
    assert sum(ran.values()) - len(logged) <= kills, "only what was running at a kill may be lost"


# ---- other ends


@pytest.mark.slow
def test_an_interrupted_bisection_says_how_to_go_on_and_goes_on(case: Bisecting, commits: list[str]) -> None:
    asked = (commits[0], commits[-1], "--command", case.costing(slower(commits), noise=0.02, sleep_s=0.2))
    process = case.begin(*asked)
    until = time.monotonic() + 60
    while case.complete_lines().count(b"\n") < 4:
        assert time.monotonic() < until, "the log does not grow"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed_, message = process.communicate(timeout=20)
    assert process.returncode == 130
    assert printed_ == ""
    assert message.splitlines()[-1] == (
        f"regbot: interrupted; the finished runs are in {case.log}, go on with --resume"
    )
    assert "Traceback" not in message
    assert gone(case) == []
    kept = case.complete_lines()
    result = case.found(commits[0], commits[-1], asked[3], resume=True)
    assert result.culprit == commits[CULPRIT]
    assert case.log.read_bytes().startswith(kept)


@pytest.mark.slow
def test_a_finished_bisection_that_is_resumed_runs_nothing_and_says_the_same(
    case: Bisecting, commits: list[str]
) -> None:
    command = case.costing(slower(commits), noise=0.02)
    first = case.found(commits[0], commits[-1], command)
    log, made = case.log.read_bytes(), len(case.runs())
    assert case.found(commits[0], commits[-1], command, resume=True) == first
    assert (case.log.read_bytes(), len(case.runs())) == (log, made)


@pytest.mark.slow
def test_another_bisection_is_not_resumed_and_nothing_of_the_first_is_lost(case: Bisecting, commits: list[str]) -> None:
    command = case.costing(slower(commits))
    case.found(commits[0], commits[-1], command, exact=True)
    log, made = case.log.read_bytes(), len(case.runs())
    results = {path: path.read_bytes() for path in (case.out / RESULT, case.out / PAGE)}
    for good, bad, options, differs in (
        (commits[0], commits[-1], ("--command", command), "exact"),
        (commits[0], commits[-1], ("--command", f"{command} ", "--exact"), "command"),
        (commits[0], commits[-1], ("--command", command, "--exact", "--build", "true"), "terms"),
        (commits[1], commits[-1], ("--command", command, "--exact"), "points"),
        (commits[0], commits[-2], ("--command", command, "--exact"), "points"),
    ):
        result = case.typed(good, bad, *options, "--resume")
        assert result.exit_code == 2, result.stdout
        assert f"is of another bisection ({differs} differs)" in result.stderr
        assert "leave out --resume to begin anew, or give another --out" in result.stderr
        assert (case.log.read_bytes(), len(case.runs())) == (log, made)
        assert {path: path.read_bytes() for path in results} == results


def test_two_bisections_do_not_write_one_log(case: Bisecting, commits: list[str]) -> None:
    case.out.mkdir()
    with FileLock(case.out / ".lock"):
        result = case.typed(commits[0], commits[-1], "--command", "echo 1", "--exact")
    assert result.exit_code == 2, result.stdout
    assert f"{case.out}: another bisection is writing there; wait until it ends" in result.stderr


# ---- no room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk takes the right to mount one")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_no_commit_is_blamed_for_a_disk_that_has_no_room_for_what_it_prints(
    case: Bisecting, commits: list[str], small_disk: Path
) -> None:
    asked = (commits[0], commits[-1], "--command", case.costing(slower(commits)), "--exact", "--out")
    unlogged = 0
    for pages in range(3, 12, 2):
        shutil.rmtree(small_disk / "out", ignore_errors=True)
        free = os.statvfs(small_disk)
        (small_disk / "ballast").write_bytes(bytes(max(0, free.f_bavail - pages) * free.f_frsize))
        full = case.typed(*asked, str(small_disk / "out"))
        assert full.exit_code == 2, full.stdout
        assert "No space left on device" in full.stderr
        assert "--resume" in full.stderr
        (small_disk / "ballast").unlink()
        logged = read_bisection(small_disk / "out" / "bisection.jsonl").observations
        assert [each.reason for each in logged if not each.usable] == []
        unlogged += "runs/" in full.stderr
    assert unlogged, "or the test has shown nothing"
    result = case.typed(*asked, str(small_disk / "out"), "--resume")
    assert result.exit_code == 0, result.stderr
