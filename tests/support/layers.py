"""A small user's repository with a MoE layer behind the module contract, to be spoilt by tests."""

import sys
from pathlib import Path

from regbot.engines import LocalEngine
from regbot.records.config import Workload
from regbot.records.files import write_record
from regbot.records.run import Arm, Position, Run
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.launch import time_run
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task
from regbot.workloads.timed import RunSpec

GOOD_LAYER = '''\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, ctx.group), None


class Layer(nn.Module):
    """Top-1 of balanced routing: token t goes to expert t % experts; enough to be a MoE layer."""

    def __init__(self, config, mesh, device, dtype):
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.experts = nn.Linear(config["hidden"], config["hidden"], bias=False, device=device, dtype=dtype)

    def forward(self, x):
        return Exchange.apply(F.silu(self.experts(Exchange.apply(x, self.group))), self.group)

    def expert_parameters(self):
        return list(self.experts.parameters())


def build_layer(config, mesh, device, dtype):
    return Layer(config, mesh, device, dtype)
'''
EXCHANGE = """\
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out
"""
"""The body of the good layer's exchange, to be replaced."""
RESULT = "return Exchange.apply(F.silu(self.experts(Exchange.apply(x, self.group))), self.group)"
BUILD = "return Layer(config, mesh, device, dtype)"


def replace_text(path: Path, old: str, new: str) -> None:
    """Replace a text in a file, which has it."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def compiled_layer(backend: str = "eager") -> str:
    """The good layer under ``torch.compile``."""
    return GOOD_LAYER.replace(
        BUILD,
        "layer = Layer(config, mesh, device, dtype)\n"
        f"    layer.forward = torch.compile(layer.forward, backend='{backend}')\n    return layer",
    )


_TRACED = """\
version = 1
[workloads.moe]
adapter = "module"
entry = "userpkg.moe:build_layer"
shapes = ["mixtral-8x7b"]
variant = "cpu"
meshes = ["ep"]
timeout_min = 1
"""
CONFIG = f"{_TRACED}timed = []\n"
"""One entry, traced and not timed."""
TIMED_CONFIG = f"{_TRACED}[session]\nsteps = 5\nwarmup = 1\n"
"""The same entry, timed too, in runs as short as they can be."""


def write_repository(root: Path, layer: str = GOOD_LAYER, config: str = CONFIG) -> Path:
    """``root`` with ``userpkg/moe.py`` and ``regbot.toml``."""
    (root / "userpkg").mkdir(parents=True, exist_ok=True)
    (root / "userpkg" / "__init__.py").write_text("")
    (root / "userpkg" / "moe.py").write_text(layer)
    (root / "regbot.toml").write_text(config)
    return root


def layer_task(entry: str = "userpkg.moe:build_layer", timeout_min: float = 1.0, python: str = "") -> Task:
    """The task that traces this repository's layer: Mixtral's cpu variant on two ranks."""
    workload = Workload(
        adapter="module", entry=entry, shapes=["mixtral-8x7b"], variant="cpu", timeout_min=timeout_min, python=python
    )
    return single_task("moe", workload, load_shape("mixtral-8x7b"), "ep")


STEPS = 6
"""Steps of one run under ``TIMED_CONFIG``."""
ARM = Arm(name="head", revision="x", commit="a" * 40, tree="b" * 40)
LIMITS = Limits(max_output_bytes=64 * 1024, max_record_bytes=2**20)


def launch(
    folder: Path,
    layer: str = GOOD_LAYER,
    timeout_min: float = 2.0,
    python: str = "",
    profile: str = "",
    limits: Limits = LIMITS,
) -> Run:
    """One timed run of ``layer`` on two ranks, in ``folder``. ``profile``: why steps are profiled, and none counted."""
    root = write_repository(folder / "repository", layer)
    task = layer_task(timeout_min=timeout_min, python=python)
    place = RunSpec(Position(block=1, slot=0, order="BAAB"), 1, STEPS, 1, profile_reason=profile)
    return time_run(task, place, Checkout(ARM, root), LocalEngine().unlocked_seat, Scratch(folder / "scratch", limits))


def genuine_runs(folder: Path) -> None:
    """What regbot's guest makes of the good layer, for ``replay``: ``run.json``, and the raw records of a timed run
    and of a trace."""
    run = launch(folder)
    assert run.outcome == "ok", run.reason
    write_record(folder / "run.json", run)
    traced = trace(layer_task(), Checkout(ARM, folder / "repository"), LocalEngine(), Scratch(folder / "trace", LIMITS))
    assert traced.outcome == "ok", traced.reason


REPLAY = '''\
#!{python} -IS
"""In place of an interpreter that runs regbot's guest: leaves what the guest left before, once more."""
import json, os, pathlib, signal, sys, time

request = json.load(open(sys.argv[-1]))
path = pathlib.Path(request["record"])
traced, *records = [json.loads(text) for text in {records!r}]
marks = ["steps.begun", "steps.steady", "steps.ended"]


def shorten(record, steps):
    for name, values in record["steps"].items():
        if isinstance(values, list):
            del values[steps:]
    del record["loss"][steps:]


def longer(record):
    for name, values in record["steps"].items():
        if isinstance(values, list):
            values.append(values[-1])
    record["loss"].append(record["loss"][-1])


def scale(record, factor):
    for name in ("step_s", "cpu_s", "wait_s"):
        record["steps"][name] = [factor * each for each in record["steps"][name]]


def refuse(record, message):
    record["refusal"] = {{"kind": "code", "message": message, "where": ""}}


def total():
    return sum(records[0]["steps"]["step_s"])


for record in (traced, *records):
    record["request"] = request["request"]
if request["mode"] == "static":
    path.write_text(json.dumps(traced))
    sys.exit()
pace = {pace} * len(records[0]["steps"]["step_s"]) / total()
for record in records:
    scale(record, pace)
    shorten(record, request["steps"])
seconds = total()
warm = request["warmup"] / max(request["steps"], 1)
{change}
if marks:
    (path.parent / marks[0]).touch()
    time.sleep(seconds * min(warm, 1))
    (path.parent / marks[1]).touch()
    time.sleep(seconds * (1 - min(warm, 1)))
    (path.parent / marks[-1]).touch()
for rank, record in enumerate(records):
    (path.parent / f"raw.{{rank}}.json").write_text(json.dumps(record))
'''
PACE_S = 0.05
"""Mean step time of what is left once more."""


def replay(made: Path, genuine: Path, change: str = "") -> Path:
    """Write to ``made`` an interpreter for a workload's ``python``. It leaves the records of ``genuine_runs`` once
    more, at another pace and in the time that they then tell of, which costs no start of torch.

    ``change`` is Python that is run before a timed run's records are written, and may do anything to ``records``,
    ``marks`` and ``seconds``.
    """
    files = [genuine / "trace/record/raw.json", *sorted((genuine / "scratch/record").glob("raw.*.json"))]
    texts = [file.read_text() for file in files]
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(REPLAY.format(python=sys.executable, records=texts, change=change, pace=PACE_S))
    made.chmod(0o755)
    return made
