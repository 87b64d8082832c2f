"""What several test modules share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_runs import once

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; workers and ranks are not to fight for cores

Shared = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """``shared(name, make)``: a folder that is made once per test run, however many workers there are."""
    return lambda name, make: once(tmp_path_factory.getbasetemp(), name, make)
