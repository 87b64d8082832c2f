"""Shipped workflows, executed on this machine: what they call, and that nothing that people write is executed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from github_fake import FakeGitHub, Repository
from github_fake.fixtures import hub as hub
from support.hostile import BRANCH, CANARY, LINES, SHELL, TEXTS, hostile, inert, leaks
from support.workflow_rules import SHIPPED
from support.workflows_act import BOT, Actions, Ran, needs_act

pytestmark = needs_act

NONCE = "0123456789abcdef"
SECRETS = {"REGBOT_PRIVATE_KEY": "-----BEGIN CANARY KEY-----"}
VARIABLES = {"REGBOT_CLIENT_ID": "Iv1.canary"}


class Scene:
    """A repository with a pull request of a stranger, whose every name is hostile, and a regbot that only records."""

    def __init__(self, hub: FakeGitHub, folder: Path) -> None:
        self.repo: Repository = hub.repository("acme/moe")
        self.repo.member("ann", "maintain")
        workflows = {f".github/workflows/{path.name}": path.read_text() for path in SHIPPED}
        self.repo.commit({**workflows, "regbot.toml": "version = 1\n"}, message=f"{SHELL}\n\n{LINES}")
        self.base = self.repo.git.branch("main") or ""
        self.fork = self.repo.fork("mallory")
        self.head = self.fork.commit({"a'; touch $CANARY; '.py": SHELL}, branch=BRANCH, message=LINES, author="mallory")
        self.number = self.repo.open_pull(head=f"mallory:{BRANCH}", title=SHELL, author="mallory", body=LINES)
        self.actions = Actions(hub, self.repo, folder / "runs", record=True, variables=VARIABLES, secrets=SECRETS)
        self.actions.environment[CANARY] = str(folder / CANARY)
        self.text = SHELL
        """Written wherever people write."""

    def run(self, name: str, event: str, job: str, **subject: object) -> Ran:
        payload = hostile(self.repo.event_of(event, **subject), self.text)
        of_pull = {"head_sha": self.head, "head_branch": BRANCH, "head_repository": self.fork, "title": self.text}
        ran = self.actions.execute(name, event, payload, job, **(of_pull if event == "pull_request" else {}))
        assert leaks(self.actions) == []
        return ran

    def dispatch(self, name: str, job: str, title: str = "a run", **inputs: str) -> Ran:
        payload = self.repo.event_of("workflow_dispatch", workflow=f"{name}.yml", inputs=inputs)
        ran = self.actions.execute(name, "workflow_dispatch", payload, job, title=title)
        assert leaks(self.actions) == []
        return ran


@pytest.fixture(params=list(TEXTS))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with FakeGitHub(tmp_path) as hub:
        made = Scene(hub, tmp_path)
        made.text = TEXTS[request.param]
        yield made


def words(ran: Ran) -> list[list[str]]:
    """How regbot was called, without the folders that are new for each run."""
    return [[word for word in call["words"] if not word.startswith("/")] for call in ran.calls]


def given(ran: Ran) -> list[str]:
    """The names of variables in which regbot was given a token, one list for all calls."""
    return [name for call in ran.calls for name, value in call["environment"].items() if "ghs_" in value]


def test_a_pull_request_is_traced_without_a_token(scene: Scene) -> None:
    ran = scene.run("regbot-static", "pull_request", "trace", number=scene.number)
    arms = ["--base", scene.base, "--head", scene.head]
    assert words(ran) == [["check", "--no-timing", "--repo", "code", *arms, "--out"]]
    assert given(ran) == []
    assert [artifact.name for artifact in ran.run.artifacts] == ["regbot-session"]
    assert ran.code == 0


@pytest.mark.slow
def test_a_measurement_has_no_token_and_takes_only_what_its_inputs_are_called(scene: Scene) -> None:
    fine = {"pr": str(scene.number), "sha": scene.head, "base": scene.base, "nonce": NONCE, "more": "0"}
    ran = scene.dispatch("regbot-measure", "measure", **fine)
    arms = ["--base", scene.base, "--head", scene.head]
    node, rest = ["--node-config", "trusted/regbot.toml"], ["--engine", "local", "--more", "0", "--out"]
    assert words(ran) == [["check", "--untrusted", *node, "--repo", "code", *arms, *rest]]
    assert given(ran) == []
    assert ran.installed == []  # the node's own regbot measures
    for name in ("sha", "more"):  # each by itself: test_workflows.py
        refused = scene.dispatch("regbot-measure", "measure", **{**fine, name: scene.text})
        assert refused.code != 0
        assert (refused.calls, refused.run.artifacts) == ([], [])


@pytest.mark.slow
def test_a_bisection_has_no_token_and_takes_only_what_its_inputs_are_called(scene: Scene) -> None:
    fine = {"pr": str(scene.number), "good": scene.base, "bad": scene.head, "nonce": NONCE, "workload": "moe/ep"}
    ran = scene.dispatch("regbot-bisect", "answer", **fine)
    search, answer = words(ran)
    assert search[:4] == ["bisect", scene.base, scene.head, "--untrusted"]
    assert answer == ["github", "post", "--event"]
    assert given(ran) == ["GITHUB_TOKEN"]
    assert "GITHUB_TOKEN" not in ran.calls[0]["environment"]
    for name in ("nonce", "workload"):
        refused = scene.dispatch("regbot-bisect", "answer", **{**fine, name: scene.text})
        assert words(refused) == [["github", "post", "--event"]]  # whoever asked is told that it failed
        assert refused.run.artifacts == []


@pytest.mark.slow
def test_a_refresh_has_no_token_on_the_node_and_the_apps_where_no_code_is_run(scene: Scene) -> None:
    ran = scene.actions.execute("regbot-refresh", "schedule", {"schedule": "17 2 * * *"}, "propose")
    measure, propose = words(ran)
    assert measure[:2] == ["baseline", "refresh"]
    assert propose == ["github", "refresh", "--event"]
    assert "GITHUB_TOKEN" not in ran.calls[0]["environment"]
    app = [token for token, who in scene.actions.hub.tokens.items() if who.login != "github-actions[bot]"]
    assert ran.calls[1]["environment"]["GITHUB_TOKEN"] in app
    assert leaks(scene.actions) == []
    assert ran.code == 0


@pytest.mark.parametrize(("branch", "runs"), [("main", True), ("topic", False)])
def test_only_the_default_branch_is_refreshed_from(hub: FakeGitHub, tmp_path: Path, branch: str, runs: bool) -> None:
    scene = Scene(hub, tmp_path)
    payload = scene.repo.event_of("workflow_dispatch", workflow="regbot-refresh.yml", ref=branch)
    ran = scene.actions.execute("regbot-refresh", "workflow_dispatch", payload, "propose")
    assert ([call[:2] for call in words(ran)] == [["baseline", "refresh"], ["github", "refresh"]]) == runs
    assert bool(ran.calls) == runs


def real(scene: Scene) -> None:
    """From here on regbot is itself."""
    scene.actions.record = False


def said(scene: Scene) -> list[str]:
    """What regbot wrote into the pull request, all of it inert."""
    texts = [each.body for each in scene.repo.comments(scene.number) if each.author == BOT]
    texts += [f"{each.title}\n\n{each.summary}" for each in scene.repo.all_checks.values()]
    assert [found for text in texts for found in inert(text)] == []
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("action", ["reopened", "synchronize", "labeled", "edited"])
def test_the_gate_itself_does_nothing_that_a_title_or_a_label_says(scene: Scene, action: str) -> None:
    real(scene)
    scene.repo.label(scene.number, "mallory", "regbot: measure")
    asked = {"number": scene.number, "action": action, "label": "regbot: measure", "sender": "mallory"}
    assert scene.run("regbot-gate", "pull_request_target", "gate", **asked).code == 0
    started = [(dispatch.workflow, dispatch.inputs) for dispatch in scene.repo.dispatched]
    posts = [(".github/workflows/regbot-post.yml", {"change": str(scene.number)})]
    assert started == (posts if action in ("reopened", "synchronize") else [])
    said(scene)
