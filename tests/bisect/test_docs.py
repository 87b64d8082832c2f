"""docs/bisect.md is true: its commands are executed in order, and print what stands below them."""

import re
from pathlib import Path

import pytest

from support.docs_cases import BLOCK, execute, list_options, missing

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "bisect.md").read_text(encoding="utf-8")
REPOSITORY, EXACT, NOISY = "repository", "exact", "noisy"

MINUTES = re.compile(r"\d+\.\d minutes")
FIGURE = re.compile(r"(?<!\w)[<>+-]*\d+(?:\.\d+)?%?(?!\w)")
"""A number by itself: no part of the name of a commit."""
COST = re.compile(r"Cost: .*$", re.MULTILINE)
"""What a search took: how many runs of which kind, what is none left out."""

UNTOLD = {"--engine", "--repo"}
"""Options whose own help says it all."""


def steady(kind: str, text: str) -> str:
    """``text`` without what differs from one run to the next: of noisy values all figures."""
    if kind == NOISY:
        return FIGURE.sub("#", COST.sub("cost", text))
    return MINUTES.sub("# minutes", text)


@pytest.mark.long
def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    first, *blocks = BLOCK.findall(PAGE)
    assert first[0] == REPOSITORY
    assert {kind for kind, _, _ in blocks} == {EXACT, NOISY}
    assert 1 + len(blocks) == PAGE.count("```sh\n") >= 6
    cache = str(tmp_path / "cache")
    made = execute(first[1], tmp_path, REGBOT_CACHE=cache)
    assert made.returncode == 0, made.stderr
    for kind, commands, shown in blocks:
        result = execute(commands, tmp_path / "example", REGBOT_CACHE=cache)
        printed = f"{result.stdout}exit code {result.returncode}\n"
        assert shown.splitlines()[-1] == f"exit code {result.returncode}", f"{commands}\n{printed}{result.stderr}"
        wrong = missing(steady(kind, shown), steady(kind, printed))
        assert not wrong, f"{commands}\n{wrong}\n{printed}"


def test_the_options_of_the_page_are_those_of_the_command() -> None:
    known = {option for option in list_options()["regbot bisect"] if option.startswith("--")} - {"--help"}
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
    spans = [span for span in spans if not span.startswith(("git ", "--filter"))]  # options of git
    named = {option for span in spans for option in re.findall(r"(?<!\S)--[a-z-]+", span)}
    assert named <= known, named - known
    assert known - named == UNTOLD - named, known - named
