"""The file of the container image. No test builds the image: that takes a container runtime and the network. These
tests read the file, and build regbot's wheel from exactly the files that it copies."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
TARGET = "/opt/regbot/"


def instructions(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r" *\\\n *", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions(TEXT) if instruction == name]


def copied() -> dict[str, str]:
    """Target in the image by source in the repository."""
    copies = {}
    for rest in arguments("COPY"):
        *sources, target = rest.split()
        for source in sources:
            copies[source] = f"{target}{source}" if target.endswith("/") else target
    return copies


def test_every_copied_file_exists_and_reaches_the_build() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied()) == kept
    for source, target in copied().items():
        assert (ROOT / source).exists(), source
        assert target == f"{TARGET}{source}"


def test_regbot_is_not_root_in_the_container() -> None:
    assert arguments("USER") == ["1000:1000"]
    assert arguments("ENTRYPOINT") == ['["regbot"]']


@pytest.mark.slow
def test_the_copied_files_are_enough_to_build_regbot(tmp_path: Path) -> None:
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "."]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"regbot/github/workflows/regbot-static.yml", "regbot/guest/regbot_guest/paper/device.py"} <= names
