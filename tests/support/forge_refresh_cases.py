"""A repository on the fake GitHub, a node that proposes invented nights, and the job that posts them."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import patch

import pytest

from github_fake import FakeGitHub
from regbot.baselines import Store, verify
from regbot.check.flow import CheckOptions
from regbot.check.refresh import RefreshOptions, flow, refresh
from regbot.engines import local
from regbot.github.client import Forge
from regbot.github.git_remote import Remote
from regbot.github.proposal import MEMBER, read_proposal
from regbot.github.refresh import BRANCH, RefreshPost, post_refresh
from regbot.records.refresh import RefreshReport
from regbot.records.session import Session
from support.git_repos import Repository
from support.refresh_cases import CONFIG, measuring, night_session
from support.timed_builder import NODE

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CANARY = "ghs_canary0123456789canary0123456789canary"
Proposal = dict[str, Any]


@dataclass
class Site:
    """The repository on GitHub, the checkout of both jobs, and the token of the posting job."""

    hub: FakeGitHub
    scratch: Path
    config: str = CONFIG
    permissions: dict[str, str] = field(default_factory=lambda: {"contents": "write", "pull_requests": "write"})

    def __post_init__(self) -> None:
        self.repo = self.hub.repository("acme/moe")
        self.repo.commit({"regbot.toml": self.config, "train.py": "pass\n"}, message="train")
        self.token = self.hub.token("regbot-app[bot]", **self.permissions)
        self.hub.tokens[CANARY] = self.hub.tokens.pop(self.token)
        self.token = CANARY
        self.checkout = Repository.create(self.scratch / "checkout")
        self.pull_main()
        self.waited: list[float] = []

    def pull_main(self) -> str:
        """Check out the newest commit of main, as Actions does."""
        self.checkout.git("fetch", "--quiet", str(self.repo.git.path), "refs/heads/main")
        self.checkout.git("checkout", "--quiet", "--detach", "FETCH_HEAD")
        return self.checkout.git("rev-parse", "HEAD")

    def push_main(self, **files: str) -> str:
        """Commit to main as a person, and update the checkout."""
        self.repo.commit({name.replace("__", "."): text for name, text in files.items()}, message="change")
        return self.pull_main()

    def merge(self, number: int | None) -> str:
        """Merge the pull request as a person, and update the checkout."""
        assert number is not None
        self.repo.close(number, merge=True)
        return self.pull_main()

    def started(self) -> None:
        """Merge a first night into main, so that there is an anchor."""
        self.merge(self.post(self.night()[1]).number)

    def night(self, number: int = 0, slower: float = 0.0, **options: Any) -> tuple[RefreshReport, bytes]:
        """Return the node's report and its proposal file."""
        file = self.scratch / f"proposal-{number}.json"
        refresh_options = RefreshOptions(
            **{
                "repo": self.checkout.path,
                "cache": self.scratch / "cache",
                "out": self.scratch / f"night-{number}",
                "no_sandbox": True,  # nothing runs: a machine without bubblewrap must pass too
                "who": "ada",
                "proposal_file": file,
                **options,
            }
        )
        stand_in = measuring(lambda check: self._session(number, check, slower))
        with ExitStack() as stack:
            stack.enter_context(patch.object(flow, "check", stand_in))
            stack.enter_context(patch.object(local, "this_node", lambda: NODE))
            report = refresh(refresh_options, now=NOW + timedelta(days=number))
        return report, file.read_bytes()

    def _session(self, number: int, check: CheckOptions, slower: float) -> Session:
        """With the trees that the commits really have."""
        made = night_session(number, str(check.base), check.head, slower)
        trees = {one: self.checkout.git("rev-parse", f"{one}^{{tree}}") for one in (str(check.base), check.head)}

        def real(arm: Any) -> Any:
            return arm.model_copy(update={"tree": trees[arm.commit]})

        header = made.header.model_copy(update={"base": real(made.header.base), "head": real(made.header.head)})
        return Session(header=header, runs=[run.model_copy(update={"arm": real(run.arm)}) for run in made.runs])

    @property
    def forge(self) -> Forge:
        return Forge(self.token, "acme/moe", self.hub.url, sleep=self.waited.append)

    @property
    def remote(self) -> Remote:
        return Remote(self.checkout.path, self.repo.clone_url, self.token, sleep=self.waited.append)

    def post(self, *data: bytes, days: int = 300) -> RefreshPost:
        given = [read_proposal(zipped((MEMBER, content)), f"proposal {n}") for n, content in enumerate(data, 1)]
        return post_refresh(self.forge, self.remote, given, NOW + timedelta(days=days))

    def tip(self, branch: str = BRANCH) -> str | None:
        return self.repo.git.branch(branch)

    def state(self) -> Any:
        """All that a refusal has to leave as it is."""
        pulls = {number: (pull.title, pull.body, pull.state, pull.labels) for number, pull in self.repo.pulls.items()}
        return self.repo.git.refs("refs"), pulls, len(self.repo.all_comments)

    def store(self, at: str = BRANCH) -> Store:
        """What the branch holds, which is sound."""
        folder = self.scratch / f"store-{len(list(self.scratch.glob('store-*')))}"
        listed = self.repo.git.run("ls-tree", "-r", "--name-only", at, "baselines").splitlines()
        for name in listed:
            target = folder / PurePosixPath(name).relative_to("baselines")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.repo.git.run("show", f"{at}:{name}") + "\n")
        store = Store(folder)
        if listed:
            assert verify(store, NOW + timedelta(days=1000)).problems == []
        return store

    def series(self, at: str = BRANCH) -> list[str]:
        """Of the timed sessions on the branch, oldest first."""
        store = self.store(at)
        sessions = [store.session(path) for group in store.class_folders() for path in store.sessions(group)]
        timed = sorted((session.measured, session.series) for session in sessions if session.tier == "timed")
        return [series for _, series in timed]

    def changed(self, old: str, new: str) -> list[str]:
        return self.repo.git.run("diff", "--name-status", "--no-renames", old, new).splitlines()


def changing(data: bytes, change: Callable[[Proposal], object]) -> bytes:
    """A proposal that somebody has laid hands on."""
    document = json.loads(data)
    change(document)
    return json.dumps(document).encode()


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive as an artifact is one."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as opened:
        for name, data in members:
            opened.writestr(name, data)
    return archive.getvalue()


def texts(folder: Path) -> Iterator[str]:
    """Of every file below ``folder``."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.read_bytes().decode("utf-8", "replace")


@pytest.fixture
def site(hub: FakeGitHub, tmp_path: Path) -> Site:
    return Site(hub, tmp_path)
