"""A repository on the fake GitHub with regbot set up, pull requests in it, and what their jobs leave: no measuring."""

import io
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from github_fake import CheckRun, FakeGitHub, Repository
from github_fake import Run as FakeRun
from ledger_builder import backend, smoke_arm, smoke_ledger, smoke_run
from regbot.config import parse_config
from regbot.forge import checks, metadata
from regbot.forge.client import Forge
from regbot.forge.metadata import Ignored
from regbot.forge.post import Posted, post
from regbot.forge.settle import Again, Result
from regbot.forge.shown import Shown, Stamp
from regbot.forge.types import NewCheck
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.records.session import Session, SessionHeader
from regbot.records.verdict import Status
from regbot.session import Slot
from regbot.workloads import plan, plan_of, timed_tasks
from timed_builder import noisy, play

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
OTHER_PROGRAM = A2A.model_copy(update={"program": "b" * 64})
RESHARDED = smoke_ledger(reshard=False, program="b" * 64)
"""FSDP resharding changed: fewer gathers, which a person has to look at."""
CONTROL = A2A.entries[0].model_copy(update={"role": "control", "where": "layers.0.moe", "dtype": "int64", "axis": "ep"})
MORE = OTHER_PROGRAM.model_copy(update={"entries": [*A2A.entries, CONTROL]})
"""Something new, which a person has to look at."""
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
        repo.commit({"regbot.toml": toml, "moe.py": "x = 1\n"}, message="regbot")
        repo.member("ann", "maintain")
        repo.member("bob", "write")
        made = cls(hub, repo, folder)
        made.update()
        return made

    @property
    def checkout(self) -> Path:
        return self.folder / f"checkout-{self.repo.owner}"

    def update(self) -> None:
        """Clone ``main`` as it is now."""
        subprocess.run(["rm", "-rf", str(self.checkout)], check=True)
        subprocess.run(["git", "clone", "--quiet", str(self.repo.git.path), str(self.checkout)], check=True)

    @property
    def forge(self) -> Forge:
        """With the token of regbot-post, which may do what its workflow says and no more."""
        token = self.hub.token(BOT, actions="read", checks="write", pull_requests="write", contents="read")
        return Forge(token, self.repo.full_name, self.hub.url, self.naps.append)

    def pull(self, branch: str = "topic", text: str = "x = 2\n", fork: str = "", title: str = "A change") -> int:
        """An open pull request with one commit."""
        where = self.repo
        if fork:
            where = self.hub.repositories.get(f"{fork}/{self.repo.name}") or self.repo.fork(fork)
        where.commit({"moe.py": text}, branch=branch, message="change", author=fork or "ann")
        return self.repo.open_pull(head=f"{fork}:{branch}" if fork else branch, title=title, author=fork or "ann")

    def push(self, number: int, text: str) -> str:
        """Another commit on top; its id."""
        pull = self.repo.pulls[number]
        pull.head_repository.commit({"moe.py": text}, branch=pull.head, message="more")
        return pull.head_sha

    def head(self, number: int) -> str:
        return self.repo.pulls[number].head_sha

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
        """What a check of ``head`` against its merge base would hold; ``timed``: launches, or the timed runs."""
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
        """A run of regbot-static of the pull request's head, and what it left."""
        pull = self.repo.pulls[number]
        given: dict[str, object] = {
            "path": metadata.STATIC,
            "event": "pull_request",
            "head_branch": pull.head,
            "head_sha": pull.head_sha,
            "head_repository": pull.head_repository,
            "title": pull.title,
        }
        return self._run(session, {**given, **changes})

    def measured(
        self, number: int, session: Session | bytes | None, nonce: str = NONCE, sha: str = "", **changes: object
    ) -> FakeRun:
        """A run of regbot-measure of the pull request's head, as regbot-gate starts one."""
        given: dict[str, object] = {
            "path": metadata.MEASURE,
            "event": "workflow_dispatch",
            "head_branch": "main",
            "head_sha": str(self.repo.git.branch("main")),
            "title": f"regbot {number} {sha or self.head(number)} {nonce}",
        }
        return self._run(session, {**given, **changes})

    def _run(self, session: Session | bytes | None, given: Mapping[str, object]) -> FakeRun:
        run = self.repo.workflow_run(**given)  # type: ignore[arg-type]
        if session is not None:
            run.artifact("regbot-session", session if isinstance(session, bytes) else zipped(session))
        return run

    def approve(self, number: int, nonce: str = NONCE, sha: str = "") -> None:
        """The check run in progress that regbot-gate makes."""
        sha = sha or self.head(number)
        waiting = NewCheck("regbot", sha, checks.external_id(number, sha, nonce), "in_progress", None, "Measuring", "…")
        held = checks.find(self.forge, sha, number, BOT).runs
        if held:
            self.forge.update_check(held[0].id, waiting)
        else:
            self.forge.create_check(waiting)

    def post(self, run: FakeRun, by: int = 0) -> list[Posted] | Ignored:
        return post(self.forge, run.id, self.checkout, by)

    def comment(self, number: int) -> str:
        """The text of the one comment of ours."""
        (found,) = [each for each in self.repo.comments(number) if each.author == BOT]
        return found.body

    def check(self, number: int, sha: str = "") -> CheckRun:
        """The one check run of a head."""
        (found,) = self.repo.check_runs(sha or self.head(number))
        return found


def zipped(session: Session | Sequence[bytes], name: str = "session.jsonl") -> bytes:
    """As the artifact is."""
    if isinstance(session, Session):
        lines = [session.header.to_line().encode(), *(run.to_line().encode() for run in session.runs)]
    else:
        lines = list(session)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"".join(lines))
    return made.getvalue()


def lines_of(session: Session) -> list[bytes]:
    return [session.header.to_line().encode(), *(run.to_line().encode() for run in session.runs)]


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    return Bench.make(hub, tmp_path)


def only(found: list[Posted] | Ignored) -> Posted:
    assert isinstance(found, list), found
    (one,) = found
    assert not one.fault, one.fault
    return one


def headline(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("### "))


def changed(session: Session, change: Callable[[Run], Run | None], **header: object) -> Session:
    runs = [new for run in session.runs if (new := change(run)) is not None]
    return Session(header=session.header.model_copy(update=header), runs=runs)


def shown(
    number: int = 1,
    head: str = SHA,
    run: int = 1,
    tier: str = "static",
    status: Status = "PASS",
    text: str = "### ✅ PASS: fine\n",
    post: int = 0,
) -> Shown:
    return Shown(Stamp(number, head, "measured" if tier == "measured" else "static", run, 1, status, post), text)


def result(what: Shown, nonce: str = checks.STATIC) -> Result:
    return Result(what, nonce, f"{what.stamp.status}: told")


def runs(*results: Result) -> Again:
    """What the runs of ``results`` come to when they are judged again; other runs are none of ours."""

    def again(claim: Stamp) -> Result | None:
        of = [each for each in results if each.shown.stamp.run == claim.run]
        return next((each for each in of if each.shown.stamp.head == claim.head), None)

    return again
