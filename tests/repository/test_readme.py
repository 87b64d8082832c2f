"""The README is true: its commands are executed, and show what they are for and nothing else."""

import re
import subprocess
from pathlib import Path

import pytest

from support.docs_cases import execute
from support.git_repos import Repository
from support.layers import CONFIG, GOOD_LAYER

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[tuple[str, int]]:
    """Commands of all code blocks under a mark, one per line, with the exit code of each: 0, unless the mark has
    ``: exits 0 3``, one for each command."""
    found = re.findall(rf"<!-- {re.escape(mark)}(?:: exits ([\d ]+))? -->\n```sh\n(.*?)```", README, re.DOTALL)
    commands = []
    for codes, block in found:
        lines = block.splitlines()
        commands += zip(lines, map(int, codes.split()) if codes else [0] * len(lines), strict=True)
    return commands


def execute_as_user(command: str, at: Path) -> "subprocess.CompletedProcess[str]":
    who = {f"GIT_{who}_{what}": "tester@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return execute(command, at, REGBOT_CACHE=str(at.parent / "cache"), **who)


def follow(mark: str, at: Path) -> str:
    """Execute the commands under a mark, and give what the last one printed."""
    printed = ""
    for command, code in blocks(mark):
        found = execute_as_user(command, at)
        assert found.returncode == code, f"{command}\n{found.stdout}{found.stderr}"
        printed = found.stdout
    return printed


@pytest.mark.long
def test_every_command_that_runs_anywhere_runs(tmp_path: Path) -> None:
    assert len(blocks("run anywhere")) >= 6
    follow("run anywhere", tmp_path)


def test_every_command_that_runs_in_this_folder_runs(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    assert {code for _, code in blocks("run in this folder")} == {0, 1, 3}
    follow("run in this folder", tmp_path)


SMALL = 'variant = "cpu"\n'
"""As the page has it for trying things out: the full shapes take a minute, not a test's time."""


def repository(at: Path) -> Repository:
    """A user's repository, with a layer where the README's configuration says."""
    made = Repository.create(at / "home")
    made.commit("A layer", {"src/mypkg/__init__.py": "", "src/mypkg/moe.py": GOOD_LAYER})
    return made


def judged(home: Repository) -> None:
    """A branch that changes a comment is judged by the page's command."""
    home.git("checkout", "-q", "-b", "change")
    home.commit("explain", {"src/mypkg/moe.py": f"# A word of explanation.\n{GOOD_LAYER}"})
    printed = follow("run on a branch", home.path)
    assert "PASS" in printed
    assert "device program identical" in printed
    for name in ("comment.md", "report.html", "verdict.json", "session.jsonl"):
        assert (home.path / "regbot-out" / name).exists()


@pytest.mark.long
def test_the_five_minutes_lead_to_a_verdict(tmp_path: Path) -> None:
    home = repository(tmp_path)
    (init, _), *rest = blocks("run in a repository")
    found = execute_as_user(init, home.path)
    assert found.returncode == 0, found.stderr
    assert SMALL.strip() in README
    configuration = home.path / "regbot.toml"
    text = configuration.read_text(encoding="utf-8")
    assert 'entry = "mypkg.moe:build_layer"' in text
    configuration.write_text(text.replace("shapes = ", f"{SMALL}shapes = "), encoding="utf-8")
    for command, code in rest:
        found = execute_as_user(command, home.path)
        assert found.returncode == code, f"{command}\n{found.stdout}{found.stderr}"
    judged(home)


@pytest.mark.long
def test_the_commit_that_changed_the_collectives_is_named(tmp_path: Path) -> None:
    layer = (ROOT / "docs" / "examples" / "moe_layer.py").read_text()
    spoilt = layer.replace("= AllToAll, AllToAll", "= Gather, Reduce")
    assert spoilt != layer
    repository = Repository.create(tmp_path / "history")
    repository.commit("v1.0", {"userpkg/__init__.py": "", "userpkg/moe.py": layer, "regbot.toml": CONFIG})
    repository.git("tag", "v1.0")
    repository.commit("Explain", {"README.md": "A layer."})
    culprit = repository.commit("Tidy up the dispatch", {"userpkg/moe.py": spoilt})
    ((command, _),) = blocks("run in a history")
    found = execute_as_user(command, repository.path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f'CULPRIT FOUND: {culprit[:12]} "Tidy up the dispatch"')


def test_every_command_block_is_executed_by_a_test_or_by_continuous_integration() -> None:
    marks = ("run anywhere", "run in a repository", "run on a branch", "run in this folder", "run in a history")
    marked = README.count("<!-- command: demo -->\n```sh\n") + README.count("<!-- command: tests -->\n```sh\n")
    assert marked == 2
    for mark in marks:
        found = len(re.findall(rf"<!-- {mark}(?:: exits [\d ]+)? -->\n```sh\n", README))
        assert blocks(mark), mark
        marked += found
    assert marked == README.count("```sh\n")
    for name in ("demo", "tests"):
        assert f"readme {name}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
