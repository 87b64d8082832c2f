"""docs/tutorial.md is true: its commands are executed in order, with a regbot that was installed from a wheel, up to
the comment on a pull request of the fake GitHub; what they print is what the page shows."""

import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.records.config import GitHub, parse_config
from support.docs_cases import BLOCK, missing
from support.guest_runs import Shared
from support.workflows_act import Actions, needs_act

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"<!-- shown: (\w+) -->\n```text\n(.*?)\n```", re.DOTALL)
INSTALL, REPOSITORY, MOE = "install", "repository", "moe"

COMMIT = re.compile(r"\b[0-9a-f]{12}\b")
SLURM = re.compile(r"^Slurm  +yes .*\n", re.MULTILINE)
"""Found where this machine submits to a cluster."""


def steady(text: str) -> str:
    """``text`` without what differs from machine to machine; empty lines are written out, so that one that is missing
    has a name."""
    lines = SLURM.sub("", COMMIT.sub("COMMIT", text)).splitlines()
    return "\n".join(line or "(an empty line)" for line in lines)


def wheel(folder: Path) -> None:
    """Build regbot's wheel in ``folder`` from a copy of the sources."""
    sources(folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def sources(folder: Path) -> None:
    for name in ("regbot", "workflows"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder)


def shared_checkout(folder: Path) -> Path:
    """A repository with what is shipped, to be cloned."""
    folder.mkdir()
    sources(folder)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "regbot"]):
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def wheels(shared: Shared) -> Path:
    """A folder with regbot's wheel, built once."""
    return shared("wheel", wheel)


def others(folder: Path) -> Path:
    """What is installed beside this interpreter, without regbot and pip: what a package index would have brought."""
    folder.mkdir()
    for packages in map(Path, site.getsitepackages()):
        for each in packages.iterdir():
            if not re.match(r"regbot|__editable__|pip(-|$)|.*\.pth$|__pycache__", each.name):
                (folder / each.name).symlink_to(each)
    return folder


class Reader:
    """Somebody who follows the page in ``home``, whose package index is ``wheels``."""

    def __init__(self, home: Path, wheels: Path) -> None:
        self.home = home
        home.mkdir()
        tools = home.parent / "tools"
        tools.mkdir()
        beside = others(home.parent / "others")
        python = tools / "python3"
        python.write_text(
            f'#!/bin/sh\n{sys.executable} "$@" && cd .venv/lib/python*/site-packages || exit\n'
            f"rm -rf setuptools* && echo {beside} >others.pth\n"  # an old one, which Python may bring along
        )
        python.chmod(0o755)
        who = {f"GIT_{who}_{what}": "Ada Example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self.environment = {
            "PATH": f"{home / '.venv' / 'bin'}:{tools}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "REGBOT_CACHE": str(home.parent / "cache"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_NO_BUILD_ISOLATION": "false",  # that is: no isolation, which would ask the network
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            **who,
        }

    @property
    def repository(self) -> Path:
        return self.home / "moe"

    def follow(self, kind: str, commands: str, shown: str) -> None:
        """Execute a block, and hold what it prints against what the page shows."""
        at = self.repository if kind == MOE else self.home
        words = ["bash", "-e", "-c", commands]
        found = subprocess.run(
            words, cwd=at, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        printed = f"{found.stdout}exit code {found.returncode}\n"
        if not shown:
            assert found.returncode == 0, f"{commands}\n{printed}{found.stderr}"
            return
        wrong = missing(steady(shown), steady(printed))
        assert not wrong, f"{commands}\nnot printed: {wrong}\n{printed}{found.stderr}"
        assert shown.splitlines()[-1] == f"exit code {found.returncode}", found.stderr


def blocks() -> list[tuple[str, str, str]]:
    return BLOCK.findall(PAGE)


def shown() -> Mapping[str, str]:
    return dict(SHOWN.findall(PAGE))


@needs_act
@pytest.mark.long
def test_from_nothing_to_a_posted_verdict(tmp_path: Path, wheels: Path, hub: FakeGitHub) -> None:
    reader = Reader(tmp_path / "home", wheels)
    hosted = hub.repository("YOU/moe")
    hosted.git.run("update-ref", "-d", "refs/heads/main")  # empty, as it is when it was created
    token = hub.token("YOU", contents="write", repositories=["YOU/moe"])
    address = hosted.clone_url.replace("://", f"://x-access-token:{token}@")
    checkout = shared_checkout(tmp_path / "checkout")
    reader.environment |= {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_1": f"url.{checkout}.insteadOf",
        "GIT_CONFIG_VALUE_1": "https://github.com/YOU/regbot.git",
        "GIT_CONFIG_KEY_0": f"url.{address}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/YOU/moe.git",
    }
    for block in blocks():
        reader.follow(*block)
    head = hosted.git.branch("gather-more")
    assert head is not None

    # What GitHub does from here on, with the workflows that were pushed.
    workflows = reader.repository / ".github" / "workflows"
    actions = Actions(hub, hosted, tmp_path / "runs", workflows=workflows)
    actions.environment["REGBOT_CACHE"] = str(tmp_path / "cache")
    number = hosted.open_pull(head="gather-more", title="Gather larger batches too", author="YOU")
    opened = hosted.event_of("pull_request", action="opened", number=number)
    traced = actions.execute(
        "regbot-static", "pull_request", opened, "trace", title=f"regbot-static {number}",
        head_sha=head, head_branch="gather-more",
    )  # fmt: skip
    assert traced.code == 0, traced.log
    posted = actions.ended(traced)
    assert posted.code == 0, posted.log
    (comment,) = hosted.comments(number)
    wrong = missing(steady(shown()["comment"]), steady(comment.body))
    assert not wrong, f"not posted: {wrong}\n{comment.body}"
    (check,) = [each for each in hosted.check_runs(head) if each.name == "regbot"]
    assert (check.status, check.conclusion) == ("completed", "failure")

    # A measurement, up to the node.
    asked = hosted.comment(number, "YOU", shown()["question"])
    replied = actions.execute(
        "regbot-gate", "issue_comment", hosted.event_of("issue_comment", comment=asked), "command"
    )
    assert replied.code == 0, replied.log
    exact = shown()["answer"].replace("SHA", head)
    assert exact in hosted.comments(number)[-1].body
    assert hosted.dispatched == []
    asked = hosted.comment(number, "YOU", exact)
    started = actions.execute(
        "regbot-gate", "issue_comment", hosted.event_of("issue_comment", comment=asked), "command"
    )
    assert started.code == 0, started.log
    (dispatch,) = hosted.dispatched
    assert dispatch.workflow.endswith("regbot-measure.yml")
    assert (dispatch.inputs["sha"], dispatch.inputs["base"]) == (head, hosted.git.branch("main"))


def test_every_command_is_executed() -> None:
    every = blocks()
    assert len(every) == PAGE.count("```sh\n") >= 8
    assert [kind for kind, _, _ in every][:2] == [INSTALL, REPOSITORY]
    assert {kind for kind, _, _ in every[2:]} == {MOE}
    assert set(shown()) == {"comment", "question", "answer"}
    assert PAGE.count("```text\n") == len(shown()) + sum(bool(text) for _, _, text in every)


def test_the_configuration_of_the_page_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert parse_config(text, "docs/tutorial.md").github == GitHub(shadow=True)
