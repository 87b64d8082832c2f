"""The file of the container image. No test builds the image: that takes a container runtime and the network. These
tests read the file, and build regbot's wheel from exactly the files that it copies."""

import re
from pathlib import Path

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
