"""The fixture ``hub``; a test module imports it by ``from github_fake.fixtures import hub``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .server import FakeGitHub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeGitHub]:
    """A fake GitHub; the test fails if any request was not as GitHub describes it and the test did not forgive it."""
    with FakeGitHub(tmp_path) as made:
        yield made
