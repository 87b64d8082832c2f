"""A repository on the fake GitHub with regbot, pull requests and artifacts of their jobs, without measurements."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from github_fake import CheckRun, FakeGitHub, Repository
from github_fake import Run as FakeRun
from regbot.check.sessions.schedule import Slot
from regbot.github import checks, metadata
from regbot.github.bisection import BisectionReply
from regbot.github.client import Forge
from regbot.github.metadata import IgnoredRun, PostRequest
from regbot.github.post import PostedResult, post, post_run
from regbot.github.publication import Result
from regbot.github.stamped_text import Stamp, StampedText, Tier
from regbot.github.types import NewCheck
from regbot.records.config import parse_config
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.records.session import Session, SessionHeader
from regbot.records.verdict import Status
from regbot.workloads.task import plan, plan_of, timed_tasks
from support.forge_refresh_cases import zipped as archive
from support.ledger_builder import backend, smoke_arm, smoke_ledger, smoke_run
from support.timed_builder import noisy, play

BOT = "github-actions[bot]"
SHA, OTHER = "a" * 40, "b" * 40
TOML = """version = 1
[workloads.moe]
adapter = "smoke"
shapes = ["qwen3-30b-a3b"]
meshes = ["ep"]
[session]
steps = 6
warmup = 2
"""
NONCE = "0123456789abcdef"
A2A = smoke_ledger()
FALLBACK = smoke_ledger(dispatcher="allgather", program="b" * 64)
OTHER_PROGRAM = A2A.model_copy(update={"fingerprint": "b" * 64})
"""A changed FSDP resharding with fewer gathers, which needs a review."""
CONTROL = A2A.entries[0].model_copy(update={"role": "control", "where": "layers.0.moe", "dtype": "int64", "axis": "ep"})
MORE = OTHER_PROGRAM.model_copy(update={"entries": [*A2A.entries, CONTROL]})
"""A new pattern, which needs a review."""
SLOWER = noisy(1.10, 0.002)
SAME = noisy(1.0, 0.002)


@dataclass
class Bench:
    """``main`` has regbot.toml; ``checkout`` is a clone of it, as regbot-post has one."""

    hub: FakeGitHub
    repo: Repository
    folder: Path
    naps: list[float] = field(default_factory=list)

    @classmethod
    def make(cls, hub: FakeGitHub, folder: Path, toml: str = TOML, name: str = "acme/moe") -> "Bench":
        repo = hub.repository(name)
        jobs = dict.fromkeys((metadata.STATIC, metadata.MEASURE), "on: workflow_dispatch\n")
        repo.commit({"regbot.toml": toml, "moe.py": "x = 1\n", **jobs}, message="regbot")
        repo.member("ann", "maintain")
        repo.member("bob", "write")
        made = cls(hub, repo, folder)
        made.update()
        return made

    @property
    def checkout(self) -> Path:
        return self.folder / f"checkout-{self.repo.owner}"

    def update(self) -> None:
        """Clone the present ``main``."""
        subprocess.run(["rm", "-rf", str(self.checkout)], check=True)
        subprocess.run(["git", "clone", "--quiet", str(self.repo.git.path), str(self.checkout)], check=True)

    @property
    def forge(self) -> Forge:
        """Return a client with the permissions of the workflow regbot-post."""
        token = self.hub.token(BOT, actions="read", checks="write", pull_requests="write", contents="read")
        return Forge(token, self.repo.full_name, self.hub.url, self.naps.append)

    def pull(self, branch: str = "topic", text: str = "x = 2\n", fork: str = "", title: str = "A change") -> int:
        """Open a pull request with one commit."""
        where = self.repo
        if fork:
            where = self.hub.repositories.get(f"{fork}/{self.repo.name}") or self.repo.fork(fork)
        where.commit({"moe.py": text}, branch=branch, message="change", author=fork or "ann")
        return self.repo.open_pull(head=f"{fork}:{branch}" if fork else branch, title=title, author=fork or "ann")

    def push(self, number: int, text: str) -> str:
        """Add a commit and return its id."""
        pull = self.repo.pulls[number]
        pull.head_repository.commit({"moe.py": text}, branch=pull.head, message="more")
        return pull.head_sha

    def head(self, number: int) -> str:
        return self.repo.pulls[number].head_sha

    def merge_base(self, number: int) -> str:
        return self.repo.git.merge_base(self.repo.pulls[number].base, self.head(number))

    def arms(self, head: str, base: str = "") -> tuple[Arm, Arm]:
        base = base or self.repo.git.run("merge-base", "main", head).strip()
        trees = [self.repo.git.run("rev-parse", f"{commit}^{{tree}}").strip() for commit in (base, head)]
        return smoke_arm("base", commit=base, tree=trees[0]), smoke_arm("head", commit=head, tree=trees[1])

    def session(
        self,
        head: str,
        ours: Ledger = A2A,
        theirs: Ledger = OTHER_PROGRAM,
        base: str = "",
        timed: Callable[[Slot], Run] | Sequence[Run] | None = None,
        toml: str = TOML,
        **header: object,
    ) -> Session:
        """Return the session of a check of ``head`` against its merge base; ``timed``: launches, or the timed runs."""
        arms = self.arms(head, base)
        config = parse_config(toml, "regbot.toml")
        tasks = plan(config)
        plans = [plan_of(task, config.session) for task in timed_tasks(config, tasks, 0)] if timed else []
        given = SessionHeader(
            regbot="0.1.0",
            created="2026-01-01T00:00:00Z",
            base=arms[0],
            head=arms[1],
            workloads=[task.entry for task in tasks],
            timed=plans,
            seed=7,
            changed_files=["moe.py"],
        )
        runs = [smoke_run(arms[0], ours), smoke_run(arms[1], theirs)]
        if timed:
            asks = {"dispatcher": backend("alltoall")}
            launched = play(timed, given) if callable(timed) else timed
            runs += [run.model_copy(update={"arm": arms[run.arm.name == "head"], "backends": asks}) for run in launched]
        return Session(header=given.model_copy(update=header), runs=runs)

    def static(self, number: int, session: Session | bytes | None, **changes: object) -> FakeRun:
        """Add a run of regbot-static on the pull request's head, with its artifact."""
        pull = self.repo.pulls[number]
        given: dict[str, object] = {
            "path": metadata.STATIC,
            "event": "pull_request",
            "head_branch": pull.head,
            "head_sha": pull.head_sha,
            "head_repository": pull.head_repository,
            "title": f"regbot-static {number}",
        }
        return self._run(session, {**given, **changes})

    def group(self, number: int, *ahead: int, ours: Ledger = A2A, theirs: Ledger | None = OTHER_PROGRAM) -> FakeRun:
        """Queue a pull request, and add the run of regbot-static on its merge group; without an artifact for None."""
        group = self.repo.event_of("merge_group", number=number, ahead=ahead)["merge_group"]
        sha = group["head_sha"]
        return self.static(
            number,
            self.session(sha, ours, theirs, base=group["base_sha"]) if theirs is not None else None,
            event="merge_group",
            head_branch=group["head_ref"].removeprefix("refs/heads/"),
            head_sha=sha,
            head_repository=self.repo,
            title=f"regbot-static {sha}",
        )

    def measured(self, number: int, session: Session | bytes | None, nonce: str = NONCE, **changes: object) -> FakeRun:
        """Add a run of regbot-measure on the pull request's head, as regbot-gate starts one."""
        given: dict[str, object] = {
            "path": metadata.MEASURE,
            "event": "workflow_dispatch",
            "head_branch": "main",
            "head_sha": str(self.repo.git.branch("main")),
            "title": f"regbot {number} {self.head(number)} {self.merge_base(number)} {nonce}",
        }
        return self._run(session, {**given, **changes})

    def _run(self, session: Session | bytes | None, given: Mapping[str, object]) -> FakeRun:
        run = self.repo.workflow_run(**given)  # type: ignore[arg-type]
        if session is not None:
            run.artifact("regbot-session", session if isinstance(session, bytes) else zipped(session))
        return run

    def approve(self, number: int, nonce: str = NONCE) -> None:
        """Create the check run in progress, as regbot-gate does."""
        sha = self.head(number)
        external_id = checks.format_external_id(number, sha, nonce)
        self.forge.create_check(NewCheck("regbot", sha, external_id, "in_progress", None, "Measuring", "…"))

    def post(self, run: FakeRun) -> PostedResult | BisectionReply | IgnoredRun:
        return post_run(self.forge, run.id, self.checkout)

    def judged(self, number: int, session: Session | bytes | None, **changes: object) -> PostedResult:
        """Measure the head, as somebody has asked for, and post the result."""
        self.approve(number)
        return only(self.post(self.measured(number, session, **changes)))

    def update_head(self, change: int | str) -> Sequence[PostedResult | BisectionReply | IgnoredRun]:
        """Post what a pull request or merge group lacks."""
        return post(self.forge, PostRequest(str(change), None), self.checkout)

    def comment(self, number: int) -> str:
        """Return the text of the bot's only comment."""
        (own_comment,) = [comment for comment in self.repo.comments(number) if comment.author == BOT]
        return own_comment.body

    def check(self, number: int, sha: str = "") -> CheckRun:
        """Return the check run of a head that GitHub shows."""
        check_run = self.repo.shown_check(sha or self.head(number), checks.NAME)
        assert check_run is not None
        return check_run


def zipped(session: Session | Sequence[bytes]) -> bytes:
    """Return the artifact's zip archive."""
    lines = lines_of(session) if isinstance(session, Session) else session
    return archive(("session.jsonl", b"".join(lines)))


def lines_of(session: Session) -> list[bytes]:
    return [session.header.to_line().encode(), *(run.to_line().encode() for run in session.runs)]


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    return Bench.make(hub, tmp_path)


def only(posted: PostedResult | BisectionReply | IgnoredRun) -> PostedResult:
    assert isinstance(posted, PostedResult), posted
    assert not posted.fault, posted.fault
    return posted


def headline(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("### "))


def changed(session: Session, change: Callable[[Run], Run | None], **header: object) -> Session:
    runs = [new for run in session.runs if (new := change(run)) is not None]
    return Session(header=session.header.model_copy(update=header), runs=runs)


def build_text(
    number: int = 1,
    head: str = SHA,
    run: int = 1,
    tier: Tier = "static",
    status: Status = "PASS",
    text: str = "### ✅ PASS: fine\n",
) -> StampedText:
    return StampedText(Stamp(number, head, tier, run, 1, status, target="main"), text)


def result(what: StampedText, nonce: str = checks.STATIC_NONCE) -> Result:
    return Result(what, nonce, f"{what.stamp.status}: told")
