"""The pull request that brings regbot in: its base has nothing that could be measured, and it is told what to do."""

from pathlib import Path

import pytest

from layers import CONFIG, GOOD_LAYER
from test_check import Case
from test_command_check import CONFIG as COMMAND
from test_command_check import train

ADVICE = "commit both to the main branch first, then open pull requests."
LAYER = {"userpkg/__init__.py": "", "userpkg/moe.py": GOOD_LAYER}


def commented(home: Path, base: dict[str, str], change: dict[str, str], *options: str) -> str:
    """The comment on a pull request that adds ``change`` to ``base``."""
    case = Case(home)
    case.repository.commit("Before regbot", {"README.md": "", **base})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("Let regbot judge pull requests", change)
    code, verdict = case.check(*options)
    assert (code, verdict["verdict"]) == (4, "INVALID")
    return (home / "out" / "comment.md").read_text(encoding="utf-8")


def test_the_configuration_and_the_layer_belong_on_main_first(tmp_path: Path) -> None:
    text = commented(tmp_path, {}, {"regbot.toml": CONFIG, **LAYER}, "--no-timing")
    assert "### ⛔ INVALID: the base cannot be measured in the workload, so there is nothing to compare with\n" in text
    assert ADVICE in text
    assert "the base has no regbot.toml; the head's was used" in text


@pytest.mark.slow
def test_so_does_a_layer_that_the_configuration_on_main_names_already(tmp_path: Path) -> None:
    text = commented(tmp_path, {"regbot.toml": CONFIG}, LAYER, "--no-timing")
    assert ADVICE in text
    assert "there is no module 'userpkg' in the checkout" in text


def test_so_does_a_program_that_is_timed(tmp_path: Path) -> None:
    text = commented(
        tmp_path, {}, {"regbot.toml": COMMAND, "train.py": train(0.01)}, "--engine", "local", "--budget", "1"
    )
    assert ADVICE in text
    assert "Read the end of the log" in text
