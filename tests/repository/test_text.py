"""Text for people is cut, counted and lined up in the package ``text``."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "regbot"
OWN_TABLES = re.compile(r"textwrap|max\(len\(row\[|\| \{' \| '\.join|\" --- \|")
OWN_PLURALS = re.compile(r"['\"]s['\"] \* \(")
OWN_CLIPS = re.compile(r"(?<!hexdigest\(\))\[:(?:12|80|500|4000)\]|textwrap\.shorten|\[: ?\w+ - 1\] \+ \"…\"")


@pytest.mark.parametrize("rule", [OWN_CLIPS, OWN_PLURALS, OWN_TABLES])
def test_nothing_outside_of_the_text_package_does_its_work_by_hand(rule: re.Pattern[str]) -> None:
    by_hand = [
        f"{path.relative_to(SOURCES)}: {found}"
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in {"text", "guest"}
        for found in rule.findall(path.read_text())
    ]
    assert by_hand == []
