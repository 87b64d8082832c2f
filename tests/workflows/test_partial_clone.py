"""regbot-static fetches commits without files where anybody may read the repository, and all files elsewhere."""

import shutil
from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from support.workflow_rules import SHIPPED
from support.workflows_act import Actions, Ran, needs_act

pytestmark = needs_act

GITHUB = "https://github.com"
CONFIG = """\
version = 1
[workloads.moe]
adapter = "module"
entry = "train.moe:build_layer"
paths = ["train/"]
"""


def trace(hub: FakeGitHub, folder: Path, server: str, *, private: bool) -> Ran:
    """Trace a change that concerns no workload. The job checks out head, whose regbot.toml is not that of the base."""
    repo = hub.repository("acme/moe", private=private)
    repo.commit({"regbot.toml": CONFIG, "train/moe.py": "x = 1\n", "web/app.py": "PORT = 80\n"}, message="start")
    workflows = folder / "workflows"
    workflows.mkdir()
    for path in SHIPPED:
        shutil.copy(path, workflows)
    static = workflows / "regbot-static.yml"
    assert GITHUB in static.read_text()
    static.write_text(static.read_text().replace(GITHUB, server))
    actions = Actions(hub, repo, folder / "runs", workflows=workflows)
    actions.environment = {"REGBOT_CACHE": str(folder / "cache")}
    head = repo.commit({"web/app.py": "PORT = 8080\n", "regbot.toml": f"# Ours\n{CONFIG}"}, branch="topic")
    payload = repo.event_of("pull_request", number=repo.open_pull(head="topic", author="ann"))
    return actions.execute("regbot-static", "pull_request", payload, "trace", head_sha=head, head_branch="topic")


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True], ids=["public", "private"])
def test_only_a_public_repository_is_cloned_without_files(hub: FakeGitHub, tmp_path: Path, private: bool) -> None:
    ran = trace(hub, tmp_path, hub.server_url, private=private)
    assert ran.code == 0, ran.log
    assert ("files are left out: blob:none" in ran.log) == (not private)
    assert ran.session.header.base.commit
    assert ran.session.runs == []


@pytest.mark.slow
def test_on_an_enterprise_server_all_files_are_fetched(hub: FakeGitHub, tmp_path: Path) -> None:
    """A server in private mode shows a public repository to nobody without a token."""
    ran = trace(hub, tmp_path, GITHUB, private=False)
    assert ran.code == 0, ran.log
    assert "files are left out: blob:none" not in ran.log
