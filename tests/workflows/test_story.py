"""The whole story with the real regbot: a stranger's pull request from its first comment to a measured verdict, a push,
a bisection, a merge group, and the pull request that refreshes the references. Every step is a workflow that is really
executed.

The stranger is hostile: title, branch, commit subjects, a file's name and a comment are what attackers write.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from github_fake import CheckRun, Comment, FakeGitHub, Repository
from support.hostile import BRANCH, CANARY, LINES, SHELL, inert, leaks
from support.required import needed
from support.workflow_rules import ROOT, SHIPPED
from support.workflows_act import BOT, Actions, Ran, needs_act

pytestmark = [
    needs_act,
    pytest.mark.long,
    needed("SANDBOX", "" if shutil.which("bwrap") else "there is no bubblewrap, without which nothing is measured"),
]

LAYER = "moe/layer.py"
CONFIG = """\
version = 1
[workloads.moe]
adapter = "module"
entry = "moe.layer:build_layer"
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
[session]
steps = 6
warmup = 2
budget_min = {budget_min}
[github]
queue = "timed"
"""
DISPATCH = "= AllToAll, AllToAll"
WORSE = "= Gather, Reduce"


@dataclass(frozen=True)
class Seen:
    """What a person sees of the pull request."""

    comments: list[Comment]
    check: CheckRun | None

    @property
    def verdict(self) -> Comment:
        (found,) = [each for each in self.comments if each.body.startswith("<!-- regbot:verdict ")]
        return found

    @property
    def marker(self) -> dict[str, object]:
        first = self.verdict.body.splitlines()[0]
        found: dict[str, object] = json.loads(first.removeprefix("<!-- regbot:verdict ").removesuffix(" -->"))
        return found


@dataclass
class Story:
    hub: FakeGitHub
    repo: Repository
    fork: Repository
    actions: Actions
    number: int = 0
    head: str = ""
    culprit: str = ""
    seen: dict[str, Seen] = field(default_factory=dict)

    def look(self, chapter: str) -> None:
        comments = [Comment(**vars(each)) for each in self.repo.comments(self.number)]
        check = self.repo.shown_check(self.head, "regbot")
        self.seen[chapter] = Seen(comments, CheckRun(**vars(check)) if check else None)

    def fine(self, ran: Ran) -> Ran:
        assert ran.code == 0, ran.log
        return ran

    def gate(self, action: str, **more: str) -> None:
        payload = self.repo.event_of("pull_request_target", action=action, number=self.number, **more)
        self.fine(self.actions.execute("regbot-gate", "pull_request_target", payload, "gate"))

    def static(self, payload: dict[str, Any] | None = None) -> None:
        pull = self.repo.pulls[self.number]
        payload = payload or self.repo.event_of("pull_request", number=self.number)
        of_head = {"head_sha": self.head, "head_branch": pull.head, "head_repository": pull.head_repository}
        ran = self.actions.execute("regbot-static", "pull_request", payload, "trace", **of_head)
        self.fine(self.actions.ended(self.fine(ran)))

    def queue(self) -> None:
        """Put the pull request into the merge queue. The gate acts when the trace is requested, before it ends."""
        payload = self.repo.event_of("merge_group", number=self.number)
        group = payload["merge_group"]
        self.head, branch = group["head_sha"], group["head_ref"].removeprefix("refs/heads/")
        of_group = {"head_sha": self.head, "head_branch": branch}
        traced = self.fine(self.actions.execute("regbot-static", "merge_group", payload, "trace", **of_group))
        self.fine(self.actions.ended(traced))
        self.look("group traced")
        requested = self.repo.event_of("workflow_run", run=traced.run, action="requested")
        self.fine(self.actions.execute("regbot-gate", "workflow_run", requested, "gate"))
        self.measured("measuring the group")
        self.look("group measured")

    def say(self, login: str, text: str) -> None:
        comment = self.repo.comment(self.number, login, text)
        payload = self.repo.event_of("issue_comment", comment=comment)
        self.fine(self.actions.execute("regbot-gate", "issue_comment", payload, "command"))

    def measured(self, chapter: str = "measuring") -> None:
        for ran in self.actions.follow():
            self.fine(ran)
            if ran.run.path.endswith("/regbot-measure.yml"):
                self.look(chapter)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("story")
    layer = (ROOT / "docs/examples/moe_layer.py").read_text()
    assert DISPATCH in layer
    with FakeGitHub(folder) as hub:
        repo = hub.repository("acme/moe")
        repo.member("ann", "write")
        repo.member("bob", "triage")
        workflows = {f".github/workflows/{path.name}": path.read_text() for path in SHIPPED}
        first = {**workflows, "regbot.toml": CONFIG.format(budget_min=1), LAYER: layer}
        repo.commit(first, message="A layer", author="ann")
        fork = repo.fork("mallory")
        fork.commit({"a'; touch $CANARY; '.md": LINES}, branch=BRANCH, message=LINES, author="mallory")
        actions = Actions(hub, repo, folder / "runs")
        actions.environment = {
            "REGBOT_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            CANARY: str(folder / CANARY),
        }
        told = Story(hub, repo, fork, actions)
        _tell(told, layer)
        yield told


def _tell(told: Story, layer: str) -> None:
    repo, fork = told.repo, told.fork
    worse = {LAYER: layer.replace(DISPATCH, WORSE)}
    told.culprit = told.head = fork.commit(
        worse, branch=BRANCH, message=f"Tidy up the dispatch {SHELL}\n\n{LINES}", author="mallory"
    )
    told.number = repo.open_pull(head=f"mallory:{BRANCH}", title=SHELL, author="mallory", body=LINES)
    told.gate("opened")
    told.static()
    told.look("opened")

    told.say("mallory", f"/regbot run {told.head}\n{LINES}")
    told.say("bob", f"/regbot run {told.head}")
    assert list(told.actions.follow()) == []
    told.look("refused")

    told.say("ann", f"/regbot run {told.head}")
    told.measured()
    told.look("measured")

    before, told.head = (
        told.head,
        fork.commit({"log.py": SHELL}, branch=BRANCH, message=SHELL, author="mallory"),
    )
    told.gate("synchronize", before=before)
    told.measured()
    told.look("pushed")
    told.static()
    told.look("traced again")

    told.say("ann", f"/regbot bisect {repo.git.branch('main')}..{told.head}")
    for ran in told.actions.follow():
        told.fine(ran)
    told.look("bisected")

    _merge(told, layer)

    repo.commit({"regbot.toml": CONFIG.format(budget_min=10)}, message="More time", author="ann")
    told.actions.variables = {"REGBOT_CLIENT_ID": "Iv1.regbot"}
    told.actions.secrets = {"REGBOT_PRIVATE_KEY": "-----BEGIN KEY-----"}
    told.fine(told.actions.execute("regbot-refresh", "schedule", {"schedule": "17 2 * * *"}, "propose"))


def _merge(told: Story, layer: str) -> None:
    """An honest pull request goes through the merge queue."""
    repo, stranger, strangers_head = told.repo, told.number, told.head
    told.head = repo.commit(
        {LAYER: f"{layer}\n# It has eight experts.\n"}, branch="honest", message="A comment", author="ann"
    )
    told.number = repo.open_pull(head="honest", author="ann")
    told.gate("opened")
    told.static()
    told.look("honest")
    told.queue()
    told.number, told.head = stranger, strangers_head


def test_a_strangers_pull_request_gets_a_static_verdict_that_says_whose_word_it_is(story: Story) -> None:
    opened = story.seen["opened"]
    assert opened.verdict.author == BOT
    assert opened.marker["tier"] == "static"
    assert opened.marker["head"] == story.culprit
    assert "all-to-all replaced by gather and sum" in opened.verdict.body
    assert "Self-reported" in opened.verdict.body
    assert opened.check is not None
    assert (opened.check.status, opened.check.conclusion) == ("completed", "failure")


def test_who_may_not_ask_is_told_so_and_nothing_is_started(story: Story) -> None:
    refused = story.seen["refused"]
    answers = [each for each in refused.comments if each not in story.seen["opened"].comments and each.author == BOT]
    assert any("bob" in each.body and "write" in each.body for each in answers)
    assert refused.check == story.seen["opened"].check


def test_the_check_run_says_that_a_measurement_is_under_way(story: Story) -> None:
    check = story.seen["measuring"].check
    assert check is not None
    assert (check.status, check.conclusion) == ("in_progress", None)
    assert check.external_id.startswith(f"{story.number}:{story.culprit}:")


def test_the_same_comment_is_edited_with_what_was_measured(story: Story) -> None:
    opened, measured = story.seen["opened"], story.seen["measured"]
    assert measured.verdict.id == opened.verdict.id
    assert measured.marker["tier"] == "measured"
    assert "hroughput" in measured.verdict.body
    assert "Self-reported" not in measured.verdict.body
    assert measured.check is not None
    assert (measured.check.status, measured.check.conclusion) == ("completed", "failure")


def test_a_push_makes_the_comment_stale_until_the_new_head_is_judged(story: Story) -> None:
    pushed, again = story.seen["pushed"], story.seen["traced again"]
    assert pushed.verdict.id == again.verdict.id == story.seen["opened"].verdict.id
    assert pushed.marker["head"] == story.culprit
    assert story.culprit[:7] in pushed.verdict.body.split("\n\n")[0] + pushed.verdict.body.split("\n\n")[1]
    assert pushed.check is None
    assert again.marker["head"] == story.head
    assert again.check is not None


def test_a_bisection_names_the_commit_where_it_was_asked_for(story: Story) -> None:
    before = {each.id for each in story.seen["traced again"].comments}
    new = [each for each in story.seen["bisected"].comments if each.id not in before and each.author == BOT]
    (answer,) = [each for each in new if "Tidy up the dispatch" in each.body]
    assert story.culprit[:12] in answer.body
    assert "all-to-all replaced by gather and sum" in answer.body


def test_a_merge_group_has_no_verdict_before_a_node_has_measured_it(story: Story) -> None:
    assert story.seen["group traced"].check is None
    measured = story.seen["group measured"].check
    assert measured is not None
    assert measured.external_id.startswith("0:")
    assert (measured.status, measured.conclusion) == ("completed", "success"), measured.summary
    assert str(measured.title).startswith("PASS: ")
    assert story.seen["group measured"].comments == story.seen["honest"].comments


def test_nothing_that_was_planted_was_executed_and_no_token_came_to_light(story: Story) -> None:
    assert leaks(story.actions) == []
    ours = [each.body for each in story.repo.all_comments.values() if each.author == BOT]
    ours += [f"{each.title}\n\n{each.summary}" for each in story.repo.all_checks.values()]
    assert [found for text in ours for found in inert(text)] == []


def test_the_refresh_is_a_pull_request_with_its_evidence(story: Story) -> None:
    (pull,) = [each for each in story.repo.pulls.values() if each.head.startswith("regbot/")]
    assert pull.author != BOT  # one that the workflow's own token opens would start no CI
    assert pull.head == "regbot/refresh"
    assert "mixtral-8x7b" in pull.body
    changed = story.repo.git.run("diff", "--name-only", "main", "regbot/refresh").splitlines()
    assert changed
    assert all(name.startswith("baselines/") for name in changed)
