"""The hash of the smoke model's code changes with code that runs in timed steps, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from regbot.workloads.shapes.model_code import MODEL_FILES, hash_files, model_hash
from support.guest_runs import GUEST
from support.layers import replace_text


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A copy of the guest's code, to be edited."""
    return Path(shutil.copytree(GUEST / "regbot_guest", tmp_path / "code"))


@pytest.mark.parametrize("name", MODEL_FILES["smoke"])
def test_code_of_every_file_of_the_model_is_in_the_hash(code: Path, name: str) -> None:
    assert hash_files(code, MODEL_FILES["smoke"]) == model_hash("smoke")
    with (code / name).open("a") as file:
        file.write("ADDED = 1\n")
    assert hash_files(code, MODEL_FILES["smoke"]) != model_hash("smoke")
    is_of_module = name in MODEL_FILES["module"]
    assert (hash_files(code, MODEL_FILES["module"]) != model_hash("module")) == is_of_module


def test_comments_docstrings_and_layout_are_not_in_the_hash(code: Path) -> None:
    replace_text(code / "rows.py", '"""The interface of', '"""In other words, the interface of')
    replace_text(code / "rows.py", "def invert(", "# a comment\n\n\ndef invert(")
    assert hash_files(code, MODEL_FILES["smoke"]) == model_hash("smoke")
