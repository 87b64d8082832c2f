"""Merge groups: who measured them, what is declared for them, and when a node measures them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from github_fake import FakeGitHub
from github_fake import Run as FakeRun
from regbot.check.sessions.schedule import Slot
from regbot.github.approval import GateOutcome
from regbot.github.merge_queue import handle_group
from regbot.github.metadata import IgnoredRun
from regbot.github.publication import publish
from regbot.records.config import GitHub
from regbot.records.run import Run
from regbot.records.session import Session
from support.forge_cases import A2A, FALLBACK, MORE, SAME, TOML, Bench, build_text, only, result
from support.gate_scene import client, token, workflow

QUEUE = '[github]\nqueue = "timed"\n'


@dataclass
class Queue(Bench):
    """A repository whose merge groups are timed, and its gate."""

    @classmethod
    def timed(cls, hub: FakeGitHub, folder: Path) -> "Queue":
        queue = cls.make(hub, folder, TOML + QUEUE)
        assert isinstance(queue, Queue)
        queue.repo.commit(
            {f".github/workflows/regbot-{name}.yml": workflow(name) for name in ("static", "measure")}, message="jobs"
        )
        queue.update()
        return queue

    def traced(self, number: int, *ahead: int) -> FakeRun:
        """Queue a pull request; return the run of regbot-static on its group, which has just been requested."""
        return self.group(number, *ahead, theirs=A2A)

    def gate(self, run: FakeRun, settings: GitHub | None = None) -> GateOutcome:
        forge = client(self.hub, token(self.hub, "gate"))
        return handle_group(forge, run.id, settings or GitHub(queue="timed"))

    def measure(self, traced: FakeRun, session: Session | None = None, **changes: object) -> FakeRun:
        """Add the run of regbot-measure that the gate has just started on the group of ``traced``."""
        inputs = self.repo.dispatched[-1].inputs
        title = f"regbot {inputs['pr']} {traced.head_sha} {inputs['base']} {inputs['nonce']}"
        return self.measured(traced_number(traced), session, title=title, **changes)

    def times(self, traced: FakeRun, timed: Callable[[Slot], Run]) -> Session:
        """Return the session of a measurement of the group of ``traced``."""
        base = self.repo.dispatched[-1].inputs["base"]
        return self.session(traced.head_sha, base=base, toml=TOML + QUEUE, timed=timed)


def traced_number(traced: FakeRun) -> int:
    """Return the last pull request of the group that a run traces."""
    return int(traced.head_branch.split("/pr-")[1].split("-")[0])


@pytest.fixture
def queue(hub: FakeGitHub, tmp_path: Path) -> Queue:
    return Queue.timed(hub, tmp_path)


# Who may be measured


def test_a_merge_group_is_measured_once_where_the_repository_asks_for_it(queue: Queue) -> None:
    number, base = queue.pull(), queue.repo.git.branch("main")
    traced = queue.traced(number)
    assert queue.gate(traced).effect == "started"
    (dispatch,) = queue.repo.dispatched
    nonce = dispatch.inputs["nonce"]
    assert (dispatch.workflow, dispatch.ref) == (".github/workflows/regbot-measure.yml", "main")
    assert dispatch.inputs == {"pr": "0", "sha": traced.head_sha, "base": base, "more": "0", "nonce": nonce}
    (check,) = queue.repo.check_runs(traced.head_sha)
    assert (check.status, check.external_id) == ("in_progress", f"0:{traced.head_sha}:{nonce}")
    queue.measure(traced, status="queued", conclusion=None)
    assert queue.gate(traced).effect == "nothing"
    assert len(queue.repo.dispatched) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"event": "pull_request"},
        {"path": ".github/workflows/other.yml"},
        {"head_branch": "gh-readonly-queue/main/pr-1"},
        {"fork": "eve"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_only_the_merge_queue_has_a_group_measured(queue: Queue, change: dict[str, str]) -> None:
    run = queue.traced(queue.pull())
    if "fork" in change:
        run.head_repository = queue.repo.fork(change["fork"])
    else:
        queue.repo.runs[run.id] = replace(run, **change)  # type: ignore[arg-type]
    assert queue.gate(run).effect == "nothing"
    assert not queue.repo.dispatched


def test_a_group_that_the_queue_has_dropped_is_not_measured(queue: Queue) -> None:
    run = queue.traced(queue.pull())
    queue.repo.git.run("update-ref", "-d", f"refs/heads/{run.head_branch}")
    assert queue.gate(run).effect == "refused"
    assert not queue.repo.dispatched
    (check,) = queue.repo.check_runs(run.head_sha)
    assert (check.status, check.conclusion) == ("completed", "cancelled")


def protected_pull(queue: Queue) -> int:
    queue.repo.commit({"runners/setup.sh": "true\n"}, branch="topic", message="runners")
    return queue.repo.open_pull(head="topic", author="ann")


def test_a_group_that_changes_protected_files_blocks_until_its_pull_request_was_measured(queue: Queue) -> None:
    number = protected_pull(queue)
    first = queue.traced(number)
    assert queue.gate(first).effect == "refused"
    (check,) = queue.repo.check_runs(first.head_sha)
    assert (check.status, check.conclusion) == ("completed", "cancelled")
    assert "`runners/setup.sh`" in str(check.summary)
    assert f"/regbot run {queue.head(number)} with-protected-files" in str(check.summary)
    assert isinstance(queue.post(first), IgnoredRun)
    assert [run.conclusion for run in queue.repo.check_runs(first.head_sha)] == ["cancelled"]
    assert not queue.repo.dispatched

    publish(queue.forge, result(build_text(number, queue.head(number), 1, "measured")), GitHub())
    queue.repo.commit({"other.py": "1"})
    assert queue.gate(queue.traced(number)).effect == "started"


def test_protected_files_of_another_pull_request_of_the_group_are_not_approved(queue: Queue) -> None:
    other, number = protected_pull(queue), queue.pull("second", "x = 3\n")
    publish(queue.forge, result(build_text(number, queue.head(number), 1, "measured")), GitHub())
    assert queue.gate(queue.traced(number, other)).effect == "refused"
    assert not queue.repo.dispatched


# Who measured it


def test_a_measured_pass_of_a_group_is_green_and_its_trace_is_not_posted(queue: Queue) -> None:
    number = queue.pull()
    traced = queue.traced(number)
    ignored = queue.post(traced)  # before the gate
    assert isinstance(ignored, IgnoredRun)
    assert "gets its verdict from a measurement" in ignored.reason
    assert not queue.repo.check_runs(traced.head_sha)
    queue.gate(traced)
    assert isinstance(queue.post(traced), IgnoredRun)
    assert queue.check(0, traced.head_sha).status == "in_progress"
    queue.measure(traced, queue.times(traced, SAME))
    posted = only(queue.update_head(traced.head_sha)[0])
    check = queue.check(0, traced.head_sha)
    assert (posted.number, posted.status, check.conclusion) == (0, "PASS", "success")
    assert str(check.title).startswith("PASS: ")
    assert "Self-reported" not in str(check.summary)
    assert queue.repo.comments(number) == []


def test_a_measurement_of_a_commit_that_is_no_group_is_not_posted(queue: Queue) -> None:
    traced = queue.traced(queue.pull())
    queue.gate(traced)
    run = queue.measure(traced, queue.times(traced, SAME))
    queue.repo.runs[traced.id] = replace(traced, event="push")
    assert isinstance(queue.post(run), IgnoredRun)
    assert queue.check(0, traced.head_sha).status == "in_progress"


@pytest.mark.parametrize(("level", "conclusion"), [("success", "success"), ("neutral", "neutral")])
def test_a_traced_pass_of_a_group_says_that_the_group_reported_it(queue: Queue, level: str, conclusion: str) -> None:
    table = f'[github]\nself_reported = "{level}"\n'
    queue.repo.commit({"regbot.toml": TOML + table})
    queue.update()
    traced = queue.traced(queue.pull())
    (posted,) = (only(result) for result in queue.update_head(traced.head_sha))
    assert posted.status == "PASS"
    check = queue.check(0, traced.head_sha)
    assert check.conclusion == conclusion
    assert str(check.title).startswith("self-reported PASS: ")


def test_a_group_that_is_only_traced_is_not_blocked_for_ever(bench: Bench) -> None:
    strict = GitHub(self_reported="action_required")
    group = str(bench.repo.git.branch("main"))
    publish(bench.forge, result(build_text(0, group, 3)), strict)
    assert bench.check(0, group).conclusion == "neutral"


# Declarations


@pytest.mark.parametrize(
    ("text", "ledger", "with_declaration"),
    [
        ("/regbot accept {head}: meant", MORE, "PASS"),
        ("/regbot expect all-to-all replaced by gather and sum@ep@*: meant", FALLBACK, "PASS"),
    ],
    ids=["accept", "expect"],
)
def test_a_declaration_counts_only_in_a_group_of_its_own_pull_request(
    bench: Bench, text: str, ledger: object, with_declaration: str
) -> None:
    bench.repo.commit({"other.py": "1\n"}, branch="other")
    other, number = bench.repo.open_pull(head="other"), bench.pull()
    bench.repo.comment(number, "ann", text.format(head=bench.head(number)))
    statuses = []
    for ahead in ((), (other,)):
        run = bench.group(number, *ahead, theirs=ledger)  # type: ignore[arg-type]
        statuses.append(only(bench.post(run)).status)
        summary = str(bench.check(0, run.head_sha).summary)
        assert ("again, as the only pull request of its group:" in summary) == bool(ahead and ledger is MORE)
    assert statuses[0] == with_declaration
    assert statuses[1] in ("REVIEW", "FAIL")
