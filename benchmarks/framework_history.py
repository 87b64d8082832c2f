"""Trace old revisions of torchtitan's or Megatron-LM's main branch: the tables of docs/frameworks.

python benchmarks/framework_history.py torchtitan CLONE --python PYTHON [--commits COMMIT ...]

CLONE is a git repository of the framework, with or without a work tree. PYTHON has what the framework needs
(``regbot doctor --workload``). A row has the counts of one revision, or why it cannot be traced. If a refusal or crash
names something that torch lacks, the installed torch is asked for this name, and the row has the answer. The last line
says how many revisions were traced, and how many were refused for a name that torch lacks. The exit code is 1 if none
was traced.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.engines import LocalEngine
from regbot.records.config import Workload
from regbot.records.run import Arm, Run
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.paper import library_for
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task

SHAPE = "mixtral-8x7b"
KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")

_MISSING_NAMES = (
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>torch[\w.]*)'"),
    re.compile(r"No module named '(?P<module>torch(?:\.\w+)*)'"),
    re.compile(r"module '(?P<module>torch[\w.]*)' has no attribute '(?P<name>\w+)'"),
)
"""Python's messages for a name that is missing. Names that only begin with torch, such as torchdata, are other
packages."""

_ASK = """
import importlib, sys
import torch
module, name = sys.argv[1:]
try:
    owner = importlib.import_module(module)
except ImportError:
    exists = False
else:
    exists = not name or hasattr(owner, name)
print(torch.__version__, "has" if exists else "lacks")
"""


@dataclass(frozen=True)
class History:
    """Revisions of a framework, the newest first, and the workload that traces them."""

    commits: Sequence[str]
    workload: dict[str, object]
    world: int
    ep: int
    paths: Sequence[str]
    """Pathspecs of the framework's code. Tests and data are not needed, and a clone may lack large files."""


HISTORIES = {
    "torchtitan": History(
        commits=("b5bcd76c6", "d84e54ef9", "952427842", "b72d98648", "2b935fa3c", "3d0b88d1c", "f113706c4",
                 "4aebdd2c6", "e16af8590"),
        workload={"adapter": "torchtitan", "recipe": "qwen3_moe_debug"},
        world=16,
        ep=4,
        paths=("torchtitan",),
    ),
    "megatron": History(
        commits=("d98e8a64", "1addfbd7", "48491434", "24cc2a85", "3460bba1", "7086b610", "e8fe0686", "2fadde8a",
                 "7843a806"),
        workload={"adapter": "megatron", "program": "pretrain_gpt.py", "dispatcher": "alltoall"},
        world=8,
        ep=8,
        paths=("megatron", ":(glob)*.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class MissingName:
    """A module of torch, or a name in it ('' for the module), that a message says is missing."""

    module: str
    name: str


def find_missing_name(message: str) -> MissingName | None:
    """Return the name of torch that ``message`` says is missing; None if it names none."""
    for pattern in _MISSING_NAMES:
        match = pattern.search(message)
        if match and match["module"].partition(".")[0] == "torch":
            return MissingName(match["module"], match.groupdict().get("name", ""))
    return None


def ask_torch(python: str, missing: MissingName) -> tuple[bool, str]:
    """Return whether the torch of ``python`` lacks the name, and a sentence that says so."""
    command = [python, "-I", "-c", _ASK, missing.module, missing.name]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    path = f"{missing.module}.{missing.name}" if missing.name else missing.module
    return answer[1] == "lacks", f"torch {answer[0]} {answer[1]} {path}"


def check_out(clone: Path, commit: str, paths: Sequence[str], folder: Path) -> str:
    """Write those files of ``commit`` that ``paths`` select to ``folder``, and return the commit's date."""
    folder.mkdir()
    command = ["git", "-C", str(clone), "archive", commit, "--", *paths]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    log = ["git", "-C", str(clone), "log", "-1", "--format=%cs", commit]
    return subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()


def make_task(history: History, python: str, activation_checkpoint: str) -> Task:
    """Return the task that traces a revision. ``activation_checkpoint``: '' for the recipe's own."""
    config = {"activation_checkpoint": activation_checkpoint} if activation_checkpoint else {}
    settings = {
        **history.workload,
        "python": python,
        "shapes": [SHAPE],
        "variant": "cpu",
        "timed": [],
        "config": config,
    }
    return single_task("history", Workload.model_validate(settings), load_shape(SHAPE), "ep", history.world, history.ep)


def describe_counts(run: Run) -> str:
    """Return the counts by kind, such as ``8 + 32 all_to_all``: control and payload."""
    assert run.ledger is not None
    counts = Counter[tuple[str, str]]()
    for entry in run.ledger.entries:
        counts[entry.kind, entry.role] += entry.count
    words = []
    for kind in KINDS:
        control, payload = counts[kind, "control"], counts[kind, "payload"]
        words.append(f"{f'{control} + ' if control else ''}{payload} {kind}")
    return ", ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=HISTORIES)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--commits", nargs="*", default=[])
    parser.add_argument("--activation-checkpoint", default="", help="none, full or selective; default: the recipe's")
    options = parser.parse_args()
    history = HISTORIES[options.framework]
    task = make_task(history, options.python, options.activation_checkpoint)
    commits = options.commits or history.commits
    traced, lacking = 0, 0
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        home = Path(name)
        library = library_for(options.python, home / "cache", home / "spare").path
        for commit in commits:
            root = home / commit
            date = check_out(options.clone, commit, history.paths, root)
            arm = Arm(name="head", revision=commit, commit="a" * 40, tree="b" * 40)
            run = trace(task, Checkout(arm, root), LocalEngine(), Scratch(home / "scratch", Limits()), paper=library)
            if run.outcome == "ok":
                traced += 1
                print(f"{commit}  {date}  {describe_counts(run)}", flush=True)
                continue
            answer = ""
            if missing := find_missing_name(f"{run.reason}\n{run.log_tail}"):
                lacks, answer = ask_torch(options.python, missing)
                lacking += lacks
            reason = run.reason.splitlines()[0] if run.reason else ""
            print(f"{commit}  {date}  {run.outcome}: {reason}{f' [{answer}]' if answer else ''}", flush=True)
    print(f"{traced} of {len(commits)} traced, {lacking} stopped by a name that torch lacks")
    return 0 if traced else 1


if __name__ == "__main__":
    sys.exit(main())
