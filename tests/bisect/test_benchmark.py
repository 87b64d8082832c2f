"""What ``benchmarks/bisect.py`` holds regbot against is what it is called."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield


@pytest.fixture(scope="module")
def peers(benchmarks: None) -> ModuleType:
    return importlib.import_module("bisect_peers")


@pytest.fixture(scope="module")
def culprits(benchmarks: None) -> ModuleType:
    return importlib.import_module("culprits")


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_bound_is_that_of_the_gaussian_channel(peers: ModuleType) -> None:
    result = [peers.bound(commits, 2.0) for commits in (16, 64, 256, 1024)]
    assert result == pytest.approx([7.23, 11.14, 15.05, 18.96], abs=0.006)
    assert peers.bound(64, 5.0) == pytest.approx(5.55, abs=0.006)
    assert peers.capacity(20.0) == pytest.approx(1.0), "two levels far apart: a run tells one bit"
    assert peers.capacity(0.01) == pytest.approx(0.01**2 / 8 / 0.693147, rel=1e-3), "and near each other, hardly any"


def test_a_case_is_the_same_whoever_bisects_it(culprits: ModuleType) -> None:
    cases = [culprits.Case(64, 2.0, number) for number in range(20)]
    assert [case.number for case in cases if case.culprit is None] == [9, 19]
    assert all(1 <= case.culprit <= 64 for case in cases if case.culprit is not None)
    assert cases[0].runs().normal() == culprits.Case(64, 2.0, 0).runs().normal()


@pytest.mark.slow
def test_the_benchmark_tells_what_it_takes() -> None:
    told = python(str(BENCHMARKS / "bisect.py"), "--help")
    assert {"--cases", "--jobs", "--quick", "--without-peer"} <= set(told.replace("[", " ").replace("]", " ").split())


def test_its_name_hides_nothing_of_the_standard_library_from_its_neighbours() -> None:
    code = "import bisect; print(bisect.__file__, bisect.bisect([1, 2], 1), bisect.__all__)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=True
    )
    names = ["bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"]
    assert result.stdout.strip() == f"{BENCHMARKS / 'bisect.py'} 1 {names}"
