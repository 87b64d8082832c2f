"""What several test modules share."""

import importlib.util
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from regbot.workloads.paper import NoPaperGpuError, library_for
from support.guest_runs import Shared, once, run_script

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; workers and ranks are not to fight for cores

# A test that draws its cases draws the same ones in each run, so a run that fails was failed by the change. The
# stage long draws others each time. No case has a time limit: a busy machine is not a fault of the code.
settings.register_profile("same cases", derandomize=True, deadline=None)
settings.register_profile("other cases", deadline=None)
settings.load_profile("other cases" if os.environ.get("REGBOT_LONG") else "same cases")

# A shell starts background jobs with SIGINT ignored. Programs under test would inherit that, and no interrupt end them.
signal.signal(signal.SIGINT, signal.default_int_handler)

HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = (
    "cli/demo/*", "guest/*", "gloo/*", "check/test_check.py", "check/test_resume.py", "check/test_timed_check.py",
    "judge/test_dispatcher_gate.py", "workloads/test_bad_guests.py", "workloads/test_dispatchers.py",
    "workloads/test_hang.py", "workloads/test_timed_guests.py",
)  # fmt: skip
"""Test files that run guest code. They are left out, whole, where there is no torch."""

collect_ignore_glob = [] if HAS_TORCH else list(NEEDS_TORCH)

BY_NAME = {
    "long": ("REGBOT_LONG", "takes minutes by itself; set REGBOT_LONG=1 to run it"),
    "slow": (
        "REGBOT_SLOW",
        "takes seconds and is one of many; set REGBOT_SLOW=1 to run it, as .ci/run main does",
    ),
}
"""The variable without which tests of a marker are skipped, and the reason."""

REASONS = 12
"""How many reasons for skipped tests are printed, the most frequent first."""


def pytest_report_header() -> list[str]:
    return [] if HAS_TORCH else [f"no torch is installed: left out are {', '.join(NEEDS_TORCH)}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests were skipped. Without the option -rs, pytest prints their number only."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if reasons and not terminalreporter.hasopt("s"):
        terminalreporter.section("why tests were skipped")
        for reason, number in reasons.most_common(REASONS):
            terminalreporter.write_line(f"{number:5d}  {reason}")
        if len(reasons) > REASONS:
            terminalreporter.write_line(f"       and {len(reasons) - REASONS} other reasons; -rs prints all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_TORCH:
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason="needs torch, which is not installed here"))
    for marker, (variable, reason) in BY_NAME.items():
        if os.environ.get(variable):
            continue
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _one_paper_gpu(pytestconfig: pytest.Config) -> None:
    """Tests have caches of their own, and share one build of the paper GPU, which takes half a minute."""
    root = pytestconfig.rootpath / ".pytest_cache" / "paper-gpu"
    os.environ.setdefault("REGBOT_PAPER_CACHE", str(root))


@pytest.fixture(scope="session")
def paper_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that a check would use. Skips where it cannot be built."""
    folder = tmp_path_factory.getbasetemp().parent
    try:
        return library_for(sys.executable, folder, folder).path
    except NoPaperGpuError as error:
        pytest.skip(f"there is no paper GPU here: {error}")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """``shared(name, make)``: a folder that is made once per test run, however many workers there are."""
    return lambda name, make: once(tmp_path_factory.getbasetemp(), name, make)


@pytest.fixture
def seen(shared: Shared) -> dict[str, Any]:
    """What ``gloo/observed.py`` saw: entries by program, in order of first appearance."""

    def observe(folder: Path) -> None:
        (folder / "seen.json").write_text(run_script("observed.py"))

    found: dict[str, Any] = json.loads((shared("observed", observe) / "seen.json").read_text())
    return found
