"""The README is true: its commands are executed, its links lead somewhere, its figures are printed by benchmarks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from git_repos import Repository
from layers import CONFIG, GOOD_LAYER, write_repository

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[str]:
    """Commands of all code blocks under a mark, one per line."""
    found = re.findall(rf"<!-- {re.escape(mark)} -->\s*```sh\n(.*?)```", README, re.DOTALL)
    return [line.strip() for block in found for line in block.splitlines() if line.strip()]


def execute(command: str, at: Path) -> subprocess.CompletedProcess[str]:
    bin_folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "REGBOT_CACHE": str(at.parent / "cache")}
    return subprocess.run(
        ["bash", "-c", command], cwd=at, env=env, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.long
def test_every_command_that_runs_anywhere_runs(tmp_path: Path) -> None:
    commands = blocks("run anywhere")
    assert len(commands) >= 6
    for command in commands:
        found = execute(command, tmp_path)
        assert found.returncode == 0, f"{command}\n{found.stderr}"


def test_every_command_that_runs_in_this_folder_runs(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    commands = blocks("run in this folder")
    assert len(commands) >= 4
    for command in commands:
        found = execute(command, tmp_path)
        assert found.returncode == 0, f"{command}\n{found.stderr}"


@pytest.mark.long
def test_the_five_minutes_lead_to_a_verdict(tmp_path: Path) -> None:
    """The README's own configuration, with a layer where it says, on a branch that changes a comment."""
    configuration = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert configuration is not None
    text = re.sub(r"^ {3}", "", configuration.group(1), flags=re.MULTILINE)
    home = tmp_path / "home"
    write_repository(home / "src", GOOD_LAYER)
    (home / "src" / "userpkg").rename(home / "src" / "mypkg")
    (home / "src" / "regbot.toml").unlink()
    (home / "regbot.toml").write_text(text + 'variant = "cpu"\n')  # the full shape takes a minute, not a test's time
    git = "git -c user.name=me -c user.email=me@example.org -c commit.gpgsign=false"
    setup = f"git init -qb main && {git} add -A && {git} commit -qm base && git checkout -qb change"
    assert execute(setup, home).returncode == 0
    layer = home / "src" / "mypkg" / "moe.py"
    layer.write_text("# A word of explanation.\n" + layer.read_text())
    assert execute(f"{git} commit -qam explain", home).returncode == 0
    commands = blocks("run in a repository")
    assert len(commands) == 2
    for command in commands:
        found = execute(command, home)
        assert found.returncode == 0, f"{command}\n{found.stdout}{found.stderr}"
    assert "PASS" in found.stdout
    assert "device program identical" in found.stdout
    for name in ("comment.md", "report.html", "verdict.json", "session.jsonl"):
        assert (home / "regbot-out" / name).exists()


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
    (command,) = blocks("run in a history")
    found = execute(command, repository.path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f'CULPRIT FOUND: {culprit[:12]} "Tidy up the dispatch"')


def test_every_command_block_is_executed_by_a_test_or_by_continuous_integration() -> None:
    marks = (
        "<!-- run anywhere -->",
        "<!-- run in a repository -->",
        "<!-- run in this folder -->",
        "<!-- run in a history -->",
        "<!-- command: demo -->",
        "<!-- command: tests -->",
    )
    for match in re.finditer(r"(\S.*)?\n\s*```sh\n", README):
        assert any(mark in match.group(0) for mark in marks), match.group(0)
    for name in ("demo", "tests"):
        assert f"readme {name}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
