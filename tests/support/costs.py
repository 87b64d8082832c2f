"""A command whose cost is made up, and ``regbot bisect`` with it over a real repository.

What a commit costs stands in a file outside of the repository, so one history serves every test. The noise is as good
as random, and yet the same at every n-th run of a commit.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from regbot.bisect.flow import bisect
from regbot.bisect.options import BisectionOptions
from regbot.cli.app import app
from regbot.records.bisection import Bisection, BisectionLog, read_bisection
from support.git_repos import Repository

REGBOT = str(Path(sys.executable).with_name("regbot"))

BROKEN = "broken"
"""The cost of a commit that cannot be measured: every other one says so with exit code 125, the rest print rubbish."""

_COST = """
import json, os, random, subprocess, sys, time

plan = json.load(open(sys.argv[1]))
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
cost = plan["costs"].get(commit, 100.0)
if cost == "broken":
    if int(commit[0], 16) % 2:
        sys.exit(125)
    print("ImportError: cannot import name 'fused_combine'")
    sys.exit(0)
count = os.open(os.path.join(plan["counts"], commit), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(count, b"x")
number = os.lseek(count, 0, os.SEEK_CUR)  # two runs at a time write one after the other, and each knows its place
time.sleep(plan["sleep_s"])
print("warming up")
print(cost * (1 + random.Random(f"0 {commit} {number}").gauss(0, plan["noise"])))
with open(plan["runs"], "a") as file:
    file.write(commit + "\\n")
"""


@dataclass
class Bisecting:
    """A place to bisect from: ``home`` has the log, the made-up costs, and the cache unless another is given."""

    home: Path
    repository: Repository
    cache: Path = field(default=Path())

    def __post_init__(self) -> None:
        if self.cache == Path():
            self.cache = self.home / "cache"

    @property
    def out(self) -> Path:
        return self.home / "out"

    @property
    def log(self) -> Path:
        return self.out / "bisection.jsonl"

    def costing(self, costs: Mapping[str, float | str], noise: float = 0.0, sleep_s: float = 0.0) -> str:
        """The command that prints these costs, and 100 for all other commits. ``noise`` is a share of the cost."""
        counts = self.home / "counts"
        counts.mkdir(exist_ok=True)
        plan = {
            "costs": dict(costs),
            "noise": noise,
            "sleep_s": sleep_s,
            "counts": str(counts),
            "runs": str(self.home / "runs"),
        }
        (self.home / "plan.json").write_text(json.dumps(plan))
        (self.home / "cost.py").write_text(_COST)
        return f"{sys.executable} -I -S {self.home / 'cost.py'} {self.home / 'plan.json'}"

    def runs(self) -> list[str]:
        """The commit of every run of that command that came to its end."""
        path = self.home / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def words(self, good: str, bad: str, *arguments: str) -> list[str]:
        return [REGBOT, "bisect", good, bad, "--repo", str(self.repository.path), "--out", str(self.out), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "REGBOT_CACHE": str(self.cache), "REGBOT_TEST_CASE": str(self.home)}

    def typed(self, good: str, bad: str, *arguments: str) -> Result:
        """``regbot bisect`` as it is typed, in this process, which saves a second."""
        words = self.words(good, bad, *arguments)[1:]
        return CliRunner().invoke(app, words, env={"REGBOT_CACHE": str(self.cache)})

    def regbot(self, good: str, bad: str, *arguments: str, before: str = "") -> "subprocess.CompletedProcess[str]":
        """``regbot bisect`` to its end, a process of its own. ``before``: what bash does first, as ``ulimit``."""
        command = self.words(good, bad, *arguments)
        if before:
            command = ["bash", "-c", f'{before}; exec "$@"', "bash", *command]
        return subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )

    def begin(self, good: str, bad: str, *arguments: str) -> "subprocess.Popen[str]":
        """``regbot bisect`` in the background, in a session of its own as a shell would start it."""
        return subprocess.Popen(
            self.words(good, bad, *arguments),
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def found(self, good: str, bad: str, command: str, **options: Any) -> Bisection:
        """The answer, in this process. ``options`` as the flow has them."""
        asked = BisectionOptions(
            repo=self.repository.path, cache=self.cache, out=self.out, good=good, bad=bad, command=command, **options
        )
        return bisect(asked)

    def answer(self, good: str, bad: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code and answer of ``regbot bisect --json``, which prints nothing else."""
        found = self.regbot(good, bad, "--json", *arguments)
        assert found.stdout, found.stderr
        document: dict[str, Any] = json.loads(found.stdout)
        return found.returncode, document

    def recorded(self) -> BisectionLog:
        return read_bisection(self.log)

    def complete_lines(self) -> bytes:
        """What of the log is written to the end of a line."""
        text = self.log.read_bytes() if self.log.exists() else b""
        return text[: text.rfind(b"\n") + 1]

    def processes(self) -> list[str]:
        """Living processes that name the folder of this bisection."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.home) in command + environment.decode(errors="replace"):
                    found.append(f"{process.name} {command}")
        return found


def line(path: Path, count: int) -> tuple[Repository, list[str]]:
    """A small repository, and its commits: good, and ``count`` after it, each with a tree of its own."""
    repository = Repository.create(path)
    good = repository.commit("Begin", {"train.py": "print('training')\n", "step.txt": "0\n"})
    numbers = range(1, count + 1)
    return repository, [good, *(repository.commit(f"Change {n} (#{n})", {"step.txt": f"{n}\n"}) for n in numbers)]


def state_of(repository: Repository) -> tuple[object, ...]:
    """Everything of a user's repository that a bisection must leave alone: all files with their times, all folders
    (so refs, index, work tree, hooks, stash and configuration), and what git says of them."""
    folders = sorted(str(path) for path in repository.path.rglob("*") if path.is_dir())
    shown = ("worktree list --porcelain", "for-each-ref", "config --local --list", "count-objects -v")
    return repository.fingerprint(), folders, *(repository.git(*words.split()) for words in shown)
