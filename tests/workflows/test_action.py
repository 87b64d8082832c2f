"""The action of ``action.yml``: what linters say, and the workflow of the documentation executed with it."""

import re
import shutil
from pathlib import Path

import pytest

from github_fake import FakeGitHub, Repository
from github_fake.fixtures import hub as hub
from support.hostile import CANARY, leaks
from support.layers import CONFIG, GOOD_LAYER
from support.linters import action_schema, actionlint, schema, zizmor
from support.workflow_rules import ROOT
from support.workflows_act import Actions, Ran, needs_act

ACTION = ROOT / "action.yml"
PAGE = (ROOT / "docs" / "github.md").read_text()
(EXAMPLE,) = re.findall(r"<!-- action -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
USED = "OWNER/regbot@v0"
FORWARD = "    def forward(self, x):\n"
SUM = "        dist.all_reduce(torch.ones(4, device=x.device), group=self.group)\n"


@pytest.mark.parametrize("lint", [zizmor, action_schema], ids=lambda lint: lint.__name__)
def test_linters_find_nothing(lint) -> None:
    found = lint(ACTION)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_workflow_of_the_page_is_a_valid_workflow(tmp_path: Path) -> None:
    file = tmp_path / "collectives.yml"
    file.write_text(EXAMPLE)
    for lint in (actionlint, schema):
        found = lint(file)
        assert found.returncode == 0, found.stdout + found.stderr


class Scene:
    """A repository with a pull request, and the workflow of the page."""

    def __init__(self, hub: FakeGitHub, folder: Path, workflow: str = EXAMPLE) -> None:
        self.repo: Repository = hub.repository("acme/moe")
        files = {"userpkg/__init__.py": "", "userpkg/moe.py": GOOD_LAYER, "regbot.toml": CONFIG}
        self.repo.commit({**files, "requirements.txt": "einops==0.8.1\n"}, message="start")
        action, workflows = folder / "action", folder / "workflows"
        action.mkdir()
        workflows.mkdir()
        shutil.copy(ACTION, action)
        (workflows / "collectives.yml").write_text(workflow)
        self.actions = Actions(hub, self.repo, folder / "runs", workflows=workflows, own_actions={USED: action})
        self.actions.environment["REGBOT_CACHE"] = str(folder / "cache")

    def run(self, branch: str, files: dict[str, str | None]) -> Ran:
        head = self.repo.commit(files, branch=branch)
        number = self.repo.open_pull(head=branch, author="ann")
        payload = self.repo.event_of("pull_request", action="opened", number=number)
        return self.actions.execute(
            "collectives", "pull_request", payload, "collectives", head_sha=head, head_branch=branch
        )


@needs_act
def test_it_installs_its_own_regbot_with_a_cpu_build_and_the_projects_requirements(
    hub: FakeGitHub, tmp_path: Path
) -> None:
    scene = Scene(hub, tmp_path)
    scene.actions.record = True
    ran = scene.run("topic", {"notes.md": ""})
    assert ran.code == 0, ran.log
    torch, others = ran.installed
    index = "https://download.pytorch.org/whl/cpu"
    assert torch == f"-I -m pip install --quiet --index-url {index} torch>=2.11"
    assert re.fullmatch(
        rf"-I -m pip install --quiet --extra-index-url {index} /\S+\[smoke\] --requirement requirements\.txt", others
    )
    assert "pip is cached by requirements.txt" in ran.log


@needs_act
def test_a_module_of_the_checkout_that_is_called_like_one_of_python_is_not_imported(
    hub: FakeGitHub, tmp_path: Path
) -> None:
    """GitHub runs every step in the folder of the checkout."""
    scene = Scene(hub, tmp_path)
    scene.actions.record = True
    scene.actions.environment[CANARY] = str(tmp_path / CANARY)
    planted = f"import os\nopen(os.environ[{CANARY!r}], 'w')\n"
    ran = scene.run("topic", {"pip.py": planted, "json.py": planted})
    assert (ran.code, len(ran.installed)) == (0, 2), ran.log
    assert leaks(scene.actions) == []


@needs_act
def test_every_line_of_requirements_and_workloads_counts(hub: FakeGitHub, tmp_path: Path) -> None:
    one_file = "requirements: requirements.txt\n"
    assert EXAMPLE.endswith(f"          {one_file}")
    indent = "\n            "
    inputs = ["requirements: |", "requirements.txt", "more.txt\n          workloads: |", "one", "two\n"]
    scene = Scene(hub, tmp_path, EXAMPLE.replace(one_file, indent.join(inputs)))
    scene.actions.record = True
    ran = scene.run("topic", {"more.txt": ""})
    assert ran.code == 0, ran.log
    assert ran.installed[-1].endswith("[smoke] --requirement requirements.txt --requirement more.txt")
    (call,) = ran.calls
    base = scene.repo.git.branch("main")
    expected = ["check", "--no-timing", "--repo", ".", "--base", base, "--head", "HEAD"]
    assert call["words"][:-1] == [*expected, "--workload", "one", "--workload", "two", "--out"]


@needs_act
@pytest.mark.slow
@pytest.mark.parametrize(("line", "status"), [("", "PASS"), (SUM, "REVIEW")], ids=["harmless", "another collective"])
def test_the_job_of_the_page_fails_for_a_change_of_the_collectives_and_passes_for_a_comment(
    hub: FakeGitHub, tmp_path: Path, line: str, status: str
) -> None:
    scene = Scene(hub, tmp_path)
    changed = f"# A comment.\n{GOOD_LAYER.replace(FORWARD, FORWARD + line)}"
    ran = scene.run("topic", {"userpkg/moe.py": changed})
    assert (ran.code == 0) == (status == "PASS"), ran.log
    assert f"verdict={status}" in ran.log.replace(" ", ""), ran.log
