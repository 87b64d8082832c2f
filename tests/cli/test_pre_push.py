"""``regbot pre-push`` as a hook of the real pre-commit, in pushes by git to another repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from support.git_repos import Repository
from support.layers import CONFIG, GOOD_LAYER

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
PROGRAMS = Path(sys.executable).parent
needs_pre_commit = pytest.mark.skipif(
    not (PROGRAMS / "pre-commit").exists(), reason="there is no pre-commit; it comes with regbot's extra dev"
)
LAYER = {"userpkg/__init__.py": "", "userpkg/moe.py": GOOD_LAYER}
SETTINGS = """\
repos:
  - repo: {hooks}
    rev: {commit}
    hooks:
      - id: regbot-system
"""
FORWARD = "    def forward(self, x):\n"
BAD_LAYER = GOOD_LAYER.replace(FORWARD, f"{FORWARD}        dist.all_reduce(x.detach().clone(), group=self.group)\n")
"""The same layer with one more collective."""


class Workplace:
    """A clone in which pre-commit checks what is pushed to ``origin``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.origin = Repository.create(home / "origin")
        self.origin.git("config", "receive.denyCurrentBranch", "ignore")
        hooks = Repository.create(home / "hooks")
        commit = hooks.commit("hooks", {HOOKS.name: HOOKS.read_text()})
        self.settings = {".pre-commit-config.yaml": SETTINGS.format(hooks=hooks.path, commit=commit)}
        self.clone = self.origin

    def start(self, files: dict[str, str]) -> None:
        """Commit ``files`` to main, clone, and install the hook."""
        self.origin.commit("main", {**files, **self.settings})
        self.clone = self.origin.clone_to(self.home / "clone")
        installed = self.run("pre-commit", "install", "--hook-type", "pre-push")
        assert installed.returncode == 0, installed.stdout + installed.stderr

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))},
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "PRE_COMMIT_HOME": str(self.home / "pre-commit"),
            "REGBOT_CACHE": str(self.home / "cache"),
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        program = shutil.which(command[0], path=environment["PATH"]) or command[0]
        return subprocess.run(
            [program, *command[1:]], cwd=self.clone.path, env=environment, capture_output=True, text=True, timeout=300
        )

    def branch(self, name: str, files: dict[str, str]) -> str:
        self.clone.git("checkout", "-q", "-b", name, "origin/main")
        return self.clone.commit(name, files)

    def push(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of ``git push origin``."""
        pushed = self.run("git", "push", "-q", "origin", *arguments)
        return pushed.returncode, pushed.stdout + pushed.stderr

    def pushed_branches(self) -> set[str]:
        return set(self.origin.git("branch", "--format=%(refname:short)").split())


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_each_hook_runs_the_command_once_before_a_push() -> None:
    hooks = YAML(typ="safe").load(HOOKS)
    assert [hook["id"] for hook in hooks] == ["regbot", "regbot-system"]
    for hook in hooks:
        fixed = (hook["entry"], hook["stages"], hook["pass_filenames"], hook["always_run"], hook["verbose"])
        assert fixed == ("regbot pre-push", ["pre-push"], False, True, True)


@needs_pre_commit
def test_pre_commit_accepts_the_manifest() -> None:
    command = [PROGRAMS / "pre-commit", "validate-manifest", HOOKS]
    validated = subprocess.run(command, capture_output=True, text=True)
    assert validated.returncode == 0, validated.stdout + validated.stderr


@needs_pre_commit
@pytest.mark.slow
def test_a_push_with_another_collective_is_stopped_and_a_harmless_one_is_not(workplace: Workplace) -> None:
    workplace.start({"regbot.toml": CONFIG, **LAYER})
    workplace.branch("bad", {"userpkg/moe.py": BAD_LAYER})
    workplace.branch("harmless", {"userpkg/moe.py": f"{GOOD_LAYER}\n# a comment\n"})
    code, text = workplace.push("bad")  # while "harmless" is checked out
    assert code != 0
    assert "FAIL" in text
    assert "git push --no-verify" in text
    assert str(workplace.home / "cache") in text, "where the report is"
    code, text = workplace.push("harmless")
    assert (code, "PASS" in text) == (0, True), text
    assert workplace.pushed_branches() == {"main", "harmless"}
    assert workplace.clone.git("status", "--porcelain") == ""


@needs_pre_commit
@pytest.mark.slow
def test_the_push_that_introduces_regbot_is_not_stopped(workplace: Workplace) -> None:
    workplace.start({"README.md": ""})
    workplace.clone.commit("layer and configuration", {"regbot.toml": CONFIG, **LAYER})
    code, text = workplace.push("main")
    assert (code, "INVALID" in text) == (0, True), text


@needs_pre_commit
@pytest.mark.slow
def test_a_configuration_that_cannot_be_read_stops_the_push(workplace: Workplace) -> None:
    workplace.start({"regbot.toml": "version = \n", **LAYER})
    workplace.branch("pr", {"README.md": ""})
    code, text = workplace.push("pr")
    assert (code != 0, "regbot.toml" in text) == (True, True), text
    assert workplace.pushed_branches() == {"main"}
