"""A monorepo with three workloads on GitHub, with the real regbot and workflows that are really executed: a change that
concerns one workload, and a change that concerns none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from github_fake import CheckRun, FakeGitHub, Repository
from regbot.records.session import Session
from support.workflow_rules import ROOT, SHIPPED
from support.workflows_act import BOT, Actions, Ran, needs_act

pytestmark = [needs_act, pytest.mark.long]

TEAMS = ("ranking", "search", "speech")
WORKLOAD = """\
[workloads.{team}]
adapter = "module"
entry = "{team}.layer:build_layer"
label = "{team}"
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
paths = ["{team}/", "libs/"]
"""
CONFIG = "version = 1\n" + "".join(WORKLOAD.format(team=team) for team in TEAMS)
DISPATCH, WORSE = "= AllToAll, AllToAll", "= Gather, Reduce"


@dataclass
class Answer:
    """What a person sees of one pull request, and what was run for it."""

    comment: str
    check: CheckRun
    session: Session


@dataclass
class Monorepo:
    hub: FakeGitHub
    repo: Repository
    actions: Actions
    answers: dict[str, Answer] = field(default_factory=dict)

    def propose(self, branch: str, files: dict[str, str]) -> None:
        """Open a pull request, and let its workflows run."""
        head = self.repo.commit(files, branch=branch, message=f"Change {branch}", author="ann")
        number = self.repo.open_pull(head=branch, author="ann")
        of_head = {"head_sha": head, "head_branch": branch, "head_repository": self.repo}
        payload = self.repo.event_of("pull_request", number=number)
        traced = fine(self.actions.execute("regbot-static", "pull_request", payload, "trace", **of_head))
        fine(self.actions.ended(traced))
        (comment,) = [comment.body for comment in self.repo.comments(number) if comment.author == BOT]
        check = self.repo.shown_check(head, "regbot")
        assert check is not None
        self.answers[branch] = Answer(comment, check, traced.session)


def fine(ran: Ran) -> Ran:
    assert ran.code == 0, ran.log
    return ran


@pytest.fixture(scope="module")
def monorepo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monorepo]:
    folder = tmp_path_factory.mktemp("monorepo")
    layer = (ROOT / "docs/examples/moe_layer.py").read_text()
    assert DISPATCH in layer
    with FakeGitHub(folder) as hub:
        repo = hub.repository("acme/everything")
        repo.member("ann", "write")
        files = {f".github/workflows/{path.name}": path.read_text() for path in SHIPPED}
        files |= {f"{team}/layer.py": layer for team in TEAMS}
        files |= {"regbot.toml": CONFIG, "web/app.py": "PORT = 80\n", "libs/io.py": "BLOCK = 4096\n"}
        repo.commit(files, message="Everything", author="ann")
        actions = Actions(hub, repo, folder / "runs")
        actions.environment = {"REGBOT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        scene = Monorepo(hub, repo, actions)
        scene.propose("search", {"search/layer.py": layer.replace(DISPATCH, WORSE)})
        scene.propose("web", {"web/app.py": "PORT = 8080\n"})
        yield scene


def test_only_the_workload_that_a_change_concerns_is_traced(monorepo: Monorepo) -> None:
    answer = monorepo.answers["search"]
    assert {run.workload for run in answer.session.runs} == {"search:mixtral-8x7b@1/ep"}
    assert "all-to-all replaced by gather and sum" in answer.comment
    assert "Not measured: `ranking:mixtral-8x7b@1/ep`, `speech:" in answer.comment
    assert "No changed file matches the paths of these workloads." in answer.comment
    assert answer.comment.count("| `search:mixtral-8x7b@1/ep` | base |") == 1
    assert "| `ranking:mixtral-8x7b@1/ep` | base |" not in answer.comment
    assert answer.check.conclusion == "failure"


def test_a_change_that_concerns_no_workload_is_neutral_without_a_trace(monorepo: Monorepo) -> None:
    answer = monorepo.answers["web"]
    assert answer.session.runs == []  # nothing was started, so the answer takes seconds
    assert "no changed file matches the paths of a workload, so nothing was measured" in answer.comment
    assert "| base | 1 |" not in answer.comment
    assert (answer.check.status, answer.check.conclusion) == ("completed", "neutral")
