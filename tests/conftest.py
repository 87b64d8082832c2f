"""What several test modules share."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guest_runs import once, run_script

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; workers and ranks are not to fight for cores

# A shell starts background jobs with SIGINT ignored. Programs under test would inherit that, and no interrupt end them.
signal.signal(signal.SIGINT, signal.default_int_handler)

Shared = Callable[[str, Callable[[Path], None]], Path]


BY_NAME = {
    "long": ("REGBOT_LONG", "takes minutes by itself; set REGBOT_LONG=1 to run it"),
    "slow": (
        "REGBOT_SLOW",
        "takes seconds and is one of many; set REGBOT_SLOW=1 to run it, as .ci/run main does",
    ),
}
"""The variable without which tests of a marker are skipped, and the reason."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
