"""Trace revisions of a framework's main branch: the table and the revisions of docs/frameworks.md.

python benchmarks/framework_history.py torchtitan CLONE --python PYTHON [--commits COMMIT ...] [--set KEY=VALUE ...]

CLONE is a git repository of the framework, with or without a work tree; ``--megatron`` is one of Megatron-LM, which
Megatron Bridge has as a submodule. PYTHON has what the framework needs; ``--fresh FOLDER`` instead makes an environment
in FOLDER by the commands that ``regbot doctor --workload`` prints for the newest commit. ``--set`` changes the traced
workload: ``world=1024``, ``recipe=qwen3_30b_a3b``, ``config.KEY=VALUE``.

A row has time, memory and counts of one revision, or why it cannot be traced. If a refusal or crash names something
that torch lacks, the installed torch is asked for this name, and the row has the answer. The last line says how many
revisions were traced, and how many were refused for a name that torch lacks. The exit code is 1 if none was traced.
"""

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot.cli.doctor.workload import examine_workload
from regbot.cli.options import cache_folder
from regbot.engines import LocalEngine
from regbot.records.config import Workload
from regbot.records.ledger import GPU_MEMORY_BYTES
from regbot.records.run import Arm, Run
from regbot.workloads.framework_needs import TORCH_INDEX, needs_of
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.paper import library_for
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task

ENVIRONMENT = ".venv"
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

    workload: dict[str, Any]
    world: int
    ep: int
    paths: Sequence[str]
    """Pathspecs of the framework's code. Tests and data are not needed, and a clone may lack large files."""
    commits: Sequence[str] = ("HEAD",)
    shape: str = "mixtral-8x7b"
    submodule: str = ""
    """Folder of Megatron-LM in the framework's tree. '' if it has none."""


HISTORIES = {
    "torchtitan": History(
        commits=("b5bcd76c6", "d84e54ef9", "952427842", "b72d98648", "2b935fa3c", "3d0b88d1c", "f113706c4",
                 "4aebdd2c6", "e16af8590"),
        workload={"adapter": "torchtitan", "recipe": "qwen3_moe_debug", "variant": "cpu"},
        world=16,
        ep=4,
        paths=("torchtitan",),
    ),
    "megatron": History(
        commits=("d98e8a64", "1addfbd7", "48491434", "24cc2a85", "3460bba1", "7086b610", "e8fe0686", "2fadde8a",
                 "7843a806"),
        workload={"adapter": "megatron", "program": "pretrain_gpt.py", "dispatcher": "alltoall", "variant": "cpu"},
        world=8,
        ep=8,
        paths=("megatron", ":(glob)*.py", "tests/functional_tests/test_cases/moe"),
    ),
    "megatron-bridge": History(
        workload={
            "adapter": "megatron",
            "program": "scripts/training/run_recipe.py",
            "recipe": "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config",
            "source_roots": ["src", "3rdparty/Megatron-LM"],
        },
        world=16,
        ep=16,
        paths=("src", "scripts"),
        shape="qwen3-30b-a3b",
        submodule="3rdparty/Megatron-LM",
    ),
    "maxtext": History(
        workload={"adapter": "maxtext", "source_roots": ["src"]},
        world=8,
        ep=8,
        paths=("src", ":!src/maxtext/assets"),
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
    """Write those files of ``commit`` that ``paths`` select to ``folder``. Return the commit's short name and date."""
    folder.mkdir(parents=True)
    archive = _git(clone, "archive", commit, "--", *paths)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return _git(clone, "log", "-1", "--format=%h  %cs", "--abbrev=9", commit).decode().strip()


def _git(clone: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=True).stdout


def check_out_all(history: History, clone: Path, megatron: Path | None, commit: str, folder: Path) -> str:
    """Check out a revision with its submodule. Return the commit's short name and date."""
    title = check_out(clone, commit, history.paths, folder)
    if history.submodule:
        assert megatron is not None, "--megatron is missing"
        pinned = _git(clone, "ls-tree", commit, history.submodule).decode().split()[2]
        check_out(megatron, pinned, ["megatron"], folder / history.submodule)
    return title


def make_environment(folder: Path, workload: Workload) -> str:
    """Run the commands in the checkout ``folder`` that ``regbot doctor --workload`` prints for a fresh environment.
    Return the path of its Python. Exits if doctor still misses something.
    """
    settings = workload.model_dump(exclude_unset=True, exclude={"config", "python"})
    lines = ["version = 1", "[workloads.history]", f'python = "{ENVIRONMENT}/bin/python"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (folder / "regbot.toml").write_text("\n".join(lines) + "\n")
    for command in examine_workload("history", folder).install:
        print(command, flush=True)
        done = subprocess.run(["bash", "-c", command], cwd=folder)
        if done.returncode and TORCH_INDEX in command:
            print("the index of CPU builds cannot be used here; torch comes from pip's own index", flush=True)
            done = subprocess.run(["bash", "-c", command.replace(f"--index-url {TORCH_INDEX}", "")], cwd=folder)
        done.check_returncode()
    missing = [check for check in examine_workload("history", folder).checks if not check.ok]
    if missing:
        sys.exit("\n".join(f"doctor misses {check.name}: {check.detail}" for check in missing))
    return str(folder / ENVIRONMENT / "bin" / "python")


def make_task(history: History, python: str, settings: Sequence[str]) -> Task:
    """Return the task that traces a revision. ``settings``: texts ``KEY=VALUE``, which change the history's workload;
    the value is JSON, or else a text.
    """
    workload = {**history.workload, "python": python, "timed": [], "config": {**history.workload.get("config", {})}}
    numbers: dict[str, Any] = {"world": history.world, "ep": history.ep, "shape": history.shape}
    for setting in settings:
        key, _, text = setting.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if key.startswith("config."):
            workload["config"][key.removeprefix("config.")] = value
        else:
            (numbers if key in numbers else workload)[key] = value
    workload["shapes"] = [numbers["shape"]]
    shape = load_shape(numbers["shape"])
    return single_task("history", Workload.model_validate(workload), shape, "ep", numbers["world"], numbers["ep"])


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


def describe_cost(run: Run, seconds: float) -> str:
    """Return the CPU time and the host's memory of a trace, and the peak of the device's memory that it found."""
    memory = f"{(run.peak_rss_bytes or 0) / 2**30:.1f} GiB"
    if run.ledger is None or run.ledger.program is None:
        return f"{seconds:.0f} CPU s, {memory}"
    excess = ", MORE than one H100 has" if run.ledger.program.peak_bytes > GPU_MEMORY_BYTES["h100"] else ""
    return f"{seconds:.0f} CPU s, {memory}, peak {run.ledger.program.peak_bytes / 1e9:.1f} GB{excess}"


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=HISTORIES)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--megatron", type=Path, help="clone of Megatron-LM, for Megatron Bridge's submodule")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--fresh", type=Path, metavar="FOLDER", help="make an environment for the newest commit")
    parser.add_argument("--commits", nargs="*", default=[])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="see above")
    options = parser.parse_args()
    history = HISTORIES[options.framework]
    python = options.python
    if options.fresh is not None:
        shutil.rmtree(options.fresh, ignore_errors=True)
        check_out_all(history, options.clone, options.megatron, "HEAD", options.fresh)
        python = make_environment(options.fresh.resolve(), make_task(history, python, options.set).workload)
    task = make_task(history, python, options.set)
    commits = options.commits or history.commits
    traced, lacking = 0, 0
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        home = Path(name)
        has_torch = bool(needs_of(task.workload).torch)
        library = library_for(python, cache_folder(), home / "spare").path if has_torch else None
        for commit in commits:
            root = home / commit
            title = check_out_all(history, options.clone, options.megatron, commit, root)
            arm = Arm(name="head", revision=commit, commit="a" * 40, tree="b" * 40)
            start = _children_seconds()
            run = trace(task, Checkout(arm, root), LocalEngine(), Scratch(home / "scratch", Limits()), paper=library)
            cost = describe_cost(run, _children_seconds() - start)
            if run.outcome == "ok":
                traced += 1
                print(f"{title}  {cost}: {describe_counts(run)}", flush=True)
                continue
            answer = ""
            if missing := find_missing_name(f"{run.reason}\n{run.log_tail}"):
                lacks, answer = ask_torch(python, missing)
                lacking += lacks
            reason = run.reason.splitlines()[0] if run.reason else ""
            print(f"{title}  {run.outcome}: {reason}{f' [{answer}]' if answer else ''}", flush=True)
    print(f"{traced} of {len(commits)} traced, {lacking} stopped by a name that torch lacks")
    return 0 if traced else 1


if __name__ == "__main__":
    sys.exit(main())
