"""The pull request that introduces regbot: its base cannot be measured, and the comment says what to do."""

from pathlib import Path

import pytest

from support.check_cases import Case
from support.layers import CONFIG, GOOD_LAYER

ADVICE = "add both to the main branch first, in a pull request of their own."
LAYER = {"userpkg/__init__.py": "", "userpkg/moe.py": GOOD_LAYER}


def comment_of_check(home: Path, base: dict[str, str], change: dict[str, str], *options: str) -> str:
    """Check a pull request that adds ``change`` to ``base``, and return the comment."""
    case = Case(home)
    case.repository.commit("Before regbot", {"README.md": "", **base})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("Let regbot judge pull requests", change)
    code, verdict = case.check(*options)
    assert (code, verdict["verdict"]) == (4, "INVALID")
    return (home / "out" / "comment.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_configuration_and_the_layer_belong_on_main_first(tmp_path: Path) -> None:
    text = comment_of_check(tmp_path, {}, {"regbot.toml": CONFIG, **LAYER}, "--no-timing")
    assert (
        "### ⛔ INVALID: the base cannot be measured in the one checked workload, so there is nothing to compare with\n"
        in text
    )
    assert ADVICE in text
    assert "the base has no regbot.toml; the head's was used" in text
